"""Reads of a mount with all files cached, compared with the plain files: a large file, many small ones, and a walk."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from tools.benchmarks.child import ReaderProcess
from tools.benchmarks.measure import (
    BenchError,
    Figures,
    Setting,
    cached_bytes,
    drop_pages,
    make_file,
    make_files,
    need_space,
)
from tools.benchmarks.mounts import Mount, fully_cached

MIB = 1 << 20


# A large file.

READS = {"warm, 1 MiB": MIB, "again, 1 MiB": MIB, "warm, 4 KiB": 4096, "warm, mmap": 0, "cold, 1 MiB": MIB}
"""The bytes per read, 0 for mmap, by the state of the page cache. "warm": only the cached file is in it, as after
mounting; "again": the pages of the mount's file also are, after the previous read; "cold": neither is."""
RATIO, CPU_S_PER_GB, PAGES_MAX = 0.95, 0.02, 1.1
"""Targets for engines whose reads bypass the daemon."""
LIBFUSE_RATIO = {"warm, 1 MiB": 0.10, "again, 1 MiB": 0.5}


def reads(setting: Setting, found: Figures) -> str:
    """Sequential reads of a file, from the cache's folder and through the mount; then the page cache that it takes."""
    mib = 16 if setting.quick else 1024
    need_space(setting.folder, 3 * mib * MIB)
    remote, gb = setting.folder / "remote", mib * MIB / 1e9
    make_file(remote / "shard.bin", mib)
    with ReaderProcess() as reader:
        for number, engine in setting.turns():
            is_direct = engine != "libfuse"
            with fully_cached(engine, remote, setting.folder) as mount:
                through, plain = mount.mountpoint / "shard.bin", mount.files / "shard.bin"
                reader.call("sequential", plain, MIB)  # loads the file into memory
                for case, block in READS.items():
                    seconds, cpu_s = {}, 0.0
                    for path in (plain, through)[:: -1 if number % 2 else 1]:
                        if not case.startswith("again"):
                            drop_pages(through)
                        if case.startswith("cold"):
                            drop_pages(plain)
                        before = mount.cpu_s()
                        seconds[path] = reader.call("sequential", path, block)
                        cpu_s = mount.cpu_s() - before if path == through else cpu_s
                    target = RATIO if is_direct else LIBFUSE_RATIO.get(case)
                    found.add(f"plain files, {case}", gb / seconds[plain], unit="GB/s")
                    found.add(f"{engine}, {case}, of plain", seconds[plain] / seconds[through], at_least=target)
                    allowed = CPU_S_PER_GB if is_direct else None
                    found.add(f"{engine}, {case}, daemon's CPU", cpu_s / gb, unit="s/GB", at_most=allowed)
                pages = _page_cache(mount, reader, through, plain)
                if pages is not None:
                    allowed = PAGES_MAX if is_direct else None
                    found.add(f"{engine}, page cache per byte", pages / (mib * MIB), unit="x", at_most=allowed)
    return f"a cached file of {mib} MiB"


def _page_cache(mount: Mount, reader: ReaderProcess, through: Path, plain: Path) -> int | None:
    """Bytes of page cache that a file takes when it is read twice through a mount; None if the kernel cannot tell."""
    drop_pages(through, plain)
    with through.open("rb") as one, plain.open("rb") as other:  # a later open may drop pages
        for _ in range(2):
            reader.call("sequential", through, MIB)
        files = {os.fstat(file.fileno()).st_ino: file.fileno() for file in (one, other)}  # links lead to the same inode
        held = [cached_bytes(fd) for fd in files.values()]
    return None if None in held else sum(filter(None, held))


# Small files.

SMALL_TARGETS = {
    ("passthrough", "first"): 0.40,
    ("passthrough", "later"): 0.40,
    ("links", "first"): 0.50,
    ("links", "later"): 0.90,
}
PASSES = ("first", "later", "later")
SMALL_BYTES = 100_000


