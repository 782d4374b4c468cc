"""Command lines of torchrun, one agent per node: with c10d or static rendezvous. Pure.

Restarts in place are the launcher's own (a new generation has a new port), so the agent gets none. Who hosts the store
is said outright: torchrun compares names and addresses otherwise, and hosts it nowhere when they do not match.
"""

from __future__ import annotations

import sys

from trainpkg.launch.network import is_loopback
from trainpkg.launch.plan import LaunchPlan
from trainpkg.launch.spec import Spec

# those of torchrun's default, and the one that Slurm is asked to send ahead of the time limit
SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR2"
SAVING_S = 60  # beyond the time that Slurm gives: ranks that save are not killed by their agent
GUARD = ["-m", "trainpkg.launch.start.guard"]


def agent_command(spec: Spec, plan: LaunchPlan, index: int, local_addr: str, scratch: str) -> list[str]:
    """What node `index` runs. `local_addr`: its own address towards the master; `scratch`: a folder of this node's."""
    endpoint = f"[{plan.master_addr}]" if ":" in plan.master_addr else plan.master_addr
    wait_s = max(1, int(spec.timeouts.start_s))
    command = [sys.executable, "-m", "torch.distributed.run"]
    command += [f"--nnodes={plan.num_nodes}", f"--nproc-per-node={plan.nodes[index].num_ranks}"]
    if spec.backend == "torchrun":
        conf = {"is_host": int(index == 0), "join_timeout": wait_s, "read_timeout": wait_s, "last_call_timeout": 1}
        command += ["--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}:{plan.master_port}"]
        command += [f"--rdzv-id={rendezvous_id(spec, plan)}", f"--local-addr={local_addr}"]
    else:
        conf = {"timeout": wait_s}
        command += ["--rdzv-backend=static", f"--node-rank={index}", f"--rdzv-id={rendezvous_id(spec, plan)}"]
        command += [f"--master-addr={plan.master_addr}", f"--master-port={plan.master_port}"]
    command.append(f"--rdzv-conf={','.join(f'{key}={value}' for key, value in conf.items())}")
    command += ["--max-restarts=0", "--monitor-interval=0.1", f"--signals-to-handle={SIGNALS}"]
    command += [f"--shutdown-timeout={int(spec.deadline_lead_s) + SAVING_S}", f"--log-dir={scratch}"]
    return command + GUARD


def rendezvous_id(spec: Spec, plan: LaunchPlan) -> str:
    """No two starts share it, so that nobody waits in the rendezvous of another one."""
    return "-".join([spec.slurm_job_id or "local", spec.run, str(spec.attempt), str(plan.generation), spec.nonce])


def order_of_ranks(addresses: list[str]) -> list[int]:
    """Nodes in the order in which c10d gives them ranks: by their addresses as text, 10.0.0.10 before 10.0.0.9."""
    return sorted(range(len(addresses)), key=lambda index: addresses[index])


def simulated_address(spec: Spec, index: int, master_addr: str) -> str:
    """The address of a simulated node: one of loopback's own for each, as agents on one machine need them."""
    if index == 0:
        return master_addr
    host = spec.hosts[index]
    return host if is_loopback(host) else f"127.0.{(index + 1) // 256}.{(index + 1) % 256}"
