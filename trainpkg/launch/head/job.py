"""The subcommand `launch`: one stage of one run on all its nodes, from the lock to the verdict. Once per job.

It runs on the first node and holds the coordinator. A job that should go on it puts back into Slurm's queue by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import secrets
import shlex
import signal
import time
from pathlib import Path
from typing import Any

from trainpkg.config import Run
from trainpkg.launch import processes
from trainpkg.launch.facts import NodeFacts, RollCallError
from trainpkg.launch.head import attempt, lock, own
from trainpkg.launch.head.attempt import STAGES, Folder
from trainpkg.launch.head.conduct import Conductor
from trainpkg.launch.head.lock import Lock
from trainpkg.launch.head.meeting import settings
from trainpkg.launch.head.meeting.examine import examine
from trainpkg.launch.head.meeting.reception import Endpoint, Reception, typed_fields
from trainpkg.launch.head.meeting.rollcall import Coordinator
from trainpkg.launch.head.outcome import AGAIN, DO_NOT_RUN_AGAIN, INTERRUPTED, Outcome
from trainpkg.launch.head.planning import plan_attempt
from trainpkg.launch.head.requeue import put_back
from trainpkg.launch.head.screen import Recorded, Screen, SharedScreen, make_screen
from trainpkg.launch.head.steps import command, places
from trainpkg.launch.head.steps.places import LocalNodes, Nodes, SrunNodes
from trainpkg.launch.head.steps.rank_steps import RankSteps
from trainpkg.launch.head.words import introduction, last_words
from trainpkg.launch.slurm import ask, conf, control, het
from trainpkg.launch.spec import Spec

END_GRACE_S = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from trainpkg import sheet

    parser.add_argument("stage", choices=STAGES, help="what to run")
    sheet.add_config_arguments(parser)
    parser.add_argument("--run", required=True, help="name of the run (for smoke: of any run with that topology)")
    parser.add_argument("--out", type=Path, required=True, help="the file that says that the stage is done")
    parser.add_argument("--retry", type=int, default=1, help="Snakemake's attempt, from 1; a later one may be refused")
    parser.add_argument(
        "--requeue",
        action="store_true",
        help="this Slurm job is there for this launch alone: put it back into the queue when the run is to go on",
    )


def main(args: argparse.Namespace) -> int:
    from trainpkg import sheet

    run = sheet.load(sheet.config_of(args), lazily=True).run(args.run)
    return launch(run, args.stage, args.out, retry=args.retry, requeue=args.requeue)


def launch(
    run: Run,
    stage: str,
    out: Path,
    *,
    where: str | None = None,
    retry: int = 1,
    endpoint: Endpoint | None = None,
    requeue: bool = False,
    **overrides: Any,
) -> int:
    """Run a stage and return its exit status; everything else is in the files of the run and on the screen.

    `where` overrides the config's `launch.where`; `overrides` are fields of the spec; with an `endpoint` the other
    nodes are typed by people and call it.
    """
    folder = Folder.of(stage, out)
    screen: Screen = make_screen()
    if found := conf.find(os.environ, conf.ancestor_environments()):
        os.environ["SLURM_CONF"] = found  # for srun and scontrol, wherever this process calls them
    life = control.own_life(os.environ)
    with lock.acquire(folder.home, life) as held:
        attempt.check_trained(folder, run)
        if aside := attempt.set_aside_other_run(folder, run):
            screen.say(f"run {run.run!r} is another one now, by its config or its inputs: the old run went to {aside}")
        if attempt.rewrite_if_finished(folder, run):
            screen.say(f"run {run.run!r} is finished already; {out} is written again, nothing is trained")
            return 0
        attempt.refuse_repetition(folder, retry, life)
        if endpoint is not None:
            overrides |= typed_fields(endpoint)
        spec, job_hosts, remarks = plan_attempt(run, folder, where or run.launch.where, os.environ, overrides)
        attempt.open_attempt(spec, folder, run, retry, life)
        screen = Recorded(screen, Path(spec.launch_dir) / "launch.log")
        for line in [*introduction(spec, run, folder, life, where or run.launch.where), *remarks]:
            screen.say(line)
        work = Job(spec, screen, held, job_hosts, endpoint)
        outcome = asyncio.run(work.run())
        status = _finish(work.spec, folder, outcome, screen)
        if status == AGAIN and requeue:
            put_back(run.slurm.requeue, life, held, screen)
        return status


class Job:
    """One attempt: nodes started, roll call, generations, everything ended."""

    def __init__(
        self, spec: Spec, screen: Screen, held: Lock, job_hosts: list[str], endpoint: Endpoint | None = None
    ) -> None:
        self.spec, self.screen, self.held, self.job_hosts, self.endpoint = spec, screen, held, job_hosts, endpoint
        self.conductor: Conductor | None = None
        self.work: asyncio.Task[Outcome] | None = None
        self.asked = ""
        self.num_interrupts = 0
        self.origin, self.began = ("the start", time.monotonic()), time.time()

    async def run(self) -> Outcome:
        """The outcome, with no process of this attempt left."""
        processes.adopt_orphans()
        _raise_file_limit()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._interrupt, "SIGINT")
        for signum in (signal.SIGTERM, signal.SIGUSR2):
            loop.add_signal_handler(signum, self._save_and_end, signum.name)
        self.work = loop.create_task(self._attempt())
        guard = loop.create_task(self._guard_lock())
        try:
            outcome = await self.work
            if self.held.lost.is_set():
                return Outcome("failed", DO_NOT_RUN_AGAIN, sentence="another job took over the run directory's lock")
            return outcome
        except asyncio.CancelledError:
            return Outcome("interrupted", INTERRUPTED, sentence="interrupted; all processes were ended")
        finally:
            guard.cancel()
            if left := processes.kill_descendants():
                self.screen.say(f"processes that did not die: {left}")

    async def _attempt(self) -> Outcome:
        secret = self.endpoint.secret if self.endpoint else secrets.token_hex(32)
        asked = ask.node_states if self.spec.where == "slurm" else None
        coordinator = Coordinator(self.spec, secret, lambda text: self.screen.say(text), asked)
        coordinator.interrupted = self._interrupt
        head = await coordinator.listen(self.endpoint.listener.dup() if self.endpoint else None)
        if self.endpoint is not None:  # what people see here they see at the other nodes too
            self.screen = SharedScreen(self.screen, coordinator.tell_all)
            coordinator.reception = Reception(self.endpoint, self.spec, self.screen.say)
        nodes = self._start_nodes(head, secret)
        outcome = Outcome("interrupted", INTERRUPTED, sentence="interrupted; all processes were ended")
        try:
            met = await coordinator.meet(nodes.ended, lambda: command.read_way(self.spec, nodes.refused))
            self.spec = coordinator.spec
            self._tell_settings(met)
            if self.spec.stage == "smoke":
                await examine(coordinator, self.spec, met, self.screen.say)
            steps = RankSteps(self.spec, self.job_hosts, self.screen.say)
            self.conductor = Conductor(coordinator, self.spec, met, self.screen, nodes.node_end, steps, self.origin)
            if self.asked:
                self.conductor.save_and_end(self.asked)
            outcome = await self.conductor.run()
        except RollCallError as error:
            outcome = Outcome("failed", 1, sentence=str(error))
        finally:
            if self.spec.silent and outcome.verdict == "finished":
                own.conclude(self.spec, outcome, self.began)
            require_output(self.spec, outcome)
            words = last_words(self.spec, outcome)
            coordinator.goodbye(outcome.status if self.endpoint else 0, words)  # to srun its tasks always end well
            if self.endpoint is not None:
                self.endpoint.last_words = words
            await coordinator.close()
            await asyncio.to_thread(nodes.end, END_GRACE_S)
        return outcome

    def _start_nodes(self, head: str, secret: str) -> Nodes:
        spec = self.spec
        spec.generation_dir(0).mkdir(parents=True, exist_ok=True)
        program = command.node_command(spec, Path(spec.launch_dir) / "spec.json", head)
        env = places.node_environment(os.environ, secret)
        if spec.where != "slurm":
            return LocalNodes.start(spec, program, env)
        srun = places.srun_command(spec, self.job_hosts)
        self.screen.say(f"starting {shlex.join(srun)}")
        log = spec.generation_dir(0) / "nodes-step.log"
        env = places.srun_environment(env) | het.variables(spec.parts)
        return SrunNodes([*srun, *program], env, self.screen.say, log)

    def _tell_settings(self, nodes: list[NodeFacts]) -> None:
        for line in settings.describe(self.spec, nodes):
            self.screen.say(line)
        for text in settings.warnings(self.spec, nodes):
            self.screen.say(f"warning: {text}")

    def _interrupt(self, why: str) -> None:
        """End everything now; the second time, without asking the ranks."""
        self.num_interrupts += 1
        self.screen.say(f"{why}: ending all ranks" + (" at once" if self.num_interrupts > 1 else ""))
        if self.conductor is None or self.num_interrupts > 1:
            assert self.work is not None
            self.work.cancel()
        else:
            self.conductor.interrupt()

    def _save_and_end(self, why: str) -> None:
        if self.asked and why == "SIGTERM":
            self._interrupt("a second SIGTERM")
        self.asked = self.asked or why
        if self.conductor is not None:
            self.conductor.save_and_end(why)

    async def _guard_lock(self) -> None:
        """End when somebody took the run directory over: two writers spoil it."""
        while not self.held.lost.is_set():
            await asyncio.sleep(1.0)
        if self.conductor is not None:
            self.conductor.interrupt(at_once=True)  # a checkpoint would be a second writer's
        self._interrupt("the lock of the run directory was taken over by another job")


def _raise_file_limit() -> None:
    """One connection per node, and strangers': the usual soft limit of 1024 files is too low for a large job."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _finish(spec: Spec, folder: Folder, outcome: Outcome, screen: Screen) -> int:
    """Write the verdict, say it, and return the exit status."""
    if outcome.verdict == "finished":
        attempt.keep_finished(folder)
    attempt.close_attempt(spec, folder, outcome)
    found = outcome.failure
    if found is not None and found.traceback:
        screen.say(found.traceback.rstrip())
    elif found is not None and found.last_lines:
        screen.say("\n".join(["last lines of its log:", *found.last_lines[-10:]]))
    screen.say(last_words(spec, outcome))
    return outcome.status


def require_output(spec: Spec, outcome: Outcome) -> None:
    """A stage whose output is not there has failed, whatever its ranks say."""
    if outcome.verdict == "finished" and not Path(spec.out).is_file():
        outcome.verdict, outcome.status = "failed", 1
        outcome.sentence = f"the ranks say that they are done, but {spec.out} is not there"
