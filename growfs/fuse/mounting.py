"""Mountpoints: check them, mount, list the mounts, and unmount.

The device name of a growfs mount is its cache folder, percent-encoded. The kernel's mount table is thus the registry of
running mounts: it is never out of date, and shows every user where the control socket is.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import shutil
import socket
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote

from growfs import trust
from growfs.errors import GrowfsError
from growfs.proc import read_text

TYPE = "fuse.growfs"
DEVICE = Path("/dev/fuse")
MS_RDONLY, MS_NOSUID, MS_NODEV = 1, 2, 4
MNT_FORCE, MNT_DETACH, UMOUNT_NOFOLLOW = 1, 2, 8
"""Flags of mount(2) and umount(2) (sys/mount.h). MNT_FORCE fails pending requests, so that none is waited for."""
IGNORED = re.compile(
    "[xX]-.*|_netdev|comment|defaults|default_permissions|nofail|ro|rw|sync|async|dirsync|silent|loud|"
    "(no)?(atime|auto|dev|diratime|exec|group|iversion|lazytime|mand|owner|relatime|strictatime|suid|symfollow|users?)"
)
"""Options for mount(8) itself, or without effect: the mount is read-only, nosuid and nodev."""
ANSWER_S = 5.0
"""How long a mount may take to answer before its daemon counts as hung."""

APPARMOR_PROFILE = Path("/etc/apparmor.d/fusermount3")
"""In Ubuntu since 25.04: it lets fusermount3 mount only below some folders."""
_libc = ctypes.CDLL(None, use_errno=True)


class MountSpec(NamedTuple):
    """What to mount where: a cache folder and a mountpoint.

    allow_other: for all users. folder: a descriptor of the mountpoint, from `check_mountpoint`; None if nothing is
    mounted.
    """

    mountpoint: Path
    cache: Path
    allow_other: bool
    folder: int | None

    @property
    def _device(self) -> str:
        return quote(str(self.cache), safe="/", errors="surrogateescape")

    @property
    def _permissions(self) -> set[str]:
        return {"default_permissions", "allow_other"} if self.allow_other else {"default_permissions"}

    def attach(self) -> int:
        """Mount, and close the folder's descriptor. Returns the mount's descriptor of /dev/fuse. Raises GrowfsError.

        Root uses mount(2). Other users go through fusermount3, even with the capability to mount: it applies the
        machine's rules (fuse.conf), and lets them unmount again.
        """
        assert self.folder is not None
        try:
            return self._attach_as_root(self.folder) if os.geteuid() == 0 else self._attach_by_fusermount()
        finally:
            os.close(self.folder)

    def row(self) -> MountRow | None:
        """Its row of the mount table; None if it is no longer mounted. A cache has one mount, bind mounts aside."""
        own = (row for row in reversed(mounts()) if (row.cache, row.owner) == (self.cache, os.geteuid()))
        return next(own, None)

    def _attach_as_root(self, folder: int) -> int:
        """Mount by descriptor: if another user owns a folder above, the path may lead elsewhere by now."""
        device = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
        data = [f"fd={device}", "rootmode=40000", "user_id=0", "group_id=0", *self._permissions]
        flags = MS_RDONLY | MS_NOSUID | MS_NODEV
        strings = (self._device, f"/proc/self/fd/{folder}", TYPE)
        if _libc.mount(*map(os.fsencode, strings), flags, ",".join(data).encode()) != 0:
            code = ctypes.get_errno()
            os.close(device)
            container = code in (errno.EPERM, errno.EACCES)
            remedy = "in a container: --security-opt apparmor=unconfined, or --privileged" if container else "see dmesg"
            raise GrowfsError(f"{self.mountpoint}: the kernel refuses the mount: {os.strerror(code)}; {remedy}")
        return device

    def _attach_by_fusermount(self) -> int:
        options = {f"fsname={self._device}", f"subtype={TYPE.removeprefix('fuse.')}", "ro", *self._permissions}
        ours, theirs = socket.socketpair()  # fusermount3 sends the descriptor back over this (_FUSE_COMMFD)
        with ours, theirs:
            done = subprocess.run(
                ["fusermount3", "-o", ",".join(options), "--", str(self.mountpoint)],
                env=os.environ | {"_FUSE_COMMFD": str(theirs.fileno())},
                pass_fds=[theirs.fileno()],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                reason = done.stderr.strip()
                if APPARMOR_PROFILE.exists() and os.strerror(errno.EACCES) in reason:
                    reason += f"; AppArmor may allow other folders, such as /mnt and your home: see {APPARMOR_PROFILE}"
                raise GrowfsError(f"{self.mountpoint}: {reason}")
            _, (device,), _, _ = socket.recv_fds(ours, 1, 1)
        os.set_inheritable(device, False)
        return device


class MountRow(NamedTuple):
    """A row of a mount table (mountinfo in proc(5))."""

    id: int
    parent: int
    device: str
    """The major and minor number, as used in /sys/class/bdi."""
    root: str
    """The mounted path in the file system."""
    mountpoint: Path
    peers: int | None
    """The peer group for mount propagation."""
    master: int | None
    """The peer group from which it receives mounts."""
    type: str
    """The type of the file system."""
    source: str
    owner: int
    """The user who mounted."""

    @property
    def is_growfs(self) -> bool:
        """Whether it is a mount of growfs."""
        return self.type == TYPE

    @property
    def cache(self) -> Path:
        """The cache folder of a growfs mount."""
        named = unquote(self.source, errors="surrogateescape")  # any user may mount with any name
        return Path("/", named.replace("\0", "%00"))


def mount_rows(pid: int | str = "self") -> list[MountRow]:
    """The mount table that a process sees, oldest first. Raises OSError."""
    return [_mount_row(line) for line in _mount_lines(pid)]


def _mount_lines(pid: int | str) -> list[str]:
    return os.fsdecode(Path(f"/proc/{pid}/mountinfo").read_bytes()).split("\n")[:-1]


def _mount_row(line: str) -> MountRow:
    before, _, after = line.partition(" - ")
    id, parent, device, root, mountpoint, _, *tags = before.split(" ")
    kind, source, options = after.split(" ", 2)
    groups = {name: int(number) for name, _, number in (tag.partition(":") for tag in tags) if number}
    owner = re.search(r"\buser_id=(\d+)", options)
    return MountRow(
        int(id),
        int(parent),
        device,
        _unescape(root),
        Path(_unescape(mountpoint)),
        groups.get("shared"),
        groups.get("master"),
        kind,
        _unescape(source),
        int(owner[1]) if owner else 0,
    )


def mounts() -> list[MountRow]:
    """The growfs mounts of this mount namespace, oldest first."""
    return [_mount_row(line) for line in _mount_lines("self") if f" - {TYPE} " in line]


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    return os.fsdecode(re.sub(rb"\\(\d{3})", lambda match: bytes([int(match[1], 8)]), os.fsencode(text)))


def mounted_at(mountpoint: Path) -> MountRow | None:
    """The growfs mount at exactly this path, or None."""
    mountpoint = trust.resolve(mountpoint, follows_others=True)
    return next((mount for mount in reversed(mounts()) if mount.mountpoint == mountpoint), None)


def answers(mountpoint: Path) -> bool:
    """Whether the daemon of a mount answers; False if it is gone ("Transport endpoint is not connected").

    Raises GrowfsError if it hangs. In that case, this process uses the mount until it ends, because it waits for an
    answer.
    """
    codes: list[int | None] = []

    def probe() -> None:
        try:
            os.statvfs(mountpoint)  # lstat(2) may be answered from the kernel's cache
        except OSError as error:
            codes.append(error.errno)

    thread = threading.Thread(target=probe, daemon=True)  # it may wait for the rest of this process
    thread.start()
    thread.join(ANSWER_S)
    if thread.is_alive():
        raise GrowfsError(
            f"{mountpoint}: its daemon has not answered for {ANSWER_S:g} s; wait for it, or unmount anyway:"
            f" growfs umount --lazy {mountpoint}"
        )
    return codes not in ([errno.ENOTCONN], [errno.ECONNABORTED])


def file_system(folder: Path) -> tuple[str, Path]:
    """(type of the file system that a folder is in, where that is mounted)."""
    path = folder.resolve()
    rows = [row for row in mount_rows() if row.mountpoint == path or row.mountpoint in path.parents]
    # Of several on one mountpoint, the last one hides those before it. In a chroot, there may be none.
    last = max(reversed(rows), key=lambda row: len(row.mountpoint.parts), default=None)
    return (last.type, last.mountpoint) if last else ("", Path("/"))


def is_remote(file_system: str) -> bool:
    """Whether files of a file system of this type come over the network or from a program."""
    network = {"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "lustre", "gpfs", "glusterfs", "beegfs", "afs", "virtiofs"}
    return file_system in network or file_system.startswith("fuse")


def create_mountpoint(mountpoint: Path) -> None:
    """Create the folder to mount on, unless it exists. Raises GrowfsError if that is not possible."""
    if not os.path.lexists(mountpoint):
        try:
            os.close(trust.open_plain(trust.resolve(mountpoint), makes=0o777))
        except OSError as error:
            raise GrowfsError(f"{mountpoint}: cannot be created: {error.strerror}; choose another folder") from None


def check_mountpoint(mountpoint: Path) -> int:
    """A descriptor of the folder to mount on. Raises GrowfsError if this cannot be a mountpoint.

    Until the descriptor is closed, no other daemon gets one: otherwise two mounts would succeed, one above the other.
    """
    _check_unmounted(mountpoint)  # first, because such a mount may hang
    try:
        folder = trust.open_plain(mountpoint)
    except NotADirectoryError:
        raise GrowfsError(f"{mountpoint}: is not a folder; choose an empty one") from None
    except OSError as error:
        raise GrowfsError(f"{mountpoint}: {error.strerror}") from None
    try:
        _check_empty(mountpoint, folder)
    except BaseException:
        os.close(folder)
        raise
    return folder


def _check_empty(mountpoint: Path, folder: int) -> None:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise GrowfsError(
            f"{mountpoint}: another growfs is about to mount there; wait for it, or stop it: growfs umount {mountpoint}"
        ) from None
    except OSError:  # NFS does not lock folders
        pass
    _check_unmounted(mountpoint)
    rows = [row for row in mount_rows() if row.mountpoint == mountpoint]
    is_elsewhere = os.fstat(folder).st_dev != mountpoint.parent.stat().st_dev
    if is_elsewhere and rows and rows[-1].type != "autofs":  # which stands for a mount to come (x-systemd.automount)
        raise GrowfsError(f"{mountpoint}: something else is mounted there; choose another folder")
    if os.listdir(folder):
        raise GrowfsError(f"{mountpoint}: is not empty; a mount would hide its contents; choose an empty folder")


def _check_unmounted(mountpoint: Path) -> None:
    if mounted := mounted_at(mountpoint):
        raise GrowfsError(
            f"{mountpoint}: is already a growfs mount (cache {mounted.cache}); growfs umount {mountpoint} unmounts it"
        )


def check_outside(mountpoint: Path, name: str, folder: Path) -> None:
    """Raise GrowfsError if a folder that the daemon uses is at or below the mountpoint: it would wait for itself.

    Follows links and bind mounts. name: of the folder, for display.
    """
    top = mountpoint.stat()
    path = Path(os.path.realpath(folder))
    for above in (path, *path.parents):
        with suppress(OSError):  # it does not exist yet
            if os.path.samestat(above.stat(), top):
                raise GrowfsError(
                    f"{name} {folder}: is inside the mountpoint, {mountpoint}; choose a folder outside it"
                )


def check_fuse(allow_other: bool) -> None:
    """Raise GrowfsError unless this user can mount with FUSE on this machine."""
    check_device()
    if os.geteuid() == 0:
        check_may_mount()
    else:
        check_fusermount()
        check_allow_other(allow_other)


def check_device() -> None:
    """Raise GrowfsError unless this process can open /dev/fuse, or another program than libfuse's mounts for it."""
    try:
        _open_device()
    except GrowfsError:
        if os.geteuid() == 0 or not _has_other_fusermount():
            raise


