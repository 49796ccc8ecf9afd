"""The readers that are timed: a fresh process each, the standard library alone. Prints what it measured as JSON."""

from __future__ import annotations

import json
import os
import random
import select
import statistics
import sys
import time
from collections.abc import Callable

BUFFER = 1 << 20
PROBE_EVERY_S = 0.005


def sequential(path: str) -> float:
    """Seconds to read a file from its start to its end, as dd bs=1M does."""
    buffer = bytearray(BUFFER)
    began = time.perf_counter()
    fd = os.open(path, os.O_RDONLY)
    while os.readv(fd, [buffer]):
        pass
    os.close(fd)
    return time.perf_counter() - began


def files(folder: str, passes: str) -> dict[str, object]:
    """Seconds to list a tree once, and then for each pass of open, read and close over all its files."""
    buffer = bytearray(BUFFER)
    began = time.perf_counter()
    paths = [os.path.join(root, name) for root, _, names in os.walk(folder) for name in names]
    listed_s = time.perf_counter() - began
    took = []
    for number in range(int(passes)):
        random.Random(number).shuffle(paths)
        began = time.perf_counter()
        read = 0
        for path in paths:
            fd = os.open(path, os.O_RDONLY)
            read += os.readv(fd, [buffer])
            os.close(fd)
        took.append(time.perf_counter() - began)
    return {"files": len(paths), "bytes": read, "listed_s": listed_s, "passes_s": took}


def probe(folder: str, names: str, per_directory: str) -> dict[str, dict[str, float]]:
    """Until the standard input ends: how long a stat of a name takes that the kernel has not seen, and an open.

    names: how many names of the formula's first ones may be asked for.
    """
    numbers = list(range(int(names)))
    random.Random(1).shuffle(numbers)
    resident = next(os.path.join(root, names[0]) for root, _, names in os.walk(folder) if names)
    took: dict[str, list[float]] = {"stat": [], "open": []}
    while not select.select([sys.stdin], [], [], PROBE_EVERY_S)[0]:
        if numbers:
            directory, number = divmod(numbers.pop(), int(per_directory))
            began = time.perf_counter()
            os.stat(f"{folder}/d{directory:04}/f{number:04}.bin")
            took["stat"].append(time.perf_counter() - began)
        began = time.perf_counter()
        os.close(os.open(resident, os.O_RDONLY))
        took["open"].append(time.perf_counter() - began)
    return {what: spread(times) for what, times in took.items() if len(times) > 1}


def spread(times: list[float]) -> dict[str, float]:
    """Milliseconds."""
    cuts = statistics.quantiles(times, n=100, method="inclusive")
    return {"n": len(times), "p50_ms": cuts[49] * 1e3, "p99_ms": cuts[98] * 1e3, "max_ms": max(times) * 1e3}


WHAT: dict[str, Callable[..., object]] = {"sequential": sequential, "files": files, "probe": probe}

if __name__ == "__main__":
    print(json.dumps(WHAT[sys.argv[1]](*sys.argv[2:])))
