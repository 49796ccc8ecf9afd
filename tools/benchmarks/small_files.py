"""Resident small files, in folders as image data sets are kept: listed once, then opened, read and closed at random.

Also where the time goes: by system call in the reader's process, in the daemon, and how often the kernel asks it.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from pathlib import Path

from tools.benchmarks.measure import BenchError, Figure, Setting, at_least, figure, need_space
from tools.benchmarks.mounts import Mount, all_resident
from tools.benchmarks.readers import Reader

TARGETS = {"passthrough": 0.40}
PASSES = ("first", "later", "later")
DIRECTORIES = 20
SIZE = 100_000
RARE = 0.01  # requests for each file, of which no more is said
CALLS = ("open", "read", "close")

Taken = dict[tuple[str, str, str], list[float]]
"""Values by whose, pass, and what."""


def measure(setting: Setting) -> tuple[str, list[Figure]]:
    """A first pass through a fresh mount and later ones, each beside one over the plain files."""
    files = 500 if setting.quick else 10_000
    need_space(setting.folder, 3 * files * SIZE)
    remote, names = setting.folder / "remote", setting.folder / "names"
    make(remote, files, names)
    taken: Taken = defaultdict(list)
    with Reader() as reader:
        for number in range(setting.rounds):
            for who in setting.contenders:
                with all_resident(who, remote, setting.folder) as mount:
                    reader.do("files", mount.files, names, 0)  # not timed: brings the cached files into memory
                    taken[who, "", "listed"].append(reader.do("walk", mount.mountpoint, False)["os.walk"])
                    for turn, which in enumerate(PASSES):
                        compare(reader, mount, who, which, names, number * len(PASSES) + turn, files, taken)
    title = f"{files:,} resident files of 100 kB, opened, read and closed in random order"
    return title, figures(setting.contenders, taken)


def make(remote: Path, files: int, names: Path) -> None:
    """The files, and a list of their paths."""
    paths = [f"class{number % DIRECTORIES:02}/{number:06}.bin" for number in range(files)]
    for path in paths:
        (remote / path).parent.mkdir(parents=True, exist_ok=True)
        (remote / path).write_bytes(os.urandom(SIZE))
    names.write_text("".join(f"{path}\n" for path in paths))


def compare(
    reader: Reader, mount: Mount, who: str, which: str, names: Path, order: int, files: int, taken: Taken
) -> None:
    """A pass over the plain files, and the same through the mount."""
    plain = reader.do("files", mount.files, names, order)
    asked = requests(mount, who)
    before = mount.cpu_s()
    through = reader.do("files", mount.mountpoint, names, order)
    taken[who, which, "cpu"].append((mount.cpu_s() - before) / files)
    for name, count in requests(mount, who).items():
        taken[who, which, f"{name} requests"].append((count - asked[name]) / files)
    for whose, pass_, times in (("native", "", plain), (who, which, through)):
        if times["bytes"] != files * SIZE:
            raise BenchError(f"{whose}: {times['bytes']:,} bytes read of {files * SIZE:,}")
        taken[whose, pass_, "rate"].append(files / times["all"])
        for call in CALLS:
            taken[whose, pass_, call].append(times[call] / files)
    taken[who, which, "ratio"].append(plain["all"] / through["all"])


def requests(mount: Mount, who: str) -> Counter[str]:
    """What the kernel asked the daemon so far, by opcode, where the engine counts it."""
    return Counter() if who == "rclone" else Counter(mount.status().get("requests") or {})


def figures(contenders: tuple[str, ...], taken: Taken) -> list[Figure]:
    """Rates and ratios; then microseconds by system call and in the daemon; then requests."""

    def us(name: str, values: list[float]) -> Figure:
        return figure(name, [1e6 * seconds for seconds in values], "us/file")

    found = [figure("plain files", taken["native", "", "rate"], "files/s")]
    found += [us(f"plain files, {call}", taken["native", "", call]) for call in CALLS]
    for who in contenders:
        found.append(figure(f"{who}, listing all", taken[who, "", "listed"], "s"))
        for which in dict.fromkeys(PASSES):
            start = f"{who}, {which} pass"
            found.append(figure(start, taken[who, which, "rate"], "files/s"))
            found.append(at_least(f"{start}, of plain", taken[who, which, "ratio"], "", TARGETS.get(who)))
            found += [us(f"{start}, {call}", taken[who, which, call]) for call in CALLS]
            found.append(us(f"{start}, daemon's CPU", taken[who, which, "cpu"]))
            found += [
                figure(f"{start}, {what}", values, "per file")
                for (whose, pass_, what), values in taken.items()
                if (whose, pass_) == (who, which) and what.endswith(" requests") and max(values) >= RARE
            ]
    return found
