"""The passes of --exact: which part is read, which one comes next, and which files are cached for them.

Takes the place of `rotating.PassOrder` and `rotating.RotationPlanner`. A pass is divided before it begins, and divided
again if the catalog changes until then. Its division is stored, and the position with each generation, so a mount that
was killed goes on where it was.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from array import array
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

import trio
from humanfriendly import format_size
from pyroaring import BitMap64

from growfs.cache.catalog import Catalog, Node
from growfs.cache.database import Database
from growfs.cache.schema import set_meta
from growfs.cache.store import Store
from growfs.errors import GrowfsError, NotMade, RemoteError, UsageError
from growfs.rotation.division import divide_catalog, find_due, part_contents, read_division, save_division
from growfs.rotation.generations import Planner
from growfs.rotation.parts import CatalogDigest, Division, ExactPass, PassPosition, SavedPosition
from growfs.rotation.pass_order import Order, Pass
from growfs.rotation.rules import Generation, GenerationPlan, TurnoverInput
from growfs.scheduler.in_flight import Download, DownloadState
from growfs.scheduler.rotating import Share, compute_soon
from growfs.signal import Signal
from growfs.status_and_metrics import ExactStatus, StartStatus
from growfs.units import CacheSize, flag_size
from growfs.workers.messages import Compute
from growfs.workers.pool import WorkerLost, WorkerPool, call_worker

log = logging.getLogger(__name__)

RETRY_S = 5.0
"""Pause before a pass that could not be divided is tried again, or files that could not be marked."""


class Parts(Planner):
    """Owns the position: the part that began last, and the one that comes next. `changed` notifies when that decides
    anew which files are to be cached.

    first: what decides the order of the first pass. part_size: the room for streamed files. start: the part to begin
    with; None to go on after the last one. mark: as Space.mark. share_of_node: returns the share of the files that this
    node fetches before others, (number, of how many), because other nodes have the rest; None if there are none.
    newest: returns the newest generation.
    """

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
        mark: Callable[[Sequence[int], Sequence[int], Sequence[int], Callable[[], bool]], Awaitable[bool]],
        share_of_node: Callable[[], Awaitable[tuple[int, int]]] | None,
        newest: Callable[[], Generation | None],
    ) -> None:
        self.changed = Signal[[]]()
        self.failure: GrowfsError | None = None
        """Why the next pass cannot be divided."""
        self._workers = workers
        self._db = database
        self._catalog = catalog
        self._store = store
        self._first = first
        self._part_size = part_size
        self._mark = mark
        self._share_of_node = share_of_node
        self._newest = newest
        self._progressed = Signal[[]]()
        self._divisions: dict[int, Division] = {}
        self._revisions: dict[int, int] = {}  # of the catalog, for the passes that are divided and have not begun
        self._dividing = trio.Lock()
        self._begun: PassPosition | None = None
        self._coming = PassPosition(1, 1)
        self._due_for: PassPosition | None = None
        self._wanted, self._wanted_bytes = BitMap64(), 0
        self._lacking, self._lacking_bytes = BitMap64(), 0
        self._failed = BitMap64()
        self._left_out, self._left_out_example = BitMap64(), ""
        self._listings_waiting = 0
        self._went_to: SavedPosition | None = None
        self._go_on(start)

    def _go_on(self, start: PassPosition | None) -> None:
        """Find the part that comes next. Raises UsageError if the cache became too small in the middle of a pass."""
        stored = self._db.meta("position")
        begun = PassPosition(*json.loads(stored)) if stored else None
        division = read_division(self._db.rows, begun.pass_) if begun else None
        if begun and division and self._is_of_same_order(division):
            if start is None:
                self._begun, self._coming = begun, division.after(begun.part)
            if start is None or (start.pass_ == begun.pass_ and start.part > 1 and _sizes(division) == self._sizes_now):
                self._divisions[begun.pass_] = division
        if start:
            self._coming = start
        if coming := self._divisions.get(self._coming.pass_):
            self.check_size(self._store.limit_bytes, coming)

    @property
    def _sizes_now(self) -> tuple[int, int]:
        """The size of the cache and the room for streamed files, of the passes to come."""
        cache_bytes = self._store.limit_bytes
        return cache_bytes, self._part_size.of(cache_bytes)

    def _is_of_same_order(self, division: Division) -> bool:
        pass_ = division.pass_
        return (pass_.seed, pass_.share, pass_.group) == (self._first.seed, self._first.share, self._first.group)

    def check_size(self, bytes: int, division: Division | None = None) -> None:
        """Raise UsageError if a cache of this size cannot hold the parts of a pass, by default of the one that has
        begun.
        """
        number = (self._begun or self._coming).pass_
        if division is None and number not in self._revisions:
            division = self._divisions.get(number)
        if division and division.needed_bytes > bytes:
            raise UsageError(
                f"pass {division.pass_.number} began with a cache of {format_size(division.pass_.cache_bytes)}, and its"
                f" parts need {format_size(division.needed_bytes)}: leave --cache-size at"
                f" {flag_size(division.pass_.cache_bytes)} until it ends, or mount again with --start"
                f" {division.pass_.number + 1}/1"
            )

    # What is drawn (rotating.DrawOrder).

    @property
    def share(self) -> Share:
        """The files of this node's parts; everything, before they are known."""
        if division := self._divisions.get(self._coming.pass_):
            return Share(division.files, division.bytes)
        return Share(self._catalog.files, self._catalog.bytes)

    @property
    def missing(self) -> Share:
        """The files that are still to be fetched for the coming parts."""
        if self._due_for is None:
            return self.share
        return Share(len(self._wanted), self._wanted_bytes)

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
        """The files that are to be cached while one part is read and the next one is to follow, and are not."""
        while True:
            read, coming = state = self._read, self._coming
            await self._divide_before(coming, coming.pass_)
            if not self._is_in(state):
                continue
            division = self._divisions[coming.pass_]
            if coming.part > len(division.parts):  # only after --start
                self.failure = _no_such_part(division, coming)
                await trio.sleep(RETRY_S)
                continue
            ahead = [coming] if read else [coming, division.after(coming.part)]
            if ahead[-1].pass_ > coming.pass_:
                await self._divide_before(coming, ahead[-1].pass_)
                if not self._is_in(state):
                    continue
            share = await self._share_of_node() if self._share_of_node else None
            newest = self._newest()
            listed = newest.listed if newest else BitMap64()
            function = partial(find_due, self._db.path, read, ahead, listed, share)
            try:
                due = await compute_soon(self._workers, function, self._store.resident_files, self._db.path)
            except GrowfsError as error:
                log.warning("the files of part %s cannot be found, trying again: %s", coming, error)
                await trio.sleep(RETRY_S)
                continue
            if not self._is_in(state):
                continue
            marks = due.unneeded, due.left, due.needed_again
            if not any(marks) or await self._mark(*marks, partial(self._is_in, state)):
                break
            await trio.sleep(RETRY_S if self._store.refusal else 0)
        self._wanted, self._wanted_bytes = due.lacking, due.bytes
        self._failed -= self._wanted
        self._lacking, self._lacking_bytes, self._due_for = due.first, due.first_bytes, coming
        self._progressed.notify()
        return Order(
            frozen=due.always,
            rest=due.missing,
            files=division.files,
            bytes=division.bytes,
            frozen_ids=BitMap64(map(abs, due.always)),
        )

    @property
    def _read(self) -> PassPosition | None:
        """The part that began last, unless a job has left it, and waits for the next one: it need not stay cached."""
        newest = self._newest()
        return None if newest and newest.is_left else self._begun

    def _is_in(self, state: tuple[PassPosition | None, PassPosition]) -> bool:
        return state == (self._read, self._coming)

    async def _divide_before(self, coming: PassPosition, number: int) -> None:
        """Divide a pass, unless that is done; give up if another part comes next meanwhile."""
        while self._coming == coming and not self._is_divided(number):
            try:
                async with self._dividing:
                    if self._coming == coming and not self._is_divided(number):
                        await self._divide_now(number)
                self.failure = None
                return  # if the catalog has changed again, another order is requested
            except (GrowfsError, WorkerLost) as error:
                if isinstance(error, GrowfsError):
                    self.failure = error
                log.warning("pass %d cannot be divided into parts, trying again: %s", number, error)
                await trio.sleep(RETRY_S)

    def _is_divided(self, number: int) -> bool:
        """Whether the division of a pass is known, and still counts: until it begins, it follows the catalog and the
        size of the cache.
        """
        division, revision = self._divisions.get(number), self._revisions.get(number)
        if division is None or revision is None:
            return division is not None
        return revision == self._catalog.revision and _sizes(division) == self._sizes_now

    async def _divide_now(self, number: int) -> None:
        """Divide a pass that has not begun, unless it begins meanwhile. Raises GrowfsError, WorkerLost."""
        revision = self._catalog.revision
        division, ids = await self._divide(number, *self._sizes_now)
        if self._begun and self._begun.pass_ == number:
            return
        if self._coming.pass_ == number:
            self._due_for = None  # so that it does not begin while its division is replaced
        await self._store_division(division, ids)
        self._revisions[number] = revision

    async def _divide(self, number: int, cache_bytes: int, part_bytes: int) -> tuple[Division, array[int]]:
        """Divide a pass over the catalog as it is now. Raises GrowfsError, WorkerLost."""
        first = self._first
        pass_ = ExactPass(first.seed, number, cache_bytes, part_bytes, first.share, first.group)
        result: tuple[Division, array[int]] = await call_worker(
            self._workers, Compute(partial(divide_catalog, self._db.path, pass_))
        )
        return result

    async def _store_division(self, division: Division, ids: array[int]) -> None:
        number = division.pass_.number
        await self._db.write_with_retry(partial(save_division, division=division, ids=ids))
        if division.lists_all_folders:
            await self._store.admit_folders()
        self._divisions = {known: self._divisions[known] for known in self._divisions if number - 2 <= known < number}
        self._divisions[number] = division
        log.info(
            "pass %d has %d parts: %s stay cached, and %s are streamed",
            number, len(division.parts), format_size(division.kept_bytes), format_size(division.streamed_bytes),
        )  # fmt: skip

    def note_finished(self, download: Download) -> None:
        """Note the outcome of a download."""
        id, size, is_cached = download.node.id, download.node.size or 0, download.state is DownloadState.ADMITTED
        if is_cached and id not in self._wanted and not download.renews:
            self.changed.notify()  # it was opened by name, and may go again
        if is_cached and id in self._wanted:
            self._wanted.discard(id)
            self._wanted_bytes -= size
        if isinstance(download.error, (RemoteError, NotMade)):
            self._failed.add(id)
        elif not is_cached:
            return
        if id in self._lacking:
            self._lacking.discard(id)
            self._lacking_bytes -= size
        self._progressed.notify()

    async def go_to(self, saved: SavedPosition, even_if_changed: bool, is_read: bool = False) -> bool:
        """Go on from a saved position; False if that was done before, as by another process of the job.

        Raises GrowfsError if the parts cannot be the same as then. even_if_changed: accept another catalog. is_read:
        processes that have ended have read the part that is listed: an earlier run of the job went there, and failed.
        """
        async with self._dividing:  # otherwise two processes could go there at a time, and the second one again
            return await self._go_to(saved, even_if_changed, is_read)

    async def _go_to(self, saved: SavedPosition, even_if_changed: bool, is_read: bool) -> bool:
        target = PassPosition(saved.pass_, saved.part)
        if self._went_to == saved and (self._begun is None or (self._begun == target and not is_read)):
            return False
        self._check_same_order(saved)
        division = self._divisions.get(target.pass_) or read_division(self._db.rows, target.pass_)
        ids = None
        sizes = saved.cache_bytes, saved.part_bytes
        if division is None or _sizes(division) != sizes or (saved.catalog and division.catalog != saved.catalog):
            try:
                division, ids = await self._divide(target.pass_, *sizes)
            except WorkerLost:
                raise GrowfsError("the process that divides the pass died; see the log, and try again") from None
        if saved.catalog and division.catalog != saved.catalog and not even_if_changed:
            if division.catalog[:2] == saved.catalog[:2]:
                raise GrowfsError(
                    "other files are frozen or pinned now than when the position was saved, or the remote has others"
                    f" in their place, so part {target} is another one; go on with it by force=True"
                )
            raise GrowfsError(
                f"the remote has {_amount(division.catalog)} now, and had {_amount(saved.catalog)} when the position"
                f" was saved, so part {target} is another one; go on with it by force=True"
            )
        self.check_size(self._store.limit_bytes, division)
        if target.part > len(division.parts):
            raise _no_such_part(division, target)
        if ids is not None:
            await self._store_division(division, ids)
        self._divisions[target.pass_] = division
        self._revisions.pop(target.pass_, None)
        self._begun = self._due_for = None
        self._coming, self._went_to = target, saved
        self.changed.notify()
        log.info("going on with part %s", target)
        return True

    def _check_same_order(self, saved: SavedPosition) -> None:
        first = self._first
        for flag, own, wanted in (
            ("--seed", first.seed, saved.seed),
            ("--partition", first.partition, saved.partition),
            ("--group", first.group, saved.group),
        ):
            if own != wanted:
                raise GrowfsError(f"the position was saved with {flag} {wanted}, and this mount has {own}")

    # What is listed (rotation.generations.Planner).

    def is_ready(self) -> bool:
        """Whether the next part is cached, except for files that cannot be fetched."""
        return self._due_for == self._coming and not self._lacking

    async def wait(self) -> None:
        """Return once the next part is cached."""
        if self.is_ready():
            return
        log.info("a listing waits for part %s", self._coming)
        began = trio.current_time()
        self._listings_waiting += 1
        try:
            while not self.is_ready():
                await self._progressed.wait()
        finally:
            self._listings_waiting -= 1
        log.info("part %s is cached: a listing has waited for %.1f s", self._coming, trio.current_time() - began)

    async def plan(self, number: int, turnover: TurnoverInput) -> GenerationPlan | None:
        """List the next part; None if some of it was evicted for readers that opened other files by name."""
        position = self._coming
        division = self._divisions[position.pass_]
        function = partial(part_contents, self._db.path, position)
        part = await compute_soon(self._workers, function, self._store.resident_files, self._db.path)
        if position != self._due_for or division is not self._divisions[position.pass_]:
            return None  # another position was gone to meanwhile, or the pass is divided again
        if lost := part.left_out - self._failed:
            self._lacking |= lost
            self.changed.notify()
            return None
        self._note_left_out(position, part.left_out)
        log.info("part %s of %d: %d files", position, len(division.parts), part.files)
        listed = BitMap64().union(*map(BitMap64, part.folders.values()))
        return GenerationPlan(
            turnover.last_seq, part.files, listed, keeps_last=False, hidden_below=part.hidden_below, part=part
        )

    def note_begun(self) -> None:
        """Note that the planned generation has begun: another part comes next."""
        self._begun, self._due_for = self._coming, None
        self._revisions.pop(self._begun.pass_, None)
        self._coming = self._divisions[self._begun.pass_].after(self._begun.part)
        self.changed.notify()

    def _note_left_out(self, position: PassPosition, ids: BitMap64) -> None:
        if position.part == 1:
            self._left_out, self._left_out_example = BitMap64(), ""
        self._left_out |= ids
        if ids and (node := self._catalog.node(ids.min())):
            self._left_out_example = self._catalog.path(node)
            log.warning(
                "part %s: %d files cannot be fetched and are left out of this pass, such as %s",
                position, len(ids), self._left_out_example,
            )  # fmt: skip

    def record(self, writer: sqlite3.Connection) -> None:
        """Store the position."""
        if self._begun:
            set_meta(writer, "position", json.dumps(self._begun))
            set_meta(writer, "pass", self._begun.pass_)

    # Status.

    def start_status(self) -> StartStatus | None:
        """How far the next part is, for a mount that waits for it; None if that is not known yet."""
        if self._due_for != self._coming:
            return None
        bounds = self._divisions[self._coming.pass_].parts[self._coming.part - 1]
        needed = bounds.end - bounds.start
        return StartStatus(done=max(0, needed - len(self._lacking)), needed=needed, unit="files")

    def status(self) -> ExactStatus:
        """The section of the status."""
        position = self._begun or self._coming
        division = self._divisions.get(position.pass_)
        return ExactStatus(
            pass_=position.pass_,
            part=position.part if self._begun else 0,
            parts=len(division.parts) if division else 0,
            kept_bytes=division.kept_bytes if division else 0,
            streamed_bytes=division.streamed_bytes if division else 0,
            missing_files=len(self._lacking),
            missing_bytes=self._lacking_bytes,
            waiting=self._listings_waiting,
            left_out_files=len(self._left_out),
            left_out_example=self._left_out_example,
            next_pass=self._coming.pass_,
            next_part=self._coming.part,
            cache_bytes=division.pass_.cache_bytes if division else 0,
            part_bytes=division.pass_.part_bytes if division else 0,
            group=self._first.group,
            catalog_files=division.catalog.files if division else 0,
            catalog_bytes=division.catalog.bytes if division else 0,
            catalog_digest=division.catalog.digest if division else "",
        )

    @property
    def warnings(self) -> list[str]:
        """Warnings about the division."""
        if self.failure:
            return [str(self.failure)]
        division = self._divisions.get(self._coming.pass_)
        if division is None or not division.lists_all_folders or division.least_folders >= division.folders:
            return []
        return [
            f"parts have files of as few as {division.least_folders} of {division.folders} folders, and the others are"
            " listed empty: if folders are classes, raise --part-size, or pass allow_empty=True to ImageFolder"
        ]


def _sizes(division: Division) -> tuple[int, int]:
    return division.pass_.cache_bytes, division.pass_.part_bytes


def _no_such_part(division: Division, position: PassPosition) -> GrowfsError:
    return GrowfsError(f"pass {position.pass_} has {len(division.parts)} parts now, and no part {position.part}")


def _amount(catalog: CatalogDigest) -> str:
    return f"{catalog.files:,} files ({format_size(catalog.bytes)})"
