# Exact evaluation of a finished run, on its own nodes or fewer.


rule evaluate:
    input:
        trained,
    output:
        f"{RESULTS}/runs/{{run}}/evaluation.json",
    log:
        "logs/evaluate/{run}.log",
    group:
        shared_job("evaluate")
    conda:
        "../envs/trainpkg.yaml"
    threads: cpus
    resources:
        **EVERY_JOB,
        nodes=nodes_to_evaluate,
        tasks=nodes_to_evaluate,
        mpi=lambda wildcards, attempt: mpi(wildcards, nodes_to_evaluate(wildcards, attempt)),
    params:
        python=sys.executable,
        chosen=chosen_weights,
    shell:
        "{params.python:q} -m trainpkg launch evaluate {resources.config_args} --run {wildcards.run:q}"
        " {resources.tries} --out {output:q} 2>&1 | tee -i {log:q}"
