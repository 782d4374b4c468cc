"""The command of every node but the first: call node 0, prove the secret, take the spec, and be a node like any other.

Nothing of the run needs to be on this machine but the code: spec and config come over the wire. Whether the run
directory is the one of node 0 is found out by a token that node 0 wrote there.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import errno
import os
import signal
import socket
import sys
import time
from pathlib import Path

from trainpkg.errors import UserError
from trainpkg.launch import processes, wire
from trainpkg.launch import spec as specs
from trainpkg.launch.node.node import Node
from trainpkg.launch.reach import Streams, Unreached, connect
from trainpkg.launch.spec import TOKEN, Spec, Timeouts
from trainpkg.launch.typed import address
from trainpkg.launch.typed.command import Typed
from trainpkg.launch.typed.keeper import PARENT_GONE, keep
from trainpkg.launch.typed.secret import read_secret
from trainpkg.launch.wire import Message

FIRST_WORD_S = 5.0
LAST_PAUSE_S = 60.0
TOKEN_PATIENCE_S = 5.0  # a network file system may take a moment to show a new file
INTERRUPTED = 130


class Refused(Exception):
    """Node 0 says that this node cannot take part, or that nobody can. `status` is the verdict's."""

    def __init__(self, sentence: str, status: int) -> None:
        super().__init__(sentence)
        self.status = status


def main(args: argparse.Namespace, typed: Typed) -> int:
    """Returns the status of the whole launch."""
    if args.secret_file is None:
        raise UserError("--secret-file is not given: it proves that the nodes belong together")
    secret = read_secret(args.secret_file)
    say(f"node {typed.node_rank} of {typed.num_nodes} ({', '.join(typed.taken)})")
    patience_s = args.start_timeout or Timeouts().start_s
    return keep(lambda: work(typed, secret, args.secret_file, patience_s))


def work(typed: Typed, secret: str, secret_file: Path, patience_s: float) -> int:
    """What the kept process does."""
    processes.adopt_orphans()
    try:
        return asyncio.run(take_part(typed, secret, secret_file, patience_s))
    except Refused as error:
        print(f"trainpkg: {error}", file=sys.stderr, flush=True)
        return error.status
    except asyncio.CancelledError:
        say("interrupted")
        return INTERRUPTED


def say(text: str) -> None:
    """A line for people, who may have closed the reader of it."""
    with contextlib.suppress(BrokenPipeError):
        print(text, flush=True)


async def take_part(typed: Typed, secret: str, secret_file: Path, patience_s: float) -> int:
    """From the first call to the verdict."""
    me = asyncio.current_task()
    assert me is not None
    loop, parent = asyncio.get_running_loop(), os.getppid()
    for signum in (signal.SIGINT, signal.SIGTERM):  # until the node has handlers of its own
        loop.add_signal_handler(signum, me.cancel)
    loop.add_signal_handler(PARENT_GONE, lambda: me.cancel() if os.getppid() != parent else None)
    streams, welcome = await ask(typed, secret, secret_file, patience_s)
    try:
        spec, spec_path, trouble = await asyncio.to_thread(settle, welcome)
        node = Node(spec, spec_path, typed.node_rank, secret, "", streams)
        node.facts = dataclasses.replace(node.facts, trouble=node.facts.trouble or trouble)
        node.show = say
        status = await node.run()
    except (UserError, OSError) as error:  # node 0 tells the others
        streams[1].write(wire.encode({"type": "failed", "why": str(error)}))
        await asyncio.wait_for(streams[1].drain(), 1.0)
        raise
    lost = f"the command of node 0 ({typed.host} port {typed.port}) ended without a verdict; all ranks here were ended"
    if status != 0:
        raise Refused(node.last_words or lost, status)
    say(node.last_words)
    return status


async def ask(typed: Typed, secret: str, secret_file: Path, patience_s: float) -> tuple[Streams, Message]:
    """A proven connection to node 0, and its answer. Says what it waits for, if it must.

    A connection that ends before the answer is made anew: node 0 tells the verdict to those who call while it ends.

    Raises:
        UserError: HOST leads back here, somebody else listens there, or nobody within `patience_s`.
        Refused: node 0 says why this node does not fit.
    """
    begin = time.monotonic()
    next_word_s, pause_s = begin + FIRST_WORD_S, FIRST_WORD_S
    while True:
        streams, why = await call(typed)
        try:
            if streams is not None:
                return streams, await present(typed, secret, secret_file, streams)
        except OSError as error:  # the end of an earlier launch there
            why = f"{typed.host}: {error.strerror or error}"
        now = time.monotonic()
        if now - begin > patience_s:
            raise UserError(
                f"{socket.gethostname()} has not reached node 0 at {typed.host} port {typed.port} within "
                f"{patience_s:g} s (--start-timeout): {why}. Is the command of --node-rank 0 typed there? If it is and "
                f"waits: `nc -l {typed.port}` there and `nc -v {typed.host} {typed.port}` here show whether a firewall "
                "stands between"
            )
        if now >= next_word_s:
            pause_s = min(2 * pause_s, LAST_PAUSE_S)
            next_word_s = now + pause_s
            say(f"node 0 does not answer at {typed.host} port {typed.port} so far ({why}); waiting for its command")
        await asyncio.sleep(0.3)


