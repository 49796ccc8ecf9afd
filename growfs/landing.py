"""In which order flights are admitted: those drawn in the order drawn, whatever the order in which they are fetched."""

from __future__ import annotations

from collections import deque

from growfs.flight import Flight, Unit

BATCH_MAX = 256


class Landing:
    """Owns the window: units that were drawn and wait for those before them. One that somebody waits for does not."""

    def __init__(self) -> None:
        self._window: deque[Unit] = deque()
        self._first: deque[Unit] = deque()

    def __len__(self) -> int:
        return len(self._window)

    def expect(self, unit: Unit) -> None:
        """A unit is drawn: it lands after all that are expected already."""
        self._window.append(unit)

    def hurry(self, unit: Unit) -> None:
        """Have a unit land as soon as all of it is fetched; that may be now."""
        if unit.has_landed and (not unit.drawn or any(flight.urgent for flight in unit.flights)):
            self._first.append(unit)

    def ready(self) -> list[Flight]:
        """The next flights to admit, in order: those that wait for no turn, then the head of the window."""
        batch: list[Flight] = []
        while self._first and len(batch) < BATCH_MAX:
            unit = self._first.popleft()
            if unit.has_landed:  # else it landed in its turn meanwhile
                if unit in self._window:
                    self._window.remove(unit)
                batch.extend(unit.flights)
        while self._window and len(batch) < BATCH_MAX:
            head = self._window[0]
            if head.has_landed:
                batch.extend(head.flights)
            elif not head.is_over:
                break
            self._window.popleft()
        return batch
