# Prove a topology on few nodes before any run is trusted to it; once per topology, not per run.


rule smoke:
    output:
        f"{RESULTS}/smoke/{{topology}}.json",
    log:
        "logs/smoke/{topology}.log",
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
        run=lambda wildcards: run_of(wildcards).run,
    shell:
        "{params.python:q} -m trainpkg launch smoke {resources.config_args} --run {params.run:q}"
        " {resources.tries} --out {output:q} 2>&1 | tee -i {log:q}"
