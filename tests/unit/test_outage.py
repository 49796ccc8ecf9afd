"""When a failure is the remote's and when it is a file's own, and how an outage is waited out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from growfs.errors import (
    GrowfsError,
    RemoteBusy,
    RemoteDenied,
    RemoteUnavailable,
    unexpected,
)
from growfs.scheduler.outage import NEXT_PROBE_S, PAUSE_S_MIN, SUSPICION_S, Outage

BUSY, DENIED = RemoteBusy("cannot reach the server"), RemoteDenied("access denied")


class Remote:
    """Answers probes; error: what it answers with. probed_at: when it was probed. decisions: of the suspicions."""

    def __init__(self) -> None:
        self.error: GrowfsError | None = None
        self.answers_in_s = 0.1
        self.probed_at: list[float] = []
        self.decisions: list[bool] = []
        self.outage = Outage(self._probe)

    async def _probe(self, repeats: bool) -> GrowfsError | None:
        assert repeats is not self.outage.is_on, "in an outage, the pauses grow between single requests"
        self.probed_at.append(trio.current_time())
        await trio.sleep(self.answers_in_s)
        return self.error

    def fail(self, error: GrowfsError) -> None:
        """Fail a request with an error."""
        self.outage.suspect(error, self.decisions.append)


@asynccontextmanager
async def start_remote() -> AsyncIterator[Remote]:
    remote = Remote()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(remote.outage.run)
        yield remote
        nursery.cancel_scope.cancel()


async def test_a_failure_is_the_files_own_where_a_later_request_is_answered(clock: trio.testing.MockClock) -> None:
    async with start_remote() as remote:
        await trio.sleep(1)
        remote.fail(DENIED)
        remote.outage.answered(sent_at=trio.current_time() - 0.5)
        assert remote.decisions == [], "an answer to an earlier request says nothing"
        remote.outage.answered(sent_at=trio.current_time() + 0.1)
        await trio.sleep(10)
        assert (remote.decisions, remote.probed_at, remote.outage.is_on) == ([False], [], False)


async def test_a_failure_is_the_files_own_where_a_probe_is_answered(clock: trio.testing.MockClock) -> None:
    async with start_remote() as remote:
        remote.fail(DENIED)
        failed_at = trio.current_time()
        await trio.sleep(10)
        assert (remote.decisions, remote.outage.is_on) == ([False], False)
        assert remote.probed_at == [pytest.approx(failed_at + SUSPICION_S)]


@pytest.mark.parametrize("error", [BUSY, DENIED])
async def test_where_nothing_is_answered_there_is_an_outage_until_a_probe_is(
    clock: trio.testing.MockClock, error: GrowfsError
) -> None:
    async with start_remote() as remote:
        began, ended = [], []
        remote.outage.began.connect(lambda _: began.append(trio.current_time()))
        remote.outage.ended.connect(lambda: ended.append(trio.current_time()))
        remote.error = error
        remote.fail(error)
        remote.fail(BUSY)
        await trio.sleep(10)
        assert (remote.decisions, remote.outage.why, len(began), ended) == ([True, True], error, 1, [])
        status = remote.outage.status()
        assert status
        assert (status.why, 0 <= status.next_try_s <= 1) == (str(error), True)
        remote.fail(BUSY)
        assert remote.decisions == [True, True, True], "it is known at once"
        remote.error = None
        await trio.sleep(3)
        assert (remote.outage.is_on, remote.outage.status(), len(ended)) == (False, None, 1)


async def test_what_a_download_said_of_an_outage_returns_with_its_kind(clock: trio.testing.MockClock) -> None:
    """A probe cannot say that credentials have expired where it has no response but a status."""
    async with start_remote() as remote:
        remote.fail(DENIED)
        reasons = []
        for error in (RemoteDenied("access denied (403)"), BUSY, RemoteDenied("access denied (403)")):
            remote.error = error
            await trio.sleep(5)
            reasons.append(remote.outage.why)
        assert reasons == [DENIED, BUSY, DENIED]


async def test_slow_bytes_show_that_a_busy_remote_is_not_away(clock: trio.testing.MockClock) -> None:
    async with start_remote() as remote:
        remote.error = BUSY
        remote.fail(BUSY)
        await trio.sleep(SUSPICION_S + 0.05)
        remote.outage.note_received(1000)
        await trio.sleep(1)
        assert (remote.decisions, remote.outage.is_on) == ([False], False)
        remote.error = DENIED
        remote.fail(DENIED)
        await trio.sleep(SUSPICION_S + 0.05)
        remote.outage.note_received(1000)
        await trio.sleep(1)
        assert remote.outage.is_on, "what arrives now was requested before the credentials expired"


async def test_a_lost_probe_does_not_delay_the_end_and_a_slow_answer_counts(clock: trio.testing.MockClock) -> None:
    """One that was sent while a link was cut may never be answered, and a server may take long to answer."""
    for answered_in in (0.1, 20):
        async with start_remote() as remote:
            remote.error = BUSY
            remote.fail(BUSY)
            await trio.sleep(3)
            remote.answers_in_s, remote.error = 1000, None
            await trio.sleep(PAUSE_S_MIN + 0.2)  # a probe is sent, and lost
            remote.answers_in_s = answered_in
            back_at = trio.current_time()
            await remote.outage.ended.wait()
            assert trio.current_time() - back_at <= NEXT_PROBE_S + answered_in + 0.2


@pytest.mark.parametrize("away_s", [3, 20, 60, 600, 3600])
async def test_waiting_prolongs_an_outage_by_a_twentieth_and_half_a_minute_at_most(
    clock: trio.testing.MockClock, away_s: float
) -> None:
    async with start_remote() as remote:
        remote.error = BUSY
        remote.fail(BUSY)
        await trio.sleep(away_s)
        assert remote.outage.is_on
        assert len(remote.probed_at) < 200
        remote.error = None
        waited_from = trio.current_time()
        await remote.outage.ended.wait()
        assert trio.current_time() - waited_from <= min(30, max(1, away_s / 20)) + 0.2


def test_a_module_that_is_missing_is_no_outage() -> None:
    assert not isinstance(unexpected(ModuleNotFoundError("No module named 's3fs'")), RemoteUnavailable)
    assert isinstance(unexpected(ValueError("what a client library raises")), RemoteUnavailable)
