"""A file in the mount is the remote's file, however it is read, and nothing in the mount can be changed."""

from __future__ import annotations

import errno
import os
import socket
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuse.conftest import Library, opened
from tests.fuse.test_misses import SIZE, mount_full_cache
from tests.harness import Growfs, make_tree
from tests.needs import need_programs

LARGE = "sizes/large.bin"


@pytest.mark.promise(1, 4)
def test_size_and_mtime_are_the_remotes(library: Library) -> None:
    inodes = set[int]()
    for path, content in library.tree.items():
        found, remote = (library.path / path).stat(), (library.remote / path).stat()
        assert (found.st_size, found.st_mtime_ns) == (len(content), remote.st_mtime_ns)
        assert found.st_blocks == -(-len(content) // 512)
        assert found.st_mode == stat.S_IFREG | 0o444
        with opened(library.path / path) as fd:
            now = os.fstat(fd)
        assert (now.st_size, now.st_ino, now.st_mtime_ns) == (found.st_size, found.st_ino, found.st_mtime_ns)
        inodes.add(found.st_ino)
    assert len(inodes) == len(library.tree)
    assert (library.path / "deep/a").stat().st_mode == stat.S_IFDIR | 0o555


@pytest.mark.promise(1)
def test_a_modification_time_before_1970_is_kept_and_one_of_more_than_64_bits_is_unknown(
    growfs: Growfs, tmp_path: Path
) -> None:
    tree = make_tree(tmp_path / "remote", directories=1, files=2)
    early, late = tree
    os.utime(tmp_path / "remote" / early, ns=(0, -86_400 * 10**9))
    os.utime(tmp_path / "remote" / late, (0, 2**63 // 10**9 + 1))  # in 2262
    growfs.mount(tmp_path / "remote")
    assert growfs.content() == tree
    assert (growfs.mountpoint / early).stat().st_mtime == -86_400


@pytest.mark.promise(1, 3)
def test_a_modification_time_that_the_listing_lacks_is_known_once_the_file_is_open(
    growfs: Growfs, tmp_path: Path
) -> None:
    rows = [f"class0/{number:04}.bin,{SIZE}" for number in range(6)]
    (tmp_path / "list.csv").write_text("\n".join(["path,size", *rows, ""]))
    _, (missing, *_) = mount_full_cache(growfs, tmp_path, 3, "--manifest", tmp_path / "list.csv")
    os.utime(tmp_path / "remote" / missing.relative_to(growfs.mountpoint), (0, 1_600_000_000))
    with opened(missing) as fd:
        assert os.fstat(fd).st_mtime == missing.stat().st_mtime == 1_600_000_000


@pytest.mark.promise(3)
def test_a_name_unknown_to_the_remote_does_not_exist(library: Library) -> None:
    for path in ("nothing", "sizes/nothing", "deep/a/b/c/d/nothing", os.fsdecode(b"\xff\xfe")):
        with pytest.raises(FileNotFoundError):
            (library.path / path).stat()
    with pytest.raises(NotADirectoryError):
        (library.path / "sizes/one.bin/below").stat()


def test_reading_at_odd_offsets_and_past_the_end(library: Library) -> None:
    content = library.tree[LARGE]
    end = len(content)
    fd = os.open(library.path / LARGE, os.O_RDONLY)
    try:
        for offset in (0, 1, 4095, 4097, 131_071, 1_000_003, end - 1, end, end + 1, end + 10_000):
            for size in (0, 1, 4097, 200_003):
                assert os.pread(fd, size, offset) == content[offset : offset + size]
        assert os.lseek(fd, 0, os.SEEK_END) == end
        assert os.read(fd, 1) == b""
    finally:
        os.close(fd)


@pytest.mark.promise(13)
def test_sendfile(library: Library, tmp_path: Path) -> None:
    content = library.tree[LARGE]
    with (library.path / LARGE).open("rb") as source, (tmp_path / "copy").open("wb") as target:
        offset = 0
        while sent := os.sendfile(target.fileno(), source.fileno(), offset, len(content)):
            offset += sent
    assert (tmp_path / "copy").read_bytes() == content
    ours, theirs = socket.socketpair()
    with ours, theirs, (library.path / "sizes/odd.bin").open("rb") as source:
        ours.sendfile(source)
        assert theirs.recv(1 << 20, socket.MSG_WAITALL | socket.MSG_DONTWAIT) == library.tree["sizes/odd.bin"]


COPIES = ["cp -r --reflink=auto . $0", "rsync -a . $0", "tar -c . | tar -x -C $0"]


@pytest.mark.promise(1, 13)
@pytest.mark.parametrize("command", COPIES)
def test_copies_of_the_tree(library: Library, tmp_path: Path, command: str) -> None:
    need_programs(command.partition(" ")[0])
    target = tmp_path / "copy"
    target.mkdir()
    subprocess.run(["sh", "-ec", command, target], cwd=library.path, check=True, timeout=60)
    subprocess.run(["diff", "-r", target, library.remote], check=True, timeout=60)
    subprocess.run(["chmod", "-R", "u+w", target], check=True, timeout=60)  # so that pytest can remove it


@pytest.mark.promise(1, 13)
def test_diff_finds_no_difference(library: Library) -> None:
    subprocess.run(["diff", "-r", library.path, library.remote], check=True, timeout=60)


PRINTING = [
    "find . -type f -size +2M -print0",
    "find . -type f -newermt @1600000005 -printf '%p %s %T@\\0'",
    "find . -type d",
    "md5sum sizes/*",
    "wc -c sizes/* names/plain.bin",
    "grep -rc a names deep",
    "tail -c 1000 sizes/large.bin",
    "tail -c +2000001 sizes/large.bin",
    "dd if=sizes/large.bin bs=64K skip=3 count=7 status=none",
    "stat --format '%n %s %Y %F' sizes/*",
    "du --apparent-size -b sizes/*",
    "du -k --apparent-size sizes/large.bin sizes/odd.bin",
    "ls names",
    "sort deep/a/b/c/d/file.txt 'at the root.txt'",
    "cd deep/a/b && pwd -P | grep -o deep/.* && cat ../b/c/d/file.txt",
]


@pytest.mark.promise(13)
@pytest.mark.parametrize("command", PRINTING, ids=lambda command: command.partition("%")[0][:24])
def test_a_program_prints_the_same_for_mount_and_remote(library: Library, command: str) -> None:
    def output_of(folder: Path) -> list[bytes]:
        done = subprocess.run(["sh", "-c", command], cwd=folder, check=True, capture_output=True, timeout=60)
        return sorted(done.stdout.splitlines(keepends=True) if b"\0" not in done.stdout else done.stdout.split(b"\0"))

    assert output_of(library.path) == output_of(library.remote) != []


CHANGES: dict[str, Callable[[Path], object]] = {
    "write": lambda file: os.open(file, os.O_RDWR),
    "append": lambda file: os.open(file, os.O_WRONLY | os.O_APPEND),
    "create": lambda file: os.open(file.parent / "new", os.O_WRONLY | os.O_CREAT | os.O_EXCL),
    "truncate at open": lambda file: os.open(file, os.O_RDONLY | os.O_TRUNC),
    "open unnamed": lambda file: os.open(file.parent, os.O_TMPFILE | os.O_RDWR),
    "unlink": lambda file: file.unlink(),
    "rename": lambda file: file.rename(file.parent / "new"),
    "rename a folder": lambda file: file.parent.rename(file.parent.parent / "new"),
    "replace": lambda file: file.replace(file.parent.parent / "at the root.txt"),
    "mkdir": lambda file: (file.parent / "new").mkdir(),
    "rmdir": lambda file: file.parent.rmdir(),
    "symlink": lambda file: (file.parent / "new").symlink_to(file),
    "link": lambda file: (file.parent / "new").hardlink_to(file),
    "mkfifo": lambda file: os.mkfifo(file.parent / "new"),
    "mknod": lambda file: os.mknod(file.parent / "new"),
    "chmod": lambda file: file.chmod(0o600),
    "chown": lambda file: os.chown(file, 0, 0),
    "utime": os.utime,
    "truncate": lambda file: os.truncate(file, 0),
    "setxattr": lambda file: os.setxattr(file, "user.note", b""),
    "removexattr": lambda file: os.removexattr(file, "user.note"),
}


@pytest.mark.promise(4)
@pytest.mark.parametrize("path", ["sizes/one.bin", ".growfs/status"])
def test_read_only(library: Library, path: str) -> None:
    for name, change in CHANGES.items():
        with pytest.raises(OSError, match=r".") as refused:
            change(library.path / path)
        assert refused.value.errno == errno.EROFS, name
    with opened(library.path / path) as fd, pytest.raises(OSError, match=os.strerror(errno.EROFS)):
        os.fchmod(fd, 0o600)


@pytest.mark.promise(28)
def test_statfs_and_df(library: Library) -> None:
    stat = os.statvfs(library.path)
    status = library.growfs.status()["cache"]
    assert stat.f_blocks * stat.f_frsize == status["limit_bytes"] // 4096 * 4096
    assert (stat.f_blocks - stat.f_bfree) * stat.f_frsize == status["bytes"]
    assert stat.f_bavail == stat.f_bfree
    assert (stat.f_files, stat.f_ffree) == (0, 0), "df -i shows no use of inodes, instead of 100%"
    assert stat.f_flag & os.ST_RDONLY
    assert stat.f_namemax == 255
    used = subprocess.run(
        ["df", "--output=used", "-B1", library.path], check=True, capture_output=True, text=True, timeout=30
    )
    assert int(used.stdout.split()[1]) == status["bytes"]