def small_files(setting: Setting, found: Figures) -> str:
    """Small files in class folders, like an image dataset: listed once, then opened, read and closed at random. A
    first pass through a fresh mount and later ones, each paired with one over the plain files.
    """
    files = 100 if setting.quick else 10_000
    need_space(setting.folder, 3 * files * SMALL_BYTES)
    remote, names = setting.folder / "remote", setting.folder / "names"
    names.write_text("".join(f"{path}\n" for path in make_files(remote, files, SMALL_BYTES, 20)))
    with ReaderProcess() as reader:
        for number, engine in setting.turns():
            with fully_cached(engine, remote, setting.folder) as mount:
                reader.call("files", mount.files, names, 0)  # not timed: loads the cached files into memory
                listed_s = reader.call("walk", mount.mountpoint, False)["os.walk"]
                found.add(f"{engine}, listing all", listed_s, unit="s")
                for turn, which in enumerate(PASSES):
                    order = number * len(PASSES) + turn
                    plain = reader.call("files", mount.files, names, order)
                    before = mount.cpu_s()
                    through = reader.call("files", mount.mountpoint, names, order)
                    cpu_us = 1e6 * (mount.cpu_s() - before) / files
                    name = f"{engine}, {which} pass"
                    for start, times in (("plain files", plain), (name, through)):
                        if times["bytes"] != files * SMALL_BYTES:
                            raise BenchError(f"{start}: {times['bytes']:,} bytes read of {files * SMALL_BYTES:,}")
                        found.add(start, files / times["all"], unit="files/s")
                        for call in ("open", "read", "close"):
                            found.add(f"{start}, {call}", 1e6 * times[call] / files, unit="us/file")
                    target = SMALL_TARGETS.get((engine, which))
                    found.add(f"{name}, of plain", plain["all"] / through["all"], at_least=target)
                    found.add(f"{name}, daemon's CPU", cpu_us, unit="us/file")
    return f"{files:,} cached files of 100 kB, opened, read and closed in random order"


# A walk, and an idle mount.


def walk(setting: Setting, found: Figures) -> str:
    """A tree of many tiny files: os.walk, then os.stat of each file, after a fresh mount and again."""
    files, directories = (200 if setting.quick else 100_000), 100
    remote = setting.folder / "remote"
    make_files(remote, files, 4, directories)
    with ReaderProcess() as reader:
        for _, engine in setting.turns():
            with fully_cached(engine, remote, setting.folder) as mount:
                reader.call("walk", mount.files, True)  # not timed: loads these names into the kernel's caches
                for turn in ("first", "again"):
                    plain = reader.call("walk", mount.files, True)
                    through = reader.call("walk", mount.mountpoint, True)
                    if through["files"] != files:
                        raise BenchError(f"{engine} lists {through['files']} of {files} files")
                    for calls in (("os.walk",), ("os.stat",), ("os.walk", "os.stat")):
                        native_s, mounted_s = (sum(times[call] for call in calls) for times in (plain, through))
                        name, target = " and ".join(calls), 3.0 if len(calls) > 1 else None
                        found.add(f"plain files, {name}", native_s, unit="s")
                        name = f"{engine}, {turn}, {name}, times plain"
                        found.add(name, mounted_s / native_s, unit="x", at_most=target)
    return f"{files:,} tiny cached files in {directories} directories"


def idle(setting: Setting, found: Figures) -> str:
    """The CPU time of an idle mount: all mounts at once, in one round, as other processes do not affect CPU seconds."""
    idle_s = 1 if setting.quick else 20
    remote = setting.folder / "remote"
    make_files(remote, 100, 7)
    with contextlib.ExitStack() as stack:
        mounts = {
            engine: stack.enter_context(fully_cached(engine, remote, setting.folder / engine))
            for engine in setting.engines
        }
        time.sleep(1)  # lets them settle
        before = {engine: mount.cpu_s() for engine, mount in mounts.items()}
        time.sleep(idle_s)
        for engine, mount in mounts.items():
            found.add(f"{engine}, daemon's CPU", mount.cpu_s() - before[engine], unit="s", at_most=0.02)
    return f"{idle_s} s of an idle mount"
