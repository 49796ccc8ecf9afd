"""The passes of --exact: which parts are in use, which come next, and which files are cached for them.

There is room for two parts. A part is cached because it is in use, because a process waits for it, or because it
follows those. A pass is divided before it begins, and divided again if the catalog changes until then. Its division is
stored, and so is the last part that was read, for programs that list the root: they go on after it, even if the mount
was killed.
"""

from __future__ import annotations

import json
import logging
import math
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import trio

from growfs.bitmaps import BitMap64
from growfs.cache.catalog import Catalog, Removed
from growfs.cache.database import Database
from growfs.cache.schema import set_meta
from growfs.cache.store import Store
from growfs.errors import GrowfsError, NoSuchName, RemoteError, TimedOut, UsageError
from growfs.extensions.exact.division import find_due, plan_part
from growfs.extensions.exact.divisions import Divisions
from growfs.extensions.exact.parts_in_use import PartsInUse
from growfs.remote.interface import OtherSource
from growfs.rotation.generations import Generations, Planner
from growfs.rotation.parts import Division, Part, PassPosition, small_parts
from growfs.rotation.pass_order import Order
from growfs.rotation.rules import Generation, GenerationPlan, TurnoverInput
from growfs.scheduler.in_flight import Download, DownloadState
from growfs.scheduler.rotating import Selection, Share, compute_soon
from growfs.signal import Signal
from growfs.status_and_metrics import ExactStatus, StartStatus
from growfs.units import flag_size, format_size
from growfs.workers.pool import WorkerLost, WorkerPool

log = logging.getLogger(__name__)

RETRY_S = 5.0
"""Pause before a pass that could not be divided is tried again, or files that could not be marked."""
QUIET_S = 0.05
"""How long nothing of a part that was read is open before it makes room, if no process waits for another part: others
may read it, too. It is checked this often whether parts make room."""

_Window = tuple[tuple[PassPosition, ...], tuple[PassPosition, ...]]
"""The parts that are in use, and those that are cached, or to be cached, besides them."""


