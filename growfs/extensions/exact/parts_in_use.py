"""Which parts of a pass are in use, because they were opened by their path. Uses neither the clock nor /proc.

A part makes room for another one once each of its files was opened (also the kept ones: they may be all that a slow
process reads), and nothing of it is open. A process that opens less of it, or comes late, does not hold up the others:
they get its room once nothing of it was open for some time. Once it is opened again, the rest of its files is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass

from growfs.bitmaps import BitMap64
from growfs.rotation.parts import Part, PassPosition
from growfs.signal import Signal

FORGET_S = 60.0
"""How long a part all of whose files stay counts as in use after it was last opened."""


@dataclass(eq=False, slots=True)
class _Use:
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
        self._uses: dict[PassPosition, _Use] = {}
        self._unread: dict[PassPosition, BitMap64] = {}  # what was not opened of parts that made room all the same

    def __len__(self) -> int:
        return len(self._uses)

    def __iter__(self) -> Iterator[PassPosition]:
        return iter(self._uses)

    @property
    def without_room(self) -> set[PassPosition]:
        """Those of them that take no room: all of their files stay."""
        return {position for position, use in self._uses.items() if not use.part.to_read}

    def parts(self) -> list[Part]:
        """The same, as generations."""
        return [use.part for use in self._uses.values()]

    def find(self, position: PassPosition) -> Part | None:
        """The generation that is this part, if it is in use."""
        use = self._uses.get(position)
        return use.part if use else None

    def open(self, part: Part, now: float) -> None:
        """Note that a folder of a part was opened. That does not prolong its use: a monitor may walk all folders."""
        if part.position not in self._uses:
            # A rank that is behind the others reads its share only, and can then go on.
            unread = self._unread.pop(part.position, BitMap64()) & part.to_read
            self._uses[part.position] = _Use(part, unread or BitMap64(part.to_read), now)
            self.opened.notify()

    def note_opened(self, id: int, now: float) -> None:
        """Note that a file was opened."""
        for use in self._uses.values():
            if id in use.part.to_read:
                use.unopened.discard(id)
                use.active_at = now

    def note_gone(self, id: int) -> None:
        """Note that the remote has deleted or replaced a file: it cannot be opened any more."""
        for use in self._uses.values():
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
        for position, use in list(self._uses.items()):
            to_read = use.part.to_read
            if is_open(use.part) or not to_read.isdisjoint(opened):
                use.active_at = now
            is_read = bool(to_read) and not use.unopened
            is_silent = silence_s is not None and not ended and now - use.active_at > silence_s
            is_past = not to_read and now - use.active_at > FORGET_S
            if is_silent or is_past or (is_read and now - use.active_at >= quiet_s):
                del self._uses[position]
                self._unread = {each: ids for each, ids in self._unread.items() if each.pass_ == position.pass_}
                self._unread[position] = use.unopened
                use.part.is_over = True  # some of its files will be gone
                ended.append(position)
        return ended
