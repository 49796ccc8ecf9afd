"""Runs a command at idle priority: `python -m tools.benchmarks.low_priority COMMAND ...`."""

import os
import sys

from growfs.workers.process import lower_priority

lower_priority()
os.execv(sys.argv[1], sys.argv[1:])
