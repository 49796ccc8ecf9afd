"""A bucket brought to the local disk, whole: by growfs, and by programs that copy.

growfs's time runs from the first connection to the server, so the listing counts and the start of Python does not, to
the moment when the last file became resident (its ctime: it is renamed when it is whole). A copier's time is that of
its process; both are small programs that begin at once. The target is new each time, what was written before is on the
disk by then, and the memory for what comes is there. CPU is that of all processes; growfs's, up to the first
connection, is told apart.
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

from tools.benchmarks.cgroup import Group
from tools.benchmarks.measure import (
    ACCESS_KEY,
    SECRET_KEY,
    BenchError,
    Figure,
    at_least,
    at_most,
    figure,
    run,
    touched_memory,
)
from tools.benchmarks.mounts import mounted
from tools.benchmarks.servers import Certificate, Running, rclone, s5cmd

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
    """A bucket of this name on a server, and what is in it. certificate: what to trust where it speaks TLS."""

    server: Running
    files: int
    bytes: int
    certificate: Certificate | None = None


@dataclass(frozen=True, slots=True)
class Took:
    """What it took. cpu_s: from the first connection on; start_cpu_s: before it. None: nobody counted."""

    seconds: float
    cpu_s: float | None
    mount_s: float = 0.0
    start_cpu_s: float | None = None


Contender = Callable[[Source, Path], Took]
"""Brings a source to an empty folder."""


@dataclass(slots=True)
class Taken:
    """All rounds by contender. growfs's is named so."""

    source: Source
    rounds: dict[str, list[Took]] = field(default_factory=lambda: defaultdict(list))

    def per_s(self, who: str, of: float) -> list[float]:
        """How much in a second, if `of` is what there is in all."""
        return [of / took.seconds for took in self.rounds[who]]

    def cpu(self, who: str, of: float) -> list[float]:
        """CPU seconds for each of what there is in all; empty where they were not counted."""
        return [took.cpu_s / of for took in self.rounds[who] if took.cpu_s is not None]


def compare(source: Source, folder: Path, rounds: int, contenders: Mapping[str, Contender]) -> Taken:
    """All in turn, in each round. What they brought is deleted at the end only: for half a minute after a file is
    deleted, ext4 looks at its inode again for each that is made (fs/ext4/ialloc.c, recently_deleted).
    """
    taken = Taken(source)
    for number in range(rounds):
        for who, bring in contenders.items():
            target = folder / f"target-{number}-{who.replace(' ', '-')}"
            target.mkdir(parents=True)
            os.sync()
            taken.rounds[who].append(bring(source, target))
            for path in target.rglob("*"):
                if path.is_file():
                    os.truncate(path, 0)  # its blocks are wanted again
    return taken


# growfs.


def growfs(engine: str, *more: object) -> Contender:
    """A mount with an empty cache that all of it fits. more: flags."""

    def bring(source: Source, folder: Path) -> Took:
        flags = ["--engine", engine, "--endpoint-url", source.server.said, "--cache-size", 2 * source.bytes + (1 << 30)]
        flags += ["--refresh", 0, "--wait-files", source.files, *more]
        if source.certificate:
            flags += ["--storage-option", f"client_kwargs.verify={source.certificate.file}"]
        with Group() as group:
            first: list[tuple[float, float | None]] = []

            def start(command: Sequence[object]) -> None:
                def heard() -> None:
                    first.append((time.time(), group.cpu_s()))
                    memory.close()

                memory = touched_memory(2 * source.bytes)
                with first_connection(source.server.pid, heard):
                    run(group.command(command))

            with mounted(f"s3://{NAME}", folder, *flags, start=start) as mount:
                cpu_s = group.cpu_s()
                if not first:
                    raise BenchError("growfs mounted without asking the server")
                began, start_cpu_s = first[0]
                ended = check(source, mount.files)
            used = None if cpu_s is None or start_cpu_s is None else cpu_s - start_cpu_s
        return Took(ended - began, used, mount.returned_s, start_cpu_s)

    return bring


