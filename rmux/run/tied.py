"""Run a program that dies with the process that started it: python -m rmux.run.tied PROGRAM ARG…

The death signal asked for here stays in force across exec, so a server that knows nothing of it
still ends when its parent is killed.
"""

from __future__ import annotations

import os
import sys

from rmux.run.processes import die_with_parent

if __name__ == "__main__":
    die_with_parent()
    os.execv(sys.argv[1], sys.argv[1:])
