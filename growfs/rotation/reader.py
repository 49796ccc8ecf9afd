"""What one process has listed and opened, and what it holds. No clock and no /proc: callers pass the time."""

from __future__ import annotations

from dataclasses import dataclass, field

from growfs.rotation.rules import EVERYWHERE, Generation, Hold, ListingContext

GROW_BYTES = 4096


class Marks:
    """A set of small numbers, one bit each: a process may open millions of files."""

    def __init__(self) -> None:
        self._bits = bytearray()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, number: int) -> None:
        """Add a number."""
        place, bit = number >> 3, 1 << (number & 7)
        if place >= len(self._bits):
            self._bits.extend(bytes(place - len(self._bits) + GROW_BYTES))
        if not self._bits[place] & bit:
            self._bits[place] |= bit
            self._count += 1

    def clear(self) -> None:
        """Remove all numbers."""
        self._bits = bytearray()
        self._count = 0


@dataclass(eq=False, slots=True)
class Reader:
    """A process that listed a directory, or opened a file without any ancestor that had listed.

    pid: 0 stands for all processes of other pid namespaces, which the kernel does not identify. start: clock ticks
    after boot. holds: by directory. listed_at, active_at: seconds, of any clock; None: never.
    generation: the last one in which it listed. generations: in how many it has listed. shown: how many files it was
    shown by its last listing of each directory. opens, waited: how many opens, and how many of them were misses.
    files: the ids that it opened since it first listed in the current generation. handles: how many of its files are
    open. unread: the share of the files of its listings before that, which it never opened.
    """

    pid: int
    start: str
    command: str
    number: int = 0
    holds: dict[int, Hold] = field(default_factory=dict)
    listed_at: float | None = None
    active_at: float = 0.0
    generation: int = 0
    generations: int = 0
    shown: dict[int, int] = field(default_factory=dict)
    opens: int = 0
    waited: int = 0
    handles: int = 0
    files: Marks = field(default_factory=Marks)
    unread: float = 0.0
    _listing_since: float = 0.0
    _opens_at_listing: int = 0
    _listed: dict[int, int] = field(default_factory=dict)

    @property
    def files_shown(self) -> int:
        """How many files its last listings showed."""
        return self.shown.get(EVERYWHERE) or sum(self.shown.values())

    @property
    def listed_once(self) -> bool:
        """Whether it has listed in one generation only: most stock code never lists again."""
        return self.generations == 1

    def is_listing(self, generation: Generation | None, now: float, settle_s: float) -> bool:
        """Whether it is in the middle of listing a generation: it began not long ago, and has opened nothing since."""
        return (
            generation is not None
            and self.generation == generation.number
            and self.opens == self._opens_at_listing
            and now - self._listing_since <= settle_s
        )

    def unrenewed_holds(self, lists_now: bool = False) -> dict[int, Hold]:
        """The holds that it may never renew: those of directories that it has not listed again in its last generation.

        All of them, where it has listed in one generation only, unless lists_now: it lists again at this moment.
        """
        if self.generations <= 1 and not lists_now:
            return dict(self.holds)
        return {directory: hold for directory, hold in self.holds.items() if hold.generation < self.generation}

    @property
    def opened_all(self) -> bool:
        """Whether it has opened as many files as it was shown."""
        return 0 < self.files_shown <= len(self.files)

    def about_to_list(self, directory: int, generation: Generation | None, now: float) -> ListingContext:
        """The facts that decide whether its listing of a directory begins a generation. generation: the current one."""
        return ListingContext(
            listed_ever=self.listed_at is not None,
            listed_here=generation is not None and self._listed.get(directory) == generation.number,
            opened_since=self.opens > self._opens_at_listing,
            listing_s=now - self._listing_since,
        )

    def lists(self, directory: int, generation: Generation, now: float) -> None:
        """It lists a directory (EVERYWHERE: all), and holds what that generation shows of it from now on."""
        if self.generation != generation.number:
            if shown := self.files_shown:
                self.unread = max(0.0, 1 - len(self.files) / shown)
            self.files.clear()
            self.shown.clear()
            self.generation = generation.number
            self.generations += 1
            self._listing_since = now
        elif self.opens > self._opens_at_listing:
            self._listing_since = now
        self._opens_at_listing = self.opens
        if directory == EVERYWHERE:
            self.holds.clear()
        self.shown[directory] = 0
        self.holds[directory] = Hold(generation.number, generation.last_seq)
        self._listed[directory] = generation.number
        self.listed_at = self.active_at = now

    def is_shown(self, directory: int, files: int) -> None:
        """Its listing of a directory showed so many more files."""
        self.shown[directory] = self.shown.get(directory, 0) + files

    def opened(self, id: int, generation: Generation | None, now: float, waited: bool = False) -> None:
        """It, or a process that it started, opens a file. If it has never listed, it holds the current generation."""
        self.opens += 1
        self.waited += waited
        self.handles += 1
        self.files.add(id)
        self.active_at = now
        if generation and not self.holds and self.listed_at is None:
            self.holds[EVERYWHERE] = Hold(generation.number, generation.last_seq)

    def closed(self, now: float) -> None:
        """One of its files is closed."""
        self.handles -= 1
        self.active_at = now

    def is_silent(self, now: float, hold_idle_s: float) -> bool:
        """Whether it has had no file open, and opened none, for longer than hold_idle_s: its holds end then."""
        return not self.handles and now - self.active_at > hold_idle_s

    def release(self) -> None:
        """End its holds. It still counts as a process that has listed."""
        self.holds.clear()
