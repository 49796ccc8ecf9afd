"""The room for cached files: what the size of the cache and its disk allow, how much of that is reserved, and how much
is reserved for a file of unknown size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import trio

from growfs import btrfs, disk
from growfs.cache.catalog import UNKNOWN_SIZE, Node
from growfs.cache.full_disk import HiddenQuota, Spare
from growfs.cache.open_files import OpenFiles
from growfs.errors import DiskFull, Unreadable
from growfs.signal import Signal
from growfs.units import CacheSize, flag_size, format_size


class Reservation:
    """Room that one owner holds in order to write a file of at most this size, in bytes.

    Invariant: it is given back once, however often that is requested, or is spent when the file is admitted. An error
    in a `with` block gives it back.
    """

    def __init__(self, room: Room, bytes: int) -> None:
        self.bytes = bytes
        self._room = room
        room.reserved_bytes += bytes

    def resize(self, size: int) -> None:
        """Hold the bytes for a file whose size is now known."""
        before, self.bytes = self.bytes, disk.allocation(size)
        self._room.reserved_bytes += self.bytes - before
        if self.bytes < before:
            self._room.freed.notify()

    def extend(self, need: int) -> None:
        """Also hold free bytes, up to what a file needs."""
        more = min(disk.allocation(need) - self.bytes, self._room.free_bytes())
        if more > 0:
            self.resize(self.bytes + more)

    def split(self, bytes: int) -> Reservation:
        """Give a part of it to another owner."""
        self.spend(bytes)
        return Reservation(self._room, bytes)

    def spend(self, bytes: int | None = None) -> None:
        """Hold this many bytes less, or none: they are now in use."""
        spent = self.bytes if bytes is None else bytes
        self.bytes -= spent
        self._room.reserved_bytes -= spent

    def release(self) -> None:
        """Give the bytes back."""
        if self.bytes:
            self.spend()
            self._room.freed.notify()

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if error:
            self.release()


class Room:
    """Owns the limit of the cache, and what is reserved of it.

    Invariant: resident, reserved and orphaned bytes together are at most limit_bytes, unless the limit was lowered and
    the excess cannot be evicted. They change only on trio's thread, between two awaits, hence atomically.

    freed: notified when there may be more room. resident_bytes: returns the bytes of the resident files. open_files:
    the owner of the orphans.
    """

    def __init__(
        self,
        folder: Path,
        spare: Spare,
        open_files: OpenFiles,
        resident_bytes: Callable[[], int],
        cache_size: CacheSize,
        min_free: int,
    ) -> None:
        self.freed = Signal[[]]()
        self.min_free = min_free
        self.reserved_bytes = 0
        self.quota = HiddenQuota(spare)
        self._folder = folder
        self._spare = spare
        self._open_files = open_files
        self._resident_bytes = resident_bytes
        self.limit_bytes = self.limit_of(cache_size)

    # The size of the cache.

    def limit_of(self, size: CacheSize) -> int:
        """The limit that an option stands for, in bytes."""
        return size.of(disk.free_bytes(self._folder) + self._resident_bytes())

    def set_cache_size(self, size: CacheSize) -> None:
        """Change the limit. `Space.set_cache_size` evicts the excess."""
        self.limit_bytes = self.limit_of(size)
        self.freed.notify()

    @property
    def max_file_bytes(self) -> int:
        """Size of the largest file that fits into the cache."""
        return self.limit_bytes // disk.BLOCK * disk.BLOCK

    @property
    def used_bytes(self) -> int:
        """Bytes that cached files, reservations and orphans take."""
        return self._resident_bytes() + self._open_files.orphan_bytes + self.reserved_bytes

    @property
    def reachable_bytes(self) -> int:
        """How large the cache can become: its limit, or less if its disk has less room; less than now, if others have
        taken that.
        """
        return max(0, min(self.limit_bytes, self.used_bytes - self.short(0)))

    # What is free.

    def short(self, need: int) -> int:
        """Bytes that have to be evicted before a file of `need` bytes fits; negative if space is left.

        Files in flight count as not written yet, so this is too high by their written part. If the disk has run out of
        inodes, the result is `need`. Raises Unreadable.
        """
        allowed = self.limit_bytes if self.quota.bytes is None else self.quota.bytes
        return max(self.short_by_disk(need), self.used_bytes + need - allowed)

    def short_by_disk(self, need: int) -> int:
        """The same, by the size of the cache and the disk figures of statvfs(2). Raises Unreadable."""
        try:
            free, files = disk.room(self._folder)
        except OSError as error:
            raise Unreadable(f"{self._folder}: {error.strerror}; check the cache's disk (dmesg)") from error
        kept = self.min_free + self._spare.lacking_bytes
        short = max(self.used_bytes + need - self.limit_bytes, kept + need + self.reserved_bytes - free)
        return short if files else max(short, need)

    @property
    def excess_bytes(self) -> int:
        """By how much the cached files exceed what the size of the cache, or others on its disk, leave them."""
        return max(0, self.short(-self.reserved_bytes))

    def free_bytes(self) -> int:
        """The bytes that may be reserved, in whole blocks."""
        self.collect_orphans()
        return max(0, -self.short(0)) // disk.BLOCK * disk.BLOCK

    def collect_orphans(self) -> None:
        """Free the bytes of orphans that are no longer mapped; the kernel does not notify of that."""
        if self._open_files.collect_orphans():
            self.freed.notify()

    def reserve(self, size: int) -> Reservation | None:
        """Reserve the bytes for a file of this size; None if the cache is full."""
        self.collect_orphans()
        need = disk.allocation(size)
        return None if self.short(need) > 0 else Reservation(self, need)

    def reserve_half(self, need: int, at_least: int) -> Reservation | None:
        """Reserve half of the free bytes, up to `need`, or all of them if half is less than at_least.

        None if fewer bytes than at_least are free. The other half is left to the next file.
        """
        free = self.free_bytes()
        half = disk.allocation(free // 2)
        bytes = min(disk.allocation(need), half if half >= at_least else free)
        return None if bytes < max(at_least, disk.BLOCK) else Reservation(self, bytes)

    # A disk that refuses more.

    def note_refusal(self, error: DiskFull, since: float, written_bytes: Callable[[], int]) -> bool:
        """Note that the disk refused a file for which there seemed to be room; returns whether a quota was found.

        since: as in HiddenQuota. written_bytes: returns the written part of the files in flight.
        """
        if not self.quota.note_refusal(error, since) or self.short_by_disk(0) > 0:
            return False
        self.quota.learn(self.used_bytes - self.reserved_bytes + written_bytes())
        return True

    async def probe(self, need: int, at_once: bool) -> bool:
        """As HiddenQuota.probe; False while files are in flight: the written part of their space is unknown."""
        return not self.reserved_bytes and await self.quota.probe(need, self.used_bytes, at_once)

    async def commit_deletions(self, freed: int, folder: int) -> None:
        """If the disk limits the cache, let it free the bytes that were just deleted. folder: a descriptor there."""
        if freed and self.short_by_disk(freed) > 0:
            await trio.to_thread.run_sync(btrfs.commit, folder)

    def shortage(self) -> str:
        """Advice if the disk, rather than the size of the cache, ends its growth."""
        free, files = disk.room(self._folder)
        if not files:
            return f"{self._folder}: its disk is out of inodes, so the cache cannot grow; see mkfs -i"
        why = f"of which --min-free keeps {format_size(self.min_free)}"
        if self.quota.bytes is not None and free > self.min_free:
            why = f"but a quota seems to limit the cache to {format_size(self.quota.bytes)}"
        others = max(0, disk.taken_bytes(self._folder) - self.used_bytes)
        if excess := self.excess_bytes:
            until = f"until {format_size(excess)} of it is evicted or {format_size(excess)} of other data is deleted"
            remedy = "lower --min-free"
        else:
            until = f"to its size of {format_size(self.limit_bytes)}"
            remedy = f"pass --cache-size {flag_size(self.reachable_bytes)}"
        return (
            f"{self._folder}: its disk has {format_size(others)} of other data and {format_size(free)} free, {why}, so"
            f" the cache cannot grow {until}; delete something there, or {remedy}"
        )


class SizeEstimate:
    """Estimates unknown sizes: the largest file so far, plus a quarter.

    An estimate that is too small costs a second fetch; one that is too large makes others wait for space. So if it does
    not fit, less is worth a try, but more than the file is known to exceed. The files of a group share the room.
    varies: a file's size the last time is not binding (the file is computed). largest: if sizes vary, bytes of the
    largest cached file.
    """

    def __init__(self, room: Room, varies: bool = False, largest: int | None = None) -> None:
        # For a file that is computed, much is reserved: to compute it twice costs more than to make others wait.
        self.bytes = (1 << 30) if varies else UNKNOWN_SIZE
        self._room = room
        self._varies = varies
        self._largest = 0
        self._exceeded: dict[int, int] = {}
        if largest is not None:
            self._learn(largest)

    def is_guess(self, node: Node) -> bool:
        """Whether the size of a file is not known."""
        return node.size is None or self._varies

    def need(self, node: Node) -> int:
        """Bytes to reserve for a file."""
        exceeded = self._exceeded.get(node.id)
        estimate = self.bytes if self.is_guess(node) else 0
        retry = max(2 * exceeded, self._retry_size) if exceeded else 0
        size = max(estimate, node.size or 0, retry)
        return min(size, self._room.max_file_bytes) if estimate or retry else size

    def most(self, nodes: Sequence[Node]) -> int:
        """Bytes to reserve for files that are fetched together: guesses alone never exceed the cache."""
        return sum(self.divide(nodes, self._room.max_file_bytes))

    def least(self, nodes: Sequence[Node]) -> int:
        """The fewest bytes that are worth a try if `most` does not fit."""
        return sum(self.divide(nodes, sum(map(self._known, nodes)) + self._retry_size))

    def divide(self, nodes: Sequence[Node], bytes: int) -> list[int]:
        """Divide bytes among files: each gets its known need, plus an equal part of the rest, up to the guess. The sum
        of the known needs may exceed `bytes`.
        """
        known = list(map(self._known, nodes))
        guesses = sum(map(self.is_guess, nodes))
        if not (guesses or self._exceeded):  # as for most files
            return known
        guesses = guesses or len(nodes)
        each = max(disk.BLOCK, (bytes - sum(known)) // guesses // disk.BLOCK * disk.BLOCK)
        return [min(disk.allocation(self.need(node)), size + each) for node, size in zip(nodes, known, strict=True)]

    def _known(self, node: Node) -> int:
        """Bytes on disk that a file is known to need; some more for one that turned out larger than expected."""
        exceeded = self._exceeded.get(node.id, 0)
        if not (exceeded or self.is_guess(node)):
            return disk.allocation(node.size or 0)
        return disk.allocation(min(max(node.size or 0, 5 * exceeded // 4), self.need(node)))

    def arrived(self, node: Node, size: int) -> None:
        """Note that a file has turned out to have this size."""
        self._exceeded.pop(node.id, None)
        self._learn(size)

    def _learn(self, size: int) -> None:
        self._largest = max(self._largest, size)
        self.bytes = self._largest + self._largest // 4

    def exceeded(self, node: Node, bytes: int) -> None:
        """Note that a file is larger than `bytes`."""
        self._exceeded[node.id] = bytes
        self.bytes = max(self.bytes, 2 * bytes)

    @property
    def _retry_size(self) -> int:
        """The fewest bytes to reserve for a file that exceeded its estimate.

        Doubling alone, after a first file of 5 kB, fetched a file of 9 MB twelve times.
        """
        return min(32 << 20, self._room.max_file_bytes // 32)
