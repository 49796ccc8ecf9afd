"""A resident file, read from its start to its end: by its own path in the cache, and through a fresh mount."""

from __future__ import annotations

import os
from pathlib import Path

from tools.benchmarks.measure import Figure, Setting, figure, mounted, need_space, rclone_mount, read

FIRST_GB_PER_S = 1.5
FIRST_RATIO = 0.10
LATER_RATIO = 0.5


def measure(setting: Setting) -> tuple[str, list[Figure]]:
    """First read, second read, and the plain file."""
    mib = 64 if setting.quick else 1024
    need_space(setting.folder, (2 + len(setting.peers)) * mib << 20)
    remote = setting.folder / "remote"
    make(remote / "shard.bin", mib)
    gb = (mib << 20) / 1e9
    native, first, later, cpu = [], [], [], []
    peer_first, peer_later = [], []
    for _ in range(setting.rounds):
        with mounted(remote, setting.folder, "--wait-files", 1, "--cache-size", "4GB", "--refresh", 0) as mount:
            read("sequential", mount.files / "shard.bin")  # not timed: brings the cached file into memory
            native.append(gb / read("sequential", mount.files / "shard.bin"))
            before = mount.cpu_s()
            first.append(gb / read("sequential", mount.mountpoint / "shard.bin"))
            cpu.append((mount.cpu_s() - before) / gb)
            later.append(gb / read("sequential", mount.mountpoint / "shard.bin"))
        if "rclone" in setting.peers:
            with rclone_mount(remote, setting.folder) as folder:  # not timed: fills its cache
                read("sequential", folder / "shard.bin")
            with rclone_mount(remote, setting.folder) as folder:
                peer_first.append(gb / read("sequential", folder / "shard.bin"))
                peer_later.append(gb / read("sequential", folder / "shard.bin"))
    first_ratio = [a / b for a, b in zip(first, native, strict=True)]
    later_ratio = [a / b for a, b in zip(later, native, strict=True)]
    found = [
        figure("plain file", native, "GB/s"),
        figure("first read", first, "GB/s", "1.5 GB/s, or 0.10 of plain where that is less"),
        figure("first read, of plain", first_ratio, ""),
        figure("second read", later, "GB/s"),
        figure("second read, of plain", later_ratio, "", "0.5", lambda ratio: ratio >= LATER_RATIO),
        figure("daemon's CPU in the first read", cpu, "s/GB"),
    ]
    met = found[1].measured >= FIRST_GB_PER_S or found[2].measured >= FIRST_RATIO
    found[1] = Figure(**{**{name: getattr(found[1], name) for name in Figure.__slots__}, "met": met})
    if peer_first:
        found += [
            figure("rclone mount, first read", peer_first, "GB/s"),
            figure("rclone mount, second read", peer_later, "GB/s"),
        ]
    return f"one resident file of {mib} MiB, read in pieces of 1 MiB", found


def make(path: Path, mib: int) -> None:
    """A file without holes that no file system can shrink."""
    path.parent.mkdir()
    with path.open("wb") as file:
        for _ in range(mib):
            file.write(os.urandom(1 << 20))
