"""Warns that the parts of a pass (--exact) have few files, in the status and in growfs plan."""

from __future__ import annotations

import math

from growfs.rotation.parts import SPARE_SHARE

FILES_MIN = 300
"""Of fewer, a batch takes a large share, and drop_last drops as much."""


def small_parts(files: int, streamed_bytes: int, kept_bytes: int, cache_bytes: int) -> str | None:
    """A warning that parts have few files, with the --part-size that gives them more; None if they have enough.

    files: of a pass. streamed_bytes, kept_bytes: the sizes of those that it fetches, and of those that stay cached.
    """
    usable_bytes = cache_bytes - cache_bytes // SPARE_SHARE
    room = max(1, usable_bytes - kept_bytes)  # for the streamed files of two parts, as is --part-size
    found = files / max(1, math.ceil(2 * streamed_bytes / room))
    if not streamed_bytes or found >= FILES_MIN:
        return None
    parts = files // FILES_MIN
    uncached_bytes = streamed_bytes + kept_bytes - usable_bytes
    # What is streamed grows with the room: the room for two parts, and what is not cached anyway.
    enough = 2 * uncached_bytes / (parts - 2) if parts > 2 else math.inf
    few = f"parts have fewer than {FILES_MIN} files"
    if enough >= usable_bytes:
        return f"{few}, and the cache is too small for more: if each file is a sample, use growfs.samples"
    percent = math.ceil(100 * enough / cache_bytes)
    return f"{few}: if each file is a sample, pass --part-size {percent}%, or use growfs.samples"
