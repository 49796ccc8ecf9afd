"""Runs a command that takes only CPU time that nobody else wants: `python -m tools.benchmarks.aside COMMAND ...`."""

import os
import sys

from growfs.workers.process import step_aside

step_aside()
os.execv(sys.argv[1], sys.argv[1:])
