"""A stand-in for `python -m trainpkg`, where scheduling alone is measured: writes its output and ends.

Found through PYTHONPATH by every Python that such a benchmark starts; all other programs go on as they are.
"""

import os
import sys

_words = sys.orig_argv[1:4]
if _words[:2] == ["-m", "trainpkg"]:
    if "--out" in sys.orig_argv and _words[2:] == ["launch"]:
        with open(sys.orig_argv[sys.orig_argv.index("--out") + 1], "w") as _file:  # noqa: PTH123  imports take time
            _file.write("{}\n")
    os._exit(0)
