"""The process that a foreign launcher (torchrun, srun, mpirun, accelerate ...) starts in place of a rank.

`python -m trainpkg.launch.start.guard [--spec FILE] [--generation N]` learns from its environment which rank it is,
asks its node's launcher (see `guards`) what that rank runs, starts it as its child and tells how it ended. The child
inherits all open files and the launcher's variables, so PMI and its like go on working. Nothing outlives anything: the
rank dies with the guard, and the guard ends the rank when the launcher or the node is gone. The guard itself ends as
its rank did, by the same status or signal (0 under mpirun). Torch-free and small: there is one per rank.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from trainpkg.errors import UserError
from trainpkg.launch import processes, unix
from trainpkg.launch import spec as specs
from trainpkg.launch.spec import Spec
from trainpkg.launch.start import enter, mpi
from trainpkg.launch.start.identity import Identity, identify

ANSWER_TIMEOUT_S = 60.0  # the node's launcher may still be on its way to this generation
MAX_ANSWER = 16 * 1024 * 1024  # an environment has functions of the shell in it
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
# The kernel sends it when the thread that started this process ends: of a whole launcher, or alone. Nobody else does.
PARENT_GONE = signal.SIGRTMIN + 7
REPARENTED_S = 0.5  # a launcher's other threads end after the one that started this process


def main() -> NoReturn:
    """Never returns: the process ends as its rank does, or with 2 and a sentence."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # a launcher may have blocked some for its own threads' sake
    for signum in enter.IGNORED_UNTIL_HANDLED:
        signal.signal(signum, signal.SIG_IGN)
    parser = argparse.ArgumentParser(description="Starts one rank on behalf of a launcher that is not trainpkg's.")
    parser.add_argument("--spec", type=Path, default=os.environ.get("TRAINPKG_SPEC"), help="default: TRAINPKG_SPEC")
    parser.add_argument("--generation", type=int, default=os.environ.get("TRAINPKG_GENERATION", "0"))
    args = parser.parse_args()
    parent = os.getppid()
    processes.adopt_orphans()
    processes.die_with_parent(PARENT_GONE)  # handled, once there is a rank: its own children must go too
    try:
        if args.spec is None:
            raise UserError("TRAINPKG_SPEC is not set: this program is started through `python -m trainpkg launch`")
        spec = specs.read(Path(args.spec))
        try:
            me = mpi.identify(spec, args.generation, os.environ) if spec.mpi else identify(os.environ)
        except UserError as error:
            complain(spec, args.generation, str(error))
            raise
        node, order, listen = ask_node(spec, me, args.generation)
    except UserError as error:
        print(f"trainpkg: error: {error}", file=sys.stderr, flush=True)
        sys.exit(2)
    ended = Guard(node, order, listen, parent).run()
    # mpirun would kill the others at once, before they have said what they lost
    end_like(*((0, None) if spec.mpi == "mpirun" else ended))


def complain(spec: Spec, generation: int, text: str) -> None:
    """Tell a launcher of this host that this task cannot become a rank; which rank, it does not know itself."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as node, contextlib.suppress(OSError):
        node.settimeout(ANSWER_TIMEOUT_S)
        node.connect(unix.address_of(spec.report_address(0)))
        if unix.is_ours(node):
            hello = {"event": "guard", "generation": generation, "refused": f"{text} (on {socket.gethostname()})"}
            node.sendall(json.dumps(hello).encode() + b"\n")
            node.recv(1)  # until it has been read


def ask_node(spec: Spec, me: Identity, generation: int) -> tuple[socket.socket, dict[str, Any], socket.socket | None]:
    """The connection to this node's launcher, what it wants the rank to be, and the port held for it, if any."""
    address = os.environ.get("TRAINPKG_REPORT") or spec.report_address(_node_of(spec, me.rank, generation))
    node = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    node.settimeout(ANSWER_TIMEOUT_S)
    try:
        node.connect(unix.address_of(address))
        if not unix.is_ours(node):
            raise OSError(f"the listener there belongs to user {unix.peer_uid(node)}, not to {os.getuid()}")
        hello = {"event": "guard", "generation": generation, "pid": os.getpid(), "host": socket.gethostname()}
        hello |= {"rank": me.rank, "size": me.world_size, "local_rank": me.local_rank, "said": me.describe()}
        node.sendall(json.dumps(hello).encode() + b"\n")
        mark, fds, _, _ = socket.recv_fds(node, 1, 1)
        with node.makefile("rb") as lines:
            answer = json.loads(lines.readline(MAX_ANSWER)) if mark else {}
    except (OSError, ValueError) as error:
        raise UserError(
            f"{me.describe()}, on {socket.gethostname()} finds no launcher of its node at {address} ({error}): by "
            f"the plan this rank runs on another node, or that node's launcher has ended; see node-K.log beside this"
        ) from error
    if "env" not in answer:
        raise UserError(str(answer.get("refused") or "the node's launcher closed the connection"))
    node.settimeout(None)
    return node, answer, socket.socket(fileno=fds[0]) if fds else None


