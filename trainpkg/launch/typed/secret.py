"""The secret that typed nodes share: a file that its owner alone can read. Its content is never printed."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from trainpkg.errors import UserError

MIN_LENGTH = 16


def read_secret(path: Path) -> str:
    """The secret in the file. Raises UserError naming what is wrong with it and the command that makes a good one."""
    make = f"Make one: (umask 077; head -c 32 /dev/urandom | base64 > {path}), and copy it to every machine"
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise UserError(f"--secret-file {path}: {error.strerror}. {make}") from error
    with os.fdopen(handle, errors="replace") as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode):
            raise UserError(f"--secret-file {path} is no file. {make}")
        if facts.st_mode & 0o077:
            raise UserError(
                f"--secret-file {path} has mode {stat.S_IMODE(facts.st_mode):04o}: others than its owner can read or "
                f"change it, and who knows it can start programs on these machines. chmod 600 {path}"
            )
        if facts.st_uid not in (os.geteuid(), 0):
            raise UserError(f"--secret-file {path} belongs to user {facts.st_uid}, not to you ({os.geteuid()}). {make}")
        secret = file.read(4096).strip()
    if len(secret) < MIN_LENGTH:
        raise UserError(f"--secret-file {path} holds {len(secret)} characters; {MIN_LENGTH} are the least. {make}")
    return secret
