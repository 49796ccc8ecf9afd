"""Runs a program that prints a line after each epoch, and pauses it before each epoch.

    python pause_epochs.py PROGRAM ARGUMENT...

Each line on standard input starts one epoch; the first one also starts the program. At the end of the input, it stops
pausing.
"""

from __future__ import annotations

import builtins
import runpy
import sys

_print = builtins.print


def print_and_wait(*values: object, **options: object) -> None:
    """Print; after the line of an epoch, wait for a line on standard input."""
    _print(*values, **options)  # type: ignore[call-overload]  # print checks its options
    if values and str(values[0]).startswith("epoch "):
        sys.stdin.readline()


if __name__ == "__main__":
    builtins.print = print_and_wait
    sys.argv = sys.argv[1:]
    sys.stdin.readline()
    runpy.run_path(sys.argv[0], run_name="__main__")
