"""Latency of reading a small cached file while growfs fetches other files at full speed.

The S3 server stands for another machine: it has half of the cores to itself, and the reader shares the other half with
growfs. With the server on the same cores, even a byte echoed by another process takes ten times as long at the 99th
percentile during the fill, because the kernel does not preempt a server in the middle of a send.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path

from tools.benchmarks.filling import NAME, SHARDS, make_shards
from tools.benchmarks.measure import (
    Figures,
    Setting,
    fault_in_memory,
    halved_cores,
    make_files,
    on_cores,
    temporary_folder,
    wait_until,
)
from tools.benchmarks.mounts import Mount, mounted
from tools.benchmarks.reader_process import ReaderProcess
from tools.benchmarks.servers import rclone_server

FILES = 200
SIZE = 100_000
SMALL = "small"
TARGET = 3.0
BANDWIDTH_FIRST = "1MB/s"
"""The limit until the reader starts measuring, so that the fill has only begun by then, however slow the machine."""


def while_filling(setting: Setting, found: Figures) -> str:
    """Each mount while it fills its empty cache, then for the same time while it is idle."""
    server_cores, growfs_cores = halved_cores()
    mib = 4 if setting.quick else 128
    remote = setting.folder / "remote"
    bytes = make_shards(remote, SHARDS, mib)
    names = setting.folder / "names"
    names.write_text("".join(f"{path}\n" for path in make_files(remote / NAME / SMALL, FILES, SIZE)))
    with contextlib.ExitStack() as stack:
        with on_cores(server_cores):
            server = stack.enter_context(rclone_server(remote))
        stack.enter_context(on_cores(growfs_cores))
        reader = stack.enter_context(ReaderProcess())
        flags = ["--endpoint-url", server.endpoint, "--cache-size", 2 * bytes + (1 << 30)]
        for _ in range(setting.rounds):
            for engine in setting.engines:
                more = [*flags, "--engine", engine]
                with temporary_folder() as folder:
                    with mounted(f"s3://{NAME}", folder, *more, "--include", f"{SMALL}/**", "--wait-files", FILES):
                        pass
                    os.sync()
                    fault_in_memory(2 * bytes)
                    slow = ["--no-wait", "--bandwidth", BANDWIDTH_FIRST]
                    with mounted(f"s3://{NAME}", folder, *more, *slow) as mount:
                        rate, filling, idle = probe_latency(mount, reader, names)
                found.add(f"{engine}, fetched meanwhile", rate, unit="MB/s")
                for which, target in (("p50_ms", None), ("p99_ms", TARGET)):
                    name = f"{engine}, {which[:3]}"
                    found.add(f"{name}, filling", filling[which], unit="ms")
                    found.add(f"{name}, idle", idle[which], unit="ms")
                    found.add(f"{name}, filling, of idle", filling[which] / idle[which], at_most=target)
    return f"open and read of a cached file of 100 kB, while {SHARDS} shards of {mib} MiB are fetched"


def probe_latency(mount: Mount, reader: ReaderProcess, names: Path) -> tuple[float, dict[str, float], dict[str, float]]:
    """MB/s fetched during the fill, and the latencies during and after it."""
    small = mount.mountpoint / SMALL
    reader.call("files", small, names, 0)  # the first open of a file is slower
    wait_until(lambda: fetched(mount), "filling", every_s=0.02)
    began, before = time.monotonic(), fetched(mount)
    reader.start("until_told", small, names)
    mount.set(bandwidth=0)
    wait_until(lambda: len(list(mount.files.glob("shard-*"))) == SHARDS, "filling")  # without a request to the daemon
    filling, fill_s = reader.call("stop"), time.monotonic() - began
    reader.start("until_told", small, names)
    time.sleep(fill_s)
    idle = reader.call("stop")
    return (fetched(mount) - before) / fill_s / 1e6, filling, idle


def fetched(mount: Mount) -> int:
    """Bytes fetched so far. Read through the mount: starting a command would add load."""
    status = json.loads((mount.mountpoint / ".growfs/status.json").read_text())
    return int(status["fetch"]["bytes_total"])
