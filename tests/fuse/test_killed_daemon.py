"""Processes that wait for a daemon that is killed while the kernel waits for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.support import needs_root
from tests.forkserver import SETUP_VARIABLE
from tests.fuse.conftest import only
from tests.fuse.killed_daemon import KEEPS_A_LOOKUP_WAITING, reader_of_a_killed_daemon
from tests.harness import Growfs, make_tree


@pytest.fixture(autouse=True)
def mount(growfs: Growfs, tmp_path: Path) -> None:
    """A mount with such a daemon."""
    needs_root()
    make_tree(tmp_path / "remote", directories=1, files=2)
    growfs.env[SETUP_VARIABLE] = KEEPS_A_LOOKUP_WAITING
    growfs.mount(tmp_path / "remote")


@pytest.mark.promise(11)
def test_the_readers_of_a_killed_daemon_get_an_error(growfs: Growfs) -> None:
    with reader_of_a_killed_daemon(growfs.mountpoint) as reader:
        assert reader.wait(30) == 1


@pytest.mark.promise(11)
@pytest.mark.parametrize(
    ("engine", "command"),
    [("passthrough", "umount"), ("passthrough", "umount --lazy"), ("passthrough", "mount"), ("libfuse", "umount")],
    indirect=["engine"],
)
def test_a_command_ends_what_waits_for_a_daemon_that_was_killed_with_all_its_processes(
    growfs: Growfs, tmp_path: Path, command: str
) -> None:
    with reader_of_a_killed_daemon(growfs.mountpoint, and_its_processes=True) as reader:
        assert growfs.listed() == "dead; remove it with growfs umount"
        if command == "mount":
            growfs.mount(tmp_path / "remote")
        else:
            growfs.run(*command.split(), growfs.mountpoint)
        assert reader.wait(30) == 1


@only("passthrough")
def test_filling_from_the_cache_of_a_killed_daemon_ends_what_waits_for_it(growfs: Growfs, tmp_path: Path) -> None:
    with reader_of_a_killed_daemon(growfs.mountpoint, and_its_processes=True) as reader:
        growfs.run("fill", tmp_path / "remote", tmp_path / "folder", "--cache-dir", growfs.cache_dir)
        assert reader.wait(30) == 1
    growfs.run("stop", tmp_path / "folder")
