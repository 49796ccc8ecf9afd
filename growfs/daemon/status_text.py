"""The status as text for people: a page, and a line. Also tables."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module

from growfs.extensions import MOUNT
from growfs.status_and_metrics import MountState, MountStatus, RemoteStatus, StartStatus
from growfs.units import format_size, format_timespan

Line = tuple[str, str]
"""(label, text)"""


def render(status: MountStatus) -> str:
    """The page that `growfs status` prints, and the content of .growfs/status."""
    lines = (*figures(status), *readers(status), *notes(status))
    return "".join(f"{label:<11}{printable(text)}\n" for label, text in lines)


def figures(status: MountStatus) -> Iterator[Line]:
    """The lines that are always there."""
    remote, cache, fetch, miss, opens = status.remote, status.cache, status.fetch, status.miss, status.opens
    coverage = status.coverage
    share = cache.files / remote.files if remote.files else 0.0
    known = "" if remote.listed else " so far"
    partition = f" (partition {status.partition})" if status.partition else ""
    failed = f", {fetch.failed:,} failed" if fetch.failed else ""
    late = f"; {fetch.late_file} is arriving slowly" if fetch.late_file else ""
    yield "remote", f"{status.url}: {files(remote.files)}, {format_size(remote.bytes)}{known}{silence(remote)}"
    yield "mounted", f"{status.mountpoint} by pid {status.pid}, {engine(status)}"
    yield "state", state_text(status)
    used = f"{format_size(cache.bytes)} of {format_size(cache.limit_bytes)}"
    yield "cached", f"{files(cache.files)} ({share:.1%} of the remote), {used}"
    for name in filter(status.get, reversed(MOUNT)):
        yield import_module(f"growfs.extensions.{name}.text").line(status[name], status)
    yield "listed", _listed_text(status)
    yield (
        "coverage",
        f"{coverage.files_seen:,} of {files(coverage.files)}{partition} cached so far, pass {coverage.pass_}",
    )
    yield (
        "fetched",
        f"{files(fetch.files_total)}, {format_size(fetch.bytes_total)}, now {format_size(fetch.bytes_per_s)}/s"
        f"{failed}{late}",
    )
    others = fetch.library_files_total if fetch.client == "growfs" else 0
    left = f"; {files(others)} fetched by the library" if others else ""
    if fetch.client:
        yield "client", f"{fetch.client} ({fetch.client_reason}){left}"
    yield "misses", f"{miss.files_total:,}, waited {miss.wait_s_total:.1f} s in total"
    yield "opens", f"{opens.mean:.2f} per file ({opens.min} to {opens.max}), {opens.per_fetch:.2f} per fetch"


def generation_text(status: MountStatus) -> str:
    """The name of the newest generation."""
    if (exact := status.exact) and exact.part:
        return f"pass {exact.pass_}, part {exact.part} of {exact.parts}"
    return f"generation {status.generation}"


def _listed_text(status: MountStatus) -> str:
    if not status.generation:
        return "nothing listed yet"
    text = f"{files(status.listed.files)} in generation {status.generation}"
    outgoing = status.cache.left_out_bytes
    if new := status.listed.new_files:
        next_one = "generation" if status.engine == "folder" else "listing"
        text += f"; {new:,} new file{'s wait' if new > 1 else ' waits'} for the next {next_one}"
    return f"{text}; {format_size(outgoing)} outgoing" if outgoing else text


def readers(status: MountStatus) -> Iterator[Line]:
    """A line for each reading process."""
    for reader in status.readers:
        advice = f"; {reader.advice}" if reader.advice else ""
        part = f"part {reader.part}, " if reader.part else ""
        listed = f"listed {files(reader.files_shown)}, " if reader.files_shown else ""
        usage = f"{part}{listed}opened {reader.files_opened:,}"
        holds = f", holds {format_size(reader.held_bytes)} of outgoing files" if reader.held_bytes else ""
        yield "reader", f"{reader.command} {reader.pid}: {usage}{holds}{advice}"


def notes(status: MountStatus) -> Iterator[Line]:
    """The lines that a status has only sometimes."""
    budget = status.budget
    if budget.limit_bytes is not None:
        spent = "" if budget.resumes_s is None else f"; resumes in {_duration(budget.resumes_s, units=2)}"
        yield "budget", f"{format_size(budget.spent_bytes)} of {format_size(budget.limit_bytes)} today{spent}"
    for skip in status.skipped:
        example = f", such as {shortened(skip.example)!r}" if skip.example else ""
        yield "skipped", f"{files(skip.files)}: {skip.reason}{example}"
    if status.unpromised:
        yield "note", f"not every directory has a file yet: {status.unpromised}"
    for warning in status.warnings:
        yield "warning", warning
    if status.last_error:
        at = "" if status.last_error_at is None else f" ({_clock(status.last_error_at)})"
        yield "last error", f"{status.last_error}{at}"


def state_text(status: MountStatus, with_eta: bool = True) -> str:
    """The state of the mount, and how long it will last."""
    state, cache = status.state, status.cache
    used_bytes = cache.bytes + cache.in_flight_bytes + cache.orphan_bytes
    text = state.text
    if state is MountState.WAITING and (outage := status.outage):
        next_try_s = round(outage.next_try_s)
        next_try = f"in {_duration(next_try_s)}" if next_try_s else "now"
        return f"{text}: {outage.why} (since {_clock(outage.since)}, next try {next_try})"
    has_listed = status.remote.listing or status.remote.listed
    if state is MountState.LISTING and status.last_error and not has_listed:
        text = "the remote could not be listed; growfs is trying again"
    if state is MountState.HELD:
        if not _makes_room(status):
            text = "full; only misses are fetched"
        elif status.exact:
            text = "full; the next part fits once processes leave earlier parts, or the disk has more free space"
        elif used_bytes + status.remote.bytes - cache.content_bytes <= cache.limit_bytes:  # after growfs evict, say
            text = "not every file is cached; the rest are fetched when opened"
        elif status.engine == "folder":  # nothing reports listings
            text = "full; the next generation makes room for new files"
        elif not status.generation:
            text = "full; rotation starts with the first listing"
        elif cache.left_out_bytes:  # the draw that waits would have taken what no reader holds
            text = "full; outgoing files make room once no reader holds them"
        else:
            text = "full; the next listing makes room for new files"
    if used_bytes > cache.limit_bytes:
        text = "over its size; open files, pinned files and the last file of each directory stay for now"
    if state is MountState.COMPLETE and status.partition:
        text = f"complete: every file of partition {status.partition} is cached"
    eta_s = status.fetch.eta_s
    return f"{text}, {_duration(eta_s, units=2)} left" if eta_s and with_eta else text


def _makes_room(status: MountStatus) -> bool:
    """Whether a listing makes room in a full cache. If not, another line of the status says why."""
    is_spent = status.budget.resumes_s is not None
    has_foreign_reader = any(reader.pid == 0 for reader in status.readers)
    return status.rotation != "never" and not (is_spent or has_foreign_reader)


def moving(status: MountStatus) -> str:
    """`brief` with the download rate. The state comes first, because a terminal may be narrow."""
    if status.state is MountState.WAITING:
        return f"{state_text(status)}; {brief(status)}"
    waits_for = silence(status.remote).removeprefix("; ")
    if status.state in (MountState.LISTING, MountState.SEEDING, MountState.PAUSED) or not status.remote.files:
        waits_for = waits_for or state_text(status, with_eta=False)
    if not status.remote.files:
        return f"{waits_for}; nothing of {status.url} is known yet"
    needed = _needed_to_start(status.start) if status.start else ""
    progress = f"{brief(status)}, {format_size(status.fetch.bytes_per_s)}/s"
    return "; ".join(filter(None, (waits_for, needed, progress)))


def _needed_to_start(start: StartStatus) -> str:
    if start.unit == "files":
        return f"{start.done:,} of {files(start.needed)} needed to start"
    return f"{format_size(start.done)} of {format_size(start.needed)} needed to start"


def silence(remote: RemoteStatus) -> str:
    """A note that a listing is slow, for the end of a line; empty if it is not."""
    silent_s = remote.listing_silent_s
    return "" if silent_s is None else f"; the listing is slow: no page has arrived for {_duration(silent_s)}"


def brief(status: MountStatus) -> str:
    """One line: how much is cached."""
    remote, cache = status.remote, status.cache
    known = "" if remote.listed else " listed so far"
    bytes = f"{format_size(cache.content_bytes)} of {format_size(remote.bytes)}"
    return f"{cache.files:,} of {files(remote.files)} cached, {bytes}{known}"


def engine(status: MountStatus) -> str:
    """Which engine runs, and why."""
    return f"{status.engine} engine ({status.engine_reason})"


def files(count: int) -> str:
    """A number of files, such as "1,000 files"."""
    return f"{count:,} file{'' if count == 1 else 's'}"


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """Rows below a header line with their keys; empty if there are none."""
    if not rows:
        return ""
    head = [name.replace("_", " ").upper() for name in rows[0]]
    lines = [head, *([printable(cell) for cell in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "".join("  ".join(map(str.ljust, line, widths)).rstrip() + "\n" for line in lines)


def printable(text: object) -> str:
    """Text from outside, without characters that move the cursor, change colors or end the line."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in str(text))


def _duration(seconds: float, units: int = 3) -> str:
    return format_timespan(round(seconds), max_units=units)


def _clock(at: float) -> str:
    """A time, given in seconds since 1970, in the format of the log."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def shortened(name: str) -> str:
    """A name for a line, without its end if it is long. Some names are skipped because they are too long."""
    return name if len(name) <= 80 else name[:77] + "..."
