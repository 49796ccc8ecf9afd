"""Reads through a mount while everything around it fails, and reports failures that should not have happened.

Run it as tools/soak. tf.data and a PyTorch DataLoader train on a bucket through a cache that rotates, and check every
byte. Meanwhile the remote misbehaves and changes, and the daemon, its workers, the S3 server and the readers are killed
with SIGKILL, in an order that --seed repeats. It exits with 1 if a reader saw wrong bytes or an unexplained error, or
if something was left behind or has grown.
"""

from __future__ import annotations

import argparse
import random
import sys

from rich.console import Console

from growfs.fuse.probe import why_not_passthrough
from tools.benchmarks.measure import exit_status, temporary_folder
from tools.soaking.soak import Plan, Soak
from tools.soaking.tables import print_tables

QUICK_MINUTES = 3.0
"""A shorter run has fewer files, and faults follow each other faster."""


def soak() -> int:
    """Soak for as long as asked. Returns the exit status. Ctrl-C ends it early, with the tables."""
    parser = argparse.ArgumentParser(prog="tools/soak", description="Read through a mount while everything fails.")
    parser.add_argument(
        "minutes", nargs="?", type=float, default=60.0, metavar="MINUTES", help="how long (default: 60)"
    )
    parser.add_argument("--seed", type=int, default=random.randrange(10_000), help="of the order of the faults")
    parser.add_argument("--engine", choices=("passthrough", "libfuse"), help="mount with this one only")
    arguments = parser.parse_args()
    if arguments.minutes <= 0:
        parser.error("MINUTES is more than 0")
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    with temporary_folder() as folder:
        engines = (arguments.engine,) if arguments.engine else ("passthrough", "libfuse")
        if why := why_not_passthrough(folder):
            console.print(f"libfuse only: {why}")
            engines = ("libfuse",)
        console.print(f"tools/soak {arguments.minutes:g} --seed {arguments.seed}")
        quick = arguments.minutes < QUICK_MINUTES
        run = Soak(Plan(folder, arguments.minutes * 60, arguments.seed, quick, engines), console)
        interrupted = run.run()
    failures = print_tables(console, run)
    if failures:
        return 1
    return 130 if interrupted else 0


if __name__ == "__main__":
    sys.exit(exit_status("soak", soak))
