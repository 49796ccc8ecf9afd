"""Where a mount stays after a umount, by the mount tables of several namespaces."""

from __future__ import annotations

from pathlib import Path

import pytest

from growfs.fuse import mounting, users

CACHE, MOUNTPOINT = Path("/cache/data 1"), Path("/mnt")
SHARED_ROOT = "1 0 8:1 / / rw shared:1 - ext4 /dev/sda rw"
OURS = "9 1 0:40 / /mnt ro shared:7 - fuse.growfs /cache/data%201 ro,user_id=1000,group_id=0"


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


def test_a_mount_that_nobody_else_has(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find(monkeypatch, [SHARED_ROOT, OURS], ["1 0 8:1 / / rw - ext4 /dev/sda rw"]) == []


def test_a_private_copy_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    private = ["21 0 8:1 / / rw - ext4 /dev/sda rw", OURS.replace("9 1", "29 21").replace("shared:7 ", "")]
    assert find(monkeypatch, [SHARED_ROOT, OURS], private) == ["the mount namespace of sh (1)"]


@pytest.mark.parametrize("tag", ["shared:1", "master:1", "shared:5 master:1"])
def test_a_copy_that_the_umount_reaches_does_not_stay(monkeypatch: pytest.MonkeyPatch, tag: str) -> None:
    reached = [f"21 0 8:1 / / rw {tag} - ext4 /dev/sda rw", OURS.replace("9 1", "29 21")]
    assert find(monkeypatch, [SHARED_ROOT, OURS], reached) == []


def test_a_umount_reaches_the_slaves_of_slaves(monkeypatch: pytest.MonkeyPatch) -> None:
    first = ["21 0 8:1 / / rw shared:5 master:1 - ext4 /dev/sda rw", OURS.replace("9 1", "29 21")]
    second = ["31 0 8:1 / / rw master:5 - ext4 /dev/sda rw", OURS.replace("9 1", "39 31")]
    assert find(monkeypatch, [SHARED_ROOT, OURS], second, first) == []


def test_a_bind_mount_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    private_root = SHARED_ROOT.replace("shared:1 ", "")
    bound = OURS.replace("9 1", "10 1").replace("/mnt", "/bound")
    assert find(monkeypatch, [private_root, OURS, bound]) == ["a mount on /bound"]
    assert find(monkeypatch, [private_root, bound], mountpoint=None) == ["a mount on /bound"]


def test_a_mount_that_is_propagated_beside_ours_does_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder above it is bound to another path, and shared."""
    disk = "3 1 8:2 / /data rw shared:4 - ext4 /dev/sdb rw"
    copy = "4 1 8:2 /train /copy rw shared:4 - ext4 /dev/sdb rw"
    ours = OURS.replace("9 1", "9 3").replace("/mnt", "/data/train/mnt")
    propagated = OURS.replace("9 1", "10 4").replace("/mnt", "/copy/mnt")
    rows = [SHARED_ROOT, disk, copy, ours, propagated]
    assert find(monkeypatch, rows, mountpoint=Path("/data/train/mnt")) == []


def test_a_bind_mount_on_another_part_of_a_shared_root_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = OURS.replace("9 1", "10 1").replace("/mnt", "/bound")
    assert find(monkeypatch, [SHARED_ROOT, OURS, bound]) == ["a mount on /bound"]
