"""A real Slurm of several nodes on one machine, for tests and for people.

In Python: `with Lab(num_nodes=3, gpus_per_node=4) as lab: lab.run(["srun", "-N3", "hostname"])`.
As a command: `python -m tests.cluster.lab [--nodes N] [--gpus G] shell` or `... run COMMAND...`.
Needs root and the programs that machine.py lists; standard library only. Debian 12 (Slurm 22.05) and 13 (24.11).

The lab lives in one tree of PID, mount, network, host name and IPC namespaces (namespaces.py): the controller, which is
the submit host too, with a bridge; each node below it with its own address, host name, processes, /tmp and /dev/shm.
Nothing of the machine's network, /etc or /run is touched, several labs may run at once, and killing one process ends
all of it. On the machine there is one directory, /var/tmp/trainpkg-lab-*, which stands for the shared file system.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.cluster import machine, slurm_config
from tests.cluster.machine import CHECKOUT, SLURM_CONF_DIR, clean_environment, make_work_dir, missing, own_tmp
from tests.cluster.namespaces import Entered, Realm

CTL = "ctl"
DAEMON = re.compile(r"\S*\b(slurmd|slurmstepd)\b")


class Lab:
    """`shared`: further directories below /tmp that all nodes must see (the checkout is among them by itself).

    `conf`: lines of slurm.conf to replace or add. `shared_dir` is the place for files of tests: all nodes see it.
    """

    def __init__(
        self,
        num_nodes: int = 3,
        gpus_per_node: int = 4,
        *,
        conf: Mapping[str, object] | None = None,
        shared: Iterable[Path] = (),
    ) -> None:
        self.num_nodes = num_nodes
        self.gpus_per_node = gpus_per_node
        self.nodes = slurm_config.node_names(num_nodes)
        self.conf = dict(conf or {})
        self.shared = {CHECKOUT, Path(sys.prefix).resolve(), *(path.resolve() for path in shared)}
        self.realms: dict[str, Realm] = {}
        self.daemons: dict[str, subprocess.Popen[str]] = {}

    # --- up and down ---

    def __enter__(self) -> Lab:
        if lack := missing():
            raise RuntimeError(lack)
        self.work_dir, lock = make_work_dir()
        self.shared_dir = self.work_dir / "shared"
        owner = os.pidfd_open(os.getpid())
        try:
            slurm_config.write_files(self.work_dir, self.num_nodes, self.gpus_per_node, self.conf)
            self.realms[CTL] = Realm(None, [str(owner), str(self.work_dir)], pass_fds=[owner, lock])
            self._start_controller()
            for name in self.nodes:
                self.boot(name)
            self.wait_until(self._all_idle, "all nodes idle")
        except BaseException as error:
            error.add_note(self.logs())
            self.close()
            raise
        finally:
            os.close(owner)
            os.close(lock)  # PID 1 holds it from here on
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Return when nothing of the lab is left. May be called twice."""
        for realm in self.realms.values():  # the controller's first, and with it the nodes'
            realm.end()
        for daemon in self.daemons.values():
            daemon.wait()
        self.realms.clear()
        self.daemons.clear()
        shutil.rmtree(self.work_dir, ignore_errors=True)

    def _start_controller(self) -> None:
        self.realms[CTL].script(
            f"hostname {CTL}\n"
            f"mount --bind {self.work_dir}/etc {SLURM_CONF_DIR}\n"
            f"mount --bind {self.work_dir}/hosts /etc/hosts\n"
            "mount -t sysfs sysfs /sys\n"  # shows the network devices of the namespace it is mounted in
            + "".join(f"{line}\n" for line in machine.pmix_link(self.work_dir))
            + "ip link set lo up\n"
            "ip link add br0 type bridge\n"
            f"ip addr add {slurm_config.node_address(0)}/24 dev br0\n"
            "ip link set br0 up"
        )
        run = self.work_dir / "run"
        munge = ["--foreground", "--force", f"--key-file={self.work_dir}/munge.key", f"--socket={run}/munge.socket"]
        munge += [f"--pid-file={run}/munged.pid", f"--seed-file={run}/munged.seed", "--log-file=/dev/stderr"]
        self._start_daemon("munged", CTL, ["munged", *munge])
        self.wait_until(lambda: (run / "munge.socket").exists(), "the socket of munged")
        self.start_daemon(CTL)
        self.wait_until(self._controller_answers, "slurmctld to answer")

    def boot(self, node: str) -> None:
        """Make a node and start its daemon. Also the opposite of `crash`."""
        index = self.nodes.index(node) + 1
        realm = self.realms[node] = Realm(self.realms[CTL])
        self.realms[CTL].script(
            f"ip link add ve{index} type veth peer name eth0 address {slurm_config.node_mac(index)} "
            f"netns {realm.pid_outside}\n"
            f"ip link set ve{index} master br0 up"
        )
        realm.script(
            f"hostname {node}\n"
            "mount -t sysfs sysfs /sys\n"
            "mount -t tmpfs -o mode=1777 shm /dev/shm\n"
            f"ip addr add {slurm_config.node_address(index)}/24 dev eth0\n"
            "ip link set lo up\n"
            "ip link set eth0 up\n" + "\n".join(own_tmp(self.shared))
        )
        self.start_daemon(node)

    # --- use ---

    def run(
        self,
        argv: Sequence[str | Path],
        node: str = CTL,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        check: bool = True,
        timeout: float = 60,
        input: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run to the end on the submit host or a node, output captured as text. `env` is added to the environment."""
        pipe = subprocess.PIPE
        stdin = subprocess.DEVNULL if input is None else pipe
        with self.popen(argv, node, env=env, cwd=cwd, stdin=stdin, stdout=pipe, stderr=pipe) as process:
            try:
                out, err = process.communicate(input, timeout=timeout)
            except BaseException:
                process.kill()
                raise
        done = subprocess.CompletedProcess(list(map(str, argv)), process.returncode, out, err)
        if check and done.returncode:
            raise RuntimeError(f"{done.args} on {node} ended with {done.returncode}\n{out}\n{err}")
        return done

    def popen(
        self,
        argv: Sequence[str | Path],
        node: str = CTL,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        **keywords: Any,
    ) -> Entered:
        """As subprocess.Popen, in text mode; `send_signal`, `terminate` and `kill` reach the command itself."""
        environment = clean_environment(self.work_dir) | dict(env or {})
        return self.realms[node].popen(argv, cwd or self.shared_dir, env=environment, **keywords)

    def sbatch(self, script: str, *options: str, cwd: str | Path | None = None) -> str:
        """Submit lines of shell; the job's id."""
        return self.run(["sbatch", "--parsable", *options, "--wrap", script], cwd=cwd).stdout.strip()

    def job(self, job_id: str) -> dict[str, str]:
        """What `scontrol show job` says: JobState, Restarts, NodeList, ExitCode, ..."""
        text = self.run(["scontrol", "--oneliner", "show", "job", job_id]).stdout
        return dict(word.split("=", 1) for word in text.split() if "=" in word)

    def wait_job(self, job_id: str, *states: str, timeout: float = 30) -> dict[str, str]:
        """Wait until the job is in one of `states` (default: at an end), and return `job()`."""
        wanted = states or ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")
        self.wait_until(lambda: self.job(job_id)["JobState"] in wanted, f"job {job_id}: {', '.join(wanted)}", timeout)
        return self.job(job_id)

    def wait_jobs_gone(self, timeout: float = 30, *, cancel: bool = False) -> None:
        if cancel:
            self.run(["scancel", "--user=root"])
        self.wait_until(lambda: not self.run(["squeue", "--noheader"]).stdout.strip(), "no job left", timeout)

    @staticmethod
    def wait_until(condition: Callable[[], bool], what: str, timeout: float = 30) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {timeout:.0f} s in vain for {what}")
            time.sleep(0.05)

    def processes(self, pattern: str = "", *, daemons: bool = False) -> list[tuple[str, int, str]]:
        """(node, pid, command line) of the nodes' processes that match the expression; pids as the node counts."""
        realms = [(node, self.realms[node]) for node in self.nodes if node in self.realms]
        found = [(node, pid, cmdline) for node, realm in realms for _, pid, cmdline in realm.processes()]
        return [one for one in found if re.search(pattern, one[2]) and (daemons or not DAEMON.match(one[2]))]

    def kill(self, node: str, pid: int, sig: int = signal.SIGKILL) -> None:
        """Signal a process by the pid that the node knows it by (what `os.getpid()` says in the job)."""
        for machine_pid, node_pid, _ in self.realms[node].processes():
            if node_pid == pid:
                return os.kill(machine_pid, sig)
        raise ProcessLookupError(f"no process {pid} on {node}")

    # --- breaking things, and mending them ---

    def start_daemon(self, node: str) -> None:
        """slurmd on a node, slurmctld on `ctl`."""
        self._start_daemon(node, node, ["slurmctld" if node == CTL else "slurmd", "-D"])

    def stop_daemon(self, node: str) -> None:
        """What runs on the node goes on running; Slurm calls the node DOWN after SlurmdTimeout."""
        daemon = self.daemons.pop(node)
        daemon.terminate()
        daemon.wait(timeout=20)

    def link_down(self, node: str) -> None:
        """Cut the node's cable: it keeps its address and running processes, no packet passes."""
        self.realms[CTL].script(f"ip link set ve{self.nodes.index(node) + 1} down")

    def link_up(self, node: str) -> None:
        self.realms[CTL].script(f"ip link set ve{self.nodes.index(node) + 1} up")

    def crash(self, node: str) -> None:
        """Power cut: every process of the node dies at once and its cable goes. `boot` brings it back."""
        self.realms.pop(node).kill()
        self.daemons.pop(node).wait()
        # connections that cannot say goodbye would keep its network, and so its end of the cable, for minutes
        self.realms[CTL].script(f"ip link del ve{self.nodes.index(node) + 1} 2> /dev/null || true")

    def mend(self) -> None:
        """Undo all of the above, end all jobs, and wait until the cluster is as new."""
        if CTL not in self.daemons:
            self.start_daemon(CTL)
            self.wait_until(self._controller_answers, "slurmctld to answer")
        for node in self.nodes:
            if node not in self.realms:
                self.boot(node)
            elif node not in self.daemons:
                self.start_daemon(node)
            self.link_up(node)
        self.wait_jobs_gone(cancel=True)
        for node in self.nodes:  # sinfo calls a node idle until Slurm has noticed that its daemon is away
            self.wait_until(lambda node=node: self._daemon_answers(node), f"slurmd of {node} to answer")  # type: ignore[misc]
        if not self._all_idle():
            self.run(["scontrol", "update", f"nodename={','.join(self.nodes)}", "state=resume"], check=False)
        self.wait_until(self._all_idle, "all nodes idle")

    # --- looking ---

    def logs(self, num_lines: int = 40) -> str:
        """The ends of the daemons' logs, for the report of a failure."""
        parts = []
        for path in sorted((self.work_dir / "log").glob("[!m]*")):  # not munged's, which only ever says that it is well
            lines = path.read_text(errors="replace").splitlines()[-num_lines:]
            parts.append("\n".join([f"--- {path.name}", *lines]))
        return "\n".join(parts)

    def node_states(self) -> dict[str, str]:
        text = self.run(["sinfo", "--noheader", "--Node", "--partition=main", "--format=%N %t"]).stdout
        return {words[0]: words[1] for line in text.splitlines() if len(words := line.split()) == 2}

    def _all_idle(self) -> bool:
        return self.node_states() == dict.fromkeys(self.nodes, "idle")

    def _controller_answers(self) -> bool:
        return self.run(["scontrol", "ping"], check=False).returncode == 0

    def _daemon_answers(self, node: str) -> bool:
        return self.run(["scontrol", "show", "slurmd", node], node, check=False).returncode == 0

    def _start_daemon(self, name: str, realm: str, argv: list[str]) -> None:
        with (self.work_dir / "log" / f"{name}.log").open("a") as log:
            self.daemons[name] = self.popen(
                argv, realm, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.lab", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--gpus", type=int, default=4, help="per node")
    parser.add_argument("action", choices=["shell", "run"])
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    if lack := missing():
        print(lack, file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    command = arguments.command or [os.environ.get("SHELL", "/bin/bash")]
    with Lab(arguments.nodes, arguments.gpus) as lab:
        print(f"lab: nodes {' '.join(lab.nodes)}; directory that all see: {lab.shared_dir}", file=sys.stderr)
        signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is the command's (which would inherit SIG_IGN)
        status = lab.popen(command, cwd=Path.cwd()).wait()
    return status if status >= 0 else 128 - status  # as a shell shows a signal


if __name__ == "__main__":
    sys.exit(main())
