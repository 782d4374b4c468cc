"""What is wrong with a machine, or with a batch script, before a job pays for it. Standard library, no torch.

Rows (`rows`) of check, finding, verdict and fix come from small functions of a `machine`, which tests replace by a tree
of files. `command` is the subcommand, `checks` the list of what is looked at on the login node and on compute nodes
(there in a smoke test, which `head.examine` asks for):

    limits       /dev/shm, open files, locked memory, CPUs       names       DNS, loopback names, proxies
    storage      results_dir, temporary folder, file times       software    Python, torch, NCCL, CUDA, search paths
    cluster      Slurm's programs and controller                 fabric      interfaces, InfiniBand, settings
    gpus         device files and driver                         nodes       all of it on all nodes, and what differs
"""
