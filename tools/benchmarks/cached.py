"""What reads a mount whose files are all cached, beside the plain files: large files, many small ones, and a walk."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.benchmarks.measure import (
    ENGINES,
    BenchError,
    Figures,
    Setting,
    cached_bytes,
    drop_pages,
    make_file,
    need_space,
)
from tools.benchmarks.mounts import Mount, fully_cached
from tools.benchmarks.reader_process import ReaderProcess

MIB = 1 << 20


# Large files.

RATIO = 0.95
CPU_S_PER_GB = 0.02
LIBFUSE_RATIO = {"warm": 0.10, "again": 0.5}
BLOCKS = {4096: "4 KiB", 65536: "64 KiB", MIB: "1 MiB", 0: "mmap"}
NAMES = ("shard-0.bin", "shard-1.bin")


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of sequential read. readers: processes, each with its own file. block: bytes per read, 0 for mmap.

    state: of the page cache. "cold": nothing is in it; "warm": only the cached file is, as after mounting; "again": the
    pages of the mount's file are too.
    """

    state: str
    readers: int
    block: int

    def __str__(self) -> str:
        return f"{self.state}, {BLOCKS[self.block]}, {self.readers} reader{'s' if self.readers > 1 else ''}"

    def target(self, contender: str) -> float | None:
        """The least ratio to the plain files' speed."""
        if contender == "passthrough":
            return RATIO
        is_usual = contender == "libfuse" and (self.readers, self.block) == (1, MIB)
        return LIBFUSE_RATIO.get(self.state) if is_usual else None


CASES = [
    *(Case("warm", readers, block) for readers in (1, 2) for block in BLOCKS),
    Case("again", 1, MIB),  # after a read of both files
    *(Case("cold", 1, block) for block in BLOCKS),
    Case("cold", 2, MIB),
]


def reads(setting: Setting, found: Figures) -> str:
    """Every kind of sequential read, from the cache's folder and through each contender."""
    mib = 16 if setting.quick else 1024
    need_space(setting.folder, 3 * len(NAMES) * mib * MIB)
    remote = setting.folder / "remote"
    for name in NAMES:
        make_file(remote / name, mib)
    gb = mib * MIB / 1e9
    with ReaderProcess() as first, ReaderProcess() as second:
        for number in range(setting.rounds):
            for contender in setting.contenders:
                with fully_cached(contender, remote, setting.folder) as mount:
                    _time_reads(Case("warm", 2, MIB), [first, second], mount.files)  # brings the files into memory
                    for case in CASES:
                        rates = {}
                        for folder in (mount.files, mount.mountpoint)[:: -1 if number % 2 else 1]:
                            _prepare(case, mount)
                            before = mount.cpu_s()
                            rates[folder] = case.readers * gb / _time_reads(case, [first, second], folder)
                            if folder == mount.mountpoint:
                                used = (mount.cpu_s() - before) / case.readers / gb
                        ratio = rates[mount.mountpoint] / rates[mount.files]
                        found.add(f"plain files, {case}", rates[mount.files], unit="GB/s")
                        found.add(f"{contender}, {case}, of plain", ratio, at_least=case.target(contender))
                        name = f"{contender}, {case.state}, daemon's CPU"
                        allowed = CPU_S_PER_GB if contender == "passthrough" else None
                        found.add(name, used, unit="s/GB", at_most=allowed)
    return f"cached files of {mib} MiB, one for each reader"


def _prepare(case: Case, mount: Mount) -> None:
    """Bring the page cache into the case's state. A read of the plain file always leaves it in the page cache."""
    if case.state != "again":
        drop_pages(*(mount.mountpoint / name for name in NAMES))
    if case.state == "cold":
        drop_pages(*(mount.files / name for name in NAMES))


def _time_reads(case: Case, readers: Sequence[ReaderProcess], folder: Path) -> float:
    """Seconds from the start of the first reader to the end of the last."""
    used = readers[: case.readers]
    for reader, name in zip(used, NAMES, strict=False):
        reader.send("sequential", folder / name, case.block)
    began, ended = zip(*(reader.receive() for reader in used), strict=True)
    return float(max(ended) - min(began))


def page_cache(setting: Setting, found: Figures) -> str:
    """Page cache that a file takes when it is read twice through a mount, for each byte: one copy or two."""
    mib = 16 if setting.quick else 1024
    need_space(setting.folder, 3 * mib * MIB)
    remote, name = setting.folder / "remote", NAMES[0]
    make_file(remote / name, mib)
    with ReaderProcess() as reader:
        for _ in range(setting.rounds):
            for contender in setting.contenders:
                with fully_cached(contender, remote, setting.folder) as mount:
                    through, plain = mount.mountpoint / name, mount.files / name
                    for reads, path in (("native", plain), (contender, through)):
                        drop_pages(through, plain)
                        with through.open("rb") as one, plain.open("rb") as other:  # a later open may drop pages
                            for _ in range(2):
                                reader.call("sequential", path, MIB)
                            held = [cached_bytes(file.fileno()) for file in (one, other)]
                        if None in held:
                            return "page cache of a file: this kernel does not say (it needs Linux 6.5)"
                        target = 1.1 if reads == "passthrough" else None
                        found.add(reads, sum(filter(None, held)) / (mib * MIB), unit="x", at_most=target)
    return f"page cache of a file of {mib} MiB, read twice, for each byte of it"


