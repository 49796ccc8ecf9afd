"""The passes of --exact: which parts are in use, which come next, and which files are cached for them.

There is room for two parts. A part is cached because it is in use, because a process waits for it, or because it
follows those. A pass is divided before it begins, and divided again if the catalog changes until then (`passes`).
A part that comes next begins once it is complete and a process asks for it (`part_states`).
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import trio

from growfs.bitmaps import BitMap64
from growfs.cache.catalog import Removed
from growfs.cache.database import RETRY_S
from growfs.daemon.wiring import Wiring
from growfs.errors import GrowfsError, NoSuchName, RemoteError, TimedOut
from growfs.extensions.exact.division import Due, find_due, plan_part
from growfs.extensions.exact.part_states import PartsInUse, PartsToCome
from growfs.extensions.exact.passes import Passes
from growfs.rotation.generations import Planner
from growfs.rotation.parts import Division, Part, PassPosition, small_parts
from growfs.rotation.pass_order import Amount, Order
from growfs.rotation.rules import Generation, GenerationPlan, TurnoverInput
from growfs.scheduler.in_flight import Download, DownloadState
from growfs.scheduler.rotating import Selection, compute_soon
from growfs.signal import Signal
from growfs.status_and_metrics import ExactStatus, StartStatus
from growfs.workers.pool import WorkerLost

log = logging.getLogger(__name__)

QUIET_S = 0.05
"""How long nothing of a part that was read is open before it makes room, if no process waits for another part: others
may read it, too. It is checked this often whether parts make room."""


class Window(NamedTuple):
    """The parts that have room."""

    in_use: tuple[PassPosition, ...]
    ahead: tuple[PassPosition, ...]
    """Those that are cached, or to be cached, besides them."""


class Parts(Selection):
    """Decides which parts come next, and lists them. `changed` notifies when that decides anew which files are to be
    cached, and `strayed` when a file is cached that belongs to none of these parts, so it may be evicted again: it was
    opened by name.

    mount: its generations, holders, space and fetcher are constructed later.
    """

    shows_once = True
    keeps_last = False
    """Otherwise the last files of directories, from an earlier seed, would take the room of the first part."""

    def __init__(self, mount: Wiring, passes: Passes) -> None:
        self.changed = Signal[[]]()
        self.strayed = Signal[[]]()
        self.passes = passes
        self._mount = mount
        self._to_come = PartsToCome()
        self._in_use = PartsInUse()
        self._looked_up: Window | None = None
        self._waited_for = Counter[PassPosition]()
        self._moved_at = -math.inf  # when bytes arrived, or other parts were to be cached
        self._left_out = BitMap64()

    @property
    def _newest(self) -> Part | None:
        """The part that began last, in this mount."""
        newest = self._mount.generations.current
        return newest if isinstance(newest, Part) else None

    def check_size(self, bytes: int) -> None:
        """See Selection. A pass that has begun may need more."""
        self.passes.check_size(bytes)

    # What is drawn.

    @property
    def share(self) -> Amount:
        """The files of this node's parts; everything, before they are known."""
        known = self.passes.known.get(self.passes.coming.pass_) or self._mount.catalog
        return Amount(known.files, known.bytes)

    @property
    def missing(self) -> Amount:
        """The files that are still to be fetched for the coming parts."""
        return self._to_come.missing or self.share

    @property
    def streams(self) -> bool:
        """See Selection."""
        division = self.passes.known.get(self.passes.coming.pass_)
        return division is not None and division.streams

    async def remaining(self, size_max: int) -> Order:
        """The files that are to be cached for the parts in use, and for those to come, and are not."""
        due: Due | None = None
        while due is None:
            window = self._window()
            due = await self._look_up(window)
        self._looked_up = window
        self._to_come.found(window.ahead, due)
        return Order(frozen=due.always, rest=due.missing, frozen_ids=BitMap64(map(abs, due.always)))

    async def _look_up(self, window: Window) -> Due | None:
        """Look up what is to be cached for these parts; None if others have room by then, or after a failure."""
        await self._divide_window(window)
        if window != self._window():  # more parts are known now, or others are to come
            return None
        mount, coming = self._mount, self.passes.coming
        division = self.passes.known[coming.pass_]
        if coming in window.ahead and coming.part > len(division.parts):  # only after --start
            self.failure = _no_such_part(division, coming)
            await trio.sleep(RETRY_S)
            return None
        function = partial(find_due, mount.database.path, *window, await mount.other_source.find_owned())
        self._to_come.look_up()
        try:
            due = await compute_soon(mount.workers, function, mount.store.resident_files, mount.database.path)
        except GrowfsError as error:
            log.warning(
                "the files of part %s cannot be found, trying again: %s", [*window.ahead, *window.in_use][0], error
            )
            await trio.sleep(RETRY_S)
            return None
        if window != self._window():
            return None
        marks = due.unneeded, due.needed_again
        if any(marks) and not await mount.space.mark(*marks, lambda: window == self._window()):
            await trio.sleep(RETRY_S if mount.database.refusal else 0)
            return None
        return due

    def _window(self) -> Window:
        """The parts in use, and those to come for which there is room: first those that are waited for.

        Of these, the earliest comes first, so that a rank that is behind catches up with the others.
        """
        begun, newest = self.passes.begun, self._newest
        in_use = dict.fromkeys(self._in_use.uses)
        if begun and begun not in self._waited_for and not (newest and newest.reading.is_over):
            in_use[begun] = None  # by programs that list the root
        ahead = sorted(part for part in self._waited_for if part not in in_use and self.passes.may_have(part))
        # The cache has room for the streamed files of two parts.
        room = 2 - len(in_use.keys() - self._in_use.without_room)
        following: PassPosition | None = self.passes.coming
        while following and len(ahead) < room:
            if following not in in_use and following not in ahead:
                ahead.append(following)
            following = self.passes.after(following)
        return Window(tuple(in_use), tuple(ahead[: max(0, room)]))

    def _note_window(self) -> None:
        """Note that the window may have changed."""
        if self._window() != self._looked_up:
            self._moved_at = trio.current_time()
            self.changed.notify()

    async def _divide_window(self, window: Window) -> None:
        """Divide its passes, unless that is done; give up if it changes meanwhile."""
        for number in {part.pass_ for part in (*window.in_use, *window.ahead, self.passes.coming)}:
            while window == self._window() and not self.passes.is_current(number):
                try:
                    await self._divide(number)
                    self.failure = None
                except (GrowfsError, WorkerLost) as error:
                    if isinstance(error, GrowfsError):
                        self.failure = error
                    self._to_come.changed.notify()
                    log.warning("pass %d cannot be divided into parts, trying again: %s", number, error)
                    await trio.sleep(RETRY_S)

    async def _divide(self, number: int) -> None:
        """Divide a pass, unless that is done, or it begins meanwhile. Raises GrowfsError, WorkerLost."""
        if await self.passes.divide(number, partial(self._replace_division, number)):
            self._to_come.changed.notify()

    def _replace_division(self, number: int) -> set[int]:
        """Let no part of a pass begin until it is divided again. Returns the passes that are in use."""
        self._to_come.forget(number)
        self._looked_up = None
        window, passes = self._window(), self.passes
        parts = (*window.in_use, *window.ahead, *self._to_come.lacking, passes.coming, passes.current)
        return {part.pass_ for part in parts}

    def note_received(self, _: int) -> None:
        """Note that bytes have arrived."""
        self._moved_at = trio.current_time()

    def note_finished(self, download: Download) -> None:
        """Note the outcome of a download."""
        node = download.node
        if download.state is DownloadState.ADMITTED:
            if not (self._to_come.note_arrived(node.id, node.size or 0) or download.renews):
                self.strayed.notify()
        elif isinstance(download.error, RemoteError):
            self._to_come.note_failed(node.id)

    async def describe(self, number: int) -> dict[str, Any]:
        """What a program asks about a pass: how many files each of its parts has, and all that decides which ones.

        Waits until the remote was listed. Raises GrowfsError if the pass cannot be divided.
        """
        while not self._mount.catalog.listing:
            await self._to_come.changed.wait()
        try:
            await self._divide(number)
        except WorkerLost:
            raise GrowfsError("the process that divides the pass died; see the log, and try again") from None
        division = self.passes.known[number]
        pass_ = division.pass_
        catalog = {
            **division.catalog._asdict(), "seed": pass_.seed, "cache_bytes": pass_.cache_bytes,
            "part_bytes": pass_.part_bytes, "partition": self.passes.first.partition, "group": pass_.group,
        }  # fmt: skip
        files = [division.always + part.end - part.start for part in division.parts]
        return {"pass": number, "parts": len(files), "part_files": files, "catalog": catalog}

    # Which parts are in use.

    async def run(self) -> None:
        """End the use of parts, and store which part was read last, until cancelled."""
        while True:
            await self.passes.write()
            with trio.move_on_after(QUIET_S if self._in_use.uses else math.inf):
                await self._in_use.opened.wait()
            self._end_uses()

    def _end_uses(self) -> None:
        ahead, mount = self._window().ahead, self._mount
        is_waited = any(part not in ahead for part in self._waited_for)
        quiet_s, silence_s = 0 if self._waited_for else QUIET_S, mount.generations.settle_s if is_waited else None
        open_ids, is_open = mount.store.open_files.ids, mount.holders.has_open_folder
        for part in self._in_use.end(trio.current_time(), quiet_s, silence_s, open_ids, is_open):
            log.info("part %s makes room", part)
            mount.store.room.freed.notify()
            self._note_window()

    def note_opened(self, id: int) -> None:
        """Note that a file was opened."""
        self._in_use.note_opened(id, trio.current_time())
        if not self.passes.is_read and self._mount.generations.moves(id, self._newest):
            self.passes.read()
            self._in_use.opened.notify()  # `run` writes it

    def note_removed(self, removed: Sequence[Removed]) -> None:
        """Note that the remote has deleted or replaced files."""
        for gone in removed:
            self._in_use.note_gone(gone.id)

    # What is listed.

    def find(self, position: PassPosition) -> Generation | None:
        """The generation that is this part; None if it has to begin first."""
        newest = self._newest
        is_newest = newest and newest.position == position and not newest.reading.is_over
        return newest if is_newest else self._in_use.find(position)

    def use(self, generation: Generation) -> None:
        """See Planner."""
        assert isinstance(generation, Part)
        self._in_use.open(generation, trio.current_time())
        self._note_window()  # it may have made room before

    def in_use(self) -> list[Part]:
        """See Planner."""
        return [use.part for use in self._in_use.uses.values()]

    def is_ready(self, part: PassPosition | None = None) -> bool:
        """Whether a part is cached, except for files that cannot be fetched; by default the next one."""
        return self._to_come.lacking.get(part or self.passes.coming) == {}

    async def wait(self, part: PassPosition | None = None) -> None:
        """Return once a part is cached or has begun. Raises GrowfsError if the pass has no such part, or nothing
        arrives.
        """
        while not self.is_ready(part) and not (part and self.find(part)):
            patience_s = self._mount.fetcher.miss_timeout_s if part else math.inf
            await self._wait_for(part or self.passes.coming, patience_s)

    async def _wait_for(self, part: PassPosition, patience_s: float) -> None:
        """Return once a part is cached, or other parts are the newest or the next one."""
        if part not in self._waited_for:
            log.info("a listing is waiting for part %s", part)
        began, before = trio.current_time(), self.passes.begun
        self._waited_for[part] += 1
        self._end_uses()
        self._note_window()
        try:
            while not self.is_ready(part) and before == self.passes.begun:
                if not self.passes.may_have(part):
                    raise NoSuchName(str(_no_such_part(self.passes.known[part.pass_], part)))
                until = max(began, self._moved_at) + patience_s
                if trio.current_time() >= until:
                    why = "nothing has arrived" if part in self._window().ahead else "other parts took its space"
                    raise TimedOut(f"gave up waiting for part {part}: {why} for {patience_s:g} s; see growfs status")
                with trio.move_on_at(until):
                    await self._to_come.changed.wait()
        finally:
            self._waited_for -= Counter([part])
            self._note_window()

    async def plan(
        self, number: int, turnover: TurnoverInput, part: PassPosition | None = None
    ) -> GenerationPlan | None:
        """List a part; None if some of it was evicted for readers that opened other files by name."""
        position = part or self.passes.coming
        if not self.is_ready(position):
            return None
        mount, division = self._mount, self.passes.known[position.pass_]
        function = partial(plan_part, mount.database.path, number, position, turnover.last_seq)
        planned = await compute_soon(mount.workers, function, mount.store.resident_files, mount.database.path)
        if not self.is_ready(position) or division is not self.passes.known[position.pass_]:
            return None  # other parts come next, or the pass is divided again
        left_out = planned.left_out
        if lost := left_out - self._to_come.failed:
            self._to_come.lose(position, lost)
            self.changed.notify()
            return None
        self._left_out = left_out | (self._left_out if position.part > 1 else BitMap64())
        if left_out:
            log.warning(
                "part %s: %d files cannot be fetched and are left out of this pass, such as %s",
                position, len(left_out), self._path_of(left_out.min()),
            )  # fmt: skip
        log.info("part %s of %d: %d files", position, len(division.parts), planned.files)
        return GenerationPlan(planned, keeps_last=False)

    def note_begun(self) -> None:
        """Note that a part has begun."""
        assert self._newest
        begun = self._newest.position
        self.passes.begin(begun)
        self._moved_at = trio.current_time()
        self.changed.notify()
        self._to_come.begin(begun)

    def _path_of(self, id: int) -> str:
        return self._mount.catalog.path(node) if (node := self._mount.catalog.node(id)) else ""

    # Status.

    def start_status(self) -> StartStatus | None:
        """See Selection."""
        coming = self.passes.coming
        lacking = self._to_come.lacking.get(coming)
        if lacking is None:
            return None
        bounds = self.passes.known[coming.pass_].parts[coming.part - 1]
        needed = bounds.end - bounds.start
        return StartStatus(done=max(0, needed - len(lacking)), needed=needed, unit="files")

    def status(self) -> ExactStatus:
        """The section of the status."""
        position = self.passes.current
        division = self.passes.known.get(position.pass_)
        lacking = next(iter(self._to_come.lacking.values()), dict[int, int]())
        return ExactStatus(
            pass_=position.pass_,
            part=position.part if self.passes.begun else 0,
            parts=len(division.parts) if division else 0,
            kept_bytes=division.kept_bytes if division else 0,
            streamed_bytes=division.streamed_bytes if division else 0,
            missing_files=len(lacking),
            missing_bytes=sum(lacking.values()),
            waiting=self._waited_for.total(),
            waited_for=", ".join(map(str, self._waited_for)),
            in_use=", ".join(map(str, self._in_use.uses)),
            left_out_files=len(self._left_out),
            left_out_example=self._path_of(self._left_out.min()) if self._left_out else "",
        )

    @property
    def warnings(self) -> list[str | None]:
        """Warnings about the division; None for each that does not apply."""
        division = self.passes.known.get(self.passes.current.pass_)
        if self.failure or division is None:
            return [str(self.failure)] if self.failure else []
        is_short = division.lists_all_folders and division.least_folders < division.folders
        return [
            small_parts(
                division.files, division.streamed_bytes, division.kept_bytes, self._mount.store.room.limit_bytes
            ),
            f"parts contain files from as few as {division.least_folders} of {division.folders} folders; the others are"
            " listed empty: if folders are classes, raise --part-size, or pass allow_empty=True to ImageFolder"
            if is_short
            else None,
        ]


@dataclass(frozen=True)
class PartPlanner(Planner):
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
