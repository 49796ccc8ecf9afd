"""Whether the remote is away: noticed from failures, distinguished from files that fail by themselves, and waited out.

A failure is at first only a suspicion. It is of the file alone if the remote answers a later request: another download,
or a probe. Otherwise there is an outage until a probe is answered: nothing is drawn, no space is made, and no request
is sent, except for files that another source may have. Each probe comes from a new process, which rereads the
credentials.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import trio

from growfs.cache.catalog import Catalog
from growfs.errors import GrowfsError, RemoteBusy
from growfs.remote.interface import NO_OTHER, OtherSource, RemoteFile
from growfs.signal import Signal
from growfs.status_and_metrics import OutageStatus
from growfs.units import format_timespan
from growfs.workers.messages import Probe
from growfs.workers.pool import WorkerLost, WorkerPool

log = logging.getLogger(__name__)

SUSPICION_S = 1.0
"""How long a suspicion waits for the answer to another download before a probe is sent."""
PATIENT_PROBE_S = 40.0
"""In an outage, a probe counts as failed after this time. A request is given up after 35 s, and a server that answers
just in time is not away."""
NEXT_PROBE_S = 5.0
"""In an outage, another probe is sent if the last one was not answered for this long: it may have been lost."""
OTHERS_AGAIN_S = 10.0
"""In an outage, how often the other source is asked for a file that it did not have."""
PAUSE_S_MIN, PAUSE_S_MAX = 1.0, 30.0


@dataclass(frozen=True, slots=True)
class Failure:
    """An error, and when it occurred: seconds since 1970."""

    error: GrowfsError
    at: float = field(default_factory=time.time)


class Failures:
    """Owns the latest failure of each file that is not cached.

    count: how often files have failed. is_known: whether the catalog has a file.
    """

    def __init__(self, is_known: Callable[[int], bool]) -> None:
        self.count = 0
        self._is_known = is_known
        self._latest: dict[int, Failure] = {}

    def add(self, id: int, error: GrowfsError) -> bool:
        """Count a failed file, given by its node id. Returns whether this failure differs from its last one."""
        self.count += 1
        before = self._latest.pop(id, None)
        self._latest[id] = Failure(error)
        if len(self._latest) > 1000:  # the oldest is forgotten
            del self._latest[next(iter(self._latest))]
        return before is None or str(before.error) != str(error)

    def forget(self, id: int) -> None:
        """Note that a file is cached."""
        self._latest.pop(id, None)

    @property
    def last(self) -> Failure | None:
        """The latest failure of a file that is not cached yet. Kept for an hour if the remote has lost the file."""
        latest, since = self._latest, time.time() - 3600.0
        failures = (latest[id] for id in reversed(latest) if latest[id].at > since or self._is_known(id))
        return next(failures, None)


def pause_s(outage_s: float) -> float:
    """Seconds until the next probe, in an outage that has lasted this long: one part in 20 of it, which is how much the
    pause may prolong it.
    """
    return min(max(PAUSE_S_MIN, outage_s / 20), PAUSE_S_MAX)


class _Suspicion(NamedTuple):
    error: GrowfsError
    since: float
    decided: Callable[[bool], None]


class Outage:
    """Owns whether the remote is away, since when, why, and when it is tried next.

    probe: sends a request that any working remote would answer, and repeats it a few times if asked to; returns the
    error, or None. other: where files come from then. began: notified of an outage with the error that revealed it;
    ended: of its end. why: the latest error; None while the remote is not known to be away.
    """

    def __init__(
        self,
        probe: Callable[[bool], Awaitable[GrowfsError | None]],
        other: OtherSource = NO_OTHER,
    ) -> None:
        self.why: GrowfsError | None = None
        self.began = Signal[[GrowfsError]]()
        self.ended = Signal[[]]()
        self._probe, self._other = probe, other
        self._since = self._since_clock = 0.0
        self._whys: dict[type[GrowfsError], GrowfsError] = {}
        """The first error of each kind. A failed download is more informative than a failed probe of the same kind."""
        self._next_probe: float | None = None
        self._suspicions: list[_Suspicion] = []
        self._suspicions_changed = Signal[[]]()
        self._received_at = 0.0

    @property
    def is_on(self) -> bool:
        """Whether the remote is away."""
        return self.why is not None

    def blocks(self, path: str) -> bool:
        """Whether a file cannot be fetched, because the remote is away, and no other source may have it."""
        return self.is_on and not self._other.hosts(path)

    @property
    def lasted_s(self) -> float:
        """Seconds since the outage began; 0 while there is none."""
        return trio.current_time() - self._since if self.is_on else 0.0

    def status(self) -> OutageStatus | None:
        """The outage section of the status; None while there is no outage."""
        if not self.is_on:
            return None
        next_s = 0.0 if self._next_probe is None else max(0.0, self._next_probe - trio.current_time())
        return OutageStatus(since=self._since_clock, why=str(self.why), next_try_s=next_s)

    def suspect(self, error: GrowfsError, decided: Callable[[bool], None] = lambda _: None) -> None:
        """Find out whether the remote caused a failure. decided: called with the result: whether the remote is away."""
        if self.is_on:
            decided(True)
            return
        self._suspicions.append(_Suspicion(error, trio.current_time(), decided))
        self._suspicions_changed.notify()

    def answered(self, sent_at: float) -> None:
        """Note that the remote has answered a request that was sent at that time."""
        cleared = [suspicion for suspicion in self._suspicions if suspicion.since < sent_at]
        if cleared:
            self._suspicions = [suspicion for suspicion in self._suspicions if suspicion.since >= sent_at]
            for suspicion in cleared:
                suspicion.decided(False)
            self._suspicions_changed.notify()

    def note_received(self, count: int) -> None:
        """Note that bytes have arrived, for requests old or new."""
        if count:
            self._received_at = trio.current_time()

    async def run(self) -> None:
        """Decide on suspicions, and wait out outages, until cancelled."""
        while True:
            if self.is_on:
                await self._wait_out()
            while not self._suspicions:
                await self._suspicions_changed.wait()
            first = self._suspicions[0]
            with trio.move_on_at(first.since + SUSPICION_S):
                while first in self._suspicions:
                    await self._suspicions_changed.wait()
            if first in self._suspicions:
                await self._decide(first)

    async def _decide(self, first: _Suspicion) -> None:
        sent_at = trio.current_time()
        error = await self._probe(True)
        busy = isinstance(error, RemoteBusy) and isinstance(first.error, RemoteBusy)
        if error is None or (busy and self._received_at > sent_at):  # the latter: it serves some requests, but not all
            self.answered(sent_at)
        elif first in self._suspicions:  # otherwise another download was answered meanwhile
            self._begin(first, error)

    def _begin(self, first: _Suspicion, error: GrowfsError) -> None:
        """Begin an outage. error: from the probe."""
        self._whys = {type(first.error): first.error}
        self.why, self._since = first.error, first.since
        self._since_clock = time.time() - self.lasted_s
        log.warning("waiting for the remote: %s", first.error)
        suspicions, self._suspicions = self._suspicions, []
        self.began.notify(first.error)
        for suspicion in suspicions:
            suspicion.decided(True)
        self.why = self._whys.setdefault(type(error), error)

    async def _wait_out(self) -> None:
        while self.why is not None:
            self._next_probe = trio.current_time() + pause_s(self.lasted_s)
            await trio.sleep_until(self._next_probe)
            self._next_probe = None
            error = await self._probe_patiently()
            lasted_s = self.lasted_s
            self.why = error and self._whys.setdefault(type(error), error)
        log.info("the remote answers again, after %s", format_timespan(round(lasted_s)))
        self.ended.notify()

    async def _probe_patiently(self) -> GrowfsError | None:
        """The first result of several probes, each sent when the earlier ones have not ended in time."""
        results, ended = trio.open_memory_channel[GrowfsError | None](math.inf)

        async def probe() -> None:
            await results.send(await self._probe(False))

        async with trio.open_nursery() as nursery:
            for _ in range(round(PATIENT_PROBE_S / NEXT_PROBE_S)):
                nursery.start_soon(probe)
                with trio.move_on_after(NEXT_PROBE_S):
                    error = await ended.receive()
                    break
            else:
                error = await ended.receive()
            nursery.cancel_scope.cancel()
        return error


async def probe_in_worker(workers: WorkerPool, catalog: Catalog, staging: Path, repeats: bool) -> GrowfsError | None:
    """Let a new worker request one byte of a random cached file, or else of any other; returns the error if all fail.

    staging: the folder that workers write to. repeats: as in Probe.
    """
    files = [RemoteFile(catalog.path(node), node.size, node.mtime_ns, node.version) for node in catalog.samples()]
    try:
        channel = workers.spawn()
    except GrowfsError as error:
        return error
    patience_s = 10.0 if repeats else PATIENT_PROBE_S  # an outage is noticed soon
    try:
        with trio.fail_after(patience_s):
            await channel.call(Probe(files, staging / "probe", repeats))
    except trio.TooSlowError:
        return RemoteBusy(f"{workers.url}: its server has not answered for {patience_s:g} s; check the network")
    except WorkerLost as lost:
        return GrowfsError(f"{workers.url}: cannot be tested: {lost}")
    except GrowfsError as error:
        return error
    finally:
        await channel.aclose()
    return None
