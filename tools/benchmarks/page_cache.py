"""Page cache that a file takes when it is read through a mount: one copy or two."""

from __future__ import annotations

from collections import defaultdict

from tools.benchmarks.measure import (
    Figure,
    Setting,
    at_most,
    cached_bytes,
    drop_pages,
    make_file,
    need_space,
    page_cache_bytes,
)
from tools.benchmarks.mounts import fully_cached
from tools.benchmarks.reader_process import ReaderProcess
from tools.benchmarks.reads import MIB

TARGETS = {"passthrough": 1.1}
NAME = "shard.bin"


def measure(setting: Setting) -> tuple[str, list[Figure]]:
    """Read a file twice, starting with none of it in memory; then measure its page cache, per byte of the file."""
    mib = 16 if setting.quick else 1024
    need_space(setting.folder, 3 * mib * MIB)
    remote = setting.folder / "remote"
    make_file(remote / NAME, mib)
    held: dict[str, list[float]] = defaultdict(list)
    counted: dict[str, list[float]] = defaultdict(list)
    with ReaderProcess() as reader:
        for _ in range(setting.rounds):
            for contender in setting.contenders:
                with fully_cached(contender, remote, setting.folder) as mount:
                    through, plain = mount.mountpoint / NAME, mount.files / NAME
                    for reads, path in (("native", plain), (contender, through)):
                        drop_pages(through, plain)
                        with through.open("rb") as one, plain.open("rb") as other:  # a later open may drop pages
                            before = page_cache_bytes()
                            for _ in range(2):
                                reader.call("sequential", path, MIB)
                            counted[reads].append((page_cache_bytes() - before) / (mib * MIB))
                            copies = [cached_bytes(file.fileno()) for file in (one, other)]
                        if None not in copies:
                            held[reads].append(sum(filter(None, copies)) / (mib * MIB))
    found = []
    for contender, times in counted.items():  # includes what the rest of the machine does
        found.append(at_most(f"{contender}, by /proc/meminfo", times, "x", None if held else TARGETS.get(contender)))
    for contender, times in held.items():
        found.append(at_most(f"{contender}, by cachestat", times, "x", TARGETS.get(contender)))
    return f"page cache of a file of {mib} MiB, read twice, for each byte of it", found
