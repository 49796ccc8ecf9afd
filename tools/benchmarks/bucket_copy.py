"""Copies a whole bucket to the local disk, by growfs and by copy programs.

growfs's time runs from its first connection to the server, so the listing counts and the start of Python does not, to
the ctime of the last file (a file is renamed when it is whole). A copy program's time is that of its process; both are
small and start at once. Each run has a new target; earlier writes are flushed first, and memory for the run is faulted
in. CPU time is that of all processes; what growfs uses before its first connection is a figure of its own.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from tools.benchmarks.cgroup import Cgroup
from tools.benchmarks.measure import (
    ACCESS_KEY,
    SECRET_KEY,
    BenchError,
    Figure,
    at_least,
    at_most,
    fault_in_memory,
    figure,
    run,
)
from tools.benchmarks.mounts import mounted
from tools.benchmarks.servers import Certificate, Server, rclone_binary, s5cmd_binary

NAME = "bucket"
POLL_S = 0.002
RCLONE_FLAGS = (
    "--transfers=8",
    "--multi-thread-streams=4",
    "--multi-thread-cutoff=64M",
    "--multi-thread-chunk-size=16M",
)


@dataclass(frozen=True, slots=True)
class Source:
    """What a server has: the bucket NAME, if it is not another store. certificate: to trust if the server uses TLS.

    flags: with which growfs reaches a store that is not S3 at the server's endpoint.
    """

    server: Server
    files: int
    bytes: int
    certificate: Certificate | None = None
    url: str = f"s3://{NAME}"
    flags: Sequence[object] | None = None


@dataclass(frozen=True, slots=True)
class CopyRun:
    """One run. cpu_s: from the first connection on; start_cpu_s: before it. None: not measured."""

    seconds: float
    cpu_s: float | None
    mount_s: float = 0.0
    start_cpu_s: float | None = None


Contender = Callable[[Source, Path], CopyRun]
"""Copies a source to an empty folder."""


@dataclass(slots=True)
class CopyResults:
    """The runs of each contender, one per round. The one of growfs is named "growfs"."""

    source: Source
    rounds: dict[str, list[CopyRun]] = field(default_factory=lambda: defaultdict(list))

    def per_s(self, contender: str, of: float) -> list[float]:
        """The rate of each run. of: the total amount, in any unit."""
        return [of / run.seconds for run in self.rounds[contender]]

    def cpu(self, contender: str, of: float) -> list[float]:
        """CPU seconds per unit of each run, empty where not measured. of: the total amount."""
        return [run.cpu_s / of for run in self.rounds[contender] if run.cpu_s is not None]


def compare(source: Source, folder: Path, rounds: int, contenders: Mapping[str, Contender]) -> CopyResults:
    """Run every contender in each round. The copies stay until the end: for half a minute after a file is deleted,
    ext4 checks its inode again whenever it creates a file (fs/ext4/ialloc.c, recently_deleted).
    """
    results = CopyResults(source)
    for number in range(rounds):
        for contender, copy in contenders.items():
            target = folder / f"target-{number}-{contender.replace(' ', '-')}"
            target.mkdir(parents=True)
            os.sync()
            results.rounds[contender].append(copy(source, target))
            for path in target.rglob("*"):
                if path.is_file():
                    os.truncate(path, 0)  # frees its blocks
    return results


# growfs.


def growfs_mount(engine: str, *more: object) -> Contender:
    """A mount with an empty cache that the whole bucket fits into. more: flags."""

    def copy(source: Source, folder: Path) -> CopyRun:
        there = ["--endpoint-url", source.server.endpoint] if source.flags is None else source.flags
        flags: list[object] = ["--engine", engine, *there, "--refresh", 0]
        flags += ["--cache-size", 2 * source.bytes + (1 << 30), "--wait-files", source.files, *more]
        if source.certificate:
            flags += ["--storage-option", f"client_kwargs.verify={source.certificate.file}"]
        with Cgroup() as group:
            first: list[tuple[float, float | None]] = []

            def start(command: Sequence[object]) -> None:
                def on_connection() -> None:
                    first.append((time.time(), group.cpu_s()))
                    memory.close()

                memory = fault_in_memory(2 * source.bytes)
                with first_connection(source.server.pid, on_connection):
                    run(group.command(command))

            with mounted(source.url, folder, *flags, start=start) as mount:
                cpu_s = group.cpu_s()
                if not first:
                    raise BenchError("growfs mounted without a connection to the server")
                began, start_cpu_s = first[0]
                ended = check(source, mount.files)
            used = None if cpu_s is None or start_cpu_s is None else cpu_s - start_cpu_s
        return CopyRun(ended - began, used, mount.returned_s, start_cpu_s)

    return copy


@contextmanager
def first_connection(pid: int, callback: Callable[[], None]) -> Iterator[None]:
    """Call back once, when the process has a socket that it did not have when the block began."""
    known, ended = sockets(pid), False

    def watch() -> None:
        while not ended:
            if sockets(pid) - known:
                callback()
                return
            time.sleep(POLL_S)

    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        try:
            yield
        finally:
            ended = True
        watching.result()


def sockets(pid: int) -> set[str]:
    """The sockets that a process has open, by their names in /proc."""
    found = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.add(os.readlink(fd))
        except FileNotFoundError:  # closed in between
            continue
    return {name for name in found if name.startswith("socket:")}


def check(source: Source, folder: Path) -> float:
    """The time at which the last file was complete. Raises BenchError unless everything is there."""
    stats = [path.stat() for path in folder.rglob("*") if path.is_file()]
    if (len(stats), sum(stat.st_size for stat in stats)) != (source.files, source.bytes):
        raise BenchError(f"{folder}: {len(stats):,} of {source.files:,} files arrived, or not all of their bytes")
    return max(stat.st_ctime for stat in stats)


# Copy programs.


def rclone_copy(source: Source, target: Path) -> CopyRun:
    """rclone, with the fastest flags found."""
    keys = {"ACCESS_KEY_ID": ACCESS_KEY, "SECRET_ACCESS_KEY": SECRET_KEY, "ENDPOINT": source.server.endpoint}
    variables = {f"RCLONE_S3_{name}": value for name, value in {**keys, "PROVIDER": "Other"}.items()}
    flags = [f"--ca-cert={source.certificate.file}"] if source.certificate else []
    command = [rclone_binary(), "copy", "--config", os.devnull, *RCLONE_FLAGS, *flags, f":s3:{NAME}", target]
    return run_copier(source, target, command, **variables)


def s5cmd_cp(*flags: object) -> Contender:
    """s5cmd with these flags."""

    def copy(source: Source, target: Path) -> CopyRun:
        variables = {"SSL_CERT_FILE": source.certificate.file} if source.certificate else {}
        command = [
            s5cmd_binary(),
            "--log",
            "error",
            "--endpoint-url",
            source.server.endpoint,
            *flags,
            "cp",
            f"s3://{NAME}/*",
        ]
        return run_copier(source, target, [*command, f"{target}/"], **variables)

    return copy


def run_copier(source: Source, target: Path, command: Sequence[object], **variables: object) -> CopyRun:
    """Time a copy program from its start to its end."""
    fault_in_memory(2 * source.bytes).close()
    with Cgroup() as group:
        began = time.monotonic()
        run(group.command(command), **variables)
        seconds, cpu_s = time.monotonic() - began, group.cpu_s()
    check(source, target)
    return CopyRun(seconds, cpu_s)


COPIERS: Mapping[str, Contender] = {"rclone copy": rclone_copy, "s5cmd cp": s5cmd_cp()}


# Figures.


def figures(
    results: CopyResults, of: float, unit: str, each: str, target: float | None, scale: float = 1.0
) -> list[Figure]:
    """Rates and CPU, growfs compared with the copy program that is best at each, and what its start takes.

    of: the total amount, in `unit`. each: the unit of the CPU figures; scale: converts CPU seconds to it.
    target: for the ratio of rates; with one, growfs must also use no more CPU than the lowest copier.
    """
    copiers = [contender for contender in results.rounds if contender != "growfs"]
    rates = {contender: results.per_s(contender, of) for contender in results.rounds}
    best = max(copiers, key=lambda contender: median(rates[contender]))
    found = [figure(contender, values, f"{unit}/s") for contender, values in rates.items()]
    found.append(at_least(f"growfs, of {best}", ratios(rates["growfs"], rates[best]), "", target))
    cpu = {contender: results.cpu(contender, of) for contender in results.rounds}
    if all(cpu.values()):
        lowest = min(copiers, key=lambda contender: median(cpu[contender]))
        found += [
            figure(f"{contender}, CPU", [scale * one for one in values], each) for contender, values in cpu.items()
        ]
        of_lowest = ratios(cpu["growfs"], cpu[lowest])
        found.append(at_most(f"growfs, CPU of that of {lowest}", of_lowest, "", 1 if target else None))
    own = results.rounds["growfs"]
    found.append(figure("growfs mount, from its start to its end", [run.mount_s for run in own], "s"))
    starts = [run.start_cpu_s for run in own if run.start_cpu_s is not None]
    return found + ([figure("growfs, CPU before the first connection", starts, "s")] if starts else [])


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Round by round."""
    return [a / b for a, b in zip(ours, theirs, strict=True)]
