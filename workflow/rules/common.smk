# The only functions of the workflow: read and check the sheet once; what each rule asks of Slurm.
import functools
import inspect
import json
import re
import shlex
from pathlib import Path

import yaml
from snakemake.common import overwrite_function_params
from snakemake.exceptions import WorkflowError
from snakemake.resources import Resource, Resources
from trainpkg import contract, sheet
from trainpkg.config.submission import signal_trouble
from trainpkg.errors import UserError
from trainpkg.launch.head import history

try:
    # A job knows its own run, and has no use for the others.
    SHEET = sheet.load(config, lazily=workflow.remote_exec, tried=contract.problems)
except UserError as error:
    raise WorkflowError(str(error)) from None

RESULTS = SHEET.results_dir.as_posix()
WHERE = Path(workflow.modifier.path_modifier.replace_prefix(RESULTS))  # also as a module with a prefix


def config_arguments():
    """How a subcommand finds this config: by its file where that says it all, else by value (module, --config)."""
    for path in workflow.configfiles:
        if yaml.safe_load(Path(path).read_text()) == config:
            return f"--config {shlex.quote(str(path))}"
    return f"--config-json {shlex.quote(json.dumps(config))}"


CONFIG_ARGUMENTS = config_arguments()
STAGES = ("train", "evaluate")


def run_of(wildcards, attempt=1):
    """The run that a job is for; a smoke test takes the first run of its topology.

    `launch` ends a retry at once that would change nothing. No way leads past Snakemake's count of retries, so such a
    job at least waits for no nodes.
    """
    if hasattr(wildcards, "topology"):
        run, home = SHEET.first_with(wildcards.topology), f"smoke/{wildcards.topology}"
    else:
        run, home = SHEET.runs[wildcards.run], f"runs/{wildcards.run}"
    home = WHERE / home
    alone = run.slurm.runs_per_job == 1  # those that share a job ask for the same
    vain = attempt > 1 and alone and history.why_not_again(home / "launch", home, attempt, None)
    return run.smallest() if vain else run


def fingerprint(wildcards):
    return run_of(wildcards).fingerprint()


def chosen_weights(wildcards):
    """What an evaluation is of: another choice is another evaluation."""
    evaluate = run_of(wildcards).evaluate
    return [evaluate.checkpoint, evaluate.weights]


def go_on_after_a_failure():
    """In a Slurm job that runs share, one that fails does not keep the others from being tried. Snakemake tells its jobs
    nothing of --keep-going, and has its settings only once inputs are asked for."""
    if workflow.remote_exec:
        workflow.execution_settings.keep_going = True


def trained(wildcards):
    go_on_after_a_failure()
    return f"{RESULTS}/runs/{wildcards.run}/train.json"


def smoke_result(wildcards):
    go_on_after_a_failure()
    return f"{RESULTS}/smoke/{sheet.topology(run_of(wildcards))}.json"


def inputs(wildcards):
    """What a run needs beside us, from whichever rule makes it. A module's prefix is for what is ours; `local` keeps it
    away from these paths."""
    return [local(path) for path in run_of(wildcards).inputs]


def all_smoke_results(wildcards):
    return [f"{RESULTS}/smoke/{topology}.json" for topology in SHEET.topologies()]


def all_results(wildcards):
    """What each run ends with: its evaluation, or for a program of the user's own, which has none, its training."""
    last = {name: "train.json" if run.own_program else "evaluation.json" for name, run in SHEET.runs.items()}
    return [f"{RESULTS}/runs/{name}/{file}" for name, file in last.items()]


@functools.cache
def shared_jobs():
    """What runs share Slurm jobs, after a look at the profile: without its lines such a job would ask for the nodes of
    all its runs at once, or hold one run."""
    found = {} if workflow.remote_exec else SHEET.shared_jobs()  # in the job itself they are jobs of their own
    sequence = "machine" in workflow.global_resources.keys() and workflow.resource_scopes.is_local("machine")
    together = workflow.group_settings.group_components.get("shared", 1) > 1
    if found and workflow.non_local_exec and not (sequence and together):
        raise WorkflowError(
            "slurm.runs_per_job > 1 needs three lines of cluster/profile.yaml in the profile: resources: {machine: 1}, "
            "set-resource-scopes: {machine: local}, group-components: {shared: 1000}"
        )
    workflow.parent_groupids.update({f"{stage}-{job}": "shared" for job in found.values() for stage in STAGES})
    return found


def shared_job(stage):
    """Snakemake's group of a run's stage, None for a job of its own; evaluations apart, so that they have their own
    end: Snakemake takes a group for failed as a whole."""

    def group(wildcards):
        job = shared_jobs().get(wildcards.run)
        return job and f"{stage}-{job}"

    return group


def shown(file, category, caption=None, **labels):
    """A result that `snakemake --report` shows in a category, with the caption of its name."""
    return report(
        f"{RESULTS}/{file}",
        category=category,
        caption=f"../report/{caption or Path(file).stem}.rst",
        labels=labels,
    )


def tries(wildcards, attempt):
    """Which of Snakemake's attempts this is, and whether the Slurm job is there for it alone (not a notebook's, say)."""
    own_job = " --requeue" if workflow.remote_exec else ""
    return f"--retry {attempt}{own_job}"


def nodes(wildcards, attempt=1):
    run = run_of(wildcards, attempt)
    return min(run.launch.nodes, run.smoke.max_nodes) if hasattr(wildcards, "topology") else run.launch.nodes


def nodes_to_evaluate(wildcards, attempt=1):
    return run_of(wildcards, attempt).evaluate.nodes or nodes(wildcards, attempt)


def mpi(wildcards, nodes):
    """The key makes the executor add no job step of its own; "" (one node) also skips its rules for MPI jobs."""
    return "srun" if nodes > 1 else ""


