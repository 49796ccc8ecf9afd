"""Which generation a listing shows, and when a new one has to begin for it. Uses neither the clock nor /proc.

A job is a set of processes that started together, such as the ranks of a training run. Each job has a view: the
generation that all of its listings show until the job has had its epoch with it. Then it sees the newest generation; if
it has already seen that one, a new one begins. Jobs never wait for each other: a view is held, and can be listed, as
long as its job needs it.

With --exact, a generation is a part of a pass, and no part must go by unread. So only opens count, not time. A job that
has opened nothing, such as a monitor, sees the newest part. Once a job has left that part, some of its files may be
gone. So others that begin to read wait for the next one as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pyroaring import BitMap64

from growfs.rotation.rules import Generation

EPOCH_SHARE = 0.5
"""A job that has opened this share of the files that it was shown has had its epoch."""
LOOK_SHARE = 0.25
"""A job that has opened less than this share since its last listing has only looked at a batch, between listing its
training and validation sets. Both have to be of one generation."""
LOOKS_MAX = 3
"""It may do so for this multiple of --settle."""
RANKS_APART_S = 1800.0
"""How long after the first rank of its job a rank may list. No rank waits for another for longer: this is the timeout
of torch.distributed (default_pg_timeout)."""


@dataclass(eq=False, slots=True)
class Job:
    """What the processes of a job were shown together, and which of these files they have opened."""

    view: Generation | None = None
    """The generation that its listings show; None if it has never listed."""
    epoch: int = 0
    """The number of its current epoch. It may have several epochs with one view."""
    files_shown: int = 0
    """How many files its view showed to its processes, counting each directory once."""
    viewed_at: float = 0.0
    """When it first listed its view."""
    asks: bool = False
    """Whether it asks for each generation (`growfs.epoch`), so that no listing begins one."""
    _epoch_at: float = 0.0
    """When it first listed in its epoch."""
    _opened: BitMap64 = field(default_factory=BitMap64)
    """The ids that it has opened since it got its view."""
    _opened_in_epoch: BitMap64 = field(default_factory=BitMap64)
    """The ids that it opened in its epoch."""
    _opened_by_ended: BitMap64 = field(default_factory=BitMap64)
    """The ids of its view that were opened by processes that have ended."""
    _listed_whole: BitMap64 = field(default_factory=BitMap64)
    """The directories of its view that a process listed to the end."""

    def next_view(
        self,
        newest: Generation,
        now: float,
        settle_s: float,
        *,
        is_new: bool,
        has_listed: bool,
        is_held: bool,
        by_time: bool = True,
    ) -> Generation | None:
        """The generation to show in a listing; None if a new one has to begin for it.

        by_time: whether a job has its epoch with time, even if it opens few files or none.
        is_new: the process has never listed. has_listed: it has listed this directory in this epoch. is_held: a process
        of the job holds what its view shows of this directory; otherwise some of that may be gone.
        """
        view = self.view
        shown = None if newest.is_left else newest
        if view is None or view.is_over or not (view.files or view is newest):
            is_old = newest.is_over or newest.is_read or (by_time and now - newest.began_at > settle_s)
            return None if is_old else shown
        if self.asks:
            return view
        if not (by_time or self._opened):
            return newest
        if not self._has_had_its_epoch(now, settle_s, is_new, has_listed, by_time):
            return view if has_listed or is_held else shown
        return shown if newest.number > view.number else None

    def asked_view(self, newest: Generation, seen: int) -> Generation | None:
        """As `next_view`, for a process that asks for the next generation. seen: the last one that it saw, or 0."""
        self.asks = True
        if self.view and not (seen or self.view.is_left):
            return self.view
        is_old = newest.is_left or (newest.is_read and not seen)
        return newest if newest.number > seen and not is_old else None

    def _has_had_its_epoch(self, now: float, settle_s: float, is_new: bool, has_listed: bool, by_time: bool) -> bool:
        if not has_listed:  # another rank, another directory of a walk, or a worker of the next epoch
            is_late = by_time and now - self.viewed_at > RANKS_APART_S
            return is_new and (self._share(self._opened_by_ended) >= EPOCH_SHARE or is_late)
        if by_time and (now - self._epoch_at > settle_s or now - self.viewed_at > LOOKS_MAX * settle_s):
            return True
        return self._share(self._opened) >= EPOCH_SHARE and self._share(self._opened_in_epoch) >= LOOK_SHARE

    def _share(self, ids: BitMap64) -> float:
        return len(ids) / max(1, self.files_shown)

    def lists(self, generation: Generation, now: float, is_again: bool) -> None:
        """Note that one of its processes lists a generation.

        is_again: the process has listed this directory in this epoch, and has opened a file since its last listing.
        Otherwise it is in the middle of its listings, which may read a directory twice.
        """
        is_next_view = generation is not self.view
        if is_next_view:
            self.view, self.files_shown, self.viewed_at = generation, 0, now
            self._opened, self._opened_by_ended, self._listed_whole = BitMap64(), BitMap64(), BitMap64()
        if is_next_view or is_again:
            # The whole job follows its first process, whatever the others have opened: otherwise ranks would differ.
            self.epoch += 1
            self._epoch_at = now
            self._opened_in_epoch = BitMap64()

    def is_shown(self, directory: int, files: int) -> None:
        """Note that one of its processes has listed a directory of the view to the end. files: shown to it."""
        if directory not in self._listed_whole:
            self._listed_whole.add(directory)
            self.files_shown += files

    def opened(self, id: int) -> None:
        """Note that one of its processes opens a file."""
        self._opened.add(id)
        self._opened_in_epoch.add(id)

    def ended(self, opened: BitMap64) -> None:
        """Note that one of its processes has ended. opened: the ids of the view that it opened."""
        if self.view:
            self._opened_by_ended |= opened
            note_read(self.view, opened, self.files_shown)


def note_read(generation: Generation, opened: BitMap64, files_shown: int) -> None:
    """Note that a process has ended that opened these of the files that it was shown of a generation."""
    generation.opened |= opened
    generation.is_read = generation.is_read or len(generation.opened) >= EPOCH_SHARE * max(1, files_shown)
