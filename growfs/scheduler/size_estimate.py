"""How many bytes to reserve for a file before its size is known."""

from __future__ import annotations

from growfs.cache.catalog import UNKNOWN_SIZE, Node

PRODUCED_SIZE = 1 << 30
"""Bytes reserved for the first file of a producer. Running a producer twice costs more than making others wait."""
RETRY_SIZE, RETRY_SHARE = 32 << 20, 32
"""A file that exceeded its estimate reserves at least this many bytes, or this fraction (1/32) of the cache, whichever
is less. Doubling alone, after a first file of 5 kB, fetched a file of 9 MB twelve times."""


class SizeEstimate:
    """Estimates unknown sizes: the largest file so far, and a quarter more.

    An estimate that is too small costs a second fetch; one that is too large makes others wait for space. So where it
    does not fit, less is worth a try, but more than the file is known to exceed.
    varies: the size that a file had the last time does not bind (it is produced).
    """

    def __init__(self, varies: bool = False) -> None:
        self.bytes = PRODUCED_SIZE if varies else UNKNOWN_SIZE
        self._varies = varies
        self._largest = 0
        self._exceeded: dict[int, int] = {}

    def is_guess(self, node: Node) -> bool:
        """Whether the size of a file is not known."""
        return node.size is None or self._varies

    def need(self, node: Node, size_max: int) -> int:
        """Bytes to reserve for a file. size_max: bytes that any file may have."""
        if not self.is_guess(node):
            return node.size or 0
        return min(max(self.bytes, node.size or 0, 2 * self._exceeded.get(node.id, 0)), size_max)

    def least(self, node: Node, size_max: int) -> int:
        """The fewest bytes that are worth a try, where `need` does not fit. size_max: as in `need`."""
        if not self.is_guess(node):
            return node.size or 0
        usual = max(min(RETRY_SIZE, size_max // RETRY_SHARE), node.size or 0)
        return min(max(usual, 5 * self._exceeded.get(node.id, 0) // 4), self.need(node, size_max))

    def learn(self, size: int) -> None:
        """Note that a file had this size."""
        self._largest = max(self._largest, size)
        self.bytes = self._largest + self._largest // 4

    def exceeded(self, node: Node, bytes: int, size_max: int) -> int:
        """Note that a file is larger than `bytes`; returns how many to reserve next. size_max: as in `need`."""
        self._exceeded[node.id] = bytes
        twice = 2 * bytes
        self.bytes = max(self.bytes, twice)
        return min(max(twice, min(RETRY_SIZE, size_max // RETRY_SHARE)), size_max)
