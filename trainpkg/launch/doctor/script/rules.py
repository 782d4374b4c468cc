"""All rules on batch scripts, and a script's findings as text."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from trainpkg.errors import UserError
from trainpkg.launch.doctor.rows import WARN
from trainpkg.launch.doctor.script import rules_address, rules_names, rules_request, rules_signals, rules_steps
from trainpkg.launch.doctor.script.findings import Found, Rule
from trainpkg.launch.doctor.script.reading import Script

RULES: tuple[Rule, ...] = (
    *rules_request.RULES,
    *rules_steps.RULES,
    *rules_signals.RULES,
    *rules_address.RULES,
    *rules_names.RULES,
)


def findings(script: Script) -> list[tuple[Rule, Found]]:
    """What all rules find, in the order of lines, each once."""
    found = [(rule, one) for rule in RULES for one in dict.fromkeys(rule.look(script))]
    return sorted(found, key=lambda pair: pair[1].line)


def read(path: Path) -> Script:
    """The script in a file. Raises UserError where there is none."""
    try:
        return Script(path.read_bytes().decode(errors="replace"))
    except OSError as error:
        raise UserError(f"doctor --script {path}: {error.strerror}") from error


def as_json(script: Script) -> list[dict[str, Any]]:
    return [
        {"rule": rule.id, "text": script.line_text(found.line), **dataclasses.asdict(found)}
        for rule, found in findings(script)
    ]


def as_text(script: Script, name: str) -> str:
    """For each finding the line, why, and the fix."""
    lines = []
    for rule, found in findings(script):
        lines.append(f"{name}:{found.line}: {found.verdict} ({rule.id}): {script.line_text(found.line)}")
        lines += [f"    {found.why}", f"    fix: {found.fix}"]
    if script.trouble:
        lines.append(f"{name}: {WARN}: not all of it is understood ({script.trouble}); what stands behind was not read")
    return "\n".join(lines) or f"{name}: nothing found of what is known to go wrong ({len(RULES)} rules)"
