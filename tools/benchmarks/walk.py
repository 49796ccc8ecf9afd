"""A tree of many tiny cached files: os.walk, then os.stat of each file, after a fresh mount and again."""

from __future__ import annotations

from collections import defaultdict

from tools.benchmarks.measure import BenchError, Figure, Setting, at_most, figure
from tools.benchmarks.mounts import ENGINES, fully_cached
from tools.benchmarks.reader_process import ReaderProcess

TIMES_NATIVE = 3.0
DIRECTORIES = 100
CALLS = ("os.walk", "os.stat")
BOTH = "os.walk and os.stat"


def measure(setting: Setting) -> tuple[str, list[Figure]]:
    """The tree in the cache's folder, and twice through a fresh mount."""
    files = 200 if setting.quick else 100_000
    remote = setting.folder / "remote"
    for directory in range(DIRECTORIES):
        folder = remote / f"d{directory:02}"
        folder.mkdir(parents=True)
        for number in range(files // DIRECTORIES):
            (folder / f"f{number:04}.txt").write_bytes(b"tiny")
    native: dict[str, list[float]] = defaultdict(list)
    times: dict[tuple[str, str, str], list[float]] = defaultdict(list)
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
                        for times_s in (plain, through):
                            times_s[BOTH] = sum(times_s[call] for call in CALLS)
                        for call in (*CALLS, BOTH):
                            native[call].append(plain[call])
                            times[contender, turn, call].append(through[call] / plain[call])
    found = [figure(f"plain files, {call}", native[call], "s") for call in (*CALLS, BOTH)]
    for (contender, turn, call), ratios in times.items():
        target = TIMES_NATIVE if contender in ENGINES and call == BOTH else None
        found.append(at_most(f"{contender}, {turn}, {call}, times plain", ratios, "x", target))
    return f"{files:,} tiny cached files in {DIRECTORIES} directories", found
