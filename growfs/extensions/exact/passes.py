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
from array import array
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import trio

from growfs.bitmaps import BitMap64
from growfs.cache.catalog import Catalog, Node, Removed
from growfs.cache.database import Database
from growfs.cache.schema import set_meta
from growfs.cache.store import Store
from growfs.errors import GrowfsError, NoSuchName, RemoteError, TimedOut, UsageError
from growfs.extensions.exact.division import divide_catalog, find_due, plan_part, read_division, save_division
from growfs.extensions.exact.parts_in_use import PartsInUse
from growfs.remote.interface import OtherSource
from growfs.rotation.generations import Generations, Planner
from growfs.rotation.parts import Division, ExactPass, Part, PassPosition
from growfs.rotation.pass_order import Order, Pass
from growfs.rotation.rules import Generation, GenerationPlan, TurnoverInput
from growfs.scheduler.in_flight import Download, DownloadState
from growfs.scheduler.rotating import Selection, Share, compute_groups, compute_soon
from growfs.signal import Signal
from growfs.simulation.part_files import small_parts
from growfs.status_and_metrics import ExactStatus, StartStatus
from growfs.units import CacheSize, flag_size, format_size
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

    first: what decides the order of the first pass. part_size: the room for streamed files. start: the part with which
    listings of the root begin; None to go on after the last one. mark: as Space.mark. other: decides which files this
    node fetches for others. generations: returns these. is_open: whether a folder of a part is open. patience_s:
    returns how long a process waits for a part if nothing arrives.

    strayed: notified when a file is cached that belongs to none of these parts, so it may be evicted again: it was
    opened by name.
    """

    shows_once = True
    keeps_last = False
    """Otherwise the last files of directories, from an earlier seed, would take the room of the first part."""

    def __init__(
        self,
        workers: WorkerPool,
        database: Database,
        catalog: Catalog,
        store: Store,
        first: Pass,
        part_size: CacheSize,
        start: PassPosition | None,
        mark: Callable[[Sequence[int], Sequence[int], Callable[[], bool]], Awaitable[bool]],
        other: OtherSource,
        generations: Callable[[], Generations],
        is_open: Callable[[Generation], bool],
        patience_s: Callable[[], float],
    ) -> None:
        self.changed = Signal[[]]()
        self.strayed = Signal[[]]()
        self._workers = workers
        self._db = database
        self._catalog = catalog
        self._store = store
        self._first = first
        self._part_size = part_size
        self._mark = mark
        self._other = other
        self._generations = generations
        self._is_open = is_open
        self._in_use = PartsInUse()
        self._patience_s = patience_s
        self._progressed = Signal[[]]()
        self._divisions: dict[int, Division] = {}
        self._revisions: dict[int, int] = {}  # of the catalog, for the passes that are divided and have not begun
        self._dividing = trio.Lock()
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
        self._go_on(start)

    def _go_on(self, start: PassPosition | None) -> None:
        """Find the part that was read last. Raises UsageError if the cache became too small in the middle of a pass."""
        stored = self._db.meta("position")
        read = PassPosition(*json.loads(stored)) if stored else None
        division = read_division(self._db.rows, read.pass_) if read else None
        if not (read and division and self._is_of_same_order(division)):
            return
        if start is None:
            self._read = self._written = read
            start = division.after(read.part)
        elif start.pass_ != read.pass_ or start.part == 1 or _sizes(division) != self._sizes_now:
            return
        self._divisions[read.pass_] = division
        if start.pass_ == read.pass_:
            self.check_size(self._store.room.limit_bytes, division)

    @property
    def _begun(self) -> PassPosition | None:
        """The part that began last."""
        newest = self._generations().current
        return newest.position if isinstance(newest, Part) else self._read

    @property
    def _coming(self) -> PassPosition:
        """The part that comes next, for programs that list the root."""
        begun = self._begun
        return self._divisions[begun.pass_].after(begun.part) if begun else self._start

    @property
    def _sizes_now(self) -> tuple[int, int]:
        """The size of the cache and the room for streamed files, of the passes to come."""
        cache_bytes = self._store.room.limit_bytes
        return cache_bytes, self._part_size.of(cache_bytes)

    def _is_of_same_order(self, division: Division) -> bool:
        pass_ = division.pass_
        return (pass_.seed, pass_.share, pass_.group) == (self._first.seed, self._first.share, self._first.group)

    def check_size(self, bytes: int, division: Division | None = None) -> None:
        """See Selection. A cache of this size cannot hold the parts of a pass, by default of the one that has begun."""
        if division is None and (number := (self._begun or self._coming).pass_) not in self._revisions:
            division = self._divisions.get(number)
        if division and division.needed_bytes > bytes:
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
        known = self._divisions.get(self._coming.pass_) or self._catalog
        return Share(known.files, known.bytes)

    @property
    def missing(self) -> Share:
        """The files that are still to be fetched for the coming parts."""
        return self._missing or self.share

    outside = Share(0, 0)

    @property
    def streams(self) -> bool:
        """Whether files are fetched again in each pass."""
        division = self._divisions.get(self._coming.pass_)
        return division is not None and division.streams

    async def early(self, nodes: Iterable[Node]) -> list[Node]:
        """No files: a part is not known before the listing is complete."""
        return []

    async def remaining(self, size_max: int) -> Order:
        """The files that are to be cached for the parts in use, and for those to come, and are not."""
        while True:
            read, ahead = window = self._window()
            await self._divide_window(window)
            if not self._is_window(window):
                continue  # more parts are known now, or others are to come
            coming = self._coming
            division = self._divisions[coming.pass_]
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
        ahead = sorted(part for part in self._waited_for if part not in read and self.may_exist(part))
        # The cache has room for the streamed files of two parts.
        room = 2 - len(read.keys() - self._in_use.without_room)
        following: PassPosition | None = self._coming
        while following and len(ahead) < room:
            if following not in read and following not in ahead:
                ahead.append(following)
            division = self._divisions.get(following.pass_)
            following = division.after(following.part) if division else None
        return tuple(read), tuple(ahead[: max(0, room)])

    def _is_window(self, window: _Window) -> bool:
        return window == self._window()

    def may_exist(self, part: PassPosition) -> bool:
        """Whether a pass has this part, as far as known."""
        division = self._divisions.get(part.pass_)
        return division is None or part.part <= len(division.parts) or not self._is_divided(part.pass_)

    def _note_window(self) -> None:
        """Note that the window may have changed."""
        if self._window()[1] != tuple(self._lacking):
            self._moved_at = trio.current_time()
            self.changed.notify()

    async def _divide_window(self, window: _Window) -> None:
        """Divide its passes, unless that is done; give up if it changes meanwhile."""
        for number in {part.pass_ for part in (*window[0], *window[1], self._coming)}:
            while self._is_window(window) and not self._is_divided(number):
                try:
                    await self._divide_pass(number)
                    self.failure = None
                except (GrowfsError, WorkerLost) as error:
                    if isinstance(error, GrowfsError):
                        self.failure = error
                    self._progressed.notify()
                    log.warning("pass %d cannot be divided into parts, trying again: %s", number, error)
                    await trio.sleep(RETRY_S)

    async def _divide_pass(self, number: int) -> None:
        """Divide a pass, unless that is done, or it begins meanwhile. Raises GrowfsError, WorkerLost."""
        async with self._dividing:
            if self._is_divided(number):
                return
            if self._begun and number <= self._begun.pass_ and number not in self._revisions:  # it may have begun
                stored = read_division(self._db.rows, number)
                if stored and self._is_of_same_order(stored) and stored.needed_bytes <= self._store.room.limit_bytes:
                    self._divisions[number] = stored
                    return
            first, revision = self._first, self._catalog.revision
            pass_ = ExactPass(first.seed, number, *self._sizes_now, first.share, first.group)
            division: Division
            function = partial(divide_catalog, self._db.path, pass_)
            division, ids = await compute_groups(self._workers, function, pass_.group)
            if number in self._divisions and number not in self._revisions:
                return
            # So that no part begins while its division is replaced.
            self._lacking = {part: files for part, files in self._lacking.items() if part.pass_ != number}
            await self._store_division(division, ids)
            self._revisions[number] = revision
            self._progressed.notify()

    def _is_divided(self, number: int) -> bool:
        """Whether the division of a pass is known, and still counts: until it begins, it follows the catalog and the
        size of the cache.
        """
        division, revision = self._divisions.get(number), self._revisions.get(number)
        if division is None or revision is None:
            return division is not None
        return revision == self._catalog.revision and _sizes(division) == self._sizes_now

    async def _store_division(self, division: Division, ids: array[int]) -> None:
        number = division.pass_.number
        kept = self._passes_in_use() | {number - 2, number - 1}
        self._divisions = {known: self._divisions[known] for known in self._divisions if known in kept}
        await self._db.write_with_retry(partial(save_division, division=division, ids=ids, kept=kept))
        if division.lists_all_folders:
            await self._store.admit_folders()
        self._divisions[number] = division
        log.info(
            "pass %d has %d parts: %s stay cached, and %s are streamed",
            number, len(division.parts), format_size(division.kept_bytes), format_size(division.streamed_bytes),
        )  # fmt: skip

    def _passes_in_use(self) -> set[int]:
        window = self._window()
        parts = (*window[0], *window[1], *self._lacking, self._coming, self._begun or self._coming)
        return {part.pass_ for part in parts}

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
            await self._divide_pass(number)
        except WorkerLost:
            raise GrowfsError("the process that divides the pass died; see the log, and try again") from None
        division = self._divisions[number]
        pass_ = division.pass_
        catalog = {
            **division.catalog._asdict(), "seed": pass_.seed, "cache_bytes": pass_.cache_bytes,
            "part_bytes": pass_.part_bytes, "partition": self._first.partition, "group": pass_.group,
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
                if not self.may_exist(part):
                    raise NoSuchName(str(_no_such_part(self._divisions[part.pass_], part)))
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
        division = self._divisions[position.pass_]
        function = partial(plan_part, self._db.path, number, position, turnover.last_seq)
        plan = await compute_soon(self._workers, function, self._store.resident_files, self._db.path)
        generation = plan.generation
        assert isinstance(generation, Part)
        if not self.is_ready(position) or division is not self._divisions[position.pass_]:
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
        self._revisions.pop(begun.pass_, None)
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
        bounds = self._divisions[self._coming.pass_].parts[self._coming.part - 1]
        needed = bounds.end - bounds.start
        return StartStatus(done=max(0, needed - len(lacking)), needed=needed, unit="files")

    def status(self) -> ExactStatus:
        """The section of the status."""
        position = self._begun or self._coming
        division = self._divisions.get(position.pass_)
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
        division = self._divisions.get((self._begun or self._coming).pass_)
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


def _sizes(division: Division) -> tuple[int, int]:
    return division.pass_.cache_bytes, division.pass_.part_bytes


def _no_such_part(division: Division, position: PassPosition) -> GrowfsError:
    return GrowfsError(f"pass {position.pass_} has {len(division.parts)} parts now, but no part {position.part}")