def _node_of(spec: Spec, rank: int, generation: int) -> int:
    """The node of a rank by the plan; several simulated ones share a machine. Real ones need no number."""
    if spec.where == "slurm":
        return 0
    path = spec.generation_dir(generation) / "plan.json"
    try:
        nodes = json.loads(path.read_text())["nodes"]
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"the plan {path} cannot be read: {error}") from error
    for node in nodes:
        if node["rank_offset"] <= rank < node["rank_offset"] + node["num_ranks"]:
            return int(node["index"])
    raise UserError(f"the launcher made this process rank {rank}, but the plan in {path} has no such rank")


class Guard:
    """The rank as a child of this process, from its start to its end."""

    def __init__(
        self, node: socket.socket, order: Mapping[str, Any], listen: socket.socket | None, parent: int
    ) -> None:
        self.node, self.order, self.listen, self.parent = node, order, listen, parent
        self.pid = 0
        self.orphaned = False

    def tell(self, **message: Any) -> None:
        """A line to the node; one that is gone has no use for it."""
        try:
            self.node.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self.orphaned = True

    def run(self) -> tuple[int | None, int | None]:
        """(exit code, signal) of the rank, with nothing left of what it started."""
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for signum in (*FORWARDED, PARENT_GONE, signal.SIGCHLD):
            signal.signal(signum, lambda *_: None)
        self.pid = self._fork()
        self.tell(event="started", pid=self.pid)
        poll = select.poll()
        poll.register(wake_read, select.POLLIN)
        poll.register(self.node, select.POLLIN)
        self._look_around()  # what happened before the handlers stood
        while os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            ready = {fd for fd, _ in poll.poll()}
            if self.node.fileno() in ready and not self._node_speaks():
                poll.unregister(self.node)
                self.orphaned = True
            if wake_read in ready:
                self._forward(os.read(wake_read, 4096))
            self._look_around()
        processes.kill_group(self.pid, signal.SIGKILL)  # before it is reaped and its id free for others
        code, killer = processes.ending(os.waitpid(self.pid, 0)[1])
        processes.kill_descendants()  # what it started in sessions of their own
        self.tell(event="exited", pid=self.pid, exit_code=code, signal=killer, orphaned=self.orphaned)
        return code, killer

    def _forward(self, numbers: bytes) -> None:
        for number in numbers:
            if number in FORWARDED:
                os.kill(self.pid, number)
        end = time.monotonic() + (REPARENTED_S if PARENT_GONE in numbers else 0.0)
        while os.getppid() == self.parent and time.monotonic() < end:
            time.sleep(0.005)

    def _node_speaks(self) -> bool:
        try:
            return bool(self.node.recv(4096))
        except OSError:
            return False

    def _look_around(self) -> None:
        """End the rank where nobody is left whom it could belong to."""
        if self.orphaned or os.getppid() != self.parent:
            self.orphaned = True
            processes.kill_group(self.pid, signal.SIGKILL)

    def _fork(self) -> int:
        env = dict(os.environ)
        for name, value in self.order["env"].items():
            env.pop(name, None) if value is None else env.update({name: value})
        if self.listen is not None:
            self.listen.set_inheritable(True)
            env["TRAINPKG_LISTEN_FD"] = str(self.listen.fileno())
        me = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                signal.set_wakeup_fd(-1)
                enter.become_rank(me, self.order["log"], env)
                os.execvpe(self.order["argv"][0], self.order["argv"], env)
            except BaseException:  # noqa: BLE001  # the frames above are the guard's and must never be reached
                traceback.print_exc()
            finally:
                os._exit(127)
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)  # as the child does: whoever comes first, a signal to the group finds it
        if self.listen is not None:
            self.listen.close()  # the rank holds the only copy: its death frees the port
        return pid


def end_like(code: int | None, signum: int | None) -> NoReturn:
    """End this process as another one ended; the launcher above sees the rank's own end."""
    sys.stdout.flush()
    sys.stderr.flush()
    if signum is not None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))  # the rank dumped
        if signum not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(signum, signal.SIG_DFL)
        os.kill(os.getpid(), signum)
    os._exit(code if code is not None else 1)


if __name__ == "__main__":
    main()
