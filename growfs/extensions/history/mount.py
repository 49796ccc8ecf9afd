"""The history that each mount writes, and the figures in it."""

from __future__ import annotations

from typing import Any

from growfs.daemon.wiring import Feature
from growfs.extensions.history.history import History


class HistoryFeature(Feature):
    """See Feature."""

    def connect(self) -> None:
        """See Feature."""
        history = History(self.mount.database, self.sample)
        self.mount.ending.add(history.save_now)
        self.mount.services.append(history)

    def sample(self) -> dict[str, Any]:
        """The current figures."""
        mount, summary, generation = self.mount, self.mount.usage.summary, self.mount.generations.current
        return {
            "state": mount.prefetch.mount_state.value,
            "generation": mount.generations.number,
            "files": mount.store.resident_files,
            "bytes": mount.store.resident_bytes,
            "limit_bytes": mount.store.room.limit_bytes,
            "listed_files": generation.files if generation else 0,
            "share_files": mount.selection.share.files,
            "files_seen": summary.files_seen,
            "opens": summary.opens,
            "fetched_files": mount.fetcher.traffic.files,
            "fetched_bytes": mount.fetcher.traffic.bytes,
            "evicted_files": mount.store.evicted_files,
            "missed_files": mount.misses.files,
            "wait_ms": int(1000 * mount.misses.wait_s),
        }
