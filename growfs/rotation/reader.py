"""What one process has listed, opened and holds. Uses neither the clock nor /proc: callers pass the time."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from pyroaring import BitMap64

from growfs.rotation.holds import EVERYWHERE, DirectoryHolds, Hold
from growfs.rotation.jobs import Job
from growfs.rotation.rules import Generation


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
    """Its arguments when it first listed; it may run another program since."""
    job: Job = field(default_factory=Job)
    """Its own job, or that of processes that started with it."""
    holds: DirectoryHolds = field(default_factory=DirectoryHolds)
    """Its current holds."""
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
    unread: float = 0.0
    """The share of the files of its previous generation's listings that it never opened."""
    _view: Generation | None = None
    """The generation that it listed last."""
    _may_walk_until: float = 0.0
    """The time until which it, or others of its job, may go on listing the view. All of the view is held until then."""
    _renewed_at: float = 0.0
    """When it first listed in its last generation."""
    _renews_s: float = 0.0
    """The time between that and its first listing in the generation before."""
    _listing_since: float = 0.0
    """The time since which it has been listing without opening a file."""
    _opens_at_listing: int = 0
    """How many files it had opened when it last listed."""
    _epoch: int = 0
    """The last epoch of its job in which it listed."""
    _listed: BitMap64 = field(default_factory=BitMap64)
    """The directories that it listed in that epoch."""
    _listed_whole: BitMap64 = field(default_factory=BitMap64)
    """The directories that it has listed to the end in its last generation."""
    _shown: dict[int, int] = field(default_factory=dict)
    """How many files it was shown of each directory that it has not listed to the end in its last generation."""
    _shown_files: int = 0
    """How many files it was shown in its last generation, counting each directory once."""
    _shown_everywhere: int = 0
    """How many files a listing of everything showed it in its last generation."""

    @property
    def is_foreign(self) -> bool:
        """Whether it stands for all processes of other pid namespaces."""
        return self.pid == 0

    @property
    def generation(self) -> int:
        """The number of the generation that it listed last; 0: none."""
        return self._view.number if self._view else 0

    @property
    def files_shown(self) -> int:
        """How many files its last listings showed, counting each directory once."""
        return self._shown_everywhere or self._shown_files

    @property
    def listed_once(self) -> bool:
        """Whether it has listed in one generation only: most stock code never lists again."""
        return self.generations == 1

    def lasting_holds(self, now: float, lister: Reader) -> DirectoryHolds:
        """The holds that it may never renew: those on directories that it has not listed again in its last generation.

        These are all of its holds if it has listed in only one generation, or not for more than twice its last
        interval; unless it is the process that lists now, or is in the same job and was shown the same generation.
        """
        lists_now = self is lister or (self.job is lister.job and self._view is lister._view)
        renews = self.generations > 1 and now - self._renewed_at <= 2 * self._renews_s
        return self.holds.before(self.generation) if lists_now or renews else self.holds

    @property
    def opened_all(self) -> bool:
        """Whether it has opened as many files as it was shown."""
        return 0 < self.files_shown <= len(self.files)

    def has_listed(self, directory: int) -> bool:
        """Whether it has listed a directory in the epoch of its job."""
        return self._epoch == self.job.epoch and directory in self._listed

    def hold_of_all(self, now: float) -> Hold | None:
        """Its hold on all of its view, while it or others of its job may go on listing the view."""
        if self._view is None or now > self._may_walk_until:
            return None
        return self._view.hold

    def holds_view(self, directory: int, now: float) -> bool:
        """Whether it holds what the view of its job shows of a directory."""
        view = self.job.view
        if view is None or self._view is not view:
            return False
        held = self.hold_of_all(now) or self.holds.get(directory)
        return held is not None and held.generation == view.number

    def next_view(
        self,
        directory: int,
        newest: Generation,
        now: float,
        settle_s: float,
        readers: Iterable[Reader],
        by_time: bool = True,
    ) -> Generation | None:
        """The generation to show when it lists a directory; None if a new one has to begin for it.

        readers: those that have holds. by_time: see Job.next_view.
        """
        is_listing = self.opens == self._opens_at_listing and now - self._listing_since <= settle_s
        if is_listing and self._view and (self._view.files or self._view is newest) and not self._view.is_over:
            return self._view  # whatever the others of its job do meanwhile
        is_new, has_listed = self.listed_at is None, self.has_listed(directory)
        is_held = (
            has_listed
            or (self.job.view is newest and not newest.is_left)  # nothing of it is delisted yet
            or any(other.holds_view(directory, now) for other in readers if other.job is self.job)
        )
        return self.job.next_view(
            newest, now, settle_s, is_new=is_new, has_listed=has_listed, is_held=is_held, by_time=by_time
        )

    def asked_view(self, newest: Generation) -> Generation | None:
        """As `next_view`, when it asks for the next generation."""
        return self.job.asked_view(newest, self.generation)

    def lists(self, directory: int, generation: Generation, now: float, settle_s: float = 0.0) -> None:
        """Note that it lists a directory (EVERYWHERE: all), and from now on holds what that generation shows there.

        settle_s: how long it also holds the rest of the view. Listing the same view after that does not renew this
        hold: some files of the view may be gone.
        """
        is_next = self.generation != generation.number
        is_again = self.has_listed(directory) and self.opens > self._opens_at_listing
        if is_next or now <= self._may_walk_until:
            self._may_walk_until = now + settle_s
        if is_next or self.opens > self._opens_at_listing:
            self._listing_since = now
        self._view, self._opens_at_listing = generation, self.opens
        if self.job.view is None or generation.number >= self.job.view.number:  # otherwise it is behind the others
            self.job.lists(generation, now, is_again)
            if self._epoch != self.job.epoch:
                self._listed, self._epoch = BitMap64(), self.job.epoch
        if is_next:
            if shown := self.files_shown:
                self.unread = max(0.0, 1 - len(self.files) / shown)
            self.files, self._listed_whole = BitMap64(), BitMap64()
            self._shown, self._shown_files, self._shown_everywhere = {}, 0, 0
            self._renews_s, self._renewed_at = now - self._renewed_at, now
            self.generations += 1
        self._shown_files -= self._shown.pop(directory, 0)
        self.holds.set(directory, generation.hold)
        if hidden := generation.hidden_below.get(directory):
            self.holds.end(hidden)  # it cannot list them again: this listing does not show them
        self._listed.add(directory)
        self.listed_at = self.active_at = now

    def is_shown(self, directory: int, files: int) -> None:
        """Note that its listing of a directory showed this many more files; with EVERYWHERE, this many in total."""
        if directory == EVERYWHERE:
            self._shown_everywhere = files
            self.job.is_shown(EVERYWHERE, files)
        elif directory not in self._listed_whole:  # otherwise it lists the same files again
            self._shown[directory] = self._shown.get(directory, 0) + files
            self._shown_files += files

    def is_shown_all(self, directory: int) -> None:
        """Note that its listing of a directory reached the end."""
        if directory in self._listed:  # otherwise the listing began in an earlier generation
            files = self._shown.pop(directory, 0)
            if directory not in self._listed_whole and self._view is self.job.view:
                self.job.is_shown(directory, files)
            self._listed_whole.add(directory)

    def opened(self, id: int, generation: Generation | None, now: float, waited: bool = False) -> None:
        """Note that it, or its child, opens a file. If it has never listed, it holds the current generation."""
        self.opens += 1
        self.waited += waited
        self.handles += 1
        self.files.add(id)
        self.job.opened(id)
        self.active_at = now
        if generation and not self.holds and self.listed_at is None:
            self.holds.set(EVERYWHERE, generation.hold)

    def closed(self, now: float) -> None:
        """Note that one of its files was closed."""
        self.handles -= 1
        self.active_at = now

    def is_silent(self, now: float, hold_idle_s: float, settle_s: float) -> bool:
        """Whether, for longer than hold_idle_s, it has had no file open and opened none. Its holds end then.

        settle_s: enough for a part of a pass of which it has opened nothing, or everything: the next part may wait for
        its room.
        """
        if self._view and self._view.part and (self.opened_all or not self.files):
            hold_idle_s = min(hold_idle_s, settle_s)
        return not self.handles and now - self.active_at > hold_idle_s

    def release(self) -> None:
        """End its holds. It still counts as a process that has listed."""
        self.holds.clear()
        self._may_walk_until = -float("inf")

    def ended(self) -> None:
        """Note that the process has ended."""
        if self.job.view and self.generation == self.job.view.number:
            self.job.ended(self.files)


def holds_of(readers: Collection[Reader], now: float) -> list[DirectoryHolds]:
    """The holds of these readers."""
    all_of_views = {hold for reader in readers if reader.holds and (hold := reader.hold_of_all(now))}
    return [*(reader.holds for reader in readers), *map(DirectoryHolds, all_of_views)]
