"""What people see of a launch, and that nobody has to look."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from trainpkg.launch.head.screen import PlainScreen, TerminalScreen

CODE = """
import sys
from trainpkg.launch.head.screen import {screen}
screen = {screen}()
for step in range(1, 2001):
    screen.say("x" * 100)
    screen.progress(step, 2000)
sys.exit(7)
"""


@pytest.mark.parametrize("screen", ["PlainScreen", "TerminalScreen"])
def test_a_reader_that_is_gone_ends_nothing(screen: str) -> None:
    """`launch | tee`: the job is cancelled, tee dies, and the launcher still has ranks to end."""
    reading, writing = os.pipe()
    process = subprocess.Popen([sys.executable, "-c", CODE.format(screen=screen)], stdout=writing)
    os.close(writing)
    os.read(reading, 10)
    os.close(reading)
    assert process.wait(30) == 7


def test_a_file_gets_whole_lines_and_the_last_step(capsys: pytest.CaptureFixture[str]) -> None:
    screen = PlainScreen()
    for step in (1, 2, 3):
        screen.progress(step, 3)
    screen.say("done")
    assert capsys.readouterr().out == "step 1 of 3\nstep 3 of 3\ndone\n"


def test_a_terminal_gets_one_line_that_is_rewritten(capsys: pytest.CaptureFixture[str]) -> None:
    screen = TerminalScreen()
    screen.progress(1, 2)
    screen.progress(2, 2)
    screen.say("done")
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert out.endswith("\r\033[Kdone\n")
