"""When files arrive: the first one, the k-th one, and one that a reader opens before its turn.

A bucket of equal files lies behind a link of limited rate. The link alone would take size / rate for a file; the
targets are multiples of that. Times run from the start of the command, and a file has arrived when it is renamed to its
own name, or, with s5cmd, written for the last time. The files are equal, so their order does not matter.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from tools.benchmarks.filling import COPIERS, NAME, Source, flags_of, make_shards, shard_name
from tools.benchmarks.measure import Figures, Setting, fault_in_memory, run, temporary_folder
from tools.benchmarks.mounts import GROWFS, mounted, rclone_mounted
from tools.benchmarks.servers import behind_link, rclone_server

FIRST_FACTOR, FIRST_MORE_S = 1.25, 1.2
NTH_FACTOR, NTH_MORE_S = 1.1, 1.5
MISS_FACTOR, MISS_MORE_S = 1.5, 0.3


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


def first(setting: Setting, found: Figures) -> str:
    """Measure every case, and draw the curves of the last rounds if a plot is wanted."""
    curves = {case: _measure_case(setting, found, case) for case in (QUICK_CASES if setting.quick else CASES)}
    if setting.plot:
        _draw(curves, setting.plot)
    return "arrivals, files of a bucket behind a link"


def _measure_case(setting: Setting, found: Figures, case: Case) -> dict[str, list[float]]:
    """When the files arrived in the last round, by contender, in seconds from the start of the command."""
    found.add(f"{case.name}: first file, the link alone", case.file_s, unit="s")
    arrivals: dict[str, list[float]] = {}
    with temporary_folder() as folder:
        bytes, engine = make_shards(folder / "remote", case.files, case.mib), setting.engines[0]
        with rclone_server(folder / "remote") as server, behind_link(server.endpoint, case.rtt_s, case.rate) as link:
            source = Source(link, case.files, bytes)
            for _ in range(min(setting.rounds, 2)):
                for contender in ("growfs", *COPIERS):
                    os.sync()
                    fault_in_memory(2 * bytes)
                    with temporary_folder() as target:
                        arrivals[contender] = _arrivals(contender, source, target, engine)
                    found.add(f"{case.name}: first file, {contender}", arrivals[contender][0], unit="s")
                through_rclone_s = _first_through_rclone_mount(source)
                found.add(f"{case.name}: first file, read through rclone mount", through_rclone_s, unit="s")
                miss_s = _wait_of_miss(engine, source)
                found.add(f"{case.name}: a miss waits", miss_s, unit="s")
                own, file_s = arrivals["growfs"], case.file_s
                for name, took, allowed in (
                    ("first file", own[0], FIRST_FACTOR * file_s + FIRST_MORE_S),
                    ("a miss", miss_s, MISS_FACTOR * file_s + MISS_MORE_S),
                ):
                    found.add(f"{case.name}: {name}, of the {allowed:.1f} s allowed", took / allowed, at_most=1)
                worst = max(at / (NTH_FACTOR * count * file_s + NTH_MORE_S) for count, at in enumerate(own, 1))
                found.add(f"{case.name}: k files, the worst k, of the time allowed", worst, at_most=1)
                of_rclone = arrivals["rclone copy"][-1] / own[-1]
                found.add(f"{case.name}: all files, rate, of rclone copy", of_rclone, at_least=0.95)
    return arrivals


def _arrivals(contender: str, source: Source, folder: Path, engine: str) -> list[float]:
    """Fetch everything; returns when each file arrived."""
    began = time.time()
    if copy := COPIERS.get(contender):
        copy(source, folder)
        return sorted(path.stat().st_ctime - began for path in folder.rglob("*.bin"))
    with mounted(f"s3://{NAME}", folder, *flags_of(source, engine), "--no-wait") as mount:
        run([*GROWFS, "wait", mount.mountpoint, "--all"])
        return sorted(path.stat().st_ctime - began for path in mount.files.rglob("*.bin"))


def _wait_of_miss(engine: str, source: Source) -> float:
    """How long an open waits for a file that is not under way while others fill the link."""
    flags = [*flags_of(source, engine), "--wait-files", 1]
    with temporary_folder() as folder, mounted(f"s3://{NAME}", folder, *flags) as mount:
        missing = [name for name in map(shard_name, range(source.files)) if not (mount.files / name).exists()]
        began = time.monotonic()
        with (mount.mountpoint / missing[-1]).open("rb"):
            return time.monotonic() - began


def _first_through_rclone_mount(source: Source) -> float:
    """Seconds from the start of `rclone mount` until the first file is read."""
    began = time.monotonic()
    with temporary_folder() as folder, rclone_mounted(source.server.endpoint, NAME, folder) as mountpoint:
        (mountpoint / shard_name(0)).read_bytes()
        return time.monotonic() - began


def _draw(cases: dict[Case, dict[str, list[float]]], path: Path) -> None:
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
