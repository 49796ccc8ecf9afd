"""What to expect of a mount: when training starts, when the cache is full, how much of the data will be seen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from growfs.daemon.options import Options
from growfs.extensions.doctor.check import Check, Disk, Level, Listing, MeasuredDownload, ok, warning
from growfs.scheduler.readiness import START_S, StartCondition
from growfs.simulation.training import PolicyResult, Workload, repeats_too_often, simulate_policy
from growfs.units import flag_size, format_size, format_timespan

EPOCHS = (1, 10, 50)


@dataclass(frozen=True, slots=True)
class Outlook:
    """The expectations. Seconds are from the start of the mount; None if unknown. seen: share of the data by epoch."""

    first_file_s: float | None = None
    start_s: float | None = None
    full_s: float | None = None
    fill_bytes: int | None = None
    seen: dict[int, float] | None = None


def check_outlook(
    options: Options, disk: Disk, listing: Listing, download: MeasuredDownload | None
) -> Iterator[Check | Outlook]:
    """Lines about the time to come, and finally the Outlook."""
    if listing.smallest > disk.room and not listing.files_unsized:
        text = f"not even one file fits: the smallest is {format_size(listing.smallest)}"
        yield Check(Level.FAILURE, "cache", text, "see --cache-size, --min-free and --cache-dir")
        return
    if download is None or not download.bytes or not download.s:
        return
    rate = download.bytes_per_s
    # The rates were measured for a few seconds only, so a small difference means nothing.
    if 0 < disk.write < 0.8 * rate:
        text = f"the disk writes {format_size(disk.write)}/s, slower than the link delivers"
        yield warning("bottleneck", text, "put --cache-dir on a faster disk")
        rate = disk.write
    first_s = None if download.first_s is None else listing.first_s + download.first_s
    if first_s is not None:
        yield ok("first file", f"cached after {_duration(first_s)}")
    total = _total_bytes(listing, download)
    if total is None:
        full_s = disk.room / rate
        yield ok("full cache", f"{format_size(disk.room)} after {_duration(full_s)}, if the remote has as much")
        yield Outlook(first_s, None, full_s, disk.room)
        return
    nodes = options.partition[1] if options.partition else 1
    total, files = total // nodes, listing.files / nodes
    fill = min(disk.room, total)
    full_s = fill / rate
    # With --exact, a mount waits for the first part: growfs plan simulates that.
    start_s = None if options.by_name().get("exact") else _start_s(options, fill, total / files, rate) + (first_s or 0)
    if start_s is not None:
        yield ok("start", f"growfs mount returns after {_duration(start_s)}")
    if total <= disk.room:
        what = "the whole dataset" if nodes == 1 else "this node's share of the data"
        yield ok("full cache", f"{what}, {format_size(total)}, after {_duration(full_s)}")
        yield Outlook(first_s, start_s, full_s, fill)
        return
    yield ok("full cache", f"{format_size(fill)}, {fill / total:.1%} of the data, after {_duration(full_s)}")
    seen: dict[int, float] | None = None
    if fill >= 2 * total / files and not options.by_name().get("exact"):
        workload = Workload(total, files, fill, rate, rate, options.turnover, EPOCHS[-1])
        result = simulate_policy(workload, "never" if options.rotation == "never" else "growfs")
        seen = {epoch: result.points[epoch - 1].seen for epoch in EPOCHS}
        yield _describe_coverage(workload, result, seen)
    yield Outlook(first_s, start_s, full_s, fill, seen)


def _start_s(options: Options, fill: int, file_bytes: float, rate: float) -> float:
    """How long a mount fetches before it returns."""
    condition = StartCondition(options.wait_files, options.wait_bytes, options.no_wait)
    files, size = condition.amount(fill)
    wanted_s = 0.0 if condition.no_wait else max(files * file_bytes, size) / rate
    return wanted_s if condition.explicit else min(START_S, wanted_s)


def _describe_coverage(workload: Workload, result: PolicyResult, seen: dict[int, float]) -> Check:
    read_rate = f"{format_size(workload.read_rate)}/s"
    shares = ", ".join(f"{share:.0%} after {epoch}" for epoch, share in seen.items())
    text = f"if training reads as fast as the link ({read_rate}), it has seen this much of the data: {shares} epochs"
    sizes = f"--data-size {flag_size(workload.data_bytes)} --files {workload.files:.0f}"
    cache = f"--cache-size {flag_size(workload.cache_bytes)} --bandwidth {flag_size(workload.bandwidth)}/s"
    command = f"growfs plan {sizes} {cache} --read-rate {flag_size(workload.read_rate)}/s"
    if repeats_too_often(workload, result):  # no warning, since the rate of the training is unknown
        text += "; each fetched file is opened more than four times"
    return Check(Level.OK, "coverage", text, command)


def _total_bytes(listing: Listing, download: MeasuredDownload) -> int | None:
    """The size of the dataset; files of unknown size are assumed to be as large as those that were fetched."""
    if not listing.whole:
        return None
    if listing.files_unsized and not download.files:
        return None
    return listing.bytes + (listing.files_unsized * download.bytes // download.files if download.files else 0)


def _duration(seconds: float) -> str:
    """An approximate duration; starting takes most of a second in any case."""
    return f"about {format_timespan(max(1, round(seconds)), max_units=2)}"
