# Train the runs of config/runs.tsv, evaluate them and write tables and plots.
#   snakemake smoke_test                                  prove every topology on few nodes first
#   snakemake                                             everything, on this machine
#   snakemake --executor slurm --profile cluster          everything, as Slurm jobs
import sys

from snakemake.utils import min_version

min_version("9.27")


configfile: "config/config.yaml"


report: "workflow/report/workflow.rst"


include: "workflow/rules/common.smk"
include: "workflow/rules/smoke.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/evaluate.smk"
include: "workflow/rules/summarise.smk"


# The runs' results stand here too: the hooks below write the tables also when runs are missing, and a missing input of a
# rule whose outputs are there is nothing that Snakemake would make.
rule all:
    input:
        all_results,
        rules.summarise.output,
    localrule: True


rule smoke_test:
    input:
        all_smoke_results,
    localrule: True


# A rule that needs every evaluation never runs when one run failed; the tables are wanted all the same.
onsuccess:
    shell("{sys.executable:q} -m trainpkg summarise {CONFIG_ARGUMENTS}")


onerror:
    shell("{sys.executable:q} -m trainpkg summarise {CONFIG_ARGUMENTS}")