def _has_other_fusermount() -> bool:
    """Whether fusermount3 stands for a program that may open /dev/fuse elsewhere, as in the pods of SkyPilot."""
    with suppress(OSError):
        done = subprocess.run(["fusermount3", "--version"], capture_output=True, check=False)
        return done.returncode == 0 and not done.stdout.startswith(b"fusermount3 version")
    return False


def _open_device() -> None:
    try:
        device = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
        number = os.fstat(device).st_rdev
        os.close(device)
        # As in Documentation/admin-guide/devices.txt. Container runtimes hide a device behind /dev/null.
        if number != os.makedev(10, 229):
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
    except FileNotFoundError:
        raise GrowfsError(
            f"{DEVICE} is missing; load the fuse module: modprobe fuse, or in a container: --device {DEVICE}"
            " --cap-add SYS_ADMIN"
        ) from None
    except OSError as error:
        if error.errno == errno.EACCES:
            raise GrowfsError(f"{DEVICE}: permission denied; chmod 666 {DEVICE}, or mount as root") from None
        if error.errno == errno.EPERM:
            raise GrowfsError(
                f"{DEVICE}: the device rules of this container refuse it; run it with --device {DEVICE}"
            ) from None
        raise GrowfsError(
            f"{DEVICE}: no FUSE behind it ({error.strerror}); load the module: modprobe fuse, or in a container:"
            f" --device {DEVICE}"
        ) from None


