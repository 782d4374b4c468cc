"""Start ranks on nodes and tell what went wrong. Nothing below this package imports torch.

Once per job, in `launch`:
    job          the subcommand: lock, attempt, nodes, verdict        lock        one writer per run directory
    attempt      files and rules of an attempt                        spec        what all nodes are told (spec.json)
    places       where node processes run: srun, or simulated         screen      what people see
    rollcall     the coordinator: who is there, which address works   conduct     generations of ranks, to a verdict
    generation   the state of one generation                          watch       silence and pace of nodes
    failure      which exit is the cause, which are its victims
Once per node, in `node` (the standard library alone):
    node         starts and watches the ranks of one node             ranks       their reports and ends
    facts        what a node tells of itself; contradictions          call        the way to the coordinator
    environment  of the fork server and of each rank                  backends    how ranks start
    zygote       the fork server that imported torch once             enter       last steps before a rank's own code
Below both:
    plan         who is which rank: pure, printable                   topology    flags against environment
    slurm        the allocation that the environment tells            grammar     Slurm's notations
    network      addresses, interfaces, ports                         wire        authenticated JSON lines
    processes    process trees and their ends                         tether      a program that dies with its parent
"""
