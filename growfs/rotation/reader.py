"""What one process has listed, opened and holds. Uses neither the clock nor /proc: callers pass the time."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from growfs.bitmaps import BitMap64
from growfs.rotation.jobs import EPOCH_SHARE, SHORT_EPOCH_SHARE, Job
from growfs.rotation.rules import EVERYWHERE, Generation


@dataclass(eq=False, slots=True)
class Walk:
    """What a process has listed of one generation."""

    held_until: float = -math.inf
    """The time until which it, or others of its job, may go on. All of the generation is held until then."""
    busy_at: float = 0.0
    """When it last listed a directory that is new to it, or any after it had opened a file: not when it only polls."""
    listed: BitMap64 = field(default_factory=BitMap64)
    """The directories that it has listed."""
    since_open: BitMap64 = field(default_factory=BitMap64)
    """Those that it has listed, each once, since it, or a worker, last opened a file."""

    def goes_on(self, directory: int, now: float) -> bool:
        """Whether listing a directory goes on with the walk: it is new since the last open, and all is held."""
        return bool(self.since_open) and directory not in self.since_open and now <= self.held_until

    def lists(self, directory: int, is_again: bool, now: float, settle_s: float) -> None:
        """Note that the process lists a directory.

        is_again: it has done so before, and others of its job have not since. settle_s: how long it may go on then. If
        it could not go on any more, some files may be gone, so nothing renews that.
        """
        if not (is_again and self.since_open):
            self.busy_at = now
        if not self.goes_on(directory, now):
            self.since_open.clear()
        if now <= self.held_until:
            self.held_until = now + settle_s
        self.since_open.add(directory)
        self.listed.add(directory)


@dataclass(eq=False, slots=True)
class Reader:
    """A process that listed a directory, or opened a file although none of its ancestors had listed."""

    pid: int
    """0 stands for all processes of other pid namespaces, which the kernel does not identify."""
    start: str
    """When it started, in clock ticks after boot: the kernel reuses pids."""
    command: str
    """Its name, for display."""
    number: int = 0
    """Its number in the registry, which its open handles carry."""
    command_line: bytes = b""
    """Its arguments when it first listed or opened a file, without numbers; it may run another program since."""
    job: Job = field(default_factory=Job)
    """Its own job, or that of processes that started with it."""
    above: Reader | None = None
    """The nearest process with a view above it, of the same program: a data loader worker is shown what that is."""
    held: BitMap64 = field(default_factory=BitMap64)
    """The admissions of the files that it holds, because the last listing of their directory has shown them to it."""
    named: Generation | None = None
    """The newest generation of which it opened a folder by its path, and which it holds."""
    listed_at: float | None = None
    """When it last listed, in seconds of any clock; None: never."""
    active_at: float = 0.0
    """When it last listed, opened or closed a file, on the same clock."""
    generations: int = 0
    """In how many generations it has listed."""
    opens: int = 0
    """How many files it has opened."""
    waited: int = 0
    """How many of these opens were misses."""
    handles: int = 0
    """How many of its files are open now."""
    files: BitMap64 = field(default_factory=BitMap64)
    """The ids that it opened since it first listed in its last generation, at the root or by the path of that."""
    view: Generation | None = None
    """The generation that it listed last."""
    _view_below: Generation | None = None
    """The one that its workers see, if one of them has moved on."""
    walk: Walk = field(default_factory=Walk)
    """What it has listed of that."""
    _older: BitMap64 = field(default_factory=BitMap64)
    """What it holds of the generations before, in directories that it has not listed in its last one."""

    @property
    def newest(self) -> Generation | None:
        """The newest generation that it has listed or opened."""
        return max(filter(None, (self.view, self.named)), key=lambda generation: generation.number, default=None)

    def lasting_holds(self, lister: Reader | None) -> BitMap64:
        """What it still holds once a process has listed again: all, unless that is this one, or one of its job that was
        shown the same generation. Then, what it was shown in directories that it has not listed in that generation.
        """
        return self._older if lister and self.job is lister.job and self.view is lister.view else self.held

    @property
    def opened_all(self) -> bool:
        """Whether its job has opened all files that it was shown of its view."""
        return self.view is self.job.view and self.job.has_opened_all

    def next_view(
        self,
        directory: int,
        newest: Generation,
        now: float,
        settle_s: float,
        readers: Iterable[Reader],
    ) -> Generation | None:
        """The generation to show when it lists a directory; None if a new one has to begin for it.

        settle_s: the time after which a job may have had its epoch, even if it has opened few files or none. Infinite
        if none must go by unread. readers: those that have holds.
        """
        job, view = self.job, self.job.view
        if self.above:
            view = self.above._view_below or self.above.view
        if self.view and not self.view.reading.is_over and self.walk.goes_on(directory, now):
            return self.view  # whatever the others of its job do meanwhile
        if view and settle_s == math.inf and not (view.reading.is_over or job.opened or self.above):
            return newest  # such as a monitor
        is_over = view is None or view.reading.is_over
        is_again = not is_over and self.view is view and self._lists_again(directory)
        # By processes that have ended.
        is_read = view and view.reading.is_read and self.listed_at is None and not self.above
        if is_over or is_read or (is_again and self._has_had_its_epoch(now, settle_s)):
            is_old = newest.reading.is_over or newest.reading.is_read or now - newest.reading.began_at > settle_s
            return None if is_old or newest is view else newest
        if is_again:
            return view
        # Another directory or rank, or a worker. If nobody holds the directory, some of its files may be gone.
        viewers = (other for other in readers if other.job is job and other.view is view)
        return view if any(other._holds_all_of(directory, now) for other in viewers) else newest

    def _holds_all_of(self, directory: int, now: float) -> bool:
        """Whether it holds all that its view lists in a directory."""
        has_listed = any(each in self.walk.listed and each in self.job.listed_whole for each in (directory, EVERYWHERE))
        return now <= self.walk.held_until or (has_listed and bool(self.held))

    def _lists_again(self, directory: int) -> bool:
        """Whether it lists a directory again, before others of its job have: these see what the first one sees."""
        is_first = self.listed_at is not None and self.listed_at >= self.job.listed_again_at
        return is_first and directory in self.walk.listed

    def _has_had_its_epoch(self, now: float, settle_s: float) -> bool:
        """Whether its job has read its view, now that it lists a directory again."""
        share = SHORT_EPOCH_SHARE if now - self.job.viewed_at > settle_s and not self.above else EPOCH_SHARE
        if not self.walk.since_open and self.job.has_opened(share):
            return True
        # A worker looks for names that the process above it has listed.
        return not self.above and (self.job.has_opened_all or now - self.walk.busy_at > settle_s)

    def lists(self, directory: int, generation: Generation, now: float, settle_s: float = 0.0) -> None:
        """Note that it lists a directory (EVERYWHERE: all), which will show what a generation lists there.

        settle_s: how long it holds all of what the generation lists, at first.
        """
        is_next = self.view is None or self.view.number != generation.number
        is_again = not is_next and self._lists_again(directory)
        if is_again and not (self.walk.since_open or self.above):
            self.job.listed_again_at = now
        if self.job.view is None or generation.number >= self.job.view.number:  # otherwise it is behind the others
            self.job.lists(generation, now)
        if is_next:
            if generation.is_shown_once:
                self.held &= generation.listed
            self.files, self.walk, self._older = BitMap64(), Walk(held_until=now), BitMap64(self.held)
            self.generations += 1
        self.walk.lists(directory, is_again, now, settle_s)
        if directory == EVERYWHERE:
            self.held, self._older = BitMap64(generation.listed), BitMap64()
        elif hidden := generation.hidden_below.get(directory):  # this listing does not show them
            self.held -= hidden
            self._older -= hidden
        self.job.listers += self.listed_at is None
        if self.above and self.above.view and generation.number > self.above.view.number:
            self.above._view_below = generation
        self.view, self._view_below = generation, None
        self.listed_at = self.active_at = now

    def is_shown(self, seqs: Iterable[int], generation: Generation) -> None:
        """Note that its listing of a directory has come to the files with these admissions: it holds those that the
        generation lists, and no longer the others.
        """
        found = BitMap64(seqs)
        self.held -= found
        self._older -= found
        self.held |= found & generation.listed

    def opened(
        self, id: int, generation: Generation | None, now: float, waited: bool = False, is_of_view: bool = True
    ) -> None:
        """Note that it, or its child, opens a file. If nobody of its job has listed, it holds the current generation:
        it may have names from an earlier listing.

        is_of_view: the view of its job lists the file, which is not frozen.
        """
        self.opens += 1
        self.waited += waited
        self.handles += 1
        self.files.add(id)
        if is_of_view and (self.view is None or self.view is self.job.view):
            self.job.opens(id)
        reader: Reader | None = self
        while reader:
            reader.active_at = now
            reader.walk.since_open.clear()
            reader = reader.above
        if generation and not (generation.is_shown_once or self.held or self.named or self.job.listers):
            self.held |= generation.listed

    def closed(self, now: float) -> None:
        """Note that one of its files was closed."""
        self.handles -= 1
        self.active_at = now

    def is_silent(self, now: float, hold_idle_s: float, settle_s: float) -> bool:
        """Whether, for longer than hold_idle_s, it has had no file open and opened none. Its holds end then.

        settle_s: enough for a generation that is shown once, if it has opened nothing of it, or its job everything: the
        next one may wait for its room.
        """
        if self.view and self.view.is_shown_once and (self.opened_all or not self.files):
            hold_idle_s = min(hold_idle_s, settle_s)
        return not self.handles and now - self.active_at > hold_idle_s

    def release(self) -> None:
        """End its holds. It still counts as a process that has listed."""
        self.held, self._older, self.named = BitMap64(), BitMap64(), None
        self.walk.held_until = -math.inf

    def ended(self) -> None:
        """Note that the process has ended."""
        self.job.listers -= self.listed_at is not None
        if self.named:
            self.named.reading.note_read(self.files, EPOCH_SHARE * self.named.files)
        if not self.above and (self.view is None or self.view is self.job.view):
            self.job.ended(self.files)


def held_by(readers: Collection[Reader], now: float, whole: Iterable[Generation] = ()) -> BitMap64:
    """The admissions of the files that these readers hold, and of those that some generations list."""
    views = {reader.view for reader in readers if reader.view and now <= reader.walk.held_until}
    return BitMap64().union(*(reader.held for reader in readers), *(each.listed for each in {*views, *whole}))
