"""Small cached files in class folders, as in an image data set: listed once, then opened, read and closed at random.

It also shows where the time goes: system calls in the reader, CPU in the daemon, and FUSE requests.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from pathlib import Path

from tools.benchmarks.measure import BenchError, Figure, Setting, at_least, figure, need_space
from tools.benchmarks.mounts import Mount, fully_cached
from tools.benchmarks.reader_process import ReaderProcess

TARGETS = {"passthrough": 0.40}
PASSES = ("first", "later", "later")
DIRECTORIES = 20
SIZE = 100_000
RARE = 0.01  # requests per file; opcodes below it are not shown
CALLS = ("open", "read", "close")

Samples = dict[tuple[str, str, str], list[float]]
"""Values by contender (or "native"), pass, and quantity."""


def measure(setting: Setting) -> tuple[str, list[Figure]]:
    """A first pass through a fresh mount and later passes, each paired with one over the plain files."""
    files = 100 if setting.quick else 10_000
    need_space(setting.folder, 3 * files * SIZE)
    remote, names = setting.folder / "remote", setting.folder / "names"
    make(remote, files, names)
    samples: Samples = defaultdict(list)
    with ReaderProcess() as reader:
        for number in range(setting.rounds):
            for contender in setting.contenders:
                with fully_cached(contender, remote, setting.folder) as mount:
                    reader.call("files", mount.files, names, 0)  # not timed: brings the cached files into memory
                    samples[contender, "", "listed"].append(reader.call("walk", mount.mountpoint, False)["os.walk"])
                    for turn, which in enumerate(PASSES):
                        plain, through = compare(reader, mount, names, files, order=number * len(PASSES) + turn)
                        for what, value in plain.items():
                            samples["native", "", what].append(value)
                        for what, value in through.items():
                            samples[contender, which, what].append(value)
    title = f"{files:,} cached files of 100 kB, opened, read and closed in random order"
    return title, figures(setting.contenders, samples)


def make(remote: Path, files: int, names: Path) -> None:
    """Write the files, and a list of their paths."""
    paths = [f"class{number % DIRECTORIES:02}/{number:06}.bin" for number in range(files)]
    for path in paths:
        (remote / path).parent.mkdir(parents=True, exist_ok=True)
        (remote / path).write_bytes(os.urandom(SIZE))
    names.write_text("".join(f"{path}\n" for path in paths))


def compare(
    reader: ReaderProcess, mount: Mount, names: Path, files: int, order: int
) -> tuple[dict[str, float], dict[str, float]]:
    """A pass over the plain files, and the same through the mount: the values of each."""
    plain = reader.call("files", mount.files, names, order)
    requests_before, cpu_before = requests(mount), mount.cpu_s()
    through = reader.call("files", mount.mountpoint, names, order)
    cpu_s = mount.cpu_s() - cpu_before
    counts = {f"{name} requests": (count - requests_before[name]) / files for name, count in requests(mount).items()}
    for folder, times in ((mount.files, plain), (mount.mountpoint, through)):
        if times["bytes"] != files * SIZE:
            raise BenchError(f"{folder}: {times['bytes']:,} bytes read of {files * SIZE:,}")
    return per_file(plain, files), {
        **per_file(through, files),
        **counts,
        "cpu": cpu_s / files,
        "ratio": plain["all"] / through["all"],
    }


def per_file(times: dict[str, float], files: int) -> dict[str, float]:
    """Files per second, and the seconds of each system call per file."""
    return {"rate": files / times["all"], **{call: times[call] / files for call in CALLS}}


def requests(mount: Mount) -> Counter[str]:
    """FUSE requests so far, by opcode, where the engine counts them; peers have no engine."""
    return Counter(mount.status().get("requests") or {}) if mount.engine else Counter()


def figures(contenders: tuple[str, ...], samples: Samples) -> list[Figure]:
    """Rates and ratios, then microseconds by system call and in the daemon, then requests."""

    def us(name: str, values: list[float]) -> Figure:
        return figure(name, [1e6 * seconds for seconds in values], "us/file")

    found = [figure("plain files", samples["native", "", "rate"], "files/s")]
    found += [us(f"plain files, {call}", samples["native", "", call]) for call in CALLS]
    for contender in contenders:
        found.append(figure(f"{contender}, listing all", samples[contender, "", "listed"], "s"))
        for which in dict.fromkeys(PASSES):
            start = f"{contender}, {which} pass"
            found.append(figure(start, samples[contender, which, "rate"], "files/s"))
            found.append(at_least(f"{start}, of plain", samples[contender, which, "ratio"], "", TARGETS.get(contender)))
            found += [us(f"{start}, {call}", samples[contender, which, call]) for call in CALLS]
            found.append(us(f"{start}, daemon's CPU", samples[contender, which, "cpu"]))
            found += [
                figure(f"{start}, {what}", values, "per file")
                for (name, pass_, what), values in samples.items()
                if (name, pass_) == (contender, which) and what.endswith(" requests") and max(values) >= RARE
            ]
    return found
