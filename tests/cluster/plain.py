"""Machines without any Slurm, in namespaces of this one: names, addresses, a hosts file and a /tmp of their own.

`shared_dir` is a directory that all of them see. On each machine its own name is 127.0.1.1 in the hosts file, as Debian
has it. Nothing of this machine's network or /etc is touched; killing one process ends all of it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.cluster.machine import CHECKOUT, clean_environment, make_work_dir, own_tmp
from tests.cluster.namespaces import Entered, Realm

NETWORK = "10.78.0"


class PlainMachines:
    """`m1` and so on, at 10.78.0.11 and so on."""

    def __init__(self, num_machines: int = 3) -> None:
        self.names = [f"m{index + 1}" for index in range(num_machines)]
        self.realms: dict[str, Realm] = {}

    def __enter__(self) -> PlainMachines:
        self.work_dir, lock = make_work_dir()
        self.shared_dir = self.work_dir / "shared"
        self.shared_dir.mkdir()
        owner = os.pidfd_open(os.getpid())
        try:
            self.hub = Realm(None, [str(owner), str(self.work_dir)], pass_fds=[owner, lock])
            self.hub.script("ip link set lo up\nip link add br0 type bridge\nip link set br0 up")
            for index, name in enumerate(self.names):
                self._boot(index, name)
        except BaseException:
            self.close()
            raise
        finally:
            os.close(owner)
            os.close(lock)
        return self

    def _boot(self, index: int, name: str) -> None:
        realm = self.realms[name] = Realm(self.hub)
        hosts = self.work_dir / f"hosts-{name}"
        own = [f"127.0.1.1 {name}"]
        others = [f"{self.address(other)} {other}" for other in self.names if other != name]
        hosts.write_text("\n".join(["127.0.0.1 localhost", *own, *others, ""]))
        self.hub.script(
            f"ip link add ve{index} type veth peer name eth0 netns {realm.pid_outside}\n"
            f"ip link set ve{index} master br0 up"
        )
        realm.script(
            f"hostname {name}\n"
            f"mount --bind {hosts} /etc/hosts\n"
            "mount -t sysfs sysfs /sys\n"
            "mount -t tmpfs -o mode=1777 shm /dev/shm\n"
            f"ip addr add {self.address(name)}/24 dev eth0\n"
            "ip link set lo up\n"
            "ip link set eth0 up\n" + "\n".join(own_tmp({CHECKOUT, Path(sys.prefix).resolve()}))
        )

    def address(self, name: str) -> str:
        return f"{NETWORK}.{11 + self.names.index(name)}"

    def popen(self, name: str, argv: Sequence[str | Path], cwd: Path | None = None, **environment: str) -> Entered:
        """A command on a machine; its output, both kinds, is its `stdout`."""
        env = clean_environment(self.work_dir) | {"PYTHONPATH": str(CHECKOUT), "OMP_NUM_THREADS": "1"} | environment
        pipe: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
        return self.realms[name].popen(argv, cwd or self.shared_dir, env=env, **pipe)

    def link(self, name: str, state: str) -> None:
        """Pull the machine's cable (`down`), or put it back (`up`)."""
        self.hub.script(f"ip link set ve{self.names.index(name)} {state}")

    def processes(self) -> list[tuple[str, str]]:
        """(machine, command line) of everything that runs on the machines."""
        return [(name, line) for name, realm in self.realms.items() for _, _, line in realm.processes()]

    def close(self) -> None:
        for realm in [*self.realms.values(), *([self.hub] if hasattr(self, "hub") else [])]:
            realm.end()
        self.realms.clear()
        shutil.rmtree(self.work_dir, ignore_errors=True)

    def __exit__(self, *_: object) -> None:
        self.close()
