"""A lab whose Slurm accounts for its jobs: slurmdbd and a MariaDB of its own, all within the lab's namespaces.

`with AccountedLab(num_nodes=1) as lab: lab.run(["sacct", ...])`. Needs Debian's slurmdbd and MariaDB's core packages
besides what machine.py lists; nothing of a MariaDB of the machine is touched.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from typing import Any

from tests.cluster import slurm_config
from tests.cluster.lab import CTL, Lab
from tests.cluster.machine import with_sbin

PROGRAMS = ("slurmdbd", "mariadbd", "mariadb-install-db", "mariadb")
INSTALL = "apt-get install --no-install-recommends slurmdbd mariadb-server-core mariadb-client-core"


def missing() -> str:
    """What this machine lacks, as one line; empty if nothing."""
    absent = [name for name in PROGRAMS if not shutil.which(name, path=with_sbin(os.environ.get("PATH", "")))]
    return f"accounting needs {', '.join(absent)}: {INSTALL}" if absent else ""


class AccountedLab(Lab):
    """A lab with accounting. `sacct` answers from the first job on."""

    def __init__(self, *args: Any, conf: Mapping[str, object] | None = None, **keywords: Any) -> None:
        super().__init__(*args, conf={**slurm_config.accounting_conf(), **(conf or {})}, **keywords)

    def _start_database(self) -> None:
        data = self.work_dir / "mariadb"
        data.mkdir()
        (self.work_dir / "log/mariadbd.log").touch()
        dbd = self.work_dir / "etc/slurmdbd.conf"
        dbd.write_text(slurm_config.slurmdbd_conf(self.work_dir))
        dbd.chmod(0o600)  # slurmdbd refuses others
        socket = self.work_dir / "run/mariadb.socket"
        own = ["--no-defaults", f"--datadir={data}", "--user=root"]
        self.run(["mariadb-install-db", *own, "--skip-test-db", "--auth-root-authentication-method=socket"])
        quick = ["--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=16M", "--skip-networking"]
        self._start_daemon("mariadbd", CTL, ["mariadbd", *own, f"--socket={socket}", *quick])
        ping = ["mariadb", "--no-defaults", f"--socket={socket}", "--execute", "CREATE DATABASE IF NOT EXISTS slurm"]
        self.wait_until(lambda: self.run(ping, check=False).returncode == 0, "MariaDB to answer")
        # slurmdbd has no key for the socket; the client library that it uses has this variable.
        self._start_daemon("slurmdbd", CTL, ["env", f"MYSQL_UNIX_PORT={socket}", "slurmdbd", "-D"])
        known = ["sacctmgr", "--immediate", "add", "cluster", "lab"]
        self.wait_until(lambda: self.run(known, check=False).returncode == 0, "slurmdbd to answer", 60)

    def start_daemon(self, node: str) -> None:
        """The database before the controller, which else would not know its cluster."""
        if node == CTL and "slurmdbd" not in self.daemons:
            self._start_database()
        super().start_daemon(node)
