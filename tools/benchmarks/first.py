"""When the files arrive: the first one, the k-th one, and one that a reader opens before its turn.

A bucket of equal files lies behind a link of limited rate. What the link alone would take for a file is size / rate;
the targets are multiples of that. Times run from the call of the command, and a file has arrived when it is renamed to
its own name, or, with s5cmd, written for the last time. The files are equal, so their order does not matter.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.benchmarks.bucket_copy import COPIERS, NAME, Source
from tools.benchmarks.measure import (
    ACCESS_KEY,
    SECRET_KEY,
    Figure,
    Setting,
    at_least,
    figure,
    make_file,
    need_space,
    run,
    wait_until,
)
from tools.benchmarks.mounts import GROWFS, RCLONE_TUNED, mounted
from tools.benchmarks.servers import behind_link, rclone_binary, rclone_server

FIRST_FACTOR, FIRST_MORE_S = 1.25, 1.2
NTH_FACTOR, NTH_MORE_S = 1.1, 1.5
MISS_FACTOR, MISS_MORE_S = 1.5, 0.3
RATE_TARGET = 0.95
ROUNDS_MAX = 2


@dataclass(frozen=True, slots=True)
class Case:
    """A bucket behind a link. rate: in bytes/s."""

    name: str
    rate: int
    rtt_s: float
    files: int
    mib: int

    @property
    def file_s(self) -> float:
        """What the link alone takes for a file."""
        return (self.mib << 20) / self.rate


CASES = (
    Case("30 MB/s, 64 MiB", 30_000_000, 0.01, 8, 64),
    Case("10 MB/s, 4 MiB", 10_000_000, 0.02, 40, 4),
    Case("125 MB/s, 100 ms, 256 MiB", 125_000_000, 0.1, 6, 256),
)
QUICK_CASES = (Case("60 MB/s, 8 MiB", 60_000_000, 0.01, 4, 8),)


@dataclass(frozen=True, slots=True)
class Curve:
    """The arrivals of one run, in seconds from the call of the command, in order."""

    contender: str
    arrivals: list[float]


def measure(setting: Setting) -> tuple[str, list[Figure]]:
    """Measure every case, and draw the curves of the last rounds if a plot is wanted."""
    found: list[Figure] = []
    drawn: list[tuple[Case, list[Curve]]] = []
    for number, case in enumerate(QUICK_CASES if setting.quick else CASES):
        folder = setting.folder / str(number)
        figures, curves = measure_case(setting, case, folder)
        found += figures
        drawn.append((case, curves))
        run(["rm", "-r", folder])
    if setting.plot:
        draw(drawn, setting.plot)
    return "arrivals, files of a bucket behind a link", found


def measure_case(setting: Setting, case: Case, folder: Path) -> tuple[list[Figure], list[Curve]]:
    """Measure one case in an empty folder."""
    folder.mkdir()
    need_space(folder, 3 * case.files * case.mib << 20)
    for number in range(case.files):
        make_file(folder / "remote" / NAME / f"{number:03}.bin", case.mib)
    runs: dict[str, list[Curve]] = {}
    firsts: list[float] = []
    misses: list[float] = []
    with (
        rclone_server(folder / "remote", folder / "server.log") as server,
        behind_link(server.endpoint, case.rtt_s, case.rate, folder / "link.log") as link,
    ):
        source = Source(link, case.files, case.files * case.mib << 20)
        for number in range(min(setting.rounds, ROUNDS_MAX)):
            for contender in ("growfs", *COPIERS):
                target = folder / f"{number}-{contender.replace(' ', '-')}"
                target.mkdir()
                os.sync()
                copy = COPIERS.get(contender)
                began = time.time()
                if copy:
                    copy(source, target)
                    arrivals = arrivals_in(target, began)
                else:
                    arrivals = fill(setting.contenders[0], source, target, began)
                runs.setdefault(contender, []).append(Curve(contender, arrivals))
                run(["rm", "-r", target])
            misses.append(wait_of_miss(setting.contenders[0], source, folder / f"{number}-miss"))
            firsts.append(first_through_rclone_mount(source, folder / f"{number}-mount"))
    return figures_of(case, runs, firsts, misses), [curves[-1] for curves in runs.values()]


def figures_of(case: Case, runs: dict[str, list[Curve]], firsts: list[float], misses: list[float]) -> list[Figure]:
    """The figures of one case, with the targets of growfs."""
    own = [curve.arrivals for curve in runs["growfs"]]
    found = [figure(f"{case.name}: first file, the link alone", [case.file_s], "s")]
    for contender, curves in runs.items():
        found.append(figure(f"{case.name}: first file, {contender}", [curve.arrivals[0] for curve in curves], "s"))
    found.append(figure(f"{case.name}: first file, read through rclone mount", firsts, "s"))
    first_s = FIRST_FACTOR * case.file_s + FIRST_MORE_S
    miss_s = MISS_FACTOR * case.file_s + MISS_MORE_S
    bounded: list[tuple[str, list[float], str]] = [
        ("first file", [arrivals[0] / first_s for arrivals in own], f"{FIRST_FACTOR:g} x link + {FIRST_MORE_S:g} s"),
        ("k files, the worst k", [worst_of(case, one) for one in own], f"{NTH_FACTOR:g} x link + {NTH_MORE_S:g} s"),
        ("a miss", [miss / miss_s for miss in misses], f"{MISS_FACTOR:g} x link + {MISS_MORE_S:g} s"),
    ]
    for name, ratios, bound in bounded:
        found.append(
            figure(f"{case.name}: {name}, of the time allowed", ratios, "", f"1 ({bound})", lambda ratio: ratio <= 1)
        )
    rates = [a.arrivals[-1] / b[-1] for a, b in zip(runs["rclone copy"], own, strict=True)]
    found.append(at_least(f"{case.name}: all files, rate, of rclone copy", rates, "", RATE_TARGET))
    return found


def worst_of(case: Case, arrivals: Sequence[float]) -> float:
    """The largest share that an arrival takes of the time allowed for it."""
    return max(
        arrival / (NTH_FACTOR * count * case.file_s + NTH_MORE_S) for count, arrival in enumerate(arrivals, start=1)
    )


def arrivals_in(folder: Path, began: float) -> list[float]:
    """When each file in the folder arrived."""
    return sorted(path.stat().st_ctime - began for path in folder.rglob("*.bin"))


# growfs.


def flags(engine: str, source: Source) -> list[object]:
    """Of a mount with an empty cache that the whole bucket fits into."""
    found: list[object] = ["--engine", engine, "--endpoint-url", source.server.endpoint, "--refresh", 0]
    return [*found, "--cache-size", 2 * source.bytes + (1 << 30)]


def fill(engine: str, source: Source, folder: Path, began: float) -> list[float]:
    """Mount until everything is cached."""
    with mounted(f"s3://{NAME}", folder, *flags(engine, source), "--no-wait") as mount:
        run([*GROWFS, "wait", mount.mountpoint, "--all"])
        return arrivals_in(mount.files, began)


def wait_of_miss(engine: str, source: Source, folder: Path) -> float:
    """How long an open waits, of a file that is not under way, while others fill the link."""
    folder.mkdir()
    with mounted(f"s3://{NAME}", folder, *flags(engine, source), "--wait-files", 1) as mount:
        missing = [name for name in bucket_names(source) if not (mount.files / name).exists()]
        began = time.monotonic()
        with (mount.mountpoint / missing[-1]).open("rb"):
            waited = time.monotonic() - began
    run(["rm", "-r", folder])
    return waited


def bucket_names(source: Source) -> list[str]:
    """The names of the files."""
    return [f"{number:03}.bin" for number in range(source.files)]


# rclone mount.


def first_through_rclone_mount(source: Source, folder: Path) -> float:
    """Seconds from the call of `rclone mount` until the first file is read."""
    mountpoint = folder / "mnt"
    mountpoint.mkdir(parents=True)
    keys = {"ACCESS_KEY_ID": ACCESS_KEY, "SECRET_ACCESS_KEY": SECRET_KEY, "ENDPOINT": source.server.endpoint}
    env = {**os.environ, **{f"RCLONE_S3_{name}": value for name, value in {**keys, "PROVIDER": "Other"}.items()}}
    options = [f"--{name}={value}" for name, value in RCLONE_TUNED.items()]
    command = [rclone_binary(), "mount", f":s3:{NAME}", mountpoint, "--config", os.devnull, "--cache-dir", folder]
    began = time.monotonic()
    process = subprocess.Popen([str(word) for word in [*command, *options]], env=env, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: os.path.ismount(mountpoint), "rclone mount", every_s=0.01)
        (mountpoint / bucket_names(source)[0]).read_bytes()
        return time.monotonic() - began
    finally:
        process.terminate()
        process.wait()
        run(["rm", "-r", folder])


# The plot.


def draw(cases: list[tuple[Case, list[Curve]]], path: Path) -> None:
    """Write the arrival curves as an image."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    drawing, axes = pyplot.subplots(1, len(cases), figsize=(4.5 * len(cases), 4), layout="constrained", squeeze=False)
    for (case, curves), place in zip(cases, axes[0], strict=True):
        counts = list(range(1, case.files + 1))
        place.plot([count * case.file_s for count in counts], counts, "k:", label="the link alone")
        for curve in curves:
            place.step(curve.arrivals, counts[: len(curve.arrivals)], where="post", label=curve.contender)
        place.set(title=case.name, xlabel="seconds from the call of the command", ylabel="whole files")
        place.grid(alpha=0.3)
    axes[0][0].legend()
    drawing.savefig(path)
    pyplot.close(drawing)
