"""The mounts of a node: one for each volume, in the state folder, with bind mounts of it at the paths of pods.

The mount table is the only record of them, so the driver may be killed and started again at any time. A mount is ended
once no bind mount of it is left; its cache stays.
"""

from __future__ import annotations

import logging
import os
import secrets
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path

from growfs.cache.cache_folder import daemon_of
from growfs.client.node_mount import mount_command, mount_error
from growfs.client.wait import Enough, wait
from growfs.csi import cgroups
from growfs.csi.volumes import CREDENTIALS, Volume
from growfs.daemon.control_client import status_of
from growfs.daemon.launch import stop
from growfs.daemon.status_text import state_text
from growfs.errors import GrowfsError
from growfs.fuse.mounting import MountRow, create_mountpoint, is_dead, mounted_at, mounts, unmount
from growfs.status_and_metrics import MountState, MountStatus
from growfs.syscalls import bind_mount

log = logging.getLogger(__name__)

WAIT_S = 30.0
"""How long a pod may wait until the mount for another pod is done, before kubelet has to ask again."""
ANSWER_S = 10.0
"""How long a daemon may take to report its status."""
KEY_BYTES = 32


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
                raise VolumeBusy(f"{name}: another request for this volume is still running; it is to be sent again")
            self._held.add(name)
        try:
            yield
        finally:
            with self._released:
                self._held.remove(name)
                self._released.notify_all()


class NodeMounts:
    """Owns the state folder. control_groups: where control groups are mounted."""

    def __init__(self, folder: Path, control_groups: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        folder = folder.resolve()  # as in the mount table
        self._mounts, self._temporary = folder / "mounts", folder / "tmp"
        for path in (self._mounts, self._temporary):
            path.mkdir(exist_ok=True, mode=0o700)
        self._control_groups = control_groups
        self._claims = Claims()
        self.key = _key(folder / "key")

    def publish(self, volume: Volume, target: Path) -> None:
        """Mount a volume at the path of a pod, unless that has a live mount. Raises GrowfsError or OSError.

        If the daemon of the volume died, it is mounted again, also at the paths of the other pods.
        """
        with self._claims.hold(str(target)):
            if _lives(target):  # kubelet repeats the request; what a container has mounted cannot be changed
                return
            with self._claims.hold(volume.id, WAIT_S):
                row = self._ready(volume, self._mounts / volume.id)
                if mounted_at(target) is None:
                    create_mountpoint(target)
                for path in {target, *(bound.mountpoint for bound in _bound(row))}:
                    if not _lives(path):
                        _bind(row.mountpoint, path)

    def unpublish(self, target: Path) -> None:
        """Unmount at the path of a pod, and remove the folder. Raises GrowfsError or OSError."""
        with self._claims.hold(str(target)):
            while mounted_at(target):
                unmount(target, lazy=True)
            with suppress(FileNotFoundError):
                target.rmdir()
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

    def _ready(self, volume: Volume, base: Path) -> MountRow:
        """The mount of a volume, once training can start."""
        if not _lives(base):
            self._mount(volume, base)
        row = mounted_at(base)
        if row is None:
            raise GrowfsError(f"{base}: was unmounted by another program; it is to be mounted again")
        if daemon_of(row.cache).get("version") == version("growfs"):  # that of an earlier driver was ready long ago
            wait(base, Enough.parse(None, None, None, everything=False))  # a driver was killed while it mounted
        return row

    def _mount(self, volume: Volume, base: Path) -> None:
        """Mount in a process of its own, with the credentials in its environment; the driver has none of them."""
        log.info("mounting the volume %s", volume.id)
        inherited = {name: text for name, text in os.environ.items() if not name.startswith("GROWFS_")}
        if volume.credentials:
            inherited = {name: text for name, text in inherited.items() if name not in CREDENTIALS}
        done = subprocess.run(
            [
                *cgroups.enter(self._control_groups, volume.id),
                *mount_command(volume.url, base, "--config=/dev/stdin"),
            ],
            input=volume.config,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**inherited, **volume.credentials, "TMPDIR": str(self._temporary)},
            start_new_session=True,
            check=False,
        )
        if done.returncode:
            raise mount_error(done.returncode, done.stderr)

    def _end(self, base: Path) -> None:
        log.info("ending the mount of the volume %s, which no pod uses", base.name)
        try:
            stop(base)
        except GrowfsError:  # a mount namespace that gets no unmounts still has it
            with suppress(GrowfsError):
                stop(base, lazy=True)
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
        raise GrowfsError(f"{path}: the kernel refuses a bind mount: {error.strerror}; it needs Linux 5.12") from None


def _key(path: Path) -> bytes:
    """The secret of this node, made at the first start."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        made = path.with_name(f"{path.name}.new")
        made.write_bytes(secrets.token_bytes(KEY_BYTES))
        made.replace(path)  # whole, even if the driver is killed
        return path.read_bytes()
