"""The order in which fetched files are admitted, whatever the order in which workers finish them.

A reorder window: drawn groups are admitted in the order drawn, so the result does not depend on the number of workers.
"""

from __future__ import annotations

from collections import deque

from growfs.scheduler.in_flight import Download, DownloadGroup

BATCH_MAX = 256
"""Files admitted in one transaction."""


class AdmissionQueue:
    """Owns the window of drawn groups. A group that a reader waits for, or that was not drawn, does not wait in it."""

    def __init__(self) -> None:
        self._window: deque[DownloadGroup] = deque()
        self._prioritized: deque[DownloadGroup] = deque()

    def __len__(self) -> int:
        return len(self._window)

    def append(self, group: DownloadGroup) -> None:
        """Admit a drawn group after all that are in the window already."""
        self._window.append(group)

    def release(self, group: DownloadGroup) -> None:
        """Have those that were drawn after the group wait for it no longer; it is admitted once it is fetched."""
        if group.drawn:
            group.drawn = False
            self._window.remove(group)

    def prioritize(self, group: DownloadGroup) -> None:
        """Admit a group next if it is fetched completely, and is urgent or was not drawn."""
        if group.is_fetched and (not group.drawn or any(download.urgent for download in group.downloads)):
            self._prioritized.append(group)

    def next_batch(self) -> list[Download]:
        """The next downloads to admit, in order: prioritized groups, then the head of the window."""
        batch: list[Download] = []
        while self._prioritized and len(batch) < BATCH_MAX:
            group = self._prioritized.popleft()
            if group.is_fetched:  # else it was admitted from the window meanwhile
                if group in self._window:
                    self._window.remove(group)
                batch.extend(group.downloads)
        while self._window and len(batch) < BATCH_MAX:
            head = self._window[0]
            if head.is_fetched:
                batch.extend(head.downloads)
            elif not head.is_finished:
                break
            self._window.popleft()
        return batch
