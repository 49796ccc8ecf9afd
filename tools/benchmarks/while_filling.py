"""Latency of reading a small cached file while growfs fetches other files at full speed.

The S3 server stands for another machine: it has half of the cores to itself, and the reader shares the other half with
growfs. With the server on the same cores, even a byte that another process echoes takes ten times as long at the 99th
percentile during the fill, because the kernel does not preempt a server in the middle of a send.

For each file in the mount, the reader also opens a file on the local disk, without growfs, and has another process echo
a byte. If these two become slower, the kernel is the cause and not growfs: an open through the mount takes at least as
long as both together, because the daemon is another process.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections import defaultdict
from pathlib import Path

from tools.benchmarks.filling import NAME, SHARDS, make_shards
from tools.benchmarks.measure import BenchError, Figures, Setting, fault_in_memory, on_cores, ratios, wait_until
from tools.benchmarks.mounts import Mount, mounted
from tools.benchmarks.reader_process import ReaderProcess
from tools.benchmarks.servers import rclone_server

FILES = 200
SIZE = 100_000
SMALL = "small"
TARGET = 3.0
BANDWIDTH_FIRST = "1MB/s"
"""The limit until the reader measures: the fill is at its beginning then, however slow the machine is."""
LOADS = ("filling", "idle")
PERCENTILES = ("p50_ms", "p99_ms")


def while_filling(setting: Setting, found: Figures) -> str:
    """Each mount while it fills its empty cache, then for the same time while it is idle."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise BenchError("needs two cores, one of them for the server")
    server_cores, growfs_cores = set(cores[: len(cores) // 2]), set(cores[len(cores) // 2 :])
    mib = 4 if setting.quick else 128
    remote = setting.folder / "remote"
    bytes = make_shards(remote, SHARDS, mib)
    names, local = setting.folder / "names", setting.folder / "local"
    names.write_text("".join(f"{number:03}.bin\n" for number in range(FILES)))
    for folder in (remote / NAME / SMALL, local):
        folder.mkdir()
        for name in names.read_text().splitlines():
            (folder / name).write_bytes(os.urandom(SIZE))
    latencies: dict[tuple[str, str, str], list[dict[str, float]]] = defaultdict(list)
    rates: dict[str, list[float]] = defaultdict(list)
    with contextlib.ExitStack() as stack:
        with on_cores(server_cores):
            server = stack.enter_context(rclone_server(remote, setting.folder / "rclone.log"))
        stack.enter_context(on_cores(growfs_cores))
        reader = stack.enter_context(ReaderProcess())
        flags = ["--endpoint-url", server.endpoint, "--cache-size", 2 * bytes + (1 << 30)]
        for _ in range(setting.rounds):
            for contender in setting.engines:
                folder = setting.folder / contender
                folder.mkdir()
                engine_flags = [*flags, "--engine", contender]
                with mounted(f"s3://{NAME}", folder, *engine_flags, "--include", f"{SMALL}/**", "--wait-files", FILES):
                    pass
                os.sync()
                fault_in_memory(2 * bytes).close()
                slow = ["--no-wait", "--bandwidth", BANDWIDTH_FIRST]
                with mounted(f"s3://{NAME}", folder, *engine_flags, *slow) as mount:
                    rate, times = probe_latency(mount, reader, [mount.mountpoint / SMALL, local], names)
                rates[contender].append(rate)
                for load, both in times.items():
                    for subject, one in zip((contender, *controls(contender)), both, strict=True):
                        latencies[subject, contender, load].append(one)
                shutil.rmtree(folder)
    for contender in setting.engines:
        found.add(f"{contender}, fetched meanwhile", *rates[contender], unit="MB/s")
        for subject in (contender, *controls(contender)):
            for which in PERCENTILES:
                values = {load: [one[which] for one in latencies[subject, contender, load]] for load in LOADS}
                name = f"{subject}, {which[:3]}"
                for load in LOADS:
                    found.add(f"{name}, {load}", *values[load], unit="ms")
                target = TARGET if (subject, which) == (contender, "p99_ms") else None
                slower = ratios(values["filling"], values["idle"])
                found.add(f"{name}, filling, of idle", *slower, at_most=target)
    return f"open and read of a cached file of 100 kB, while {SHARDS} shards of {mib} MiB are fetched"


def controls(contender: str) -> tuple[str, str]:
    """What the reader also measures, beside a mount."""
    return f"local file, {contender}", f"another process, {contender}"


def probe_latency(
    mount: Mount, reader: ReaderProcess, folders: list[Path], names: Path
) -> tuple[float, dict[str, list[dict[str, float]]]]:
    """MB/s fetched during the fill, and for each load the latencies of the folders and of the other process."""
    for folder in folders:
        reader.call("files", folder, names, 0)  # the first open of a file is slower
    wait_until(lambda: fetched(mount), "filling", every_s=0.02)
    began, before = time.monotonic(), fetched(mount)
    reader.send("alternate", folders, names)
    mount.set(bandwidth=0)
    wait_until(lambda: len(list(mount.files.glob("shard-*"))) == SHARDS, "filling")  # without a request to the daemon
    filling, fill_s = reader.call("stop"), time.monotonic() - began
    reader.send("alternate", folders, names)
    time.sleep(fill_s)
    idle = reader.call("stop")
    rate = (fetched(mount) - before) / fill_s / 1e6
    return rate, dict(zip(LOADS, (filling, idle), strict=True))


def fetched(mount: Mount) -> int:
    """Bytes fetched so far. Read through the mount: starting a command would add load."""
    status = json.loads((mount.mountpoint / ".growfs/status.json").read_text())
    return int(status["fetch"]["bytes_total"])