def check_may_mount() -> None:
    """Raise GrowfsError unless this process has the capability to mount."""
    if not has_sys_admin():
        raise GrowfsError("this root user may not mount: CAP_SYS_ADMIN is missing; in a container: --cap-add SYS_ADMIN")


def has_sys_admin() -> bool:
    """Whether this process has CAP_SYS_ADMIN, which is bit 21, in its own user namespace."""
    capabilities = re.search(r"^CapEff:\s*(\w+)", _read("/proc/self/status"), re.MULTILINE)
    return capabilities is None or bool(int(capabilities[1], 16) >> 21 & 1)


def check_fusermount() -> None:
    """Raise GrowfsError unless fusermount3 can mount for an ordinary user."""
    if not shutil.which("fusermount3"):
        raise GrowfsError("fusermount3 is missing; install fuse3 (apt install fuse3), or mount as root")
    if re.search(r"^NoNewPrivs:\s*1", _read("/proc/self/status"), re.MULTILINE):
        raise GrowfsError(
            "fusermount3 cannot mount: this process cannot gain privileges (no_new_privs); in Kubernetes:"
            " allowPrivilegeEscalation: true, with docker: without no-new-privileges"
        )


def check_allow_other(wanted: bool) -> bool:
    """Whether an ordinary user may let others read a mount. Raises GrowfsError if this is wanted but forbidden."""
    allowed = re.search(r"^\s*user_allow_other\b", _read("/etc/fuse.conf"), re.MULTILINE) is not None
    if wanted and not allowed:
        raise GrowfsError("--allow-other needs the line user_allow_other in /etc/fuse.conf; add it, or mount as root")
    return allowed


