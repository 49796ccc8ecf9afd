"""Whole epochs (--exact): faults that an attack has found."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

import growfs as api
from growfs.errors import GrowfsError
from tests.blocking_server import BlockingServer
from tests.fuse.reader import Reader
from tests.fuse.test_exact import ROOMY, assert_each_once, cache_size, make_remote, mount, one_pass
from tests.harness import Growfs, files_below


def parts_of_epoch(folder: Path) -> list[tuple[tuple[int, int], set[str]]]:
    """(pass and part, its files) of each part of an epoch of this process."""
    parts = []
    for part in api.epoch(folder):
        listed = files_below(part)
        saved = api.position(folder)
        parts.append(((saved["pass"], saved["part"]), listed))
    return parts


@pytest.mark.parametrize("pins", [True, False])
def test_a_position_is_refused_if_other_files_are_in_each_part(growfs: Growfs, tmp_path: Path, pins: bool) -> None:
    tree = make_remote(tmp_path / "remote")
    mount(growfs, tmp_path / "remote", tree, *ROOMY, "--freeze", "class1/000*", share=0.6)
    next(api.epoch(growfs.mountpoint))
    saved = api.position(growfs.mountpoint)
    growfs.umount()
    shutil.rmtree(growfs.cache_dir)
    mount(growfs, tmp_path / "remote", tree, *ROOMY, *(["--freeze", "class2/000*"] if pins else []), share=0.6)
    with pytest.raises(GrowfsError, match="frozen or pinned"):
        api.resume(growfs.mountpoint, saved)
    api.resume(growfs.mountpoint, saved, force=True)


def test_an_epoch_ends_with_its_pass_although_no_file_of_the_last_part_can_be_fetched(
    growfs: Growfs, reader: Reader, server: BlockingServer, tmp_path: Path
) -> None:
    generator = random.Random(1)
    tree = {f"class{number % 2}/{number:04}.bin": generator.randbytes(9000) for number in range(24)}
    server.files = tree
    flags = "--exact", "--cache-size", cache_size(tree, 0.5), "--part-size", "60%"
    growfs.mount(server.manifest, *flags)
    parts = parts_of_epoch(growfs.mountpoint)
    growfs.run("evict", growfs.mountpoint, "**", check=False)
    growfs.umount()
    lost = parts[-1][1]
    server.statuses.update(dict.fromkeys(lost, 404))
    growfs.mount(server.manifest, *flags, "--start", f"1/{len(parts) - 2}")
    again = parts_of_epoch(growfs.mountpoint)
    assert [position for position, _ in again] == [position for position, _ in parts[-3:]]
    assert not again[-1][1] & set().union(*(names for _, names in parts[:-1]))


def test_folders_that_no_part_lists_again_make_room(growfs: Growfs, reader: Reader, tmp_path: Path) -> None:
    """A process that lists parts without asking holds the files of each folder from its last listing there."""
    tree = make_remote(tmp_path / "remote", files=60, folders=60)
    mount(growfs, tmp_path / "remote", tree, *ROOMY)
    assert_each_once(one_pass(growfs, reader), tree)
