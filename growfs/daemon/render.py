"""The status as text, for people: a page, and a line."""

from __future__ import annotations

import time
from typing import Any

NAME_CHARS_MAX = 80
"""Characters of a name that are printed. One is skipped because it is too long."""


def render(status: dict[str, Any]) -> str:
    """The page that `growfs status` prints."""
    return "".join(f"{label:<11}{text}\n" for label, text in lines(status))


def lines(status: dict[str, Any]) -> list[tuple[str, str]]:
    """The lines of that page, each with its label."""
    remote, cache, fetch, miss, opens = (status[key] for key in ("remote", "cache", "fetch", "miss", "opens"))
    coverage, budget, partition = (status[key] for key in ("coverage", "budget", "partition"))
    share = cache["files"] / remote["files"] if remote["files"] else 0.0
    known = "" if remote["listed"] else " so far"
    shown = [
        ("remote", f"{status['url']}: {files(remote['files'])}, {_size(remote['bytes'])}{known}{silence(remote)}"),
        ("mounted", f"{status['mountpoint']} by pid {status['pid']}, {engine(status)}"),
        ("state", state_text(status)),
        (
            "cached",
            f"{files(cache['files'])} ({share:.1%} of the remote), "
            f"{_size(cache['bytes'])} of {_size(cache['limit_bytes'])}",
        ),
        (
            "listed",
            f"{files(status['listed']['files'])} in generation {status['generation']},"
            f" {_size(cache['left_out_bytes'])} delisted",
        ),
        (
            "coverage",
            f"{coverage['files_seen']:,} of {files(coverage['files'])}"
            f"{f' (shard {partition})' if partition else ''} cached so far, pass {coverage['pass']}",
        ),
        (
            "fetched",
            f"{files(fetch['files_total'])}, {_size(fetch['bytes_total'])}, now {_size(fetch['bytes_per_s'])}/s"
            + (f", {fetch['failed']} failed" if fetch["failed"] else ""),
        ),
        ("misses", f"{miss['files_total']}, waited {miss['wait_s_total']:.1f} s in total"),
        (
            "opens",
            f"{opens['mean']:.2f} per file ({opens['min']} to {opens['max']}), {opens['per_fetch']:.2f} per fetch",
        ),
    ]
    if peers := status.get("peers"):
        traffic = f"{_size(fetch['peer_bytes_total'])} from them, {_size(peers['sent_bytes_total'])} to them"
        shown.append(("nodes", f"{peers['answering'] + 1} of {peers['nodes']} answer, {traffic}"))
    if budget["limit_bytes"] is not None:
        resumes_s = budget["resumes_s"]
        spent = "" if resumes_s is None else f"; resumes in {_duration(resumes_s, units=2)}"
        shown.append(("budget", f"{_size(budget['spent_bytes'])} of {_size(budget['limit_bytes'])} today{spent}"))
    for reader in status["readers"]:
        advice = f"; {reader['advice']}" if reader["advice"] else ""
        usage = f"listed {files(reader['files_shown'])}, opened {reader['files_opened']:,}"
        shown.append(("reader", f"{reader['command']} {reader['pid']}: {usage}{advice}"))
    for skip in status["skipped"]:
        example = f", such as {_shortened(skip['example'])!r}" if skip["example"] else ""
        shown.append(("skipped", f"{files(skip['files'])}: {skip['reason']}{example}"))
    if status["unpromised"]:
        shown.append(("note", f"not every directory has a file yet: {status['unpromised']}"))
    shown += [("warning", warning) for warning in status["warnings"]]
    if status["last_error"]:
        shown.append(("last error", f"{status['last_error']} ({_clock(status['last_error_at'])})"))
    return shown


def state_text(status: dict[str, Any]) -> str:
    """What the mount is doing, and how long that will take."""
    text = {
        "listing": "listing the remote",
        "seeding": "fetching one file of each directory",
        "filling": "filling the cache",
        "rotating": "replacing delisted files with new ones",
        "held": "held: only misses are fetched",
        "complete": "complete: every file of the remote is cached",
        "paused": "paused: only misses are fetched",
        "error": "fetching fails; it is retried",
        "waiting": "waiting for the remote",
    }[status["state"]]
    if status["state"] == "waiting":
        outage = status["outage"]
        next_try_s = round(outage["next_try_s"])
        next_try = f"in {_duration(next_try_s)}" if next_try_s else "now"
        return f"{text}: {outage['why']} (since {_clock(outage['since'])}, next try {next_try})"
    if status["state"] == "listing" and not status["remote"]["listing"]:
        text = "the remote could not be listed; it is tried again"
    if status["state"] == "held" and status["rotation"] != "never" and status["generation"]:
        text = "full: the next listing makes room for new files"
        if status["engine"] == "folder":  # where nobody sees listings
            text = "full: the next generation makes room for new files"
    cache = status["cache"]
    if cache["bytes"] + cache["in_flight_bytes"] + cache["orphan_bytes"] > cache["limit_bytes"]:
        text = "over its size: what is open goes once it is closed"
    if status["state"] == "complete" and status["partition"]:
        text = f"complete: every file of shard {status['partition']} is cached"
    eta_s = status["fetch"]["eta_s"]
    return f"{text}, {_duration(eta_s, units=2)} left" if eta_s else text


def moving(status: dict[str, Any]) -> str:
    """As `brief`, with the download rate. What is waited for comes first: a terminal may be narrow."""
    slow = silence(status["remote"]).removeprefix("; ")
    waits_for = state_text(status) if status["state"] == "waiting" else slow
    return (
        f"{waits_for}; {brief(status)}" if waits_for else f"{brief(status)}, {_size(status['fetch']['bytes_per_s'])}/s"
    )


def silence(remote: dict[str, Any]) -> str:
    """That a listing is slow, for the end of a line; empty if it is not."""
    silent_s = remote["listing_silent_s"]
    return "" if silent_s is None else f"; the listing is slow: no page of it has come for {_duration(silent_s)}"


def brief(status: dict[str, Any]) -> str:
    """One line: how much is cached."""
    remote, cache = status["remote"], status["cache"]
    known = "" if remote["listed"] else " listed so far"
    return (
        f"{cache['files']:,} of {files(remote['files'])} cached, "
        f"{_size(cache['content_bytes'])} of {_size(remote['bytes'])}{known}"
    )


def engine(status: dict[str, Any]) -> str:
    """Which engine runs, and why."""
    return f"{status['engine']} engine ({status['engine_reason']})"


def files(count: int) -> str:
    """A number of files, such as "1,000 files"."""
    return f"{count:,} file{'' if count == 1 else 's'}"


def _size(count: float) -> str:
    from humanfriendly import format_size

    return str(format_size(count))


def _duration(seconds: float, units: int = 3) -> str:
    from humanfriendly import format_timespan

    return str(format_timespan(round(seconds), max_units=units))


def _clock(at: float) -> str:
    """A time, given in seconds since 1970, as the log has it."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def _shortened(name: str) -> str:
    return name if len(name) <= NAME_CHARS_MAX else name[: NAME_CHARS_MAX - 3] + "..."
