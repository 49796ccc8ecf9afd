"""The mounts of a node: one for each volume, in the state folder, with bind mounts of it at the paths of pods.

The mount table is the only record of them, so the driver may be killed and started again at any time. A mount is ended
once no bind mount of it is left; its cache stays.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from growfs import trust
from growfs.cache.cache_folder import daemon_of
from growfs.client.mount_command import mount_command, mount_error
from growfs.daemon.control_client import status_of
from growfs.daemon.launch import stop_or_detach
from growfs.daemon.running import is_dead
from growfs.daemon.status_text import state_text
from growfs.errors import GrowfsError
from growfs.extensions.csi import cgroups
from growfs.extensions.csi.volumes import CREDENTIALS, Volume
from growfs.fuse.mounting import MountRow, create_mountpoint, mounted_at, mounts, unmount
from growfs.status_and_metrics import MountState, MountStatus
from growfs.syscalls import bind_mount, memfd_create
from growfs.version import __version__

log = logging.getLogger(__name__)

WAIT_S = 30.0
"""How long a pod may wait until the mount for another pod is done, before kubelet has to ask again."""
ANSWER_S = 10.0
"""How long a daemon may take to report its status."""
HARMLESS = re.compile(
    r"PATH|LD_LIBRARY_PATH|PYTHON\w+|LANG|LC_\w+|TZ|SSL_CERT_FILE|SSL_CERT_DIR|\w+_CA_BUNDLE|(HTTPS?|ALL|NO)_PROXY",
    re.IGNORECASE,
)
"""The variables of the driver that an isolated volume gets: none that may hold, find or redirect credentials."""
GIVEN_UP = "the pod was deleted before training could start"


class VolumeBusy(GrowfsError):
    """Another request for the same volume is being answered."""


class NotPublished(GrowfsError):
    """There is no mount at a path."""


class Claims:
    """Owns the set of names that a request is working on."""

    def __init__(self) -> None:
        self._held: set[str] = set()
        self._released = threading.Condition()

    @contextmanager
    def hold(self, name: str, wait_s: float = 0.0) -> Iterator[None]:
        """Hold a name during the block. Raises VolumeBusy if another thread holds it for longer."""
        with self._released:
            if not self._released.wait_for(lambda: name not in self._held, wait_s):
                raise VolumeBusy(f"{name}: another request for this volume is still running; repeat this one later")
            self._held.add(name)
        try:
            yield
        finally:
            with self._released:
                self._held.remove(name)
                self._released.notify_all()


class NodeMounts:
    """Owns the state folder, and the set of paths for which a mount is to be given up, because the pod is deleted.

    control_groups: where control groups are mounted.
    """

    def __init__(self, folder: Path, control_groups: Path) -> None:
        with trust.open_folder(folder, "choose another folder", makes=trust.MADE) as state:
            self._mounts, self._temporary = state.path / "mounts", state.path / "tmp"
            for path in (self._mounts, self._temporary):
                os.close(trust.open_below(state, path.name, "choose another folder", makes=0o700).fd)
            self.key = _key(state.path / "key")
        self._control_groups = control_groups
        self._claims = Claims()
        self._leaving: set[Path] = set()

    def publish(self, volume: Volume, target: Path) -> None:
        """Mount a volume at the path of a pod, unless that has a live mount. Raises GrowfsError or OSError.

        If the daemon of the volume died, it is mounted again, also at the paths of the other pods.
        """
        with self._claims.hold(str(target)):
            if _lives(target):  # kubelet repeats the request; what a container has mounted cannot be changed
                return
            with self._claims.hold(volume.id, WAIT_S):
                row = self._ready(volume, self._mounts / volume.id, target)
                if mounted_at(target) is None:
                    create_mountpoint(target)
                _bind(row.mountpoint, target)
                self._repair(row)

    def unpublish(self, target: Path) -> None:
        """Unmount at the path of a pod, and remove the folder. Raises GrowfsError or OSError."""
        self._leaving.add(target)
        try:
            with self._claims.hold(str(target), WAIT_S):
                while row := mounted_at(target):
                    unmount(row.mountpoint, lazy=True)
                with suppress(FileNotFoundError):
                    target.rmdir()
        finally:
            self._leaving.discard(target)
        self.sweep()

    def status(self, target: Path) -> tuple[MountStatus | None, str]:
        """(status of the mount at the path of a pod, None if its daemon does not answer; what is wrong with it).

        Raises NotPublished.
        """
        row = mounted_at(target)
        if row is None:
            raise NotPublished(f"{target}: growfs is not mounted there")
        try:
            if is_dead(target):
                return None, "the daemon ended; the volume is mounted again when kubelet repeats NodePublishVolume"
            status = status_of(row.cache, ANSWER_S)
        except GrowfsError as error:
            return None, str(error)
        return status, state_text(status) if status.state in (MountState.WAITING, MountState.ERROR) else ""

    def sweep(self) -> None:
        """End the mounts of which no bind mount is left, unless a pod is about to get one."""
        for row in mounts():
            if row.mountpoint.parent == self._mounts:
                with suppress(VolumeBusy), self._claims.hold(row.mountpoint.name):
                    if not _bound(row):
                        self._end(row.mountpoint)
        for name in cgroups.names(self._control_groups):
            with suppress(VolumeBusy), self._claims.hold(name):
                cgroups.remove(self._control_groups, name)

    def _ready(self, volume: Volume, base: Path, target: Path) -> MountRow:
        """The mount of a volume, once training can start."""
        if not _lives(base):
            self._mount(volume, base, target)
        row = mounted_at(base)
        if row is None:
            raise GrowfsError(f"{base}: was unmounted by another program; mount it again")
        # It may be that of a driver that was killed while it mounted. An older version was ready long ago.
        while daemon_of(row.cache).get("version") == __version__ and not status_of(row.cache, ANSWER_S).ready:
            if target in self._leaving:
                raise GrowfsError(f"{target}: {GIVEN_UP}")
            time.sleep(0.1)
        return row

    def _repair(self, row: MountRow) -> None:
        """Mount also where an earlier daemon of the same volume died: for other pods, and their subPaths."""
        for path, root in {bound.mountpoint: bound.root for bound in _bound(row)}.items():
            try:
                with suppress(VolumeBusy), self._claims.hold(str(path)):
                    if is_dead(path):
                        _bind(row.mountpoint / root.lstrip("/"), path)
            except GrowfsError as error:  # kubelet also repeats the requests for the others
                log.warning("%s", error)

    def _mount(self, volume: Volume, base: Path, target: Path) -> None:
        """Mount in a process of its own, with the credentials in its environment; the driver has none of them."""
        log.info("mounting the volume %s", volume.id)
        inherited = {name: text for name, text in os.environ.items() if not name.startswith("GROWFS_")}
        if volume.is_isolated:  # files below the home folder, such as ~/.netrc, may have credentials for any server
            inherited = {name: text for name, text in inherited.items() if HARMLESS.fullmatch(name)}
            inherited["HOME"] = str(self._temporary)
        elif volume.credentials:
            inherited = {name: text for name, text in inherited.items() if name not in CREDENTIALS}
        environment = {**inherited, **volume.credentials, "TMPDIR": str(self._temporary)}
        words = [
            *cgroups.enter(self._control_groups, volume.id),
            *mount_command(volume.url, base, "--config=/dev/stdin"),
        ]
        with _in_memory(volume.config) as config, _in_memory() as errors:
            mounting = subprocess.Popen(
                words, stdin=config, stdout=subprocess.DEVNULL, stderr=errors, env=environment, start_new_session=True
            )
            while mounting.poll() is None:
                if target in self._leaving:
                    mounting.terminate()
                    mounting.wait()
                    raise GrowfsError(f"{target}: {GIVEN_UP}")
                time.sleep(0.1)
            errors.seek(0)
            if mounting.returncode:
                raise mount_error(mounting.returncode, errors.read())

    def _end(self, base: Path) -> None:
        log.info("unmounting the volume %s, which no pod uses", base.name)
        with suppress(GrowfsError):
            stop_or_detach(base)  # a mount namespace that gets no unmounts may still have it
        with suppress(OSError):
            base.rmdir()


def _bound(base: MountRow) -> list[MountRow]:
    """The bind mounts of a volume at the paths of pods, even those of an earlier daemon."""
    return [row for row in mounts() if row.cache == base.cache and row.mountpoint != base.mountpoint]


def _lives(path: Path) -> bool:
    """Whether there is a mount whose daemon lives. Raises GrowfsError if it hangs."""
    return mounted_at(path) is not None and not is_dead(path)


def _bind(base: Path, path: Path) -> None:
    """Mount at the path of a pod; over a dead mount, so that containers with HostToContainer see the new one."""
    try:
        bind_mount(base, path)
    except OSError as error:
        raise GrowfsError(
            f"{path}: the kernel refuses a bind mount: {error.strerror}; growfs csi needs Linux 5.12"
        ) from None


def _in_memory(text: str = "") -> IO[str]:
    """A file that is on no disk."""
    file = os.fdopen(memfd_create("growfs-csi"), "w+")
    file.write(text)
    file.seek(0)
    return file


def _key(path: Path) -> bytes:
    """The secret of this node, made at the first start."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        made = path.with_name(f"{path.name}.new")
        made.write_bytes(secrets.token_bytes(32))
        made.replace(path)  # whole, even if the driver is killed
        return path.read_bytes()
