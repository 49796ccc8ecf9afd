"""The status as text, for people."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from growfs.daemon.status_text import brief, moving, render, state_text
from growfs.status_and_metrics import MountState, MountStatus

STATUS: dict[str, Any] = {
    "version": "1", "url": "s3://bucket/train", "mountpoint": "/mnt/train", "cache_dir": "/cache/x", "pid": 4711,
    "engine": "libfuse", "engine_reason": "works", "metrics_url": None, "ready": True, "waited_for": "every file",
    "start": None, "state": "filling", "outage": None, "seed": 0, "partition": None, "peers": None, "exact": None,
    "rotation": "auto", "generation": 3,
    "remote": {
        "files": 1000, "bytes": 10**10, "directories": 4, "listed": True, "listing": False, "listing_silent_s": None
    },
    "cache": {
        "files": 250, "bytes": 3 * 10**9, "content_bytes": 2 * 10**9, "limit_bytes": 5 * 10**9, "in_flight_bytes": 0,
        "orphan_bytes": 0, "left_out_bytes": 0,
    },
    "listed": {"files": 200, "bytes": 10**9, "new_files": 0},
    "fetch": {
        "files_total": 250, "bytes_total": 2 * 10**9, "peer_files_total": 0, "peer_bytes_total": 0, "bytes_per_s": 1e8,
        "eta_s": 90.0, "failed": 0, "streams": 16, "limit_bytes_per_s": None, "client": "growfs",
        "client_reason": "faster than s3fs", "library_files_total": 0, "late_file": None,
    },
    "evict": {"files_total": 0, "bytes_total": 0},
    "miss": {"files_total": 2, "wait_s_total": 1.25, "waiting": 0},
    "coverage": {"files_seen": 250, "files_cached": 250, "pass": 1, "files": 1000},
    "budget": {"limit_bytes": None, "spent_bytes": 0, "resumes_s": None},
    "opens": {
        "total": 375, "bytes_total": 3 * 10**9, "min": 0, "max": 4, "mean": 1.5, "dispersion": 0.2, "per_fetch": 1.5
    },
    "requests": {}, "readers": [], "skipped": [], "unpromised": None, "warnings": [],
    "last_error": None, "last_error_at": None,
}  # fmt: skip
READER: dict[str, Any] = {
    "pid": 4711, "command": "python", "listed_at": 0.0, "generation": 3, "part": None, "files_shown": 200,
    "files_opened": 50, "opens": 375, "held_bytes": 5 * 10**8, "advice": "listed once",
}  # fmt: skip
PEERS: dict[str, Any] = {
    "nodes": 4, "address": "10.0.0.1:9500", "serving": True, "answering": 2, "waiting": False, "sent_bytes_total": 10**9
}  # fmt: skip


def status(**changes: Any) -> MountStatus:
    """A status with changes; a__b stands for the field b of a."""
    changed = copy.deepcopy(STATUS)
    for name, value in changes.items():
        section, _, key = name.partition("__")
        if key:
            changed[section][key] = value
        else:
            changed[section] = value
    return MountStatus.parse(changed)


def lines(**changes: Any) -> dict[str, str]:
    """The lines of the page, by their labels."""
    return {line[:11].strip(): line[11:] for line in render(status(**changes)).splitlines()}


def test_the_page_shows_the_status() -> None:
    page = lines()
    assert page["remote"].startswith("s3://bucket/train: 1,000 files, 10 GB")
    assert page["cached"] == "250 files (25.0% of the remote), 3 GB of 5 GB"
    assert page["listed"] == "200 files in generation 3"
    assert page["coverage"] == "250 of 1,000 files cached so far, pass 1"
    assert page["misses"].startswith("2, waited 1.2 s")
    assert page["state"].endswith("1 minute and 30 seconds left")
    assert set(page) & {"skipped", "note", "last error", "reader", "budget", "nodes"} == set()


def test_the_page_of_an_empty_cache() -> None:
    unlisted = {"state": "listing", "remote__files": 0, "remote__listed": False, "remote__listing": True}
    page = lines(**unlisted, cache__files=0, fetch__eta_s=None)
    assert page["remote"].endswith(" so far")
    assert page["cached"].startswith("0 files (0.0%")
    assert page["state"] == "listing the remote"


def test_the_page_shows_the_partition_the_other_nodes_and_the_budget() -> None:
    budget = {"limit_bytes": 10**9, "spent_bytes": 10**8, "resumes_s": None}
    page = lines(
        partition="3/8",
        coverage__files=125,
        coverage__files_seen=50,
        peers=PEERS,
        fetch__peer_bytes_total=2 * 10**9,
        budget=budget,
    )
    assert page["coverage"] == "50 of 125 files (partition 3/8) cached so far, pass 1"
    assert page["nodes"] == "3 of 4 answer, 2 GB received, 1 GB sent"
    assert page["budget"] == "100 MB of 1 GB today"
    assert lines(budget=SPENT)["budget"] == "1 GB of 1 GB today; resumes in 1 hour and 1 minute"


def test_the_page_shows_skipped_names_errors_and_hints() -> None:
    page = lines(
        skipped=[{"reason": "NUL in path", "files": 1, "example": "a\0b"}],
        unpromised="too many",
        warnings=["--freeze val/ matches no file"],
        last_error="x: denied",
        last_error_at=0.0,
        fetch__failed=3000,
        miss__files_total=12_345,
        readers=[READER | {"pid": 9, "files_shown": 5, "files_opened": 2, "held_bytes": 0, "advice": "lists once"}],
    )
    assert page["skipped"] == "1 file: NUL in path, such as 'a\\x00b'"
    assert page["note"].endswith("too many")
    assert page["last error"].startswith("x: denied (19")
    assert page["warning"] == "--freeze val/ matches no file"
    assert page["fetched"].endswith("3,000 failed")
    assert page["misses"].startswith("12,345, waited")
    assert page["reader"] == "python 9: listed 5 files, opened 2; lists once"


def test_the_page_shows_what_the_next_listing_changes() -> None:
    assert lines(generation=0, listed__files=0, listed__new_files=250)["listed"] == "nothing listed yet"
    assert lines(listed__new_files=1)["listed"].endswith("generation 3; 1 new file waits for the next listing")
    changes: dict[str, Any] = {"listed__new_files": 19, "cache__left_out_bytes": 10**9}
    assert lines(**changes)["listed"].endswith("3; 19 new files wait for the next listing; 1 GB outgoing")
    assert "wait for the next generation" in lines(**changes, engine="folder")["listed"]


def test_no_name_of_the_remote_breaks_a_line_or_makes_it_long() -> None:
    skipped = [{"reason": "bad", "files": 1, "example": "a\nstate      complete"}]
    assert len(render(status(skipped=skipped)).splitlines()) == len(render(status()).splitlines()) + 1
    page = render(status(skipped=[{"reason": "too long", "files": 1, "example": "n" * 256}]))
    assert f"such as '{'n' * 77}...'" in page


@pytest.mark.parametrize("state", list(MountState))
def test_every_state_has_a_text(state: MountState) -> None:
    outage = {"since": 0.0, "why": "x: cannot reach the server", "next_try_s": 3.2}
    assert state_text(status(state=state.value, outage=outage))


def test_a_listing_that_has_not_failed_is_not_said_to_have_failed() -> None:
    """It has not begun, or its files are not drawn yet."""
    unlisted = {"state": "listing", "remote__listed": False, "remote__listing": False}
    assert state_text(status(**unlisted, last_error="x: cannot reach the server")).startswith("the remote could not be")
    for other in (unlisted | {"last_error": None}, unlisted | {"remote__listed": True}):
        assert state_text(status(**other, fetch__eta_s=None)) == "listing the remote"


FULL: dict[str, Any] = {"state": "held", "fetch__eta_s": None}
SPENT = {"limit_bytes": 10**9, "spent_bytes": 10**9, "resumes_s": 3660.0}


def test_a_full_cache_promises_room_only_if_a_listing_makes_some() -> None:
    assert state_text(status(**FULL)) == "full; the next listing makes room for new files"
    assert state_text(status(**FULL, engine="folder")) == "full; the next generation makes room for new files"
    assert state_text(status(**FULL, generation=0)) == "full; rotation starts with the first listing"
    for reason in ({"rotation": "never"}, {"budget": SPENT}, {"readers": [READER | {"pid": 0}]}):
        assert state_text(status(**FULL, **reason)) == "full; only misses are fetched", reason


def test_a_full_cache_whose_old_files_are_held_says_who_holds_them() -> None:
    changes: dict[str, Any] = {**FULL, "cache__left_out_bytes": 5 * 10**8, "readers": [READER | {"advice": None}]}
    assert state_text(status(**changes)) == "full; outgoing files make room once no reader holds them"
    assert lines(**changes)["reader"] == "python 4711: listed 200 files, opened 50, holds 500 MB of outgoing files"
    assert state_text(status(**changes, engine="folder")).endswith("the next generation makes room for new files")


def test_the_status_in_one_line() -> None:
    assert brief(status()) == "250 of 1,000 files cached, 2 GB of 10 GB"
    listing = status(remote__files=1, remote__listed=False, cache__files=0)
    assert brief(listing) == "0 of 1 file cached, 2 GB of 10 GB listed so far"


def test_what_a_mount_waits_for_comes_first_in_its_line() -> None:
    assert moving(status()).startswith("250 of 1,000 files cached")
    assert moving(status(state="seeding")).startswith(
        "fetching one file from each directory; 250 of 1,000 files cached"
    )
    assert moving(status(state="paused")).startswith("paused: only misses are fetched; 250 of 1,000 files cached")
    files = moving(status(start={"done": 12, "needed": 35, "unit": "files"}))
    assert files.startswith("12 of 35 files needed to start; 250 of 1,000 files cached")
    bytes = moving(status(state="seeding", start={"done": 10**6, "needed": 5 * 10**7, "unit": "bytes"}))
    assert bytes.startswith("fetching one file from each directory; 1 MB of 50 MB needed to start; 250 of")
    unknown = status(state="listing", remote__files=0, remote__listing=True)
    assert moving(unknown) == f"listing the remote; nothing of {unknown.url} is known yet"
    assert moving(status(remote__listing_silent_s=40)).startswith("the listing is slow: no page has arrived for 40 s")
    outage = {"since": 0.0, "why": "x: cannot reach the server", "next_try_s": 3.2}
    away = status(state="waiting", outage=outage)
    assert moving(away) == f"{state_text(away)}; {brief(away)}"
