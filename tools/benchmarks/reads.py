"""Resident files, read from their start to their end: by their own paths in the cache, and through a mount.

States: "cold", nothing is in memory; "warm", the cached file is, and of the mount nothing, as after mounting;
"again", what the mount brought into memory is there too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.benchmarks.measure import Figure, Setting, at_least, at_most, drop, figure, make_file, need_space
from tools.benchmarks.mounts import Mount, all_resident
from tools.benchmarks.readers import Reader

RATIO = 0.95
CPU_S_PER_GB = 0.02
LIBFUSE_FIRST_RATIO = 0.10
LIBFUSE_AGAIN_RATIO = 0.5
MIB = 1 << 20
BLOCKS = {4096: "4 KiB", 65536: "64 KiB", MIB: "1 MiB", 0: "mmap"}
NAMES = ("shard-0.bin", "shard-1.bin")


@dataclass(frozen=True, slots=True)
class Case:
    """One way to read. readers: processes, a file each. block: bytes at a time, 0 for mmap."""

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
    """Each way to read, natively and by each contender in turn."""
    mib = 64 if setting.quick else 1024
    need_space(setting.folder, 3 * len(NAMES) * mib * MIB)
    remote = setting.folder / "remote"
    for name in NAMES:
        make_file(remote / name, mib)
    gb = mib * MIB / 1e9
    native: dict[Case, list[float]] = defaultdict(list)
    ratio: dict[tuple[str, Case], list[float]] = defaultdict(list)
    cpu: dict[tuple[str, str], list[float]] = defaultdict(list)
    with Reader() as first, Reader() as second:
        for number in range(setting.rounds):
            for who in setting.contenders:
                with all_resident(who, remote, setting.folder) as mount:
                    timed(Case("warm", 2, MIB), [first, second], mount.files)  # brings the cached files into memory
                    used: dict[str, list[float]] = defaultdict(list)
                    for case in CASES:
                        readers = [first, second][: case.readers]
                        rates = {}
                        for folder in (mount.files, mount.mountpoint)[:: -1 if number % 2 else 1]:
                            prepare(case, mount)
                            before = mount.cpu_s()
                            rates[folder] = case.readers * gb / timed(case, readers, folder)
                            if folder == mount.mountpoint:
                                used[case.state].append((mount.cpu_s() - before) / case.readers / gb)
                        native[case].append(rates[mount.files])
                        ratio[who, case].append(rates[mount.mountpoint] / rates[mount.files])
                    for state, seconds in used.items():
                        cpu[who, state].append(sum(seconds) / len(seconds))
    found = [figure(f"plain files, {case}", native[case], "GB/s") for case in CASES]
    for who in setting.contenders:
        found += [at_least(f"{who}, {case}, of plain", ratio[who, case], "", target(who, case)) for case in CASES]
        allowed = CPU_S_PER_GB if who == "passthrough" else None
        for state in ("warm", "cold"):
            found.append(at_most(f"{who}, {state}, daemon's CPU", cpu[who, state], "s/GB", allowed))
    return f"resident files of {mib} MiB, one for each reader", found


def target(who: str, case: Case) -> float | None:
    """The least share of the plain files' speed."""
    if who == "passthrough":
        return RATIO
    if who == "libfuse" and (case.readers, case.block) == (1, MIB):
        return {"warm": LIBFUSE_FIRST_RATIO, "again": LIBFUSE_AGAIN_RATIO}.get(case.state)
    return None


def prepare(case: Case, mount: Mount) -> None:
    """Bring the page cache into the state; what is read by its own path always leaves the file in it."""
    if case.state != "again":
        drop(*(mount.mountpoint / name for name in NAMES))
    if case.state == "cold":
        drop(*(mount.files / name for name in NAMES))


def timed(case: Case, readers: Sequence[Reader], folder: Path) -> float:
    """Seconds from the start of the first reader to the end of the last."""
    for reader, name in zip(readers, NAMES, strict=False):
        reader.ask("sequential", folder / name, case.block)
    began, ended = zip(*(reader.answer() for reader in readers), strict=True)
    return float(max(ended) - min(began))
