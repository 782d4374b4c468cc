# Tables, plots and pages of all runs, from their files alone. What the report shows is marked by `shown`.


rule summarise:
    input:
        all_results,
    output:
        runs=shown("tables/runs.html", "Runs", table="runs"),
        runs_csv=shown("tables/runs.csv", "Runs", "runs", table="runs, as CSV"),
        seeds=shown("tables/seeds.html", "Runs", table="seeds aggregated"),
        loss_over_steps=shown("plots/loss_over_steps.svg", "Learning", plot="loss over steps"),
        loss_over_data=shown("plots/loss_over_data.svg", "Learning", plot="loss over tokens or samples"),
        loss_over_time=shown("plots/loss_over_time.svg", "Learning", plot="loss over time"),
        evaluation=shown("plots/evaluation_over_steps.svg", "Learning", plot="evaluation over steps"),
        sweep=shown("plots/sweep.svg", "Learning", plot="parameters against the metric"),
        scaling=shown("plots/throughput_over_world_size.svg", "Speed and cost", show="scaling"),
        throughput=shown("plots/throughput_over_steps.svg", "Speed and cost", show="throughput over steps"),
        memory=shown("plots/memory.svg", "Speed and cost", show="memory"),
        restarts=shown("plots/restarts.svg", "Speed and cost", show="attempts over time"),
        attempts=shown("tables/attempts.html", "Speed and cost", show="attempts, as a table"),
        failures=shown("tables/failures.html", "Failures", table="failures"),
        plan=shown("tables/plan.html", "Plan and smoke tests", table="where ranks ran"),
        smoke=shown("tables/smoke.html", "Plan and smoke tests", table="smoke tests"),
        runs_parquet=f"{RESULTS}/tables/runs.parquet",
        steps=f"{RESULTS}/tables/steps.parquet",
    log:
        "logs/summarise.log",
    localrule: True
    conda:
        "../envs/trainpkg.yaml"
    resources:
        config_args=CONFIG_ARGUMENTS,
    params:
        python=sys.executable,
    shell:
        "{params.python:q} -m trainpkg summarise {resources.config_args}"
        ' --results "$(dirname {output.runs:q})"/.. > {log:q} 2>&1'
