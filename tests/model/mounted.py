"""A real mount of a folder as a driver of the machine: the command, the daemon, its workers, the kernel and processes.

The daemon has a clock that can be moved, and says when it has nothing left to do; see `driven_daemon`.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any

from growfs import disk
from growfs.cache.cache_folder import read_only
from growfs.cache.schema import ROOT
from growfs.daemon.control_client import call
from growfs.fuse.mounting import mounted_at, unmount
from tests.forkserver import SETUP_VARIABLE
from tests.harness import Growfs
from tests.model import driven_daemon
from tests.model.process import ReaderProcess
from tests.model.remote import EPOCH_NS, Remote

STEP_S, STEPS = 0.25, 24
"""The clock is moved by so much, so often, for the daemon to become quiet: it polls for space every 5 s."""
CALL_STEPS_MAX = 200
NODES = "SELECT id, parent, name, is_dir FROM node"
CALL_S = 0.05
"""A call that takes longer waits for time to pass."""


class FolderRemote(Remote):
    """The remote of the model as a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._listing_hangs = folder.with_name("hangs")
        super().__init__()
        folder.mkdir()

    @property
    def hangs(self) -> bool:
        return self._listing_hangs.exists()

    @hangs.setter
    def hangs(self, hangs: bool) -> None:
        if hangs:
            self._listing_hangs.touch()
        else:
            self._listing_hangs.unlink(missing_ok=True)

    def put(self, path: str, blocks: int) -> None:
        super().put(path, blocks)
        new, file = self.folder.with_name("new"), self.folder / path
        new.write_bytes(self.content(path))
        mtime_ns = EPOCH_NS + self.version * 10**9
        os.utime(new, ns=(mtime_ns, mtime_ns))
        file.parent.mkdir(parents=True, exist_ok=True)
        new.rename(file)

    def delete(self, path: str) -> None:
        super().delete(path)
        (self.folder / path).unlink()


class Reader:
    """A process that reads the mount. The methods are those of `in_process.Reader`."""

    def __init__(self, mount: Mounted, process: ReaderProcess) -> None:
        self._mount = mount
        self._process = process
        self._inodes: dict[int, int] = {}

    def listing(self, directory: str) -> Callable[[], dict[str, int]]:
        return partial(self._process.call, "list", directory)

    def opening(self, path: str) -> Callable[[], int]:
        return partial(self._open, path)

    def _open(self, path: str) -> int:
        fd = int(self._process.call("open", path))
        content = self.read(fd)
        cached = self._mount.cache / "files" / path
        # It may have been replaced by now.
        self._inodes[fd] = cached.stat().st_ino if cached.read_bytes() == content else -int(content.split(b" ", 1)[0])
        return fd

    def list(self, directory: str) -> dict[str, int]:
        return dict(self._mount.call(self.listing(directory)))

    def open(self, path: str) -> int:
        return int(self._mount.call(self.opening(path)))

    def generation(self) -> int:
        return self._mount.generation_of(self._process.pid)

    def read(self, fd: int) -> bytes:
        return bytes(self._process.call("read", fd))

    def identity(self, fd: int) -> tuple[int, int]:
        inode = self._inodes[fd]
        return inode, int(any(inode == stat.st_ino for _, stat in disk.walk_files(self._mount.cache / "files")))

    def close(self, fd: int) -> None:
        self._mount.call(partial(self._process.call, "close", fd))

    def map(self, fd: int) -> Mapping:
        return Mapping(self._process, int(self._process.call("map", fd)))

    def fork(self) -> Reader:
        return self._mount.reader_of(self._process.fork())

    def end(self) -> None:
        self._process.end()
        self._mount.settle()


class Mapping:
    """A mapping of a process."""

    def __init__(self, process: ReaderProcess, number: int) -> None:
        self._process, self._number = process, number

    def close(self) -> None:
        self._process.call("unmap", self._number)


