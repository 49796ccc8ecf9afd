"""Sequential reads of cached files: directly from the cache's folder, and through a mount.

States of the page cache: "cold", nothing is in it; "warm", only the cached file is, as after mounting; "again", the
pages of the mount's file are too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.benchmarks.measure import Figure, Setting, at_least, at_most, drop_pages, figure, make_file, need_space
from tools.benchmarks.mounts import Mount, fully_cached
from tools.benchmarks.reader_process import ReaderProcess

RATIO = 0.95
CPU_S_PER_GB = 0.02
LIBFUSE_FIRST_RATIO = 0.10
LIBFUSE_AGAIN_RATIO = 0.5
MIB = 1 << 20
BLOCKS = {4096: "4 KiB", 65536: "64 KiB", MIB: "1 MiB", 0: "mmap"}
NAMES = ("shard-0.bin", "shard-1.bin")


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of read. readers: processes, each with its own file. block: bytes per read, 0 for mmap."""

    state: str
    readers: int
    block: int

    def __str__(self) -> str:
        return f"{self.state}, {BLOCKS[self.block]}, {self.readers} reader{'s' if self.readers > 1 else ''}"


CASES = [
    *(Case("warm", readers, block) for readers in (1, 2) for block in BLOCKS),
    Case("again", 1, MIB),  # after a read of both files
    *(Case("cold", 1, block) for block in BLOCKS),
    Case("cold", 2, MIB),
]


def measure(setting: Setting) -> tuple[str, list[Figure]]:
    """Every kind of read, from the plain files and through each contender."""
    mib = 16 if setting.quick else 1024
    need_space(setting.folder, 3 * len(NAMES) * mib * MIB)
    remote = setting.folder / "remote"
    for name in NAMES:
        make_file(remote / name, mib)
    gb = mib * MIB / 1e9
    native: dict[Case, list[float]] = defaultdict(list)
    ratio: dict[tuple[str, Case], list[float]] = defaultdict(list)
    cpu: dict[tuple[str, str], list[float]] = defaultdict(list)
    with ReaderProcess() as first, ReaderProcess() as second:
        for number in range(setting.rounds):
            for contender in setting.contenders:
                with fully_cached(contender, remote, setting.folder) as mount:
                    time_reads(
                        Case("warm", 2, MIB), [first, second], mount.files
                    )  # brings the cached files into memory
                    used: dict[str, list[float]] = defaultdict(list)
                    for case in CASES:
                        readers = [first, second][: case.readers]
                        rates = {}
                        for folder in (mount.files, mount.mountpoint)[:: -1 if number % 2 else 1]:
                            prepare(case, mount)
                            before = mount.cpu_s()
                            rates[folder] = case.readers * gb / time_reads(case, readers, folder)
                            if folder == mount.mountpoint:
                                used[case.state].append((mount.cpu_s() - before) / case.readers / gb)
                        native[case].append(rates[mount.files])
                        ratio[contender, case].append(rates[mount.mountpoint] / rates[mount.files])
                    for state, seconds in used.items():
                        cpu[contender, state].append(sum(seconds) / len(seconds))
    found = [figure(f"plain files, {case}", native[case], "GB/s") for case in CASES]
    for contender in setting.contenders:
        found += [
            at_least(f"{contender}, {case}, of plain", ratio[contender, case], "", target(contender, case))
            for case in CASES
        ]
        allowed = CPU_S_PER_GB if contender == "passthrough" else None
        for state in ("warm", "cold"):
            found.append(at_most(f"{contender}, {state}, daemon's CPU", cpu[contender, state], "s/GB", allowed))
    return f"cached files of {mib} MiB, one for each reader", found


def target(contender: str, case: Case) -> float | None:
    """The least ratio to the plain files' speed."""
    if contender == "passthrough":
        return RATIO
    if contender == "libfuse" and (case.readers, case.block) == (1, MIB):
        return {"warm": LIBFUSE_FIRST_RATIO, "again": LIBFUSE_AGAIN_RATIO}.get(case.state)
    return None


def prepare(case: Case, mount: Mount) -> None:
    """Bring the page cache into the case's state. A read of the plain file always leaves it in the page cache."""
    if case.state != "again":
        drop_pages(*(mount.mountpoint / name for name in NAMES))
    if case.state == "cold":
        drop_pages(*(mount.files / name for name in NAMES))


def time_reads(case: Case, readers: Sequence[ReaderProcess], folder: Path) -> float:
    """Seconds from the start of the first reader to the end of the last."""
    for reader, name in zip(readers, NAMES, strict=False):
        reader.send("sequential", folder / name, case.block)
    began, ended = zip(*(reader.receive() for reader in readers), strict=True)
    return float(max(ended) - min(began))