# Small files.

SMALL_TARGETS = {"passthrough": 0.40}
PASSES = ("first", "later", "later")
DIRECTORIES = 20
SMALL_BYTES = 100_000


def small_files(setting: Setting, found: Figures) -> str:
    """Small files in class folders, as an image data set: listed once, then opened, read and closed at random; a first
    pass through a fresh mount and later ones, each paired with one over the plain files.
    """
    files = 100 if setting.quick else 10_000
    need_space(setting.folder, 3 * files * SMALL_BYTES)
    remote, names = setting.folder / "remote", setting.folder / "names"
    make_small_files(remote, files, names)
    with ReaderProcess() as reader:
        for number in range(setting.rounds):
            for contender in setting.contenders:
                with fully_cached(contender, remote, setting.folder) as mount:
                    reader.call("files", mount.files, names, 0)  # not timed: brings the cached files into memory
                    listed_s = reader.call("walk", mount.mountpoint, False)["os.walk"]
                    found.add(f"{contender}, listing all", listed_s, unit="s")
                    for turn, which in enumerate(PASSES):
                        order = number * len(PASSES) + turn
                        plain = reader.call("files", mount.files, names, order)
                        before = mount.cpu_s()
                        through = reader.call("files", mount.mountpoint, names, order)
                        cpu_us = 1e6 * (mount.cpu_s() - before) / files
                        name = f"{contender}, {which} pass"
                        for start, times in (("plain files", plain), (name, through)):
                            if times["bytes"] != files * SMALL_BYTES:
                                raise BenchError(f"{start}: {times['bytes']:,} bytes read of {files * SMALL_BYTES:,}")
                            found.add(start, files / times["all"], unit="files/s")
                            for call in ("open", "read", "close"):
                                found.add(f"{start}, {call}", 1e6 * times[call] / files, unit="us/file")
                        ratio, target = plain["all"] / through["all"], SMALL_TARGETS.get(contender)
                        found.add(f"{name}, of plain", ratio, at_least=target)
                        found.add(f"{name}, daemon's CPU", cpu_us, unit="us/file")
    return f"{files:,} cached files of 100 kB, opened, read and closed in random order"


def make_small_files(remote: Path, files: int, names: Path | None = None, directories: int = DIRECTORIES) -> None:
    """Write files of 100 kB in class folders. names: a file that gets a list of their paths."""
    paths = [f"class{number % directories:02}/{number:06}.bin" for number in range(files)]
    for path in paths:
        (remote / path).parent.mkdir(parents=True, exist_ok=True)
        (remote / path).write_bytes(os.urandom(SMALL_BYTES))
    if names:
        names.write_text("".join(f"{path}\n" for path in paths))


# A walk, and nothing at all.

TIMES_NATIVE = 3.0
CALLS = ("os.walk", "os.stat")
BOTH = "os.walk and os.stat"


def walk(setting: Setting, found: Figures) -> str:
    """A tree of many tiny files: os.walk, then os.stat of each file, after a fresh mount and again."""
    files, directories = (200 if setting.quick else 100_000), 100
    remote = setting.folder / "remote"
    for number in range(files):
        path = remote / f"d{number % directories:02}" / f"f{number // directories:04}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"tiny")
    with ReaderProcess() as reader:
        for _ in range(setting.rounds):
            for contender in setting.contenders:
                with fully_cached(contender, remote, setting.folder) as mount:
                    reader.call("walk", mount.files, True)  # not timed: brings these names into the kernel's caches
                    for turn in ("first", "again"):
                        plain = reader.call("walk", mount.files, True)
                        through = reader.call("walk", mount.mountpoint, True)
                        if through["files"] != files:
                            raise BenchError(f"{contender} lists {through['files']} of {files} files")
                        for times in (plain, through):
                            times[BOTH] = sum(times[call] for call in CALLS)
                        for call in (*CALLS, BOTH):
                            found.add(f"plain files, {call}", plain[call], unit="s")
                            name = f"{contender}, {turn}, {call}, times plain"
                            target = TIMES_NATIVE if contender in ENGINES and call == BOTH else None
                            found.add(name, through[call] / plain[call], unit="x", at_most=target)
    return f"{files:,} tiny cached files in {directories} directories"


def idle(setting: Setting, found: Figures) -> str:
    """The CPU time of an idle mount: all mounts at once, and only one round, as others do not change CPU seconds."""
    idle_s = 1 if setting.quick else 20
    remote = setting.folder / "remote"
    remote.mkdir()
    for number in range(100):
        (remote / f"{number}.bin").write_bytes(b"content")
    with contextlib.ExitStack() as stack:
        mounts = {}
        for contender in setting.contenders:
            folder = setting.folder / contender
            folder.mkdir()
            mounts[contender] = stack.enter_context(fully_cached(contender, remote, folder))
        time.sleep(1)  # until they have settled
        before = {contender: mount.cpu_s() for contender, mount in mounts.items()}
        time.sleep(idle_s)
        for contender, mount in mounts.items():
            target = 0.02 if contender in ENGINES else None
            found.add(f"{contender}, daemon's CPU", mount.cpu_s() - before[contender], unit="s", at_most=target)
    return f"{idle_s} s of an idle mount"
