"""Fills an empty cache from a server, and copies the same bucket with copy programs.

growfs's time runs from its first connection to the server, so that the listing counts but starting Python does not, to
the ctime of the last file (a file is renamed when it is complete). A copy program's time is that of its process; both
are small and start at once. Each run has a new target; earlier writes are flushed first, and memory for the run is
faulted in. CPU time is that of all processes.
"""

from __future__ import annotations

import hashlib
import os
import random
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import BinaryIO

from growfs.proc import opened
from tests.servers import make_certificate
from tools.benchmarks.cached import SMALL_BYTES
from tools.benchmarks.cgroup import Cgroup
from tools.benchmarks.measure import (
    BenchError,
    Figures,
    Setting,
    fault_in_memory,
    make_file,
    make_files,
    need_space,
    ratios,
    run,
)
from tools.benchmarks.mounts import mounted
from tools.benchmarks.servers import Server, behind_link, rclone_binary, rclone_server, rclone_source, s5cmd_binary

NAME = "bucket"
RCLONE_FLAGS = (
    "--transfers=8",
    "--multi-thread-streams=4",
    "--multi-thread-cutoff=64M",
    "--multi-thread-chunk-size=16M",
)


@dataclass(frozen=True, slots=True)
class Source:
    """The source of a run: the bucket NAME, unless it is another store. certificate: to trust if the server uses TLS.

    flags: with which growfs reaches a store other than S3 at the server's endpoint.
    """

    server: Server
    files: int
    bytes: int
    certificate: Path | None = None
    url: str = f"s3://{NAME}"
    flags: Sequence[object] | None = None


@dataclass(frozen=True, slots=True)
class CopyRun:
    """One run. cpu_s: None if it was not measured."""

    seconds: float
    cpu_s: float | None


Contender = Callable[[Source, Path], CopyRun]
"""Copies a source to an empty folder."""
Runs = dict[str, list[CopyRun]]
"""By contender, one for each round. The run of growfs is named "growfs"."""


def compare(source: Source, folder: Path, rounds: int, contenders: Mapping[str, Contender]) -> Runs:
    """Run every contender in each round. The copies stay until the end: for half a minute after a file is deleted,
    ext4 checks its inode again whenever it creates a file (fs/ext4/ialloc.c, recently_deleted).
    """
    runs: Runs = defaultdict(list)
    for number in range(rounds):
        for contender, copy in contenders.items():
            target = folder / f"target-{number}-{contender.replace(' ', '-')}"
            target.mkdir(parents=True)
            os.sync()
            fault_in_memory(2 * source.bytes)
            runs[contender].append(copy(source, target))
            for path in target.rglob("*"):
                if path.is_file():
                    os.truncate(path, 0)  # frees its blocks
    return runs


# growfs.


def flags_of(source: Source, engine: str) -> list[object]:
    """The flags of a mount with an empty cache that has room for the whole bucket."""
    there = ["--endpoint-url", source.server.endpoint] if source.flags is None else source.flags
    return ["--engine", engine, *there, "--refresh", 0, "--cache-size", 2 * source.bytes + (1 << 30)]


def growfs_mount(engine: str, *more: object) -> Contender:
    """A mount of the whole bucket. more: flags."""

    def copy(source: Source, folder: Path) -> CopyRun:
        flags = [*flags_of(source, engine), "--wait-files", source.files, *more]
        if source.certificate:
            flags += ["--storage-option", f"client_kwargs.verify={source.certificate}"]
        with Cgroup() as group:
            first: list[tuple[float, float | None]] = []

            def start(command: Sequence[object]) -> None:
                """Note the time, and the CPU time so far, when the server has its first connection."""
                known = opened(source.server.pid)
                with ThreadPoolExecutor(1) as pool:
                    mounting = pool.submit(run, group.command(command))
                    while not (mounting.done() or any("socket:" in name for name in opened(source.server.pid) - known)):
                        time.sleep(0.002)
                    first.append((time.time(), group.cpu_s()))
                    mounting.result()

            with mounted(source.url, folder, *flags, start=start) as mount:
                cpu_s, (began, start_cpu_s) = group.cpu_s(), first[0]
                ended = check(source, mount.files)
        return CopyRun(ended - began, None if cpu_s is None or start_cpu_s is None else cpu_s - start_cpu_s)

    return copy


