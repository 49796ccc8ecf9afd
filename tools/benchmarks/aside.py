"""Runs a command that takes only CPU time that nobody else wants: `python -m tools.benchmarks.aside COMMAND ...`."""

import os
import sys

from growfs.workers.process import lower_priority

lower_priority()
os.execv(sys.argv[1], sys.argv[1:])
