"""How much of the kernel's page cache a file takes that is read through a mount: one copy or two."""

from __future__ import annotations

from collections import defaultdict

from tools.benchmarks.measure import (
    Figure,
    Setting,
    at_most,
    cached_bytes,
    cached_in_all,
    drop,
    make_file,
    need_space,
)
from tools.benchmarks.mounts import all_resident
from tools.benchmarks.readers import Reader
from tools.benchmarks.reads import MIB

TARGETS = {"passthrough": 1.1}
NAME = "shard.bin"


def measure(setting: Setting) -> tuple[str, list[Figure]]:
    """Read twice with nothing of it in memory before; what is in memory then, of each byte read."""
    mib = 64 if setting.quick else 1024
    need_space(setting.folder, 3 * mib * MIB)
    remote = setting.folder / "remote"
    make_file(remote / NAME, mib)
    held: dict[str, list[float]] = defaultdict(list)
    counted: dict[str, list[float]] = defaultdict(list)
    with Reader() as reader:
        for _ in range(setting.rounds):
            for who in setting.contenders:
                with all_resident(who, remote, setting.folder) as mount:
                    through, plain = mount.mountpoint / NAME, mount.files / NAME
                    for reads, path in (("native", plain), (who, through)):
                        drop(through, plain)
                        with through.open("rb") as one, plain.open("rb") as other:  # a later open may drop pages
                            before = cached_in_all()
                            for _ in range(2):
                                reader.do("sequential", path, MIB)
                            counted[reads].append((cached_in_all() - before) / (mib * MIB))
                            copies = [cached_bytes(file.fileno()) for file in (one, other)]
                        if None not in copies:
                            held[reads].append(sum(filter(None, copies)) / (mib * MIB))
    found = []
    for who, times in counted.items():  # what else the machine does is in this one
        found.append(at_most(f"{who}, by /proc/meminfo", times, "x", None if held else TARGETS.get(who)))
    for who, times in held.items():
        found.append(at_most(f"{who}, by cachestat", times, "x", TARGETS.get(who)))
    return f"page cache of a file of {mib} MiB, read twice, for each byte of it", found