def check(source: Source, folder: Path) -> float:
    """The time at which the last file was complete. Raises BenchError unless all files are there."""
    stats = [path.stat() for path in folder.rglob("*") if path.is_file()]
    if (len(stats), sum(stat.st_size for stat in stats)) != (source.files, source.bytes):
        raise BenchError(f"{folder}: {len(stats):,} of {source.files:,} files arrived, or not all of their bytes")
    return max(stat.st_ctime for stat in stats)


# Copy programs.


def rclone_copy(source: Source, target: Path) -> CopyRun:
    """rclone, with the fastest flags found."""
    flags = [f"--ca-cert={source.certificate}"] if source.certificate else []
    bucket = rclone_source(source.server.endpoint, NAME)
    return run_copier(
        source, target, [rclone_binary(), "copy", "--config", os.devnull, *RCLONE_FLAGS, *flags, bucket, target]
    )


def s5cmd_cp(*flags: object) -> Contender:
    def copy(source: Source, target: Path) -> CopyRun:
        variables = {"SSL_CERT_FILE": source.certificate} if source.certificate else {}
        command = [s5cmd_binary(), "--log", "error", "--endpoint-url", source.server.endpoint, *flags]
        return run_copier(source, target, [*command, "cp", f"s3://{NAME}/*", f"{target}/"], **variables)

    return copy


def run_copier(source: Source, target: Path, command: Sequence[object], **variables: object) -> CopyRun:
    """Time a copy program from its start to its end."""
    with Cgroup() as group:
        began = time.monotonic()
        run(group.command(command), **variables)
        seconds, cpu_s = time.monotonic() - began, group.cpu_s()
    check(source, target)
    return CopyRun(seconds, cpu_s)


COPIERS: Mapping[str, Contender] = {"rclone copy": rclone_copy, "s5cmd cp": s5cmd_cp()}


# Copied data.

SHARDS = 16


def download(setting: Setting, found: Figures) -> str:
    """Large shards from S3 on loopback to the local disk."""
    return _shards(setting, found, None, target=1.0)


def https(setting: Setting, found: Figures) -> str:
    """The same over TLS, with a certificate that the clients are configured to trust."""
    return _shards(setting, found, make_certificate(setting.folder / "certificate.pem"), target=0.9)


def _shards(setting: Setting, found: Figures, certificate: Path | None, target: float) -> str:
    mib, remote = 1 if setting.quick else 128, setting.folder / "remote"
    bytes = make_shards(remote, SHARDS, mib)
    with rclone_server(remote, certificate, low_priority=True) as server:
        source = Source(server, SHARDS, bytes, certificate)
        contenders = {"growfs": growfs_mount(setting.engines[0]), **COPIERS}
        runs = compare(source, setting.folder, setting.rounds, contenders)
    add_figures(found, runs, bytes / 1e6, "MB", "s/GB", target, scale=1e3)
    return f"{SHARDS} shards of {mib} MiB from S3 on loopback{', TLS' if certificate else ''}"


def make_shards(remote: Path, shards: int, mib: int) -> int:
    """Write the bucket, after checking that the disk also has space for a copy; return its size in bytes."""
    need_space(remote.parent, 2 * shards * mib << 20)
    for number in range(shards):
        make_file(remote / NAME / shard_name(number), mib)
    return shards * mib << 20


def shard_name(number: int) -> str:
    """The name of a file that `make_shards` writes."""
    return f"shard-{number:02}.bin"


def small_fetch(setting: Setting, found: Figures) -> str:
    """Small files. s5cmd also runs with fewer than its 256 workers, which is faster on a machine with few cores."""
    files, remote = 100 if setting.quick else 10_000, setting.folder / "remote"
    need_space(setting.folder, 2 * files * SMALL_BYTES)
    make_files(remote / NAME, files, SMALL_BYTES, directories=10)
    with rclone_server(remote, low_priority=True) as server:
        source = Source(server, files, files * SMALL_BYTES)
        contenders = {"growfs": growfs_mount(setting.engines[0]), **COPIERS}
        contenders["s5cmd cp, 64"] = s5cmd_cp("--numworkers", 64)
        runs = compare(source, setting.folder, min(setting.rounds, 3), contenders)
    add_figures(found, runs, files, "files", "us/file", 1.0, scale=1e6)
    return f"{files:,} files of 100 kB in 10 directories from S3 on loopback"