class Parts(Selection):
    """Owns the positions: the part that began last, and those that come next. `changed` notifies when that decides anew
    which files are to be cached.

    start: the part with which listings of the root begin; None to go on after the last one. mark: as Space.mark. other:
    decides which files this node fetches for others. generations: returns these. is_open: whether a folder of a part is
    open. patience_s: returns how long a process waits for a part if nothing arrives.

    strayed: notified when a file is cached that belongs to none of these parts, so it may be evicted again: it was
    opened by name.
    """

    shows_once = True
    keeps_last = False
    """Otherwise the last files of directories, from an earlier seed, would take the room of the first part."""

    def __init__(
        self,
        divisions: Divisions,
        workers: WorkerPool,
        database: Database,
        catalog: Catalog,
        store: Store,
        start: PassPosition | None,
        mark: Callable[[Sequence[int], Sequence[int], Callable[[], bool]], Awaitable[bool]],
        other: OtherSource,
        generations: Callable[[], Generations],
        is_open: Callable[[Generation], bool],
        patience_s: Callable[[], float],
    ) -> None:
        self.changed = Signal[[]]()
        self.strayed = Signal[[]]()
        self.divisions = divisions
        self._workers = workers
        self._db = database
        self._catalog = catalog
        self._store = store
        self._mark = mark
        self._other = other
        self._generations = generations
        self._is_open = is_open
        self._in_use = PartsInUse()
        self._patience_s = patience_s
        self._progressed = Signal[[]]()
        self._start = start or PassPosition(1, 1)
        self._read: PassPosition | None = None  # the last part of which a file was opened, also before a restart
        self._written: PassPosition | None = None  # the same, in the database
        self._waited_for = Counter[PassPosition]()
        self._wanted = BitMap64()
        self._arrived = BitMap64()  # since `remaining` began to look for what is lacking
        self._missing: Share | None = None  # how much that is, as far as known
        self._lacking: dict[PassPosition, dict[int, int]] = {}  # of each part to come: files, and their sizes
        self._moved_at = -math.inf  # when bytes arrived, or other parts were to be cached
        self._failed = BitMap64()
        self._left_out = BitMap64()
        stored = database.meta("position")
        read = PassPosition(*json.loads(stored)) if stored else None
        if read and (division := divisions.resume(read.pass_, start)):
            if start is None:
                self._read = self._written = read
            if (start or division.after(read.part)).pass_ == read.pass_:
                self._check_size(store.room.limit_bytes, division)

    @property
    def _begun(self) -> PassPosition | None:
        """The part that began last."""
        newest = self._generations().current
        return newest.position if isinstance(newest, Part) else self._read

    @property
    def _coming(self) -> PassPosition:
        """The part that comes next, for programs that list the root."""
        begun = self._begun
        return self.divisions.known[begun.pass_].after(begun.part) if begun else self._start

    def check_size(self, bytes: int) -> None:
        """See Selection. A pass that has begun may need more."""
        if division := self.divisions.begun((self._begun or self._coming).pass_):
            self._check_size(bytes, division)

    @staticmethod
    def _check_size(bytes: int, division: Division) -> None:
        if division.needed_bytes > bytes:
            raise UsageError(
                f"pass {division.pass_.number} began with a cache of {format_size(division.pass_.cache_bytes)}, and its"
                f" parts need {format_size(division.needed_bytes)}: leave --cache-size at"
                f" {flag_size(division.pass_.cache_bytes)} until the pass ends, or mount again with --start"
                f" {division.pass_.number + 1}/1"
            )

    # What is drawn.

    @property
    def share(self) -> Share:
        """The files of this node's parts; everything, before they are known."""
        known = self.divisions.known.get(self._coming.pass_) or self._catalog
        return Share(known.files, known.bytes)

    @property
    def missing(self) -> Share:
        """The files that are still to be fetched for the coming parts."""
        return self._missing or self.share

    outside = Share(0, 0)

    @property
    def streams(self) -> bool:
        """See Selection."""
        division = self.divisions.known.get(self._coming.pass_)
        return division is not None and division.streams

    async def remaining(self, size_max: int) -> Order:
        """The files that are to be cached for the parts in use, and for those to come, and are not."""
        while True:
            read, ahead = window = self._window()
            await self._divide_window(window)
            if not self._is_window(window):
                continue  # more parts are known now, or others are to come
            coming = self._coming
            division = self.divisions.known[coming.pass_]
            if coming in ahead and coming.part > len(division.parts):  # only after --start
                self.failure = _no_such_part(division, coming)
                await trio.sleep(RETRY_S)
                continue
            is_own = await self._other.find_owned()
            function = partial(find_due, self._db.path, read, ahead, is_own)
            self._arrived = BitMap64()
            try:
                due = await compute_soon(self._workers, function, self._store.resident_files, self._db.path)
            except GrowfsError as error:
                log.warning("the files of part %s cannot be found, trying again: %s", (*ahead, *read)[0], error)
                await trio.sleep(RETRY_S)
                continue
            if not self._is_window(window):
                continue
            marks = due.unneeded, due.needed_again
            if not any(marks) or await self._mark(*marks, partial(self._is_window, window)):
                break
            await trio.sleep(RETRY_S if self._db.refusal else 0)
        arrived_bytes = sum(node.size or 0 for id in due.lacking & self._arrived if (node := self._catalog.node(id)))
        self._wanted = due.lacking - self._arrived
        self._missing = Share(len(self._wanted), due.bytes - arrived_bytes)
        self._failed -= self._wanted
        of_parts = ({id: size for id, size in files.items() if id not in self._arrived} for files in due.of_parts)
        self._lacking = dict(zip(ahead, of_parts, strict=True))
        self._progressed.notify()
        return Order(
            frozen=due.always,
            rest=due.missing,
            files=division.files,
            bytes=division.bytes,
            frozen_ids=BitMap64(map(abs, due.always)),
        )

    def _window(self) -> _Window:
        """The parts in use, and those to come for which there is room: first those that are waited for.

        Of these, the earliest comes first, so that a rank that is behind catches up with the others.
        """
        newest = self._generations().current
        read = dict.fromkeys(self._in_use)
        if self._begun and self._begun not in self._waited_for and not (newest and newest.is_over):
            read[self._begun] = None  # by programs that list the root
        ahead = sorted(part for part in self._waited_for if part not in read and self.divisions.may_have(part))
        # The cache has room for the streamed files of two parts.
        room = 2 - len(read.keys() - self._in_use.without_room)
        following: PassPosition | None = self._coming
        while following and len(ahead) < room:
            if following not in read and following not in ahead:
                ahead.append(following)
            following = self.divisions.after(following)
        return tuple(read), tuple(ahead[: max(0, room)])

    def _is_window(self, window: _Window) -> bool:
        return window == self._window()

    def _note_window(self) -> None:
        """Note that the window may have changed."""
        if self._window()[1] != tuple(self._lacking):
            self._moved_at = trio.current_time()
            self.changed.notify()

    async def _divide_window(self, window: _Window) -> None:
        """Divide its passes, unless that is done; give up if it changes meanwhile."""
        for number in {part.pass_ for part in (*window[0], *window[1], self._coming)}:
            while self._is_window(window) and not self.divisions.is_current(number):
                try:
                    await self._divide(number)
                    self.failure = None
                except (GrowfsError, WorkerLost) as error:
                    if isinstance(error, GrowfsError):
                        self.failure = error
                    self._progressed.notify()
                    log.warning("pass %d cannot be divided into parts, trying again: %s", number, error)
                    await trio.sleep(RETRY_S)

    async def _divide(self, number: int) -> None:
        """Divide a pass, unless that is done, or it begins meanwhile. Raises GrowfsError, WorkerLost."""
        if await self.divisions.divide(number, lambda: self._begun, partial(self._replace_division, number)):
            self._progressed.notify()

    def _replace_division(self, number: int) -> set[int]:
        """Let no part of a pass begin until it is divided again. Returns the passes that are in use."""
        self._lacking = {part: files for part, files in self._lacking.items() if part.pass_ != number}
        read, ahead = self._window()
        return {part.pass_ for part in (*read, *ahead, *self._lacking, self._coming, self._begun or self._coming)}

    def note_received(self, _: int) -> None:
        """Note that bytes have arrived."""
        self._moved_at = trio.current_time()

    def note_finished(self, download: Download) -> None:
        """Note the outcome of a download."""
        id = download.node.id
        if download.state is DownloadState.ADMITTED:
            self._arrived.add(id)
            if id in self._wanted:
                self._wanted.discard(id)
                self._missing = self._missing and self._missing - Share(1, download.node.size or 0)
            elif not download.renews:
                self.strayed.notify()
        elif isinstance(download.error, RemoteError):
            self._failed.add(id)
        else:
            return
        for lacking in self._lacking.values():
            lacking.pop(id, None)
        self._progressed.notify()

    async def describe(self, number: int) -> dict[str, Any]:
        """What a program asks about a pass: how many files each of its parts has, and all that decides which ones.

        Waits until the remote was listed. Raises GrowfsError if the pass cannot be divided.
        """
        while not self._catalog.listing:
            await self._progressed.wait()
        try:
            await self._divide(number)
        except WorkerLost:
            raise GrowfsError("the process that divides the pass died; see the log, and try again") from None
        division = self.divisions.known[number]
        pass_ = division.pass_
        catalog = {
            **division.catalog._asdict(), "seed": pass_.seed, "cache_bytes": pass_.cache_bytes,
            "part_bytes": pass_.part_bytes, "partition": self.divisions.first.partition, "group": pass_.group,
        }  # fmt: skip
        files = [division.always + part.end - part.start for part in division.parts]
        return {"pass": number, "parts": len(files), "part_files": files, "catalog": catalog}

    # Which parts are in use.

    async def run(self) -> None:
        """End the use of parts, and store which part was read last, until cancelled."""
        while True:
            while self._read != self._written:
                await self._write_position()
            with trio.move_on_after(QUIET_S if self._in_use else math.inf):
                await self._in_use.opened.wait()
            self._end_uses()

    def _end_uses(self) -> None:
        ahead = self._window()[1]
        is_waited = any(part not in ahead for part in self._waited_for)
        quiet_s, silence_s = 0 if self._waited_for else QUIET_S, self._generations().settle_s if is_waited else None
        open_ids = self._store.open_files.ids
        for part in self._in_use.end(trio.current_time(), quiet_s, silence_s, open_ids, self._is_open):
            log.info("part %s makes room", part)
            self._store.room.freed.notify()
            self._note_window()

    async def _write_position(self) -> None:
        read = self._read
        assert read

        def write(writer: sqlite3.Connection) -> None:
            set_meta(writer, "position", json.dumps(read))
            set_meta(writer, "pass", read.pass_)

        await self._db.write_with_retry(write)
        self._written = read

    def note_opened(self, id: int) -> None:
        """Note that a file was opened."""
        self._in_use.note_opened(id, trio.current_time())
        generations = self._generations()
        if self._read != self._begun and generations.moves(id, generations.current):
            self._read = self._begun
            self._in_use.opened.notify()  # `run` writes it

    def note_removed(self, removed: Sequence[Removed]) -> None:
        """Note that the remote has deleted or replaced files."""
        for gone in removed:
            self._in_use.note_gone(gone.id)

    # What is listed.

    def find(self, position: PassPosition) -> Generation | None:
        """The generation that is this part; None if it has to begin first."""
        newest = self._generations().current
        is_newest = isinstance(newest, Part) and newest.position == position and not newest.is_over
        return newest if is_newest else self._in_use.find(position)

    def at(self, position: PassPosition) -> Planner:
        """What plans the generation that is this part."""
        return _PartPlanner(self, position)

    def use(self, generation: Generation) -> None:
        """See Planner."""
        assert isinstance(generation, Part)
        self._in_use.open(generation, trio.current_time())

    def in_use(self) -> list[Part]:
        """See Planner."""
        return self._in_use.parts()

    def is_ready(self, part: PassPosition | None = None) -> bool:
        """Whether a part is cached, except for files that cannot be fetched; by default the next one."""
        return self._lacking.get(part or self._coming) == {}

    async def wait(self, part: PassPosition | None = None) -> None:
        """Return once a part is cached or has begun. Raises GrowfsError if the pass has no such part, or nothing
        arrives.
        """
        while not self.is_ready(part) and not (part and self.find(part)):
            await self._wait_for(part or self._coming, self._patience_s() if part else math.inf)

    async def _wait_for(self, part: PassPosition, patience_s: float) -> None:
        """Return once a part is cached, or other parts are the newest or the next one."""
        if part not in self._waited_for:
            log.info("a listing is waiting for part %s", part)
        began, before = trio.current_time(), self._begun
        self._waited_for[part] += 1
        self._end_uses()
        self._note_window()
        try:
            while not self.is_ready(part) and before == self._begun:
                if not self.divisions.may_have(part):
                    raise NoSuchName(str(_no_such_part(self.divisions.known[part.pass_], part)))
                until = max(began, self._moved_at) + patience_s
                if trio.current_time() >= until:
                    why = "nothing has arrived" if part in self._window()[1] else "other parts took its space"
                    raise TimedOut(f"gave up waiting for part {part}: {why} for {patience_s:g} s; see growfs status")
                with trio.move_on_at(until):
                    await self._progressed.wait()
        finally:
            self._waited_for -= Counter([part])
            self._note_window()

    async def plan(
        self, number: int, turnover: TurnoverInput, part: PassPosition | None = None
    ) -> GenerationPlan | None:
        """List a part; None if some of it was evicted for readers that opened other files by name."""
        position = part or self._coming
        if not self.is_ready(position):
            return None
        division = self.divisions.known[position.pass_]
        function = partial(plan_part, self._db.path, number, position, turnover.last_seq)
        plan = await compute_soon(self._workers, function, self._store.resident_files, self._db.path)
        generation = plan.generation
        assert isinstance(generation, Part)
        if not self.is_ready(position) or division is not self.divisions.known[position.pass_]:
            return None  # other parts come next, or the pass is divided again
        left_out = generation.left_out
        if lost := left_out - self._failed:
            self._lacking[position] = dict.fromkeys(lost, 0)
            self.changed.notify()
            return None
        self._left_out = left_out | (self._left_out if position.part > 1 else BitMap64())
        if left_out:
            log.warning(
                "part %s: %d files cannot be fetched and are left out of this pass, such as %s",
                position, len(left_out), self._path_of(left_out.min()),
            )  # fmt: skip
        log.info("part %s of %d: %d files", position, len(division.parts), generation.files)
        return plan

    def note_begun(self) -> None:
        """Note that a generation has begun."""
        begun = self._begun
        assert begun
        self._lacking.pop(begun, None)
        self.divisions.begin(begun.pass_)
        self._missing = None
        self._moved_at = trio.current_time()
        self.changed.notify()
        self._progressed.notify()

    def _path_of(self, id: int) -> str:
        return self._catalog.path(node) if (node := self._catalog.node(id)) else ""

    # Status.

    def start_status(self) -> StartStatus | None:
        """See Selection."""
        lacking = self._lacking.get(self._coming)
        if lacking is None:
            return None
        bounds = self.divisions.known[self._coming.pass_].parts[self._coming.part - 1]
        needed = bounds.end - bounds.start
        return StartStatus(done=max(0, needed - len(lacking)), needed=needed, unit="files")

    def status(self) -> ExactStatus:
        """The section of the status."""
        position = self._begun or self._coming
        division = self.divisions.known.get(position.pass_)
        lacking = next(iter(self._lacking.values()), dict[int, int]())
        return ExactStatus(
            pass_=position.pass_,
            part=position.part if self._begun else 0,
            parts=len(division.parts) if division else 0,
            kept_bytes=division.kept_bytes if division else 0,
            streamed_bytes=division.streamed_bytes if division else 0,
            missing_files=len(lacking),
            missing_bytes=sum(lacking.values()),
            waiting=self._waited_for.total(),
            waited_for=", ".join(map(str, self._waited_for)),
            in_use=", ".join(map(str, self._in_use)),
            left_out_files=len(self._left_out),
            left_out_example=self._path_of(self._left_out.min()) if self._left_out else "",
        )

    @property
    def warnings(self) -> list[str | None]:
        """Warnings about the division; None for each that does not apply."""
        division = self.divisions.known.get((self._begun or self._coming).pass_)
        if self.failure or division is None:
            return [str(self.failure)] if self.failure else []
        is_short = division.lists_all_folders and division.least_folders < division.folders
        return [
            small_parts(division.files, division.streamed_bytes, division.kept_bytes, self._store.room.limit_bytes),
            f"parts contain files from as few as {division.least_folders} of {division.folders} folders; the others are"
            " listed empty: if folders are classes, raise --part-size, or pass allow_empty=True to ImageFolder"
            if is_short
            else None,
        ]


@dataclass(frozen=True)
class _PartPlanner(Planner):
    """Plans one part."""

    parts: Parts
    position: PassPosition

    keeps_last = False

    def is_ready(self) -> bool:
        return self.parts.is_ready(self.position)

    async def wait(self) -> None:
        await self.parts.wait(self.position)

    async def plan(self, number: int, turnover: TurnoverInput) -> GenerationPlan | None:
        return await self.parts.plan(number, turnover, self.position)


def _no_such_part(division: Division, position: PassPosition) -> GrowfsError:
    return GrowfsError(f"pass {position.pass_} has {len(division.parts)} parts now, but no part {position.part}")