@contextmanager
def first_connection(pid: int, heard: Callable[[], None]) -> Iterator[None]:
    """Call heard, once, as the process gets a socket that it did not have as the block began."""
    known, ended = sockets(pid), False

    def watch() -> None:
        while not ended:
            if sockets(pid) - known:
                heard()
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
    """Those that a process has open, by the kernel's names."""
    found = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.add(os.readlink(fd))
        except FileNotFoundError:  # closed meanwhile
            continue
    return {name for name in found if name.startswith("socket:")}


def check(source: Source, folder: Path) -> float:
    """The time at which the last file was complete; raises BenchError where it is not all there."""
    stats = [path.stat() for path in folder.rglob("*") if path.is_file()]
    if (len(stats), sum(stat.st_size for stat in stats)) != (source.files, source.bytes):
        raise BenchError(f"{folder}: {len(stats):,} files came of {source.files:,}, or not all of their bytes")
    return max(stat.st_ctime for stat in stats)


# Peers.


def rclone_copy(source: Source, target: Path) -> Took:
    """With the flags that served it best."""
    keys = {"ACCESS_KEY_ID": ACCESS_KEY, "SECRET_ACCESS_KEY": SECRET_KEY, "ENDPOINT": source.server.said}
    variables = {f"RCLONE_S3_{name}": value for name, value in {**keys, "PROVIDER": "Other"}.items()}
    flags = [f"--ca-cert={source.certificate.file}"] if source.certificate else []
    command = [rclone(), "copy", "--config", os.devnull, *RCLONE_FLAGS, *flags, f":s3:{NAME}", target]
    return copied(source, target, command, **variables)


def s5cmd_cp(*flags: object) -> Contender:
    """flags: of s5cmd."""

    def bring(source: Source, target: Path) -> Took:
        variables = {"SSL_CERT_FILE": source.certificate.file} if source.certificate else {}
        command = [s5cmd(), "--log", "error", "--endpoint-url", source.server.said, *flags, "cp", f"s3://{NAME}/*"]
        return copied(source, target, [*command, f"{target}/"], **variables)

    return bring


def copied(source: Source, target: Path, command: Sequence[object], **variables: object) -> Took:
    """A command from its start to its end."""
    touched_memory(2 * source.bytes).close()
    with Group() as group:
        began = time.monotonic()
        run(group.command(command), **variables)
        seconds, cpu_s = time.monotonic() - began, group.cpu_s()
    check(source, target)
    return Took(seconds, cpu_s)


PEERS: Mapping[str, Contender] = {"rclone copy": rclone_copy, "s5cmd cp": s5cmd_cp()}


# Figures.


def figures(taken: Taken, of: float, unit: str, each: str, target: float | None, scale: float = 1.0) -> list[Figure]:
    """Rates, growfs's against the fastest peer, CPU, growfs's against the thriftiest peer, and the start.

    of: what there is in all, in `unit`s and, for the CPU, `each`s; scale: by which CPU seconds are multiplied.
    target: of the ratio of rates; with one, growfs's CPU is to be no more than the peer's.
    """
    peers = [who for who in taken.rounds if who != "growfs"]
    rates = {who: taken.per_s(who, of) for who in taken.rounds}
    best = max(peers, key=lambda who: median(rates[who]))
    found = [figure(who, values, f"{unit}/s") for who, values in rates.items()]
    found.append(at_least(f"growfs, of {best}", ratios(rates["growfs"], rates[best]), "", target))
    cpu = {who: taken.cpu(who, of) for who in taken.rounds}
    if all(cpu.values()):
        lowest = min(peers, key=lambda who: median(cpu[who]))
        found += [figure(f"{who}, CPU", [scale * one for one in values], each) for who, values in cpu.items()]
        of_lowest = ratios(cpu["growfs"], cpu[lowest])
        found.append(at_most(f"growfs, CPU of that of {lowest}", of_lowest, "", 1 if target else None))
    own = taken.rounds["growfs"]
    found.append(figure("growfs mount, from its start to its end", [took.mount_s for took in own], "s"))
    starts = [took.start_cpu_s for took in own if took.start_cpu_s is not None]
    return found + ([figure("growfs, CPU before the first connection", starts, "s")] if starts else [])


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Round by round."""
    return [a / b for a, b in zip(ours, theirs, strict=True)]
