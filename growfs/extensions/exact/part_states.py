"""The states of the parts of a pass, from when there is room for one until it makes room for another.

    state         meaning                          the methods that lead to it
    unknown       its files were not looked up     forget: its pass is divided anew; found: others come before it
    lacks files   some are still to be fetched     found; lose: some were evicted
    complete      it can begin                     found; note_arrived, note_failed: of the last file that it lacked
    begun         the root shows it                begin
    in use        a folder of it was opened        PartsInUse.open
    over          it has made room                 PartsInUse.end

A part in use makes room for another one once each of its files was opened (also the kept ones: they may be all that a
slow process reads), and nothing of it is open. A process that opens less of it, or comes late, does not hold up the
others: they get its room once nothing of it was open for some time. Once it is opened again, the rest of its files is
enough.

Uses neither the clock nor /proc.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass

from growfs.bitmaps import BitMap64
from growfs.extensions.exact.division import Due
from growfs.rotation.parts import Part, PassPosition
from growfs.rotation.pass_order import Amount
from growfs.signal import Signal

FORGET_S = 60.0
"""How long a part all of whose files stay counts as in use after it was last opened."""


class PartsToCome:
    """Owns what the parts that come next lack: what a look-up has found, less what has arrived since it began.
    `changed` notifies of what a process waits for.

    lacking: the missing files of each part that is not unknown, and their sizes; the part that comes first before the
    others. missing: how much is to be fetched for these and for later parts; None if that is unknown. failed: the ids
    of files that could not be fetched since they were looked up.
    """

    def __init__(self) -> None:
        self.changed = Signal[[]]()
        self.lacking: dict[PassPosition, dict[int, int]] = {}
        self.missing: Amount | None = None
        self.failed = BitMap64()
        self._wanted = BitMap64()  # the ids that `missing` counts
        self._arrived: dict[int, int] | None = None  # since a look-up began, if one is under way: ids and sizes

    def look_up(self) -> None:
        """Note that a look-up begins: what it finds may have arrived meanwhile."""
        self._arrived = {}

    def found(self, parts: Sequence[PassPosition], due: Due) -> None:
        """Note what it has found. parts: those that come next."""
        self._wanted, self.missing = due.lacking, Amount(len(due.lacking), due.bytes)
        self.lacking = dict(zip(parts, due.of_parts, strict=True))
        arrived, self._arrived = self._arrived or {}, None
        for id, size in arrived.items():
            self.note_arrived(id, size)
        self.failed -= self._wanted
        self.changed.notify()

    def note_arrived(self, id: int, size: int) -> bool:
        """Note that a file is cached. Returns whether it was to be fetched."""
        if self._arrived is not None:
            self._arrived[id] = size
        is_wanted = id in self._wanted
        if is_wanted:
            self._wanted.discard(id)
            self.missing = self.missing and self.missing - Amount(1, size)
        self._take_off(id)
        return is_wanted

    def note_failed(self, id: int) -> None:
        """Note that a file cannot be fetched: no part waits for it."""
        self.failed.add(id)
        self._take_off(id)

    def _take_off(self, id: int) -> None:
        for files in self.lacking.values():
            files.pop(id, None)
        self.changed.notify()

    def lose(self, part: PassPosition, ids: BitMap64) -> None:
        """Note that files of a part were evicted. Their sizes are found by the next look-up."""
        self.lacking[part] = dict.fromkeys(ids, 0)

    def forget(self, pass_: int) -> None:
        """Let the parts of a pass be unknown."""
        self.lacking = {part: files for part, files in self.lacking.items() if part.pass_ != pass_}

    def begin(self, part: PassPosition) -> None:
        """Note that a part begins. What those after it lack is not known until the next look-up."""
        self.lacking.pop(part, None)
        self.missing = None
        self.changed.notify()


@dataclass(eq=False, slots=True)
class Use:
    """A part that is in use. unopened: ids of its files. active_at: when one was open last."""

    part: Part
    unopened: BitMap64
    active_at: float


class PartsInUse:
    """Owns these parts, in the order in which they were first opened. `opened` notifies of each more. Times are in
    seconds on any clock.
    """

    def __init__(self) -> None:
        self.opened = Signal[[]]()
        self.uses: dict[PassPosition, Use] = {}
        self._unread: dict[PassPosition, BitMap64] = {}  # what was not opened of parts that made room all the same

    @property
    def without_room(self) -> set[PassPosition]:
        """Those of them that take no room: all of their files stay."""
        return {position for position, use in self.uses.items() if not use.part.to_read}

    def find(self, position: PassPosition) -> Part | None:
        """The generation that is this part, if it is in use."""
        return use.part if (use := self.uses.get(position)) else None

    def open(self, part: Part, now: float) -> None:
        """Note that a folder of a part was opened. That does not prolong its use: a monitor may walk all folders."""
        if part.position not in self.uses:
            # A rank that is behind the others reads its share only, and can then go on.
            unread = self._unread.pop(part.position, BitMap64()) & part.to_read
            self.uses[part.position] = Use(part, unread or BitMap64(part.to_read), now)
            self.opened.notify()

    def note_opened(self, id: int, now: float) -> None:
        """Note that a file was opened."""
        for use in self.uses.values():
            if id in use.part.to_read:
                use.unopened.discard(id)
                use.active_at = now

    def note_gone(self, id: int) -> None:
        """Note that the remote has deleted or replaced a file: it cannot be opened any more."""
        for use in self.uses.values():
            use.unopened.discard(id)

    def end(
        self,
        now: float,
        quiet_s: float,
        silence_s: float | None,
        open_ids: Set[int],
        is_open: Callable[[Part], bool],
    ) -> list[PassPosition]:
        """End the use of parts that make room, and return them.

        quiet_s: how long nothing of a part was open that was read. silence_s: the same for one that was not read; None
        if no process waits for its room. open_ids: the files that are open. is_open: whether a folder of a part is.
        """
        ended, opened = list[PassPosition](), BitMap64(open_ids)
        for position, use in list(self.uses.items()):
            to_read = use.part.to_read
            if is_open(use.part) or not to_read.isdisjoint(opened):
                use.active_at = now
            is_read = bool(to_read) and not use.unopened
            is_silent = silence_s is not None and not ended and now - use.active_at > silence_s
            is_past = not to_read and now - use.active_at > FORGET_S
            if is_silent or is_past or (is_read and now - use.active_at >= quiet_s):
                del self.uses[position]
                self._unread = {each: ids for each, ids in self._unread.items() if each.pass_ == position.pass_}
                self._unread[position] = use.unopened
                use.part.reading.is_over = True  # some of its files will be gone
                ended.append(position)
        return ended
