# Tables and plots of all runs, from their files alone.


rule summarise:
    input:
        all_results,
    output:
        runs=report(
            f"{RESULTS}/tables/runs.csv",
            category="Tables",
            caption="../report/runs.rst",
        ),
        runs_parquet=f"{RESULTS}/tables/runs.parquet",
        steps=f"{RESULTS}/tables/steps.parquet",
        loss_over_steps=report(
            f"{RESULTS}/plots/loss_over_steps.svg",
            category="Plots",
            caption="../report/loss_over_steps.rst",
        ),
        loss_over_time=report(
            f"{RESULTS}/plots/loss_over_time.svg",
            category="Plots",
            caption="../report/loss_over_time.rst",
        ),
        throughput=report(
            f"{RESULTS}/plots/throughput_over_world_size.svg",
            category="Plots",
            caption="../report/throughput_over_world_size.rst",
        ),
    log:
        "logs/summarise.log",
    conda:
        "../envs/trainpkg.yaml"
    resources:
        config_args=CONFIG_ARGUMENTS,
    params:
        python=sys.executable,
    shell:
        "{params.python:q} -m trainpkg summarise {resources.config_args}"
        ' --out "$(dirname {output.runs:q})"/.. > {log:q} 2>&1'
