# One job per run. Checkpoints are no output: Snakemake deletes the outputs of failed jobs.


rule train:
    input:
        inputs,
        smoke=ancient(smoke_result),
    output:
        f"{RESULTS}/runs/{{run}}/train.json",
    log:
        "logs/train/{run}.log",
    group:
        shared_job("train")
    conda:
        "../envs/trainpkg.yaml"
    threads: cpus
    resources:
        **EVERY_JOB,
        nodes=nodes,
        tasks=nodes,
        mpi=lambda wildcards, attempt: mpi(wildcards, nodes(wildcards, attempt)),
    params:
        python=sys.executable,
        fingerprint=fingerprint,
    shell:
        "{params.python:q} -m trainpkg launch train {resources.config_args} --run {wildcards.run:q}"
        " {resources.tries} --out {output:q} 2>&1 | tee -i {log:q}"
