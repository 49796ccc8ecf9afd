"""When files arrive: the first one, the k-th one, and one that a reader opens before its turn.

A bucket of equal files lies behind a link of limited rate. The link alone would take size / rate for a file; the
targets are multiples of that. Times run from the start of the command, and a file has arrived when it is renamed to its
own name, or, with s5cmd, written for the last time. The files are equal, so their order does not matter.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.benchmarks.filling import COPIERS, NAME, Source, flags_of, make_shards, shard_name
from tools.benchmarks.measure import Figures, Setting, fault_in_memory, run
from tools.benchmarks.mounts import GROWFS, mounted, rclone_mounted
from tools.benchmarks.servers import behind_link, rclone_server

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
        """The time that the link alone takes for a file."""
        return (self.mib << 20) / self.rate


CASES = (
    Case("30 MB/s, 64 MiB", 30_000_000, 0.01, 8, 64),
    Case("10 MB/s, 4 MiB", 10_000_000, 0.02, 40, 4),
    Case("125 MB/s, 100 ms, 256 MiB", 125_000_000, 0.1, 6, 256),
)
QUICK_CASES = (Case("60 MB/s, 8 MiB", 60_000_000, 0.01, 4, 8),)


Arrivals = list[float]
"""The arrivals of the files of one run, in order, in seconds from the start of the command."""


def first(setting: Setting, found: Figures) -> str:
    """Measure every case, and draw the curves of the last rounds if a plot is wanted."""
    cases = QUICK_CASES if setting.quick else CASES
    curves = [_measure_case(setting, found, case, setting.folder / str(number)) for number, case in enumerate(cases)]
    if setting.plot:
        _draw(dict(zip(cases, curves, strict=True)), setting.plot)
    return "arrivals, files of a bucket behind a link"


def _measure_case(setting: Setting, found: Figures, case: Case, folder: Path) -> dict[str, Arrivals]:
    """Measure one case in an empty folder; returns the arrivals of the last round, by contender."""
    folder.mkdir()
    bytes = make_shards(folder / "remote", case.files, case.mib)
    found.add(f"{case.name}: first file, the link alone", case.file_s, unit="s")
    arrivals: dict[str, Arrivals] = {}
    with (
        rclone_server(folder / "remote") as server,
        behind_link(server.endpoint, case.rtt_s, case.rate) as link,
    ):
        source = Source(link, case.files, bytes)
        for _ in range(min(setting.rounds, ROUNDS_MAX)):
            for contender in ("growfs", *COPIERS):
                target = folder / "target"
                target.mkdir()
                os.sync()
                fault_in_memory(2 * bytes)
                began = time.time()
                if copy := COPIERS.get(contender):
                    copy(source, target)
                    arrivals[contender] = _arrivals_in(target, began)
                else:
                    arrivals[contender] = _fill(setting.engines[0], source, target, began)
                found.add(f"{case.name}: first file, {contender}", arrivals[contender][0], unit="s")
                shutil.rmtree(target)
            through_rclone_s = _first_through_rclone_mount(source, folder / "rclone")
            found.add(f"{case.name}: first file, read through rclone mount", through_rclone_s, unit="s")
            own = arrivals["growfs"]
            miss_s = _wait_of_miss(setting.engines[0], source, folder / "miss")
            found.add(f"{case.name}: a miss waits", miss_s, unit="s")
            for name, took, allowed in (
                ("first file", own[0], FIRST_FACTOR * case.file_s + FIRST_MORE_S),
                ("a miss", miss_s, MISS_FACTOR * case.file_s + MISS_MORE_S),
            ):
                found.add(f"{case.name}: {name}, of the {allowed:.1f} s allowed", took / allowed, at_most=1)
            found.add(f"{case.name}: k files, the worst k, of the time allowed", _worst_of(case, own), at_most=1)
            of_rclone = arrivals["rclone copy"][-1] / own[-1]
            found.add(f"{case.name}: all files, rate, of rclone copy", of_rclone, at_least=RATE_TARGET)
    shutil.rmtree(folder)
    return arrivals


def _worst_of(case: Case, arrivals: Sequence[float]) -> float:
    """The largest share that an arrival takes of the time allowed for it."""
    return max(
        arrival / (NTH_FACTOR * count * case.file_s + NTH_MORE_S) for count, arrival in enumerate(arrivals, start=1)
    )


def _arrivals_in(folder: Path, began: float) -> list[float]:
    return sorted(path.stat().st_ctime - began for path in folder.rglob("*.bin"))


# growfs.


def _fill(engine: str, source: Source, folder: Path, began: float) -> list[float]:
    with mounted(f"s3://{NAME}", folder, *flags_of(source, engine), "--no-wait") as mount:
        run([*GROWFS, "wait", mount.mountpoint, "--all"])
        return _arrivals_in(mount.files, began)


def _wait_of_miss(engine: str, source: Source, folder: Path) -> float:
    """How long an open waits for a file that is not under way while others fill the link."""
    folder.mkdir()
    with mounted(f"s3://{NAME}", folder, *flags_of(source, engine), "--wait-files", 1) as mount:
        missing = [name for name in map(shard_name, range(source.files)) if not (mount.files / name).exists()]
        began = time.monotonic()
        with (mount.mountpoint / missing[-1]).open("rb"):
            waited = time.monotonic() - began
    shutil.rmtree(folder)
    return waited


def _first_through_rclone_mount(source: Source, folder: Path) -> float:
    """Seconds from the start of `rclone mount` until the first file is read."""
    folder.mkdir()
    began = time.monotonic()
    with rclone_mounted(source.server.endpoint, NAME, folder) as mountpoint:
        (mountpoint / shard_name(0)).read_bytes()
        took_s = time.monotonic() - began
    shutil.rmtree(folder)
    return took_s


def _draw(cases: dict[Case, dict[str, Arrivals]], path: Path) -> None:
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(4.5 * len(cases), 4), layout="constrained")
    axes = drawing.subplots(1, len(cases), squeeze=False)
    for (case, curves), place in zip(cases.items(), axes[0], strict=True):
        counts = list(range(1, case.files + 1))
        place.plot([count * case.file_s for count in counts], counts, "k:", label="the link alone")
        for contender, arrivals in curves.items():
            place.step(arrivals, counts[: len(arrivals)], where="post", label=contender)
        place.set(title=case.name, xlabel="seconds from the call of the command", ylabel="whole files")
        place.grid(alpha=0.3)
    axes[0][0].legend()
    drawing.savefig(path)
