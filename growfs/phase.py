"""The words for what a mount is doing, and for what it was asked to wait."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class State(enum.Enum):
    """What population is doing; the words of `status`."""

    LISTING = "listing"
    SEEDING = "seeding"
    FILLING = "filling"
    ROTATING = "rotating"
    HELD = "held"
    COMPLETE = "complete"
    PAUSED = "paused"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Ask:
    """What a mount waits for before it returns. Nothing given: every directory, and a tenth of the cache."""

    files: int | None = None
    bytes: int | None = None
    nothing: bool = False
    list_timeout_s: float = 60.0

    @property
    def explicit(self) -> bool:
        """Whether a number was given."""
        return self.files is not None or self.bytes is not None
