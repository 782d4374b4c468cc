"""Start ranks on nodes and tell what went wrong. Nothing below this package imports torch.

head      once per job, in `launch`:
    job          the subcommand: lock, attempt, nodes, verdict        lock        one writer per run directory
    planning     what the next attempt is: hosts, limits
    attempt      files and rules of an attempt                        history     whether another attempt is worth it
    screen       what people see                                      requeue     the job's own way back into the queue
    examine      the doctor's questions, in a smoke test              words       first and last lines
    command      a node's: prologue, wrapper, python                   settings    what is said of nodes' environments
    places       where node processes run: srun, or simulated         watch       silence and pace of nodes
    missing      how long nodes are waited for, why some are missing  addresses   whose they are, what names mean
    proof        nodes reach each other and the ranks' meeting point
    rollcall     the coordinator: who is there, which address works   conduct     generations of ranks, to a verdict
    generation   the state of one generation                          failure     which exit is the cause, which victims
    outcome      how an attempt ended                                 sentences   what is said of a failure
    late         what has not happened in time                        hang        whom the others wait for
    rankstate    what is known of one rank                            deadline    when a job must stop
    units        what tells of its end: ranks, or programs            own         a program of the user's as a run
    member       a node at the coordinator's end                      reception   answers nodes that people typed
    step         an srun or mpirun of ours, and what it says          rank_steps  the one whose tasks are the ranks
    mpi          which way MPI is started here                        step_words  what srun's words tell of ends
node      once per node, in `node` (the standard library alone):
    command      the subcommand: started by `launch`, or typed        ranks       their reports and ends
    node         starts and watches the ranks of one node
    environment  of the fork server and of each rank                  call        the way to the coordinator
    orders       what its ranks of one generation are
    prove        a node's part in the proof of addresses and ports    evidence    logs, memory, stacks, step counters
start     how the processes of ranks come into being:
    starter      the protocol                                         choose      the one that a spec asks for
    fork         from a fork server (zygote) that imported torch once execute     a program of its own per rank
    enter        last steps before a rank's own code
    identity     which rank a process of another launcher is          meeting     where such ranks meet
    program      one program of somebody else's per node              command     its line, from a template
    torchrun     its line, for c10d and static rendezvous
    guard        what foreign launchers start in place of a rank      guards      the node's side of guards
    mpi          which rank MPI makes of a task
typed     `node`, typed once per machine where there is no Slurm:
    command      flags and variables, one machine's word              agreement   two machines' words compared
    lead         node 0: `launch` behind HOST:PORT                    join        every other: call, prove, take part
    address      HOST as each machine must find it                    secret      the file that all share
    keeper       the process that people see keeps the node
calls     `trainpkg.launch.spawn`: a function as ranks of this machine, from Python:
    spawn        starts, waits, ends                                  function    what another process can be sent
    rank         a started process becomes a rank                     failure     which end is the cause
    sweep        ends what ranks left, also when the parent is killed
slurm     what Slurm says:
    allocation   the job and step that the environment tells          grammar     notations of hosts, counts, GPUs
    het          jobs of several parts, as one
    conf         SLURM_CONF where it was lost on the way              ask          what the controller says of nodes
    control      what the controller says of jobs; a requeue
doctor    what is wrong with a machine or a batch script before a job pays for it; a map of its own in its package
Below all:
    plan         who is which rank: pure, printable                   topology    flags against environment
    spec         what all nodes are told (spec.json)                  facts       what a node tells; contradictions
    network      own addresses and interfaces                         ports       chosen by a seed, held, or a site's
    reach        connections, and what a failed one means             names       lookups and their time
    wire         authenticated JSON lines, heartbeats
    processes    process trees and their ends                         tether      a program that dies with its parent
    unix         sockets between processes of one node                ranges      blocks of ranks that overlap or gap
    subnet       the network of an address
    stacks       where a process is that does nothing                 memory      memory cgroups: limits, OOM kills
    (trainpkg.variables and trainpkg.presets: names that torch, NCCL and gloo read; settings of kinds of networks)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainpkg.launch.calls.failure import RankFailedError
    from trainpkg.launch.calls.spawn import Spawned, spawn

__all__ = ["RankFailedError", "Spawned", "spawn"]


def __getattr__(name: str) -> Any:
    """`trainpkg.launch.spawn` and its types, imported when somebody asks for them."""
    if name in __all__:
        from trainpkg.launch.calls import spawn

        return getattr(spawn, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