def add_figures(found: Figures, runs: Runs, of: float, unit: str, each: str, target: float, scale: float) -> None:
    """Add rates and CPU time of growfs, compared with the copy program that is best at each.

    of: the total amount, in `unit`. each: the unit of the CPU figures; scale: converts CPU seconds to it. target: of
    the ratio of rates; growfs must also use no more CPU than the lowest copier.
    """
    copiers = [contender for contender in runs if contender != "growfs"]
    rates = {contender: [of / one.seconds for one in its] for contender, its in runs.items()}
    best = max(copiers, key=lambda contender: median(rates[contender]))
    for contender, values in rates.items():
        found.add(contender, *values, unit=f"{unit}/s")
    found.add(f"growfs, of {best}", *ratios(rates["growfs"], rates[best]), at_least=target)
    cpu = {name: [scale * one.cpu_s / of for one in its if one.cpu_s is not None] for name, its in runs.items()}
    if all(cpu.values()):
        lowest = min(copiers, key=lambda contender: median(cpu[contender]))
        for contender, values in cpu.items():
            found.add(f"{contender}, CPU", *values, unit=each)
        found.add(f"growfs, CPU of that of {lowest}", *ratios(cpu["growfs"], cpu[lowest]), at_most=1)


RTT_S, RATE = 0.1, 125_000_000


def far(setting: Setting, found: Figures) -> str:
    """How much of a long link's rate is used."""
    shards, mib = (4, 1) if setting.quick else (SHARDS, 128)
    bytes = make_shards(setting.folder / "remote", shards, mib)
    with rclone_server(setting.folder / "remote") as server, behind_link(server.endpoint, RTT_S, RATE) as link:
        contenders = {"growfs": growfs_mount(setting.engines[0]), **COPIERS}
        runs = compare(Source(link, shards, bytes), setting.folder, min(setting.rounds, 2), contenders)
    for contender, its in runs.items():
        target = 0.9 if contender == "growfs" else None
        found.add(f"{contender}, of the link's rate", *(bytes / RATE / one.seconds for one in its), at_least=target)
    return f"{shards} shards of {mib} MiB over a link of {RTT_S * 1e3:g} ms and {RATE / 1e6:g} MB/s"


# Producers.

HASH_ROUNDS = 200_000
"""For each sample: 0.1 s on one core."""


def busy(index: int, rng: random.Random, out: BinaryIO) -> None:
    """A sample that costs only CPU."""
    out.write(hashlib.pbkdf2_hmac("sha256", rng.randbytes(8), b"", HASH_ROUNDS))


def producers(setting: Setting, found: Figures) -> str:
    """A copying producer compared with plain downloads, and a computing one by its number of processes."""
    shards, mib, samples = (4, 1, 4) if setting.quick else (32, 128, 100)  # starting a process takes half a second
    engine, remote = setting.engines[0], setting.folder / "remote"
    bytes = make_shards(remote, shards, mib)
    with rclone_server(remote, low_priority=True, hashes=False) as server:
        copying = growfs_mount(engine, "--producer", "growfs.producers:copy")
        contenders = {"fetched": growfs_mount(engine), "copied by a producer": copying}
        runs = compare(Source(server, shards, bytes), setting.folder, setting.rounds, contenders)
    rates = {name: [bytes / 1e6 / one.seconds for one in its] for name, its in runs.items()}
    for name, values in rates.items():
        found.add(name, *values, unit="MB/s")
    found.add("copied, of fetched", *ratios(rates["copied by a producer"], rates["fetched"]), at_least=0.8)
    cores = len(os.sched_getaffinity(0))
    for number in range(setting.rounds):
        per_s = {}
        for workers in dict.fromkeys((1, cores)):
            folder = setting.folder / f"made-{number}-{workers}"
            per_s[workers] = _made_per_s(engine, folder, workers, samples)
            found.add(f"computed by {workers}", per_s[workers], unit="files/s")
        if cores > 1:
            growth = per_s[cores] / per_s[1] / cores
            found.add(f"growth from 1 to {cores} processes, of {cores}", growth, at_least=0.8)
    return f"{shards} shards of {mib} MiB from S3 on loopback, and samples of 0.1 s of CPU, by producers"


def _made_per_s(engine: str, folder: Path, workers: int, files: int) -> float:
    """Files per second, from the first file to the last."""
    flags = ["--engine", engine, "--cache-size", "1GB", "--count", files, "--wait-files", files, "--workers", workers]
    with mounted(f"py:{__file__}:busy", folder, *flags) as mount:
        arrived = sorted(path.stat().st_ctime for path in mount.files.rglob("*") if path.is_file())
    return (len(arrived) - 1) / (arrived[-1] - arrived[0])
