"""Runs a program that prints a line for each epoch, and lets it go on to the next one when it is told to.

    python in_turns.py PROGRAM ARGUMENT...

A line on standard input begins the program, and each further one the epoch after; at their end it goes on by itself.
"""

from __future__ import annotations

import builtins
import runpy
import sys

_print = builtins.print


def print_and_wait(*values: object, **options: object) -> None:
    """As print; returns when there is a line to read, if what was printed is of an epoch."""
    _print(*values, **options)  # type: ignore[call-overload]  # what print takes is its own affair
    if values and str(values[0]).startswith("epoch "):
        sys.stdin.readline()


if __name__ == "__main__":
    builtins.print = print_and_wait
    sys.argv = sys.argv[1:]
    sys.stdin.readline()
    runpy.run_path(sys.argv[0], run_name="__main__")
