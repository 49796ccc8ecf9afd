"""Credentials that the processes of a mount share."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import NoReturn

import pytest

from growfs.remote.stores.s3.credentials import FRESH_S, SharedCredentials


def credentials(key: str, lasts_s: float = 2 * FRESH_S) -> dict[str, str]:
    end = datetime.now(timezone.utc) + timedelta(seconds=lasts_s)
    return {"access_key": key, "expiry_time": end.isoformat(), "profile": ""}


def in_child(action: Callable[[], object]) -> None:
    """Call a function in a forked process, which has to succeed."""
    if (pid := os.fork()) == 0:
        try:
            action()
        except BaseException:  # noqa: BLE001 - pytest must not go on in the child
            os._exit(1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


def fail() -> NoReturn:
    raise RuntimeError("not to be asked")


def test_what_one_process_has_found_the_others_have_until_it_is_refused() -> None:
    shared = SharedCredentials(0)
    in_child(lambda: shared.get("", lambda: credentials("a")))
    found = shared.get("", fail)
    assert found
    assert found["access_key"] == "a"
    in_child(lambda: shared.forget("b"))
    assert shared.get("", fail) == found
    in_child(lambda: shared.forget("a"))
    assert shared.get("", lambda: None) is None


@pytest.mark.parametrize(("profile", "lasts_s"), [("other", 2 * FRESH_S), ("", FRESH_S - 1)])
def test_those_of_another_profile_or_that_end_soon_are_not_taken(profile: str, lasts_s: float) -> None:
    shared = SharedCredentials(0)
    shared.get("", lambda: credentials("a", lasts_s))
    assert shared.get(profile, lambda: None) is None


def test_what_a_killed_process_has_half_written_counts_for_nothing() -> None:
    shared = SharedCredentials(0)
    shared.get("", lambda: credentials("a"))
    shared._page[30:50] = bytes(20)
    assert shared.get("", lambda: None) is None
