"""Helpers of the crash tests: a mount that fails at a label, and the checks after the next mount."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from growfs import disk
from growfs.daemon.control_client import call
from growfs.errors import GrowfsError
from tests.harness import Growfs, files_below, until

DAEMON_GONE_S = 20.0


@dataclass
class Scene:
    """A mount of a remote. url: of the remote. tree: its files. evicted: whether a command evicted files."""

    growfs: Growfs
    url: str
    tree: dict[str, bytes]
    flags: list[str] = field(default_factory=lambda: ["--settle", "0"])
    evicted: bool = False

    def mount(self, fault: str = "", *flags: object, check: bool = True) -> CompletedProcess[str]:
        """Mount with a daemon that fails at `fault` (LABEL:KIND)."""
        self.growfs.env["GROWFS_FAULT"] = fault
        return self.growfs.mount(self.url, *self.flags, *flags, check=check)

    def complete(self) -> None:
        """Return when every file of the tree is local, and nothing is in flight."""
        until(
            lambda: (
                self.growfs.status()["state"] == "complete" and self.growfs.status()["cache"]["files"] == len(self.tree)
            )
        )

    def refresh(self) -> None:
        self.try_command("set", options={"refresh": "0.1s"})

    def try_command(self, command: str, **request: Any) -> str | None:
        """Send a command to the daemon; returns the error, if any. If the daemon dies, that is an error, too."""
        try:
            call(self.growfs.cache, command, **request)
        except GrowfsError as error:
            return str(error)
        return None

    def wait_for_death(self) -> None:
        until(lambda: not alive(self.growfs.pid), DAEMON_GONE_S)

    def check(self) -> None:
        """Mount again without a fault: no partial file is visible, all files come back, and the status is right."""
        self.mount("", "--no-wait")
        assert self.growfs.content().items() <= self.tree.items()
        if self.evicted:  # files evicted by a command return only by a command
            assert self.try_command("fetch", globs=["*"]) is None
        self.complete()
        self.check_whole()
        self.growfs.umount()

    def check_whole(self) -> None:
        """Every file is listed with the remote's content; the cache holds nothing else; the status is right."""
        assert self.growfs.content() == self.tree
        cache = self.growfs.cache
        until(lambda: not files_below(cache / "partial"))  # a probe may be under way
        assert {path: (cache / "files" / path).read_bytes() for path in files_below(cache / "files")} == self.tree
        status = self.growfs.status()["cache"]
        assert status["in_flight_bytes"] == 0
        assert status["orphan_bytes"] == 0
        assert status["files"] == len(self.tree)
        assert status["content_bytes"] == sum(map(len, self.tree.values()))
        assert status["bytes"] == sum(disk.allocated(stat) for _, stat in disk.walk_files(cache / "files"))


def alive(pid: int) -> bool:
    """Whether a process runs. A zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def kill_workers(daemon: int) -> int:
    """SIGKILL every worker of a daemon, but not the fork server; returns how many."""
    workers = [worker for fork_server in children(daemon) for worker in children(fork_server)]
    for worker in workers:
        with contextlib.suppress(ProcessLookupError):  # the kernel reaps them, at any moment
            os.kill(worker, signal.SIGKILL)
    return len(workers)
