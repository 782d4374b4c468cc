"""`trainpkg node ...` whose runs have test entries in place of the trainer: TEST_SPEC has fields of the spec."""

from __future__ import annotations

import functools
import json
import os
import sys

from trainpkg.__main__ import main
from trainpkg.launch.head import attempt
from trainpkg.launch.head.meeting import reception

if __name__ == "__main__":
    attempt.make_spec = functools.partial(attempt.make_spec, **json.loads(os.environ["TEST_SPEC"]))
    reception.FIRST_WORD_S, reception.TURN_AWAY_S = 1.0, 3.0  # as people would not type
    sys.exit(main(["node", *sys.argv[1:]]))
