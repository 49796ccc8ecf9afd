"""A tree of many tiny resident files: os.walk, and then os.stat of each file, after a fresh mount and again."""

from __future__ import annotations

from collections import defaultdict

from tools.benchmarks.measure import BenchError, Figure, Setting, at_most, figure
from tools.benchmarks.mounts import ENGINES, all_resident
from tools.benchmarks.readers import Reader

TIMES_NATIVE = 3.0
DIRECTORIES = 100
CALLS = ("os.walk", "os.stat")
BOTH = "os.walk and os.stat"


def measure(setting: Setting) -> tuple[str, list[Figure]]:
    """The same tree in the cache's folder, and through fresh mounts twice."""
    files = 1000 if setting.quick else 100_000
    remote = setting.folder / "remote"
    for directory in range(DIRECTORIES):
        folder = remote / f"d{directory:02}"
        folder.mkdir(parents=True)
        for number in range(files // DIRECTORIES):
            (folder / f"f{number:04}.txt").write_bytes(b"tiny")
    native: dict[str, list[float]] = defaultdict(list)
    times: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    with Reader() as reader:
        for _ in range(setting.rounds):
            for who in setting.contenders:
                with all_resident(who, remote, setting.folder) as mount:
                    reader.do("walk", mount.files, True)  # not timed: the kernel has to learn these names too
                    for turn in ("first", "again"):
                        plain = reader.do("walk", mount.files, True)
                        through = reader.do("walk", mount.mountpoint, True)
                        if through["files"] != files:
                            raise BenchError(f"{who} lists {through['files']} of {files} files")
                        for taken in (plain, through):
                            taken[BOTH] = sum(taken[call] for call in CALLS)
                        for call in (*CALLS, BOTH):
                            native[call].append(plain[call])
                            times[who, turn, call].append(through[call] / plain[call])
    found = [figure(f"plain files, {call}", native[call], "s") for call in (*CALLS, BOTH)]
    for (who, turn, call), ratios in times.items():
        target = TIMES_NATIVE if who in ENGINES and call == BOTH else None
        found.append(at_most(f"{who}, {turn}, {call}, times plain", ratios, "x", target))
    return f"{files:,} tiny resident files in {DIRECTORIES} directories", found
