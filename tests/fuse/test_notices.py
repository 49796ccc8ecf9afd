"""What the kernel is told, and what it is asked to do: names that have changed, and cores that are to stay awake."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from growfs.fuse.latency import DEVICE
from tests.fuse.conftest import only
from tests.harness import Growfs, make_tree, until

FILES = 150
LOOKERS = 4


@pytest.mark.promise(9)
def test_names_change_while_others_look_them_up(growfs: Growfs, tmp_path: Path) -> None:
    """A notice waits in the kernel for look-ups in that directory, which wait for the daemon: so that must go on."""
    remote = tmp_path / "remote"
    tree = make_tree(remote, directories=1, files=FILES, size=100)
    growfs.mount(remote)
    growfs.run("wait", growfs.mountpoint, "--all")
    growfs.run("set", growfs.mountpoint, "refresh=0.1")
    ended = threading.Event()
    folder = growfs.mountpoint / "class0"

    def look() -> None:
        number = 0
        while not ended.is_set():
            number += 1
            for name in (f"nothing{number}", f"{number % FILES:04}.bin"):
                with suppress(FileNotFoundError):
                    os.stat(folder / name)

    def all_are_of(mtime_ns: int) -> bool:
        return all((growfs.mountpoint / path).stat().st_mtime_ns == mtime_ns for path in tree)

    lookers = [threading.Thread(target=look) for _ in range(LOOKERS)]
    for looker in lookers:
        looker.start()
    try:
        for turn in range(1, 4):
            for path in tree:
                os.utime(remote / path, ns=(0, turn * 10**15))
            until(partial(all_are_of, turn * 10**15))
    finally:
        ended.set()
        for looker in lookers:
            looker.join()
    assert {path: (growfs.mountpoint / path).read_bytes() for path in tree} == tree


@pytest.mark.promise(9)
@only("passthrough")
def test_the_kernel_keeps_a_files_attributes_and_a_directorys_for_a_second(growfs: Growfs, tmp_path: Path) -> None:
    make_tree(tmp_path / "remote", directories=1, files=1)
    (tmp_path / "remote/file").touch()
    growfs.mount(tmp_path / "remote")
    file, directory = growfs.mountpoint / "file", growfs.mountpoint / "class0"

    def lookups() -> int:
        return int(growfs.status()["requests"].get("LOOKUP", 0))

    def is_looked_up(path: Path) -> bool:
        before = lookups()
        path.stat()
        return lookups() > before

    assert is_looked_up(file)
    until(lambda: not is_looked_up(directory))
    until(lambda: is_looked_up(directory))
    assert not is_looked_up(file)


def test_cores_stay_awake_while_opens_come_fast_and_sleep_again(growfs: Growfs, tmp_path: Path) -> None:
    if not os.access(DEVICE, os.W_OK):
        pytest.skip(f"{DEVICE} is not there")
    tree = make_tree(tmp_path / "remote", directories=1, files=5)
    growfs.mount(tmp_path / "remote")
    paths = [growfs.mountpoint / path for path in tree]

    def is_held() -> bool:
        return any(os.readlink(fd) == DEVICE for fd in Path(f"/proc/{growfs.pid}/fd").iterdir() if fd.is_symlink())

    def is_held_after_many_opens() -> bool:
        for _ in range(200):
            for path in paths:
                path.read_bytes()
        return is_held()

    until(is_held_after_many_opens)
    until(lambda: not is_held())