async def call(typed: Typed) -> tuple[Streams | None, str]:
    """A connection to HOST:PORT, or why there is none."""
    reasons = []
    for one in await asyncio.to_thread(address.others_address, typed.host, typed.num_nodes, typed.local):
        try:
            return await connect(one, typed.port), ""
        except Unreached as error:
            reasons.append(f"{one}: {error}")
    return None, "; ".join(reasons)


async def present(typed: Typed, secret: str, secret_file: Path, streams: Streams) -> Message:
    """Prove the secret, say what was typed, and take the answer."""
    reader, writer = streams
    place = f"{typed.host} port {typed.port}"
    try:
        await wire.present(reader, writer, secret, "typed nodes")
        writer.write(wire.encode(typed.question(socket.gethostname(), os.getpid())))
        answer = await wire.receive(reader)
    except wire.Refused as error:
        raise UserError(
            f"node 0 at {place} and this node do not know each other ({error}). Either {secret_file} is not the file "
            f"that node 0 was given (compare `sha256sum {secret_file}` on both), or another launch has that port"
        ) from error
    if answer is None:
        raise ConnectionResetError(errno.ECONNRESET, "it hung up before it told what to run")
    if answer.get("type") == "bye":
        raise Refused(str(answer.get("sentence")), int(answer.get("status", 1)))
    return answer


async def tell_of_second(typed: Typed, secret: str) -> str:
    """What the node 0 that is there already answers to a second one, which its people thus hear of; nothing if none."""
    with contextlib.suppress(UserError, OSError, wire.Refused):
        streams, _ = await call(typed)
        if streams is not None:
            await wire.present(*streams, secret, "typed nodes")
            streams[1].write(wire.encode(typed.question(socket.gethostname(), os.getpid())))
            return str((await wire.receive(streams[0]) or {}).get("sentence", ""))
    return ""


def settle(welcome: Message) -> tuple[Spec, Path, str]:
    """(spec, where it lies as a file here, why this node cannot take part or nothing).

    Without a shared run directory the logs of this node go to the same path on this machine, or below the working
    directory where that cannot be made; what needs one directory for all nodes is refused.
    """
    spec = specs.from_dict(dict(welcome["spec"]))
    folder = Path(spec.launch_dir)
    if token_is_there(folder / TOKEN, str(welcome["token"])):
        return spec, folder / "spec.json", ""
    folder = writable(folder, Path(f"trainpkg-{spec.run}") / str(spec.attempt))
    config = folder / "config.yaml"
    config.write_text(str(welcome["config"]))
    local = dataclasses.replace(spec, launch_dir=str(folder), config_path=str(config))
    local.write(folder / "spec.json")
    if not spec.needs_shared_directory:
        say(f"the run directory of node 0, {spec.run_dir}, is not shared with this machine: logs are in {folder}")
        return local, folder / "spec.json", ""
    return local, folder / "spec.json", (
        f"the run directory of node 0, {spec.run_dir}, is not the one of this path here (node 0's file "
        f"{Path(spec.launch_dir, TOKEN).relative_to(spec.run_dir)} is not in it), and checkpoints of several nodes "
        "need one that all of them see. Put results_dir on a file system that all machines mount at one path"
    )  # fmt: skip


def token_is_there(path: Path, token: str, patience_s: float = TOKEN_PATIENCE_S) -> bool:
    """Whether node 0's token is in the file, within the patience."""
    end = time.monotonic() + patience_s
    while True:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if path.read_text() == token:
                return True
        if time.monotonic() > end:
            return False
        time.sleep(0.2)


def writable(wanted: Path, otherwise: Path) -> Path:
    """The first of the two that can be made, absolute."""
    for folder in (wanted, otherwise.absolute()):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    raise UserError(f"no folder for the logs of this node: neither {wanted} nor {otherwise.absolute()} can be written")
