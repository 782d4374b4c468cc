"""`python -m trainpkg.launch.tether PARENT SIGNAL PROGRAM ...` becomes PROGRAM, which gets SIGNAL when PARENT ends.

A program of its own, since Python's hook between fork and exec is not safe in a process that has threads.
"""

from __future__ import annotations

import os
import sys

from trainpkg.launch import processes

if __name__ == "__main__":
    processes.die_with_parent(int(sys.argv[2]))
    if os.getppid() == int(sys.argv[1]):
        os.execvp(sys.argv[3], sys.argv[3:])
