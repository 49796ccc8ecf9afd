"""The object that `growfs.mount` returns."""

from __future__ import annotations

import atexit
import os
import subprocess
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from growfs.cache.cache_folder import daemon_of
from growfs.client.progress import Bar
from growfs.client.wait import Enough, wait
from growfs.daemon.control_client import status_of
from growfs.daemon.launch import start, stop_or_detach
from growfs.daemon.option_parsers import absolute
from growfs.daemon.options import Options, storage_option_texts
from growfs.daemon.running import find_living, is_dead
from growfs.errors import GrowfsError
from growfs.fuse.mounting import mounted_at
from growfs.paths import absolute_path
from growfs.status_and_metrics import MountStatus
from growfs.trust import resolve
from growfs.units import seconds

if TYPE_CHECKING:
    from growfs.extensions.report.page import Report


@dataclass(frozen=True, slots=True)
class Given:
    """The parameters that `growfs.mount` was called with. mountpoint: None for a temporary one."""

    url: str
    mountpoint: Path | None
    options: Options


class Mount:
    """A mount that this process started. It ends with `unmount`, with a `with` block, or when the interpreter exits.

    If it was requested several times, it ends with the last of the `with` blocks. path: the mountpoint. daemon: the
    process that serves it.
    """

    def __init__(self, given: Given, path: Path, daemon: subprocess.Popen[bytes]) -> None:
        self.path = path
        self._given = given
        self._daemon = daemon
        self._users = 1
        _mounts.append(self)
        atexit.register(self._unmount_at_exit)

    def unmount(self) -> None:
        """Unmount, and remove a temporary mountpoint. Cached files stay for the next mount.

        A file that is still open stays readable, and the daemon ends once it is closed. Does nothing the second time.
        """
        if self not in _mounts:
            return
        self._unmount()
        _mounts.remove(self)
        atexit.unregister(self._unmount_at_exit)
        if self._daemon.poll() is None:
            threading.Thread(target=self._daemon.wait, daemon=True).start()

    def status(self) -> MountStatus:
        """The current status: the content of status.json. Raises GrowfsError if the mount is gone."""
        return status_of(find_living(self.path).cache)

    def wait(
        self,
        *,
        files: int | str | None = None,
        bytes: int | str | None = None,
        fraction: float | str | None = None,
        all: bool = False,
        timeout: float | str | None = None,
    ) -> MountStatus:
        """Wait until enough is cached, as `growfs wait` does; returns the status.

        Give one of: a number of files; bytes, as 10**9 or "1GB"; a fraction of all files, as 0.5 or "50%"; all of them.
        With none of these, wait until training can start. timeout: in seconds, or as "10m". Raises GrowfsError if that
        much will never be cached, or after the timeout.
        """
        enough = Enough.parse(_text(files), _text(bytes), _text(fraction), all)
        return wait(self.path, enough, _text(timeout))

    def report(self, last: float | str | None = None) -> Report:
        """A page with charts of the mount's activity, which a notebook displays.

        last: only the last so many seconds, or as "2h". Raises GrowfsError if the extra `report` is not installed.
        """
        from growfs.extensions.report.page import Report

        return Report.of(self.path, None if last is None else seconds(str(last)))

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *error: object) -> None:
        with _lock_of(self._given):
            self._users -= 1
            if not self._users:
                self.unmount()

    def _is_mounted(self) -> bool:
        """Whether the mount on the path is that of this daemon, which may also have died. Another may be there by now,
        even while this daemon serves files that are still open.
        """
        row = mounted_at(self.path)
        return row is not None and (daemon_of(row.cache).get("pid") == self._daemon.pid or is_dead(self.path))

    def _share(self) -> Mount:
        """Note that the mount was requested again."""
        self._users += 1
        return self

    def __repr__(self) -> str:
        ended = "" if self in _mounts else ", unmounted"
        return f"<growfs mount of {self._given.url} on {self.path}{ended}>"

    def _unmount_at_exit(self) -> None:
        if self in _mounts:  # a process forked from it also runs this function
            self._unmount()

    def _unmount(self) -> None:
        if self._is_mounted():
            stop_or_detach(self.path)  # a file may still be open, perhaps in a traceback
        if self._given.mountpoint is None:
            with suppress(OSError):
                self.path.rmdir()


_mounts: list[Mount] = []
"""The mounts of this process that were not unmounted: a notebook may run a cell again."""
os.register_at_fork(after_in_child=_mounts.clear)  # they are its parent's
_locks: dict[str, threading.Lock] = {}
"""By the parameters: while a thread mounts, another that wants the same mount waits and then shares it."""
os.register_at_fork(after_in_child=_locks.clear)  # the threads that hold them do not exist in a fork


def _lock_of(given: Given) -> threading.Lock:
    return _locks.setdefault(str(given), threading.Lock())


def _text(value: float | str | None) -> str | None:
    return None if value is None else str(value)


def _temporary_mountpoint() -> Path:
    try:
        return resolve(Path(tempfile.mkdtemp(prefix="growfs-")).absolute())
    except OSError as error:
        raise GrowfsError(
            f"there is no temporary folder to mount on ({error}); set TMPDIR to one, or give a mountpoint"
        ) from None


def mount(
    url: str, mountpoint: str | os.PathLike[str] | None, storage_options: dict[str, Any] | None, values: dict[str, Any]
) -> Mount:
    """See `growfs.mount`. values: options by field name, as text."""
    if storage_options:
        values = {**values, "storage_option": storage_option_texts(storage_options)}
    options = Options.parse(values)
    given = Given(absolute(url), None if mountpoint is None else resolve(absolute_path(mountpoint)), options)
    with _lock_of(given):
        same = (mount for mount in _mounts if mount._given == given and mount._daemon.poll() is None)
        known = next((mount for mount in same if mount._is_mounted()), None)
        return known._share() if known else _mount(given)


def _mount(given: Given) -> Mount:
    path = given.mountpoint or _temporary_mountpoint()
    try:
        with Bar("mounting") as bar:
            daemon, _ = start(given.url, path, given.options, bar.show_start)
    except BaseException:
        if given.mountpoint is None:
            path.rmdir()
        raise
    return Mount(given, path, daemon)
