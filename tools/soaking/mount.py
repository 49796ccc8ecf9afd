"""The mount that the readers read from: it is killed, unmounted and mounted again, with either engine."""

from __future__ import annotations

import os
import random
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from growfs.cache.cache_folder import daemon_of
from growfs.errors import GrowfsError
from growfs.fuse.mounting import mounted_at, unmount
from tools.benchmarks.measure import ROOT, BenchError, run, wait_for
from tools.soaking import processes
from tools.soaking.processes import Usage

COMMAND = [sys.executable, "-c", "import sys; del sys.path[0]; from growfs import main; main()"]
"""Without the checkout, which is the working directory."""


class SoakMount:
    """Owns the mount, its cache, and the growfs that it runs. seen: when each process of its daemons started."""

    def __init__(self, folder: Path, flags: list[object], engines: tuple[str, ...], generator: random.Random) -> None:
        self.mountpoint = folder / "mnt"
        self.mountpoint.mkdir()
        self.cache_dir = folder / "cache"
        self.seen: dict[int, int | None] = {}
        self._installed = folder / "installed"
        shutil.copytree(ROOT / "growfs", self._installed / "growfs")
        self._flags = flags
        self._engines = engines
        self._random = generator

    def mount(self, url: str, endpoint: str) -> None:
        """Mount, even over a dead mount. Raises BenchError if that fails."""
        engine = self._random.choice(self._engines)
        fixed = [url, self.mountpoint, "--cache-dir", self.cache_dir, "--endpoint-url", endpoint, "--engine", engine]
        self._run("mount", *fixed, *self._flags)
        self.pids()

    def _run(self, *words: object) -> None:
        run([*COMMAND, *words], PYTHONPATH=self._installed)

    def umount(self, lazy: bool) -> str:
        """Unmount; returns the command's message if it refused."""
        try:
            self._run("umount", *(["--lazy"] if lazy else []), self.mountpoint)
        except BenchError as error:
            return str(error)
        return ""

    @contextmanager
    def changed(self, option: str, value: object, usual: object) -> Iterator[None]:
        """Give a live option another value during the block."""
        self._run("set", self.mountpoint, f"{option}={value}")
        yield
        self._run("set", self.mountpoint, f"{option}={usual}")

    @contextmanager
    def uninstalled(self) -> Iterator[None]:
        """Remove the growfs that runs during the block, as an upgrade does."""
        package = self._installed / "growfs"
        package.rename(self._installed / "removed")
        yield
        (self._installed / "removed").rename(package)

    @property
    def daemon(self) -> int:
        """The process of the daemon, or 0."""
        mounted = mounted_at(self.mountpoint)
        return int(daemon_of(mounted.cache).get("pid", 0)) if mounted else 0

    def pids(self) -> list[int]:
        daemon = self.daemon
        found = [daemon, *processes.descendants(daemon)] if daemon and processes.started(daemon) else []
        self.seen.update((pid, processes.started(pid)) for pid in found)
        return found

    def kill_worker(self) -> None:
        wait_for(lambda: self.pids()[1:])
        processes.kill(self._random.choice(self.pids()[1:]))

    def usage(self) -> list[Usage]:
        used = [processes.usage(pid) for pid in self.pids()]
        return [usage for usage in used if usage] if used and used[0] else []

    def disk_bytes(self) -> int:
        """Bytes that the cache directory takes on disk."""
        total = 0
        for folder, _, names in os.walk(self.cache_dir):
            for name in names:
                with suppress(OSError):
                    total += os.lstat(os.path.join(folder, name)).st_blocks * 512
        return total

    def log(self) -> Path:
        return next(iter(self.cache_dir.glob("*/log")), self.cache_dir / "log")

    def left(self) -> list[int]:
        return [pid for pid, when in self.seen.items() if when and processes.started(pid) == when]

    def remove(self) -> None:
        """Remove everything, whatever state it is in."""
        self.pids()
        if mounted_at(self.mountpoint):
            with suppress(GrowfsError, OSError):
                unmount(self.mountpoint, lazy=True)
        for pid in self.left():
            processes.kill(pid)
