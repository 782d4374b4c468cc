"""Unix sockets between processes of one node: how an address is written down, and who is at the other end."""

from __future__ import annotations

import os
import socket
import struct
from typing import Any


def address_of(text: str) -> str:
    """The address that a variable or a file holds as text: `@` begins a name that is in no file system."""
    return "\0" + text[1:] if text.startswith("@") else text


def peer_uid(connection: Any) -> int:
    """The user of the process at the other end, as the kernel says."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", raw)[1])


def is_ours(connection: Any) -> bool:
    """Whether the other end belongs to this user: names that are in no file system have no permissions."""
    return peer_uid(connection) == os.getuid()
