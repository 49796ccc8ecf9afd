"""What growfs makes of the answers of fusermount3 and of mount tables, also those of several namespaces."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from growfs.errors import GrowfsError
from growfs.fuse import mounting, users
from growfs.fuse.mounting import MountSpec

CACHE, MOUNTPOINT = Path("/cache/data 1"), Path("/mnt")
SHARED_ROOT = "1 0 8:1 / / rw shared:1 - ext4 /dev/sda rw"
OURS = "9 1 0:40 / /mnt ro shared:7 - fuse.growfs /cache/data%201 ro,user_id=1000,group_id=0"


@pytest.mark.parametrize("has_profile", [True, False])
def test_a_refusal_by_apparmor_names_the_profile(
    has_profile: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program, profile = tmp_path / "bin/fusermount3", tmp_path / "profile"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'fusermount3: mount failed: Permission denied' >&2\nexit 1\n")
    program.chmod(0o755)
    if has_profile:
        profile.touch()
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(mounting, "APPARMOR_PROFILE", profile)
    spec = MountSpec(Path("/data/train"), tmp_path, allow_other=False, folder=os.open(tmp_path, os.O_PATH))
    with pytest.raises(GrowfsError, match=r"/data/train: fusermount3: mount failed: Permission denied") as refused:
        spec.attach()
    assert ("AppArmor may allow other folders" in str(refused.value)) is has_profile


def test_in_a_chroot_no_file_system_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel shows no mounts outside of it."""
    monkeypatch.setattr(mounting, "mount_rows", list)
    assert mounting.file_system(Path("/data")) == ("", Path("/"))


def find(
    monkeypatch: pytest.MonkeyPatch, own: list[str], *others: list[str], mountpoint: Path | None = MOUNTPOINT
) -> list[str]:
    def rows(lines: list[str]) -> list[mounting.MountRow]:
        return [mounting._mount_row(line) for line in lines]

    namespaces = [(f"sh ({number})", rows(lines)) for number, lines in enumerate(others, 1)]
    monkeypatch.setattr(users, "mount_rows", lambda: rows(own))
    monkeypatch.setattr(users, "_other_namespaces", lambda: iter(namespaces))
    return users.other_mounts(CACHE, mountpoint)


def test_a_row_of_the_mount_table() -> None:
    row = mounting._mount_row(r"9 1 0:40 / /a\040b ro master:2 shared:7 - fuse.growfs /cache/data%201 ro,user_id=1000")
    assert (row.mountpoint, row.cache, row.owner) == (Path("/a b"), CACHE, 1000)
    assert (row.id, row.parent, row.peers, row.master, row.is_growfs) == (9, 1, 7, 2, True)


COPY = OURS.replace("9 1", "29 21")
BOUND = OURS.replace("9 1", "10 1").replace("/mnt", "/bound")


def root(id: int, tags: str = "") -> str:
    """The row of the root of a namespace."""
    return f"{id} 0 8:1 / / rw {tags}- ext4 /dev/sda rw"


@pytest.mark.parametrize("tags", ["shared:1 ", "master:1 ", "shared:5 master:1 "])
def test_a_copy_that_the_umount_reaches_does_not_stay(monkeypatch: pytest.MonkeyPatch, tags: str) -> None:
    assert find(monkeypatch, [SHARED_ROOT, OURS], [root(1)]) == [], "it has no copy"
    assert find(monkeypatch, [SHARED_ROOT, OURS], [root(21, tags), COPY]) == []
    private = OURS.replace("9 1", "29 21").replace("shared:7 ", "")
    assert find(monkeypatch, [SHARED_ROOT, OURS], [root(21), private]) == ["the mount namespace of sh (1)"]


def test_a_umount_reaches_the_slaves_of_slaves(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = [root(21, "shared:5 master:1 "), COPY], [root(31, "master:5 "), OURS.replace("9 1", "39 31")]
    assert find(monkeypatch, [SHARED_ROOT, OURS], second, first) == []


def test_a_bind_mount_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find(monkeypatch, [root(1), OURS, BOUND]) == ["a mount on /bound"]
    assert find(monkeypatch, [root(1), BOUND], mountpoint=None) == ["a mount on /bound"]
    assert find(monkeypatch, [SHARED_ROOT, OURS, BOUND]) == ["a mount on /bound"], "on another part of a shared root"


def test_a_mount_that_is_propagated_beside_ours_does_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder above it is bound to another path, and shared."""
    disk = "3 1 8:2 / /data rw shared:4 - ext4 /dev/sdb rw"
    copy = "4 1 8:2 /train /copy rw shared:4 - ext4 /dev/sdb rw"
    ours = OURS.replace("9 1", "9 3").replace("/mnt", "/data/train/mnt")
    propagated = OURS.replace("9 1", "10 4").replace("/mnt", "/copy/mnt")
    rows = [SHARED_ROOT, disk, copy, ours, propagated]
    assert find(monkeypatch, rows, mountpoint=Path("/data/train/mnt")) == []
