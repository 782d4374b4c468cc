"""Each rule on batch scripts finds its line in a small bad script and is silent on a good twin (script_cases.txt)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from trainpkg.__main__ import main
from trainpkg.launch.doctor.rows import BAD
from trainpkg.launch.doctor.script.reading import Script
from trainpkg.launch.doctor.script.rules import RULES, findings

BLOCKS = {
    "@two": "#!/bin/bash\n#SBATCH --nodes=2 --gpus-per-node=4",
    "@head": """\
#!/bin/bash
#SBATCH --nodes=2 --gpus-per-node=4
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((10000 + SLURM_JOB_ID % 20000))""",
    "@step": """\
srun --ntasks-per-node=1 --kill-on-bad-exit=1 torchrun --nnodes=$SLURM_JOB_NUM_NODES --nproc-per-node=4 \\
    --rdzv-backend=c10d --rdzv-endpoint=$head:$port train.py""",
}


class Case(NamedTuple):
    """`line` of the bad script is the one to be found; `words` stand in the reason or the fix."""

    rule: str
    ids: tuple[str, ...]
    words: str
    bad: str
    line: int
    good: str


def filled(text: str) -> str:
    """The script with its blocks put in."""
    for name, block in BLOCKS.items():
        text = re.sub(rf"^{name}$", lambda _, block=block: block, text, flags=re.MULTILINE)
    return text.replace("<CR>", "\r")


def read_cases() -> list[Case]:
    """`=== RULE ids :: words`, the bad script with `>` at the line to be found, `--- good`, the good script."""
    cases = []
    for part in (Path(__file__).parent / "script_cases.txt").read_text().split("\n=== ")[1:]:
        title, _, scripts = part.partition("\n")
        names, _, words = title.partition(" :: ")
        rule, *ids = names.split()
        bad, good = (filled(script) for script in scripts.split("\n--- good\n"))
        at = re.search(r"^>", bad, re.MULTILINE)
        assert at, title
        line = bad[: at.start()].count("\n") + 1
        cases.append(Case(rule, tuple(ids), words, bad[: at.start()] + bad[at.end() :], line, good))
    return cases


CASES = read_cases()


def param(case: Case, number: int) -> Any:
    return pytest.param(case, marks=[pytest.mark.failure(id) for id in case.ids], id=f"{case.rule}-{number}")


@pytest.mark.parametrize("case", [param(case, number) for number, case in enumerate(CASES)])
def test_a_bad_script_is_named_and_its_good_twin_is_not(case: Case) -> None:
    found = [one for rule, one in findings(Script(case.bad)) if rule.id == case.rule]
    assert [one.line for one in found][:1] == [case.line], found
    assert case.words in f"{found[0].why} {found[0].fix}", found
    script = Script(case.good)
    assert not script.trouble
    told = [(rule.id, one) for rule, one in findings(script) if rule.id == case.rule or one.verdict == BAD]
    assert told == []


def test_every_rule_has_a_bad_script_and_a_good_one() -> None:
    assert {rule.id for rule in RULES} == {case.rule for case in CASES}
    assert len({rule.id for rule in RULES}) == len(RULES)


def test_the_command_prints_line_reason_and_fix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.sbatch"
    path.write_text("#!/bin/bash\n#SBATCH --gpus-per-node=gpu:8\nsrun -K python train.py\n")
    assert main(["doctor", "--script", str(path)]) == 1
    told = capsys.readouterr().out
    assert f"{path}:2: bad (gpu-as-type): #SBATCH --gpus-per-node=gpu:8\n" in told
    assert "    fix: Write --gpus-per-node=8, or --gres=gpu:8.\n" in told
    assert main(["doctor", "--script", str(path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)[0]["rule"] == "gpu-as-type"
    path.write_text("#!/bin/bash\n#SBATCH --gpus-per-node=8\nexport MASTER_PORT=29500\nsrun -K python train.py\n")
    assert main(["doctor", "--script", str(path)]) == 0, "warnings end nothing"
    assert "warn (ports)" in capsys.readouterr().out
    assert main(["doctor", "--script", str(tmp_path / "none")]) == 2
    assert "No such file" in capsys.readouterr().err
