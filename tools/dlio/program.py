"""Runs DLIO as often as it is told to: `python program.py`.

It runs in DLIO's own environment and imports nothing from growfs. Importing DLIO with its frameworks takes seconds, so
it does that once, prints "ready", and then starts DLIO in a fork of itself for each line of JSON: `overrides` are those
of DLIO's configuration. With `part`, a folder with --exact, it first begins the next part, and DLIO gets its number of
files.

DLIO logs the utilization and the rate of each epoch. This program prints them as lines of JSON, with the time since the
start, and an empty line at the end. It then ends DLIO, which sometimes hangs for seconds after the last batch.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

UTILIZATION = re.compile(r"Accelerator Utilization \[AU\] \(%\): ([\d.]+)")
RATE = re.compile(r"Throughput \(samples/second\): ([\d.]+)")
STARTED = "Max steps per epoch"
"""Logged after DLIO has listed the folder."""
MODULES = (
    "dlio_benchmark.main",
    "dlio_benchmark.framework.tf_framework",
    "dlio_benchmark.framework.torch_framework",
    "dlio_benchmark.data_loader.tf_data_loader",
    "dlio_benchmark.data_loader.torch_data_loader",
    "dlio_benchmark.reader.tf_reader",
    "dlio_benchmark.reader.npz_reader",
)


def start(overrides: list[str], write_to: int) -> None:
    os.setsid()
    os.dup2(write_to, 1)
    os.dup2(write_to, 2)
    from dlio_benchmark.main import main

    sys.argv = ["dlio_benchmark", *overrides]
    main()


def run(overrides: list[str], epochs: int, seconds: float, began: float) -> None:
    """Run DLIO until it has logged the figures of its epochs, or its time is up."""
    read_from, write_to = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            start(overrides, write_to)
        finally:
            os._exit(0)
    os.close(write_to)

    def end() -> None:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)

    timer = threading.Timer(seconds, end)
    timer.start()
    lines: list[str] = []
    started_s = utilization = 0.0
    with os.fdopen(read_from, errors="replace") as output:
        for line in output:
            lines = [*lines[-20:], line]
            if STARTED in line:
                started_s = time.monotonic() - began
            elif found := UTILIZATION.search(line):
                utilization = float(found[1]) / 100
            elif found := RATE.search(line):
                say(
                    utilization=utilization,
                    samples_per_s=float(found[1]),
                    started_s=started_s,
                    ended_s=time.monotonic() - began,
                )
                epochs -= 1
            if not epochs:
                break
        end()
    timer.cancel()
    os.waitpid(pid, 0)
    if epochs:
        print("".join(lines), file=sys.stderr, flush=True)


def say(**values: object) -> None:
    print(json.dumps(values), flush=True)


def main() -> None:
    """Import, then run DLIO for each line."""
    import mpi4py

    mpi4py.rc.initialize = False  # DLIO does that itself, in the fork
    for module in MODULES:
        __import__(module)
    print("ready", flush=True)
    for line in sys.stdin:
        spec: dict[str, Any] = json.loads(line)
        began, overrides = time.monotonic(), spec["overrides"]
        if spec.get("part"):
            folder = Path(spec["part"])
            files = [name for name in os.listdir(folder) if not name.startswith(".")]  # begins the next part
            exact = json.loads((folder / ".growfs" / "status.json").read_bytes())["exact"]
            say(part=exact["part"], parts=exact["parts"], files=len(files))
            overrides = [*overrides, f"++workload.dataset.num_files_train={len(files)}"]
        run(overrides, spec["epochs"], spec["seconds"], began)
        print(flush=True)


if __name__ == "__main__":
    main()
