"""Resident small files, in folders as image data sets are kept: listed once, then opened, read and closed at random."""

from __future__ import annotations

import os
from typing import Any

from tools.benchmarks.measure import Figure, Setting, figure, mounted, need_space, rclone_mount, read

FILES_PER_S = 3000
DIRECTORIES = 20
SIZE = 100_000


def measure(setting: Setting) -> tuple[str, list[Figure]]:
    """A first and a later pass through a fresh mount, and both over the plain files."""
    files = 500 if setting.quick else 10_000
    need_space(setting.folder, (2 + len(setting.peers)) * files * SIZE)
    remote = setting.folder / "remote"
    for directory in range(DIRECTORIES):
        (remote / f"class{directory:02}").mkdir(parents=True)
        for number in range(files // DIRECTORIES):
            (remote / f"class{directory:02}" / f"{number:06}.bin").write_bytes(os.urandom(SIZE))
    taken: dict[str, list[dict[str, Any]]] = {"native": [], "growfs": [], "rclone": []}
    cpu = []
    for _ in range(setting.rounds):
        with mounted(remote, setting.folder, "--wait-files", files, "--cache-size", "4GB", "--refresh", 0) as mount:
            read("files", mount.files, 1)  # not timed: brings the cached files into memory
            taken["native"].append(read("files", mount.files, 2))
            before = mount.cpu_s()
            taken["growfs"].append(read("files", mount.mountpoint, 2))
            cpu.append((mount.cpu_s() - before) / (2 * files) * 1e6)
        if "rclone" in setting.peers:
            with rclone_mount(remote, setting.folder) as folder:  # not timed: fills its cache
                read("files", folder, 1)
            with rclone_mount(remote, setting.folder) as folder:
                taken["rclone"].append(read("files", folder, 2))
    for who, rounds in taken.items():
        for one in rounds:
            assert (one["files"], one["bytes"]) == (files, files * SIZE), (who, one)

    def rates(who: str, number: int) -> list[float]:
        return [one["files"] / one["passes_s"][number] for one in taken[who]]

    def enough(rate: float) -> bool:
        return rate >= FILES_PER_S

    ratio = [a / b for a, b in zip(rates("growfs", 0), rates("native", 0), strict=True)]
    later_ratio = [a / b for a, b in zip(rates("growfs", 1), rates("native", 1), strict=True)]
    found = [
        figure("plain files, first pass", rates("native", 0), "files/s"),
        figure("first pass", rates("growfs", 0), "files/s", f"{FILES_PER_S:,} files/s", enough),
        figure("first pass, of plain", ratio, ""),
        figure("later pass", rates("growfs", 1), "files/s", f"{FILES_PER_S:,} files/s", enough),
        figure("later pass, of plain", later_ratio, ""),
        figure("listing all of them", [one["listed_s"] for one in taken["growfs"]], "s"),
        figure("daemon's CPU, both passes", cpu, "us/file"),
    ]
    if taken["rclone"]:
        found += [
            figure("rclone mount, first pass", rates("rclone", 0), "files/s"),
            figure("rclone mount, later pass", rates("rclone", 1), "files/s"),
        ]
    return f"{files:,} resident files of 100 kB, opened, read and closed in random order", found
