"""Whether another user could make growfs write, delete or believe something else at a path than its user means.

Every path that growfs writes to, and every path that another user may have named, is opened here: one component after
another, through descriptors (openat(2), O_NOFOLLOW). What was asked about a folder thus holds for the folder that is
used, even if another user renames it or puts a link in its place meanwhile.

Root, the user of this process and its groups are trusted. In a user namespace, an owner from outside may be root or
another user, and they cannot be told apart: as the owner of a folder above, both are trusted.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISLNK, S_ISVTX

from growfs.errors import GrowfsError

ACL_USER, ACL_GROUP_OBJ, ACL_GROUP, ACL_MASK, ACL_OTHER = 0x02, 0x04, 0x08, 0x10, 0x20
"""include/uapi/linux/posix_acl_xattr.h: after a version of 4 bytes, entries of (tag, permission, id)."""
MAY_WRITE = 2
MADE = 0o755
"""The permissions of folders that are made on the way. They also limit what an ACL lets a new folder inherit (acl(5)).
"""


@dataclass(frozen=True, slots=True)
class OpenFolder:
    """An open folder. path: without links, when it was opened. fresh: whether it was made now."""

    path: Path
    fd: int
    fresh: bool = False

    @property
    def here(self) -> Path:
        """A path of this folder that stays valid when the folder is renamed. Only this process can use it."""
        return Path(f"/proc/self/fd/{self.fd}")

    def __enter__(self) -> OpenFolder:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)


_Check = Callable[[Path, int], None]
"""Raises GrowfsError for a folder or link, given by its path and its descriptor."""


class _Walk:
    """A walk along a path. Owns the descriptor of the folder reached so far.

    path: of that folder, without links. rest: what is still to come, in reverse. check_above: called for each folder
    before anything in it is looked up. check_link: called for each link before it is followed.
    """

    def __init__(self, path: Path, check_above: _Check, check_link: _Check) -> None:
        self.path = Path("/")
        self.fd = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self.fresh = False
        self.rest = [*reversed(path.absolute().parts[1:])]
        self._given = path
        self._followed = 0
        self._check_above, self._check_link = check_above, check_link

    def __enter__(self) -> _Walk:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    def run(self, makes: int | None = None) -> None:
        """Walk to the end. makes: the permissions of the last folder, if missing folders are made. Raises OSError."""
        while self.rest:
            self._advance(makes)

    def run_to_last(self) -> None:
        """Walk to the folder in which the last component is, and is not a link. Raises OSError."""
        while self.rest and (len(self.rest) > 1 or self.rest == [".."] or self._is_at_link()):
            self._advance(None)

    def _is_at_link(self) -> bool:
        with suppress(OSError):
            os.readlink(self.rest[-1], dir_fd=self.fd)  # the kernel answers for a mount
            return True
        return False

    def _advance(self, makes: int | None) -> None:
        name = self.rest[-1]
        try:
            self._check_above(self.path, self.fd)
            try:
                below, self.fresh = _enter(self.fd, name, makes if makes is None or len(self.rest) == 1 else MADE)
            except NotADirectoryError:
                self._follow(name)
                return
        except OSError as error:
            error.filename = str(self.path / name)
            raise
        os.close(self.fd)
        self.fd = below
        self.path = self.path.parent if name == ".." else self.path / name
        self.rest.pop()

    def _follow(self, name: str) -> None:
        link = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.fd)
        try:
            if not S_ISLNK(os.fstat(link).st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            self._check_link(self.path / name, link)
            target = Path(os.readlink("", dir_fd=link))
        finally:
            os.close(link)
        self._followed += 1
        if self._followed > 40:  # the kernel follows as many (path_resolution(7))
            raise GrowfsError(f"{self._given}: is a link that leads to itself; choose a folder")
        self.rest.pop()
        self.rest += reversed(target.parts[1:] if target.is_absolute() else target.parts)
        if target.is_absolute():
            root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            os.close(self.fd)
            self.path, self.fd = Path("/"), root


def _enter(folder: int, name: str, makes: int | None = None) -> tuple[int, bool]:
    """(a descriptor of the folder with that name, whether it was made). Raises NotADirectoryError for a link."""
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC  # O_DIRECTORY mounts what autofs has there
    fresh = False
    try:
        return os.open(name, flags, dir_fd=folder), fresh
    except FileNotFoundError:
        if makes is None:
            raise
    with suppress(FileExistsError):
        os.mkdir(name, makes, dir_fd=folder)
        fresh = True
    return os.open(name, flags, dir_fd=folder), fresh


def _readable(folder: int) -> int:
    return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)


def open_folder(
    path: Path, remedy: str, shared: bool = False, makes: int | None = None, names: Iterable[str] = ()
) -> OpenFolder:
    """Open a folder that nobody else can replace or write to. remedy: what to do if it is refused, for display.

    shared: also accept a folder in which all users may create files, but not remove those of others (such as /tmp).
    makes: the permissions with which it is made if it is missing. names: of links in it, which must not be another
    user's. Raises GrowfsError, or OSError with the path.
    """
    trusted = _trusted_above()

    def check_above(above: Path, fd: int) -> None:
        stat = os.fstat(fd)
        if stat.st_uid not in trusted:
            raise GrowfsError(
                f"{path}: is inside {above}, which belongs to another user (uid {stat.st_uid}) who could replace it"
                f" and make growfs delete other files; {remedy}"
            )
        if not stat.st_mode & S_ISVTX and _others_may_write(stat, f"/proc/self/fd/{fd}"):
            raise GrowfsError(
                f"{path}: is inside {above}, where other users could replace it and make growfs delete other files;"
                f" {remedy}, or protect it from other users: chmod +t {above}"
            )

    with _Walk(path, check_above, _link_check(remedy)) as walk:
        walk.run(makes)
        check_open(walk.path, walk.fd, remedy, shared)
        for name in names:
            with suppress(FileNotFoundError):
                owner = os.stat(name, dir_fd=walk.fd, follow_symlinks=False).st_uid
                _check_link(walk.path / name, owner, trusted, remedy)
        return OpenFolder(walk.path, _readable(walk.fd), walk.fresh)


def open_below(folder: OpenFolder, name: str, remedy: str, makes: int | None = None, deep: bool = False) -> OpenFolder:
    """Open a folder within one from `open_folder`; the name must not be that of a link. Raises as `open_folder`.

    deep: also check all folders below it.
    """
    path = folder.path / name
    try:
        fd, fresh = _enter(folder.fd, name, makes)
        try:
            check_open(path, fd, remedy)
            if deep:
                _check_folders(path, fd, remedy)
            return OpenFolder(path, _readable(fd), fresh)
        finally:
            os.close(fd)
    except NotADirectoryError:
        raise GrowfsError(f"{path}: is not a folder; {remedy}, or delete it") from None
    except OSError as error:
        error.filename = str(path)
        raise


def open_plain(path: str | os.PathLike[str], makes: int | None = None, below: int | None = None) -> int:
    """A descriptor of a folder, whoever owns it, if its path has no link. below: that of the folder that it starts at.

    makes: as in `open_folder`. Raises OSError; NotADirectoryError for a link.
    """
    names = [name for name in os.fspath(path).split("/") if name]
    fd = os.open("/" if below is None else ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=below)
    try:
        for number, name in enumerate(names, 1):
            inner, _ = _enter(fd, name, makes if makes is None or number == len(names) else MADE)
            os.close(fd)
            fd = inner
        return _readable(fd)
    except OSError as error:
        error.filename = os.fspath(path)
        raise
    finally:
        os.close(fd)


def resolve(path: Path, follows_others: bool = False) -> Path:
    """The path without links. Its end, which may be a mount whose daemon hangs, is not accessed, and need not exist.

    follows_others: also follow links of other users, who may lead anywhere. Otherwise raises GrowfsError for one.
    """
    with _Walk(path, _accept, _accept if follows_others else _link_check("name the folder itself")) as walk:
        with suppress(OSError):
            walk.run_to_last()
        return walk.path.joinpath(*reversed(walk.rest))


@contextmanager
def opened_for_its_owner(path: Path) -> Iterator[tuple[int, int]]:
    """(descriptor, owner) of a folder to which no third user leads, as the owner of a folder above or of a link.

    Such a user could lead root to any user's folder. Raises OSError, in that case with EPERM.
    """
    owners = set[int]()

    def note(_: Path, fd: int) -> None:
        owners.add(os.fstat(fd).st_uid)

    with _Walk(path, note, note) as walk:
        walk.run()
        owner = os.fstat(walk.fd).st_uid
        if owners - {owner, *_trusted_above()}:
            raise PermissionError(errno.EPERM, "another user could replace it", str(path))
        yield walk.fd, owner


def check(path: Path, stat: os.stat_result, place: str, remedy: str, shared: bool = False) -> None:
    """Raise GrowfsError if a user other than root and that of this process owns or may write to a file or folder.

    place: a path of it that has no link of another user, for its ACL. shared, remedy: as in `open_folder`.
    """
    if stat.st_uid not in (os.geteuid(), 0):
        raise GrowfsError(
            f"{path}: belongs to another user (uid {stat.st_uid}), who could make growfs delete other files; {remedy},"
            f" run growfs as that user, or take it over: chown -h {os.geteuid()} {path}"
        )
    if not (shared and stat.st_mode & S_ISVTX) and _others_may_write(stat, place):
        raise GrowfsError(
            f"{path}: other users may write to it, and could make growfs delete other files; chmod go-w {path}"
        )


def check_open(path: Path, fd: int, remedy: str, shared: bool = False) -> None:
    """As `check`, for a folder that is open."""
    check(path, os.fstat(fd), f"/proc/self/fd/{fd}", remedy, shared)


def check_entries(folder: OpenFolder, remedy: str) -> None:
    """Raise GrowfsError unless everything directly in a folder is `check`ed, and none of it is a link."""
    with os.scandir(folder.fd) as entries:
        for entry in entries:
            path = folder.path / entry.name
            if entry.is_symlink():
                raise _is_link(path)
            check(path, entry.stat(follow_symlinks=False), f"{folder.here}/{entry.name}", remedy)


def _check_folders(top: Path, top_fd: int, remedy: str) -> None:
    """Raise GrowfsError unless all folders below a folder are `check`ed, and none of them is a link."""

    def stop(error: OSError) -> None:
        raise error

    for root, folders, _, fd in os.fwalk(".", onerror=stop, dir_fd=top_fd):
        path = top / root
        check_open(path, fd, remedy)
        for name in folders:
            if S_ISLNK(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                raise _is_link(path / name)


def _is_link(path: Path) -> GrowfsError:
    return GrowfsError(f"{path}: is a link that growfs did not create; delete it")


def _accept(_: Path, __: int) -> None:
    """Accept any folder or link."""


def _link_check(remedy: str) -> _Check:
    trusted = _trusted_above()

    def check_link(link: Path, fd: int) -> None:
        _check_link(link, os.fstat(fd).st_uid, trusted, remedy)

    return check_link


def _check_link(link: Path, owner: int, trusted: set[int], remedy: str) -> None:
    if owner not in trusted:
        raise GrowfsError(
            f"{link}: is a link that belongs to another user (uid {owner}), who could make growfs use another folder;"
            f" {remedy}"
        )


def _trusted_above() -> set[int]:
    return {os.geteuid(), 0, *_unmapped()}


def _unmapped() -> tuple[int, ...]:
    """The owner that the kernel shows for all users that this user namespace does not know (user_namespaces(7))."""
    mapped = sum(int(line.split()[2]) for line in Path("/proc/self/uid_map").read_text().splitlines())
    # The initial user namespace knows all users (user_namespaces(7)).
    return () if mapped == (1 << 32) - 1 else (int(Path("/proc/sys/kernel/overflowuid").read_text()),)


def _others_may_write(stat: os.stat_result, place: str) -> bool:
    """Whether others may write to a file or folder. The groups of this process count as trusted."""
    trusted = {ACL_USER: {os.geteuid(), 0}, ACL_GROUP: {os.getegid(), *os.getgroups()}}
    return any(
        permission & MAY_WRITE and id not in trusted.get(tag, ()) for tag, permission, id in _others(stat, place)
    )


def _others(stat: os.stat_result, place: str) -> Iterator[tuple[int, int, int]]:
    """What all but the owner may do, by the mode or by the ACL: (ACL_USER, ACL_GROUP or ACL_OTHER, permission, id).

    With an ACL, the permission of the group in the mode is only the most that the ACL's entries may give (acl(5)).
    """
    try:
        acl = os.getxattr(place, "system.posix_acl_access")
    except OSError as error:
        if error.errno not in (errno.ENODATA, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        yield from ((ACL_GROUP, stat.st_mode >> 3, stat.st_gid), (ACL_OTHER, stat.st_mode, 0))
        return
    entries = list(struct.iter_unpack("<HHI", acl[4:]))
    mask = next((permission for tag, permission, _ in entries if tag == ACL_MASK), MAY_WRITE)
    for tag, permission, id in entries:
        if tag == ACL_GROUP_OBJ:
            yield ACL_GROUP, permission & mask, stat.st_gid
        elif tag in (ACL_USER, ACL_GROUP):
            yield tag, permission & mask, id
        elif tag == ACL_OTHER:
            yield tag, permission, id