def from_profile(name, wildcards, attempt, threads, input=None):
    """What the profile's default-resources say of a resource that the function of the same name would otherwise hide."""
    resource = (workflow.resource_settings.default_resources or {}).get(name)
    if resource is None or resource.raw == Resources.DEFAULTS["full"].get(name.removesuffix("_mb")):
        return None  # nothing said, or Snakemake's own guess from the size of inputs
    known = {"input": input, "attempt": attempt, "threads": threads, "rulename": "", "async_run": workflow.async_run}
    return resource.evaluate(wildcards, **known).value


def cpus(wildcards, attempt=1):
    return run_of(wildcards, attempt).slurm.cpus_per_task


def mem_mb(wildcards, input, attempt, threads):
    own = run_of(wildcards, attempt).slurm.mem_mb
    if own is None:
        own = from_profile("mem_mb", wildcards, attempt, threads, input)
    return 8000 if own is None else own


def runtime(wildcards, attempt, threads):
    run = run_of(wildcards, attempt)
    own = run.smoke.runtime if hasattr(wildcards, "topology") else run.slurm.runtime
    return own or from_profile("runtime", wildcards, attempt, threads) or 60


def partition(wildcards, attempt, threads):
    run = run_of(wildcards, attempt)
    own = run.slurm.partition
    if hasattr(wildcards, "topology"):
        own = run.slurm.smoke_partition or own
    return own or from_profile("slurm_partition", wildcards, attempt, threads)


def account(wildcards, attempt, threads):
    return run_of(wildcards, attempt).slurm.account or from_profile("slurm_account", wildcards, attempt, threads)


def qos(wildcards, attempt, threads):
    return run_of(wildcards, attempt).slurm.qos or from_profile("qos", wildcards, attempt, threads)


def constraint(wildcards, attempt, threads):
    return run_of(wildcards, attempt).slurm.constraint or from_profile("constraint", wildcards, attempt, threads)


def gpu_option(run):
    """The option that asks for GPUs per node, or None: the executor's own `gpu` is a total that Slurm splits unevenly."""
    asked = run.slurm.gpu_request
    if asked == "auto":
        asked = "none" if run.launch.device == "cpu" else "gres"
    if asked == "none" or run.launch.gpus_per_node is None:
        return None
    kind = run.slurm.gpu_type or ""
    return "gpus-per-node" if "-" in kind else asked  # the executor refuses gres=gpu:a100-sxm4:4


def gpus_per_node(run):
    """Such as 4 or a100:4."""
    return ":".join([*filter(None, [run.slurm.gpu_type]), str(run.launch.gpus_per_node)])


def gres(wildcards, attempt, threads):
    run = run_of(wildcards, attempt)
    if gpu_option(run) == "gres":
        return f"gpu:{gpus_per_node(run)}"
    return from_profile("gres", wildcards, attempt, threads)


def slurm_extra(wildcards, attempt, threads):
    """sbatch options that the executor has no resource for; the profile's and the run's own are appended to ours."""
    run = run_of(wildcards, attempt)
    slurm = run.slurm
    options = ["--ntasks-per-node=1", "--open-mode=append"]
    minutes = Resource.parse_human_friendly("runtime", runtime(wildcards, attempt, threads))
    warning = slurm.warning(60 * minutes)
    options += [f"--signal={warning}"] if warning else []
    options += [f"--nodelist={slurm.nodelist}"] if slurm.nodelist else []
    options += [f"--exclude={slurm.exclude}"] if slurm.exclude else []
    options += [f"--gpus-per-node={gpus_per_node(run)}"] if gpu_option(run) == "gpus-per-node" else []
    if run.launch.gpus_per_node is None and run.launch.device != "cpu":
        options.append("--exclusive")  # all GPUs that a node has
    site = from_profile("slurm_extra", wildcards, attempt, threads) or ""
    for value in re.findall(r"--signal[= ](\S+)", site):
        if trouble := signal_trouble(value.strip("'\"")):
            raise WorkflowError(f"the profile's slurm_extra has --signal={value}: {trouble}")
    return " ".join([*options, site.strip("'\""), slurm.extra]).strip()


# What every job that launches ranks asks for, beside its nodes. tasks_per_gpu=0: the executor would start one task per
# GPU. machine: the default profile lets one such job at a time use this machine; nothing limits it under Slurm.
# config_args is no param: params trigger re-runs, and where the config stands is not part of what a run is.
EVERY_JOB = {
    "gres": gres,
    "tasks_per_gpu": 0,
    "cpus_per_task": cpus,
    "mem_mb": mem_mb,
    "runtime": runtime,
    "slurm_extra": slurm_extra,
    "machine": 1,
    "config_args": CONFIG_ARGUMENTS,
    "tries": tries,
}


def said(*keys):
    """Whether some run says something of these keys of `slurm`; the profile's default-resources stand by themselves."""
    return workflow.remote_exec or any(getattr(run.slurm, key) for run in SHEET.runs.values() for key in keys)


# Planning thousands of runs is mostly Snakemake's evaluation of resources: what nobody asks for is none, and signatures,
# which Snakemake takes of each function at each call, are made once.
EVERY_JOB |= {"slurm_partition": partition} if said("partition", "smoke_partition") else {}
EVERY_JOB |= {"slurm_account": account} if said("account") else {}
EVERY_JOB |= {"qos": qos} if said("qos") else {}
EVERY_JOB |= {"constraint": constraint} if said("constraint") else {}
for function in [Resource.evaluate, nodes, nodes_to_evaluate, *filter(callable, EVERY_JOB.values())]:
    overwrite_function_params(function, inspect.signature(function).parameters)
