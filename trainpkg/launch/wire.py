"""How the coordinator and the nodes talk: bounded JSON lines over TCP, after a mutual proof of the job's secret.

Knows nothing of what is said. The proof is a challenge in both directions, with the job's tag bound in, so that neither
a stranger on the cluster network nor a node of another attempt gets a word in. Nothing is ever unpickled.
"""

from __future__ import annotations

import asyncio
import errno
import hmac
import json
import secrets
from typing import Any

Message = dict[str, Any]

# Both directions. A node is told its own part of the plan, not all of it, so no line grows with the number of nodes;
# the bulkiest line is a traceback, which its sender cuts.
MAX_LINE = 64 * 1024
HANDSHAKE_TIMEOUT_S = 5.0  # for a connection that may be a stranger's
PATIENCE_S = 20.0  # of a node: when thousands call at once, it waits in the queue
BEAT_S = 1.0  # both sides tell that they live
GAP_S = 3.0  # between two looks that should be a second apart: this process itself was stopped
MAGIC = "trainpkg-rollcall-1"


class Refused(Exception):
    """The other side is not who it should be; the text says why."""


class Stranger(Refused):
    """A connection that never proved to belong to this job: silent, garbage, wrong secret."""


def encode(message: Message) -> bytes:
    """One message as one line."""
    line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
    assert len(line) <= MAX_LINE, f"a message of {len(line)} bytes: {line[:200]!r}"
    return line


def shorten(text: str, limit: int) -> str:
    """The end of the text, such that its JSON has at most `limit` bytes: escapes make up to twelve of one."""
    while (excess := len(json.dumps(text)) - 2 - limit) > 0:
        text = text[max(1, excess // 12) :]
    return text


async def receive(reader: asyncio.StreamReader) -> Message | None:
    """The next message, or None at the end of the connection.

    Raises Refused when the line is too long or is no JSON object.
    """
    try:
        line = await reader.readline()
    except ValueError as error:
        raise Refused(f"a line of more than {MAX_LINE} bytes") from error
    except OSError:  # a reset is an end too: who resets, and why, is seen from the process
        return None
    if not line.endswith(b"\n"):
        return None
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Refused(f"a line that is no JSON: {line[:60]!r}") from error
    if not isinstance(message, dict):
        raise Refused(f"a line that is no JSON object: {line[:60]!r}")
    return message


def proof(secret: str, side: str, tag: str, nonce_head: str, nonce_node: str) -> str:
    """What only a holder of the secret can say; `side` keeps one side's proof from serving as the other's."""
    text = "|".join([MAGIC, side, tag, nonce_head, nonce_node])
    return hmac.new(secret.encode(), _bytes(text), "sha256").hexdigest()


def _bytes(text: str) -> bytes:
    """A stranger's JSON may hold halves of characters, which are no UTF-8."""
    return text.encode(errors="backslashreplace")


async def admit(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: str, tag: str) -> None:
    """The coordinator's side of the handshake. Raises Stranger, or Refused for a node of another attempt."""
    try:
        async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
            await _admit(reader, writer, secret, tag)
    except TimeoutError as error:
        raise Stranger(f"nothing said within {HANDSHAKE_TIMEOUT_S:g} s") from error
    except Stranger:
        raise
    except OSError as error:
        raise Stranger(f"connection lost: {error.strerror or error}") from error


async def _admit(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: str, tag: str) -> None:
    nonce = secrets.token_hex(16)
    writer.write(encode({"hello": MAGIC, "nonce": nonce}))
    try:
        answer = await receive(reader)
    except Refused as error:
        raise Stranger(str(error)) from error
    if answer is None:
        raise Stranger("connection closed without a word")
    its_nonce, its_tag, its_proof = (str(answer.get(key, "")) for key in ("nonce", "tag", "proof"))
    if not hmac.compare_digest(_bytes(its_proof), proof(secret, "node", its_tag, nonce, its_nonce).encode()):
        raise Stranger("wrong secret")
    if its_tag != tag:
        raise Refused(f"it belongs to {its_tag!r}, this is {tag!r}")
    writer.write(encode({"proof": proof(secret, "head", tag, nonce, its_nonce)}))
    await writer.drain()


async def present(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: str, tag: str) -> None:
    """The node's side of the handshake. Raises Refused when the listener is not this job's coordinator."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            await _present(reader, writer, secret, tag)
    except TimeoutError as error:
        raise Refused(f"something listens there that says nothing within {PATIENCE_S:g} s") from error


async def _present(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: str, tag: str) -> None:
    greeting = await receive(reader)
    if greeting is None:
        raise ConnectionResetError(errno.ECONNRESET, "it hung up without a word")
    if greeting.get("hello") != MAGIC:
        raise Refused("something listens there that is no coordinator of trainpkg")
    its_nonce, nonce = str(greeting.get("nonce", "")), secrets.token_hex(16)
    mine = proof(secret, "node", tag, its_nonce, nonce)
    writer.write(encode({"nonce": nonce, "tag": tag, "proof": mine}))
    answer = await receive(reader)
    theirs = str((answer or {}).get("proof", ""))
    if not hmac.compare_digest(_bytes(theirs), proof(secret, "head", tag, its_nonce, nonce).encode()):
        raise Refused("the coordinator there belongs to another job or attempt")
