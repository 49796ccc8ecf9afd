"""What the processes of a job were shown together, and whether they have read it. Uses neither the clock nor /proc.

A job is a set of processes that started together, such as the ranks of a training run. Its view is the generation that
all of its listings show until it has had its epoch. Then it sees the newest generation; if it has already seen that
one, a new one begins. Jobs never wait for each other: a view is held, and can be listed, as long as its job needs it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from growfs.bitmaps import BitMap64
from growfs.rotation.rules import EVERYWHERE, Generation

EPOCH_SHARE = 0.5
"""A job that has opened this share of its view since it last listed has had its epoch. Less is a look at a batch: then
its training and validation sets have to be of one generation."""
SHORT_EPOCH_SHARE = 0.05
"""After --settle, this share is enough. Two files may be a sample: some programs list before each."""


@dataclass(eq=False, slots=True)
class Job:
    """What the processes of a job were shown together, and which of these files they have opened. Frozen files do not
    count: they are in every generation.
    """

    view: Generation | None = None
    """The generation that its listings show; None if it has never listed."""
    files_shown: int = 0
    """How many files its view showed to its processes in directories that one listed to the end, each counted once."""
    unread: float = 0.0
    """The share of the files that the view before showed and it never opened."""
    listers: int = 0
    """How many of its processes that have not ended have listed."""
    listed_again_at: float = 0.0
    """When one of its processes last listed again after it had opened a file: the others see what that one has seen."""
    viewed_at: float = 0.0
    """When it first listed its view."""
    opened: BitMap64 = field(default_factory=BitMap64)
    """The ids of its view that it has opened."""
    listed_whole: BitMap64 = field(default_factory=BitMap64)
    """The directories of its view that a process listed to the end."""
    _opened_since: BitMap64 = field(default_factory=BitMap64)
    """Those that it has opened since one of its processes last listed."""

    def has_opened(self, share: float) -> bool:
        """Whether it opened this share of its view since one of its processes last listed, and more than two files."""
        return len(self._opened_since) >= max(share * self.files_shown, min(3, max(1, self.files_shown)))

    @property
    def has_opened_all(self) -> bool:
        """Whether it has opened all of its view."""
        return 0 < self.files_shown <= len(self.opened)

    def lists(self, generation: Generation, now: float) -> None:
        """Note that one of its processes lists a generation, its view or a later one."""
        if generation is not self.view:
            if self.files_shown:
                self.unread = max(0.0, 1 - len(self.opened) / self.files_shown)
            self.view, self.files_shown, self.viewed_at = generation, 0, now
            self.opened, self.listed_whole = BitMap64(), BitMap64()
        self._opened_since = BitMap64()

    def is_shown(self, directory: int, generation: Generation, files: int) -> None:
        """Note that one of its processes has listed a directory (EVERYWHERE: all) to the end. files: shown to it."""
        if generation is self.view and not (directory in self.listed_whole or EVERYWHERE in self.listed_whole):
            self.listed_whole.add(directory)
            if directory == EVERYWHERE:
                self.files_shown = 0
            self.files_shown += files - generation.frozen_files(directory)

    def opens(self, id: int) -> None:
        """Note that one of its processes opens a file of the view that is not frozen."""
        self.opened.add(id)
        self._opened_since.add(id)

    def ended(self, opened: BitMap64) -> None:
        """Note that one of its processes has ended. opened: the ids that it opened."""
        if self.view:
            self.view.reading.note_read(opened & self.opened, EPOCH_SHARE * self.files_shown)
