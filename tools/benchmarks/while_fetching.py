"""Programs that read cached files while growfs fetches others: the latency of reads, and what training keeps.

For `while_filling` and `busy`, the S3 server stands for another machine: it has half of the cores to itself, and the
reader shares the other half with growfs. With the server on the same cores, even a byte echoed by another process takes
ten times as long at the 99th percentile during the fill, because the kernel does not preempt a server in the middle of
a send.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.benchmarks import recipe_data
from tools.benchmarks.child import ReaderProcess
from tools.benchmarks.filling import NAME, SHARDS, make_shards
from tools.benchmarks.measure import (
    BenchError,
    Figures,
    Setting,
    fault_in_memory,
    make_files,
    need_modules,
    size_of,
    temporary_folder,
    wait_until,
)
from tools.benchmarks.mounts import Mount, mounted
from tools.benchmarks.servers import behind_link, rclone_server


@contextmanager
def server_on_half(folder: Path) -> Iterator[tuple[str, int]]:
    """A server on half of the cores; the block has the others. Yields its endpoint, and how many the others are."""
    cores = os.sched_getaffinity(0)
    if len(cores) < 2:
        raise BenchError("needs two cores, one of them for the server")
    others = set(sorted(cores)[len(cores) // 2 :])
    try:
        os.sched_setaffinity(0, cores - others)
        with rclone_server(folder) as server:
            os.sched_setaffinity(0, others)
            yield server.endpoint, len(others)
    finally:
        os.sched_setaffinity(0, cores)


def fetched(mount: Mount) -> int:
    """Bytes fetched so far. Read through the mount: starting a command would add load."""
    status = json.loads((mount.mountpoint / ".growfs/status.json").read_text())
    return int(status["fetch"]["bytes_total"])


# The latency of reads.

FILES = 200
SIZE = 100_000
SMALL = "small"
BANDWIDTH_FIRST = "1MB/s"
"""The limit until the reader starts measuring, so that the fill has only begun by then, however slow the machine."""


def while_filling(setting: Setting, found: Figures) -> str:
    """Each mount while it fills its empty cache, then for the same time while it is idle."""
    mib = 4 if setting.quick else 128
    remote, names = setting.folder / "remote", setting.folder / "names"
    bytes = make_shards(remote, SHARDS, mib)
    names.write_text("".join(f"{path}\n" for path in make_files(remote / NAME / SMALL, FILES, SIZE)))
    with server_on_half(remote) as (endpoint, _), ReaderProcess() as reader:
        for engine in setting.engines * setting.rounds:
            flags = ["--endpoint-url", endpoint, "--cache-size", 2 * bytes + (1 << 30), "--engine", engine]
            with temporary_folder() as folder:
                with mounted(f"s3://{NAME}", folder, *flags, "--include", f"{SMALL}/**", "--wait-files", FILES):
                    pass
                os.sync()
                fault_in_memory(2 * bytes)
                slow = ["--no-wait", "--bandwidth", BANDWIDTH_FIRST]
                with mounted(f"s3://{NAME}", folder, *flags, *slow) as mount:
                    rate, filling, idle = probe_latency(mount, reader, names)
            found.add(f"{engine}, fetched meanwhile", rate, unit="MB/s")
            for which, target in (("p50_ms", None), ("p99_ms", 3.0)):
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
    mount.call("set", options={"bandwidth": "0"})
    wait_until(lambda: len(list(mount.files.glob("shard-*"))) == SHARDS, "filling")  # without a request to the daemon
    filling, fill_s = reader.call("stop"), time.monotonic() - began
    reader.start("until_told", small, names)
    time.sleep(fill_s)
    idle = reader.call("stop")
    return (fetched(mount) - before) / fill_s / 1e6, filling, idle


# A job that needs all cores.

IMAGES, CLASSES, EPOCHS = 6000, 10, 2
LOADERS = {"images": "ImageFolder", "decoded": "tf.data"}
"""Commands of the reader."""


def busy(setting: Setting, found: Figures) -> str:
    """What a training job loses while growfs fetches new files, and how many it gets for that: epochs over a third of
    the dataset, in turns while nothing is fetched, and while files are replaced.
    """
    need_modules("tensorflow", "torch", "torchvision")
    bucket = setting.folder / "remote" / "bucket"
    images = 60 if setting.quick else IMAGES
    recipe_data.images(bucket, CLASSES, images // CLASSES)
    bytes = size_of(bucket)
    cache_size = bytes // 3
    with server_on_half(bucket.parent) as (endpoint, cores):
        flags = ["--endpoint-url", endpoint, "--cache-size", cache_size, "--engine", setting.engines[0]]
        flags += ["--wait-bytes", cache_size * 4 // 5]
        for command, loader in LOADERS.items():
            fault_in_memory(2 * cache_size)
            with (
                ReaderProcess(OMP_NUM_THREADS="1") as reader,
                mounted("s3://bucket", setting.folder / loader, *flags) as mount,
            ):
                reader.call(command, mount.mountpoint, cores)  # imports, and warms up
                for _ in range(setting.rounds):
                    mount.call("pause")
                    alone, _ = _epochs(reader, command, mount, cores)
                    mount.call("resume")
                    beside, new = _epochs(reader, command, mount, cores)
                    found.add(f"{loader}, nothing fetched", alone, unit="images/s")
                    found.add(f"{loader}, while files are replaced, of that", beside / alone, at_least=0.98)
                    found.add(f"{loader}, new images", new / (bytes / images), unit="images/s")
    return f"{images:,} JPEGs of 110 kB, a third cached, decoded on all cores but the server's"


def _epochs(reader: ReaderProcess, command: str, mount: Mount, workers: int) -> tuple[float, float]:
    """Images per second, and bytes fetched per second. Each epoch lists again, so files can be replaced between two."""
    before, began = fetched(mount), time.monotonic()
    epochs = [reader.call(command, mount.mountpoint, workers) for _ in range(EPOCHS)]
    rate = (fetched(mount) - before) / (time.monotonic() - began)
    return sum(epoch["files"] for epoch in epochs) / sum(epoch["seconds"] for epoch in epochs), rate


# A loop that waits for each file.

ROTATED_BYTES, CACHED_SHARE = 50_000, 10
COMPUTE_S = 0.0005
RTT_S, RATE = 0.01, 30_000_000
PLAIN = "plain files"


def rotation(setting: Setting, found: Figures) -> str:
    """The share of its time that a loop over small files computes while a cache of a tenth of them rotates, each mount
    in turn with a folder of as many plain files as the cache has.

    It has one thread and does not read ahead, so it is busy while it computes, and waits while it lists and reads.
    """
    files, epochs = (200, 3) if setting.quick else (12_000, 20)
    cached = files // CACHED_SHARE
    remote, plain = setting.folder / "remote", setting.folder / "plain"
    make_files(remote / NAME, files, ROTATED_BYTES, directories=10)
    make_files(plain, cached, ROTATED_BYTES, directories=10)
    with (
        rclone_server(remote, low_priority=True, etags="crc32") as server,
        behind_link(server.endpoint, RTT_S, RATE) as link,
        ReaderProcess() as reader,
    ):
        flags = ["--endpoint-url", link.endpoint, "--cache-size", cached * (ROTATED_BYTES + 3000)]
        flags += ["--wait-files", cached // 2]
        for _ in range(setting.rounds):
            busy = reader.call("train", plain, epochs, COMPUTE_S)["busy"]
            found.add(PLAIN, busy, unit="of the time")
            for engine in setting.engines:
                with temporary_folder() as at, mounted(f"s3://{NAME}", at, "--engine", engine, *flags) as mount:
                    trained = reader.call("train", mount.mountpoint, epochs, COMPUTE_S)
                found.add(engine, trained["busy"], unit="of the time", at_least=0.85)
                found.add(f"{engine}, of {PLAIN}", trained["busy"] / busy)
                found.add(f"{engine}, of the dataset seen", trained["different"] / files)
    return f"{files:,} files of {ROTATED_BYTES // 1000} kB, a tenth cached, {epochs} epochs, 0.5 ms of computing each"
