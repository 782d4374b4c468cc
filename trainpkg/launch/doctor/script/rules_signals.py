"""Rules on --signal: who gets it, who listens, and whose default action it is to die of it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainpkg.launch.doctor.rows import WARN
from trainpkg.launch.doctor.script.findings import Found, Rule
from trainpkg.launch.doctor.script.launchers import launchers, manages
from trainpkg.launch.doctor.script.reading import Script
from trainpkg.launch.doctor.script.rules_steps import training_steps

_NUMBERS = {"10": "USR1", "12": "USR2", "15": "TERM", "2": "INT", "1": "HUP"}


def _signal(script: Script) -> tuple[str, bool, int] | None:
    """Name without SIG, whether the batch shell gets it, the line."""
    match = re.fullmatch(r"(?:([RBrb]+):)?(?:SIG)?(\w+)(?:@\d+)?", script.request.options.get("signal") or "")
    if match is None or any(manages(call) for call in script.calls):
        return None
    name = _NUMBERS.get(match[2], match[2].upper().removeprefix("SIG"))
    return name, "B" in (match[1] or "").upper(), script.request.lines["signal"]


def _traps(script: Script, name: str) -> list[int]:
    number = next((number for number, known in _NUMBERS.items() if known == name), "")
    traps = [call for call in script.calls if call.program == "trap" and call.place == "batch"]
    return [call.line for call in traps if {name, f"SIG{name}", number} & {word.upper() for word in call.words[2:]}]


def unheard(script: Script) -> Iterator[Found]:
    """Without B: the steps get it, with B: the batch shell alone."""
    asked = _signal(script)
    if asked is None or script.trouble:
        return
    name, to_batch, line = asked
    value, traps = script.request.options["signal"], _traps(script, name)
    in_steps = training_steps(script)
    in_batch = [launcher for launcher in launchers(script) if launcher.call.place == "batch"]
    if not to_batch:
        if traps:
            why = (
                f"--signal={value} goes to steps only: the trap in line {traps[0]}, in the batch shell, never hears it"
            )
            yield Found(line, why, f"Write --signal=B:{value}.")
        elif in_batch and not in_steps:
            why = f"--signal={value} goes to steps only: line {in_batch[0].line}, in the batch shell, never hears it"
            yield Found(line, why, f"Start it with srun, or write --signal=B:{value} and start it with exec.")
        return
    replaced = any(re.search(r"\bexec\s", script.line_text(launcher.line)) for launcher in in_batch)
    if not traps and not replaced:
        why = f"--signal={value} goes to the batch shell, which has no trap for it and dies of it with the whole job"
        yield Found(line, why, f"Add a trap for {name}, or drop `B:` so that the steps get it.")
    elif traps:
        trained = [step.command for step, _ in in_steps] or [launcher.call.command for launcher in in_batch]
        foreground = [command for command in trained if command.after != "&" and "&" not in command.around]
        if foreground and len(foreground) == len(trained):
            why = f"bash runs its trap (line {traps[0]}) only when the command in the foreground has ended: too late"
            fix = "Start it in the background and wait: `srun ... & wait` (and wait again after the trap)."
            yield Found(foreground[0].line, why, fix)


def deadly(script: Script) -> Iterator[Found]:
    """torchrun and accelerate die of USR1 and USR2, and their workers hear nothing."""
    asked = _signal(script)
    if asked is None or asked[1]:
        return
    name, _, line = asked
    for step, launcher in training_steps(script):
        if name in ("USR1", "USR2") and launcher.kind in ("torchrun", "accelerate"):
            if name in (launcher.option("signals_to_handle") or "").upper():
                continue
            why = f"{launcher.kind} (line {step.line}) does not handle {name}: it dies, and its workers hear nothing"
            fix = f"Add --signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIG{name} to torchrun, or send TERM."
            yield Found(line, why, fix)
            return
    if name == "USR1" and training_steps(script) and re.search(r"nccl", script.raw, re.IGNORECASE):
        why = "NCCL installs a handler for USR1 of its own in some versions, which swallows the signal"
        yield Found(line, why, "Use USR2.", WARN)


RULES = (
    Rule("signal-unheard", unheard, "a warning signal sent where nobody listens"),
    Rule("signal-deadly", deadly, "a warning signal that ends the launcher"),
)
