"""One directory with a million resident files: how long it takes to list, and what other readers feel of that."""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from pathlib import Path

from tools.benchmarks.formula_s3 import key
from tools.benchmarks.measure import BenchError, Figure, Setting, at_most, figure, memory_mb, need_space, run, until
from tools.benchmarks.mounts import ENGINES, mounted
from tools.benchmarks.readers import Reader
from tools.benchmarks.servers import formula_server

ALONE_S = 3.0
P99_MS_MAX = 10.0
BLOCK = 4096


def measure(setting: Setting) -> tuple[str, list[Figure]]:
    """A fresh mount each time, so that the listing begins the first generation, of names new to the kernel."""
    files = 10_000 if setting.quick else 1_000_000
    need_space(setting.folder, files * BLOCK)
    took: dict[tuple[str, str], list[float]] = defaultdict(list)
    with formula_server(files, 1, setting.folder / "server.log", per_directory=files) as endpoint:
        flags = ["--endpoint-url", endpoint, "--no-wait", "--refresh", 0]
        with mounted("s3://formula", setting.folder, "--cache-size", "1MiB", *flags) as mount:
            until(lambda: mount.status()["remote"]["listed"], "listing", every_s=0.5)
            cache = mount.files.parent
        run([sys.executable, "-m", "tools.benchmarks.fill", cache, 1])
        for _ in range(setting.rounds):
            for who in (who for who in setting.contenders if who in ENGINES):
                size = files * BLOCK * 2
                with mounted("s3://formula", setting.folder, "--engine", who, "--cache-size", size, *flags) as mount:
                    took[who, "mount returns, s"].append(mount.returned_s)
                    until(lambda: not mount.status()["remote"]["listing"], "listing again", every_s=0.5)
                    before = memory_mb(mount.pid, "VmRSS")
                    for what, measured in listed(mount.mountpoint, files).items():
                        took[who, what].append(measured)
                    took[who, "the daemon's memory grows by, MB"].append(memory_mb(mount.pid, "VmRSS") - before)
    found = []
    for (who, name), rounds in took.items():
        what, _, unit = name.rpartition(", ")
        if name == "open and read while it is listed, p99, ms":
            found.append(at_most(f"{who}, {what}", rounds, unit, P99_MS_MAX))
        else:
            found.append(figure(f"{who}, {what}", rounds, unit))
    return f"{files:,} resident files in one directory", found


def listed(mountpoint: Path, files: int) -> dict[str, float]:
    """What one reader takes for the directory, and another for files in it, before and meanwhile."""
    folder = (mountpoint / key(0, files)).parent
    with Reader() as lister, Reader() as other:
        other.ask("others", folder, files)
        time.sleep(ALONE_S)
        alone = other.do("enough")
        other.ask("others", folder, files)
        listing = lister.do("listing", folder)
        meanwhile = other.do("enough")
    if listing["files"] != files:
        raise BenchError(f"{listing['files']} of {files} files are listed")
    return {
        "os.listdir, s": listing["s"],
        "files listed per second, files/s": files / listing["s"],
        **{f"open and read alone, {which}, ms": alone[f"{which}_ms"] for which in ("p50", "p99")},
        **{
            f"open and read while it is listed, {which}, ms": meanwhile[f"{which}_ms"]
            for which in ("p50", "p99", "max")
        },
    }