def _read(path: str) -> str:
    try:
        return read_text(path)
    except OSError:
        return ""


def raise_read_ahead(mountpoint: Path) -> None:
    """Make the kernel read further ahead. Does nothing without root.

    This accesses the mount first, because the start of the session would reset the setting. So call it from a thread
    that does not serve the mount.
    """
    os.stat(mountpoint)
    if mounted := mounted_at(mountpoint):
        with suppress(OSError):
            # For a sequential reader. With the default of 128, the throughput is less than half.
            Path(f"/sys/class/bdi/{mounted.device}/read_ahead_kb").write_text("4096")


class InUse(GrowfsError):
    """A mount cannot be unmounted, because a process uses it."""


def unmount(mountpoint: Path, lazy: bool) -> None:
    """Unmount. lazy: even while it is in use. Raises InUse, or another GrowfsError."""
    if os.geteuid() == 0:
        if not (code := _umount2(mountpoint, MNT_DETACH if lazy else 0)):
            return
        reason, busy = os.strerror(code), code == errno.EBUSY
        if code == errno.EINVAL and mounted_at(mountpoint):  # mount_namespaces(7): it is locked
            reason = "it was mounted outside this user namespace (a container's, perhaps); unmount it there"
    else:
        command = ["fusermount3", "-u", *(["-z"] if lazy else []), "--", str(mountpoint)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            raise GrowfsError("fusermount3 is missing; install fuse3 (apt install fuse3)") from None
        if done.returncode == 0:
            return
        reason, busy = done.stderr.strip().removeprefix("fusermount3: "), "busy" in done.stderr.lower()
    if busy:
        raise InUse(f"{mountpoint}: in use")
    raise GrowfsError(f"{mountpoint}: cannot be unmounted: {reason}")


def _umount2(mountpoint: Path, flags: int) -> int:
    """Unmount (umount2(2)); returns the number of the error, or 0. mountpoint: without links, as in the mount table.

    Follows no link that another user may have put into the path meanwhile, to have root unmount something else.
    """
    try:
        folder = trust.open_plain(mountpoint.parent)
    except OSError as error:
        return error.errno or errno.EIO
    path = os.fsencode(f"/proc/self/fd/{folder}/{mountpoint.name}")
    code = ctypes.get_errno() if _libc.umount2(path, flags | UMOUNT_NOFOLLOW) else 0
    os.close(folder)
    return code


def force_unmount(mounted: MountRow) -> None:
    """Unmount this process's own mount even if it is in use. Does nothing if it is unmounted already."""
    for now in mounts():  # it may have been moved with its parent, or bind-mounted elsewhere
        is_own = (now.device, now.cache) == (mounted.device, mounted.cache)
        if is_own and _umount2(now.mountpoint, MNT_FORCE | MNT_DETACH):
            with suppress(GrowfsError):  # no capability to unmount, or it is gone
                unmount(now.mountpoint, lazy=True)