class Mounted:
    """A mount of a folder, with the methods of `InProcess`. folder: an empty one, for remote, cache and mountpoint."""

    def __init__(self, folder: Path, engine: str) -> None:
        self.remote = FolderRemote(folder / "remote")
        self._growfs = Growfs(folder)
        self._growfs.env |= {
            "GROWFS_ENGINE": engine,
            SETUP_VARIABLE: f"import {driven_daemon.__name__} as daemon; daemon.install({str(folder / 'hangs')!r})",
        }
        self._processes: list[ReaderProcess] = []
        self._threads = ThreadPoolExecutor()

    # The mount.

    @property
    def cache(self) -> Path:
        return self._growfs.cache

    def mount(self, **options: Any) -> None:
        flags: list[object] = ["--no-wait"]
        for name, values in options.items():
            for value in values if isinstance(values, list) else [values]:
                flags += [f"--{name.replace('_', '-')}", value]
        self._growfs.mount(self.remote.folder, *flags)
        self.settle()

    def unmount(self) -> None:
        call(self.cache, "go_on")
        self._growfs.umount()

    def crash(self) -> None:
        self._growfs.kill()
        unmount(self._growfs.mountpoint, lazy=True)

    def lose_power(self) -> None:
        connection = sqlite3.connect(self.cache / "catalog.sqlite")
        with connection:
            connection.execute("UPDATE meta SET value = 'another' WHERE key = 'boot_id'")
        connection.close()

    def end(self) -> None:
        for process in self._processes:
            process.end()
        self._threads.shutdown()
        if mounted_at(self._growfs.mountpoint):
            self.crash()
        assert "Traceback" not in self._growfs.log()

    # What readers and commands do.

    def reader(self) -> Reader:
        return self.reader_of(ReaderProcess.start(self._growfs.mountpoint))

    def reader_of(self, process: ReaderProcess) -> Reader:
        """A process as a reader of the mount, which `end` ends."""
        self._processes.append(process)
        return Reader(self, process)

    def command(self, name: str, **arguments: Any) -> Any:
        return self.call(partial(call, self.cache, name, **arguments))

    def call(self, function: Callable[[], Any]) -> Any:
        (result,) = self.together(function)
        if isinstance(result, BaseException):
            raise result
        return result

    def together(self, *functions: Callable[[], Any]) -> list[Any]:
        running = [self._threads.submit(function) for function in functions]
        for _ in range(CALL_STEPS_MAX):
            if not wait(running, CALL_S).not_done:
                self._idle()
                return [future.exception() or future.result() for future in running]
            self._idle(STEP_S)
        raise AssertionError("a call hangs")

    def settle(self, seconds: float = 0) -> None:
        self._idle(seconds, STEPS)

    def _idle(self, seconds: float = 0, steps: int = 0) -> None:
        call(self.cache, "idle", seconds=seconds, steps=steps, step_s=STEP_S)

    def list_remote(self) -> None:
        call(self.cache, "set", options={"refresh": f"{STEP_S}s"})
        self._idle(STEP_S)  # the last listing may have ended at this very moment
        call(self.cache, "set", options={"refresh": "0"})

    def names(self) -> set[str]:
        connection = read_only(self.cache / "catalog.sqlite")
        rows = {id: (parent, name, is_dir) for id, parent, name, is_dir in connection.execute(NODES)}
        connection.close()

        def path_of(id: int) -> str:
            parent, name, _ = rows[id]
            return name if parent == ROOT else f"{path_of(parent)}/{name}"

        return {path_of(id) for id, (_, _, is_dir) in rows.items() if not is_dir}

    def cache_figures(self) -> dict[str, int]:
        return dict(self._growfs.status()["cache"])

    def has_kept_last(self) -> bool:
        return self.keeps_last

    keeps_last = True
    """`driven_daemon` has switched the exception off."""
    has_jobs = False
    """All processes are children of one, so they are one job."""
    can_fail = False
    """Whether its disk can be full, and a listing can fail."""

    def free_bytes(self) -> int:
        return sys.maxsize

    def generation_of(self, pid: int) -> int:
        (reader,) = [reader for reader in self._growfs.status()["readers"] if reader["pid"] == pid]
        return int(reader["generation"])

    def generation(self) -> int:
        return int(self._growfs.status()["generation"])
