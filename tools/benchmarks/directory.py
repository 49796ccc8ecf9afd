"""One directory with a million cached files: how long a listing takes, and how it delays other readers."""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from pathlib import Path

from tools.benchmarks.formula_s3 import key
from tools.benchmarks.measure import (
    BenchError,
    Figure,
    Setting,
    at_most,
    figure,
    memory_mb,
    need_space,
    run,
    wait_until,
)
from tools.benchmarks.mounts import ENGINES, mounted
from tools.benchmarks.reader_process import ReaderProcess
from tools.benchmarks.servers import formula_server

ALONE_S = 3.0
P99_MS_MAX = 10.0
BLOCK = 4096


def measure(setting: Setting) -> tuple[str, list[Figure]]:
    """A fresh mount each time, so the listing starts the first generation and its names are new to the kernel."""
    files = 2000 if setting.quick else 1_000_000
    need_space(setting.folder, files * BLOCK)
    took: dict[tuple[str, str], list[float]] = defaultdict(list)
    with formula_server(files, 1, setting.folder / "server.log", per_directory=files) as endpoint:
        flags = ["--endpoint-url", endpoint, "--no-wait", "--refresh", 0]
        with mounted("s3://formula", setting.folder, "--cache-size", "1MiB", *flags) as mount:
            wait_until(lambda: mount.status()["remote"]["listed"], "listing", every_s=0.5)
            cache = mount.files.parent
        run([sys.executable, "-m", "tools.benchmarks.fill_cache", cache, 1])
        for _ in range(setting.rounds):
            for contender in (contender for contender in setting.contenders if contender in ENGINES):
                size = files * BLOCK * 2
                with mounted(
                    "s3://formula", setting.folder, "--engine", contender, "--cache-size", size, *flags
                ) as mount:
                    took[contender, "mount returns, s"].append(mount.returned_s)
                    wait_until(lambda: not mount.status()["remote"]["listing"], "listing again", every_s=0.5)
                    before = memory_mb(mount.pid, "VmRSS")
                    for what, measured in time_listing(mount.mountpoint, files).items():
                        took[contender, what].append(measured)
                    took[contender, "the daemon's memory grows by, MB"].append(memory_mb(mount.pid, "VmRSS") - before)
    found = []
    for (contender, name), rounds in took.items():
        what, _, unit = name.rpartition(", ")
        if name == "open and read while it is listed, p99, ms":
            found.append(at_most(f"{contender}, {what}", rounds, unit, P99_MS_MAX))
        else:
            found.append(figure(f"{contender}, {what}", rounds, unit))
    return f"{files:,} cached files in one directory", found


def time_listing(mountpoint: Path, files: int) -> dict[str, float]:
    """Time one reader that lists the directory, and another that opens files in it, before and during the listing."""
    folder = (mountpoint / key(0, files)).parent
    with ReaderProcess() as lister, ReaderProcess() as other:
        other.send("random_opens", folder, files)
        time.sleep(ALONE_S)
        alone = other.call("stop")
        other.send("random_opens", folder, files)
        listing = lister.call("listing", folder)
        during = other.call("stop")
    if listing["files"] != files:
        raise BenchError(f"{listing['files']} of {files} files are listed")
    return {
        "os.listdir, s": listing["s"],
        "files listed per second, files/s": files / listing["s"],
        **{f"open and read alone, {which}, ms": alone[f"{which}_ms"] for which in ("p50", "p99")},
        **{f"open and read while it is listed, {which}, ms": during[f"{which}_ms"] for which in ("p50", "p99", "max")},
    }
