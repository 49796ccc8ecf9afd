"""Waits until enough is cached."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path

from growfs.client.progress import Bar
from growfs.daemon.control_client import ANSWER_S, status_of
from growfs.daemon.running import find_living
from growfs.daemon.status_text import brief, moving, state_text
from growfs.errors import GrowfsError, UsageError
from growfs.status_and_metrics import RESTING, MountState, MountStatus
from growfs.units import count, fraction_of, parsed, seconds, size


@dataclass(frozen=True, slots=True)
class Enough:
    """What to wait for: a number of files, of bytes, or a fraction of all files; otherwise until training can start."""

    files: int | None
    bytes: int | None
    share: float | None

    @classmethod
    def parse(cls, files: str | None, bytes: str | None, fraction: str | None, everything: bool) -> Enough:
        """Parse the values of the flags of `growfs wait`, at most one of which is given. Raises UsageError."""
        if sum(value is not None for value in (files, bytes, fraction)) + everything > 1:
            raise UsageError("wait: use only one of --files, --bytes, --fraction and --all")
        share = None if fraction is None else parsed("wait: --fraction", fraction_of, fraction)
        return cls(
            files=None if files is None else parsed("wait: --files", count, files),
            bytes=None if bytes is None else parsed("wait: --bytes", size, bytes),
            share=1.0 if everything else share,
        )

    @property
    def is_start(self) -> bool:
        """Whether to wait for the start of training."""
        return self.files is None and self.bytes is None and self.share is None

    def progress(self, status: MountStatus) -> tuple[int, int]:
        """(how much is cached, how much should be)."""
        if self.bytes is not None:
            return status.cache.content_bytes, self.bytes
        if self.files is not None:
            return status.cache.files, self.files
        if self.share is not None:
            return status.coverage.files_cached, math.ceil(self.share * status.coverage.files)
        return int(status.ready), 1

    def is_there(self, status: MountStatus) -> bool:
        """Whether enough is cached. A share is of all files, which are known if no listing is under way."""
        done, wanted = self.progress(status)
        return done >= wanted and (self.share is None or (status.remote.listed and not status.remote.listing))


def wait(mountpoint: Path, enough: Enough, timeout: str | None = None) -> MountStatus:
    """Return the status once enough is cached. Raises GrowfsError if that will never happen, or after the timeout."""
    deadline = time.monotonic() + parsed("wait: --timeout", seconds, timeout) if timeout else math.inf
    with Bar("waiting") as bar:
        while True:
            answer_s = min(ANSWER_S, max(5.0, deadline - time.monotonic()))  # the machine may be busy
            now = status_of(find_living(mountpoint).cache, answer_s)
            bar.show(moving(now), *enough.progress(now))
            if enough.is_there(now):
                return now
            draws_nothing = now.state in (*RESTING, MountState.PAUSED)
            is_over = draws_nothing and not (now.remote.listing or now.cache.in_flight_bytes)
            if is_over and not enough.is_start:
                raise GrowfsError(f"{mountpoint}: no more files will be fetched; {state_text(now)} ({brief(now)})")
            if time.monotonic() > deadline:
                raise GrowfsError(f"{mountpoint}: timed out after {timeout}: {brief(now)}; {state_text(now)}")
            time.sleep(0.2)
