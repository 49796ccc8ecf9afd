"""What the daemon requests of the kernel: invalidated names, cached attributes, and cores that stay awake."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from growfs.fuse.latency import DEVICE
from growfs.fuse.mounting import force_unmount, mounted_at
from tests.forkserver import SETUP_VARIABLE
from tests.fuse.conftest import only, opened
from tests.harness import Growfs, make_tree, until

FILES = 20
LOOKUP_THREADS = 2
ABORT_S = 60.0


@pytest.mark.promise(9)
def test_invalidations_do_not_deadlock_with_lookups(growfs: Growfs, tmp_path: Path) -> None:
    """The kernel delays an invalidation until look-ups in that directory end, and these wait for the daemon.

    So the daemon must go on answering while it sends invalidations."""
    remote = tmp_path / "remote"
    tree = make_tree(remote, directories=1, files=FILES, size=100)
    growfs.mount(remote)
    growfs.run("wait", growfs.mountpoint, "--all")
    growfs.run("set", growfs.mountpoint, "refresh=0.1")
    ended = threading.Event()
    folder = growfs.mountpoint / "class0"

    def look_up() -> None:
        number = 0
        while not ended.is_set():
            number += 1
            for name in (f"nothing{number}", f"{number % FILES:04}.bin"):
                with suppress(FileNotFoundError):
                    os.stat(folder / name)

    # A deadlock would hang this process, too, and its end would not end the daemon.
    abort = threading.Timer(ABORT_S, force_unmount, [mounted_at(growfs.mountpoint)])
    threads = [abort, *(threading.Thread(target=look_up) for _ in range(LOOKUP_THREADS))]
    for thread in threads:
        thread.start()
    try:
        for path in tree:
            os.utime(remote / path, ns=(0, 10**15))
        until(lambda: all((growfs.mountpoint / path).stat().st_mtime_ns == 10**15 for path in tree))
    finally:
        ended.set()
        abort.cancel()
        for thread in threads:
            thread.join()
    assert {path: (growfs.mountpoint / path).read_bytes() for path in tree} == tree


@pytest.mark.promise(9)
@only("passthrough")
def test_attributes_of_directories_and_of_removed_files_expire_after_a_second_and_of_others_do_not(
    growfs: Growfs, tmp_path: Path
) -> None:
    make_tree(tmp_path / "remote", directories=1, files=1)
    (tmp_path / "remote/file").touch()
    growfs.mount(tmp_path / "remote")
    file, directory = growfs.mountpoint / "file", growfs.mountpoint / "class0"

    def requests(kind: str) -> int:
        return int(growfs.status()["requests"].get(kind, 0))

    def is_looked_up(path: Path) -> bool:
        before = requests("LOOKUP")
        path.stat()
        return requests("LOOKUP") > before

    assert is_looked_up(file)
    until(lambda: not is_looked_up(directory))
    until(lambda: is_looked_up(directory))
    assert not is_looked_up(file)
    growfs.run("pause", growfs.mountpoint)
    (tmp_path / "remote/not-cached").write_text("x")
    growfs.run("set", growfs.mountpoint, "refresh=0.1")
    until((growfs.mountpoint / "not-cached").exists)
    assert not is_looked_up(growfs.mountpoint / "not-cached")
    with opened(file) as fd:
        (tmp_path / "remote/file").unlink()
        until(lambda: not file.exists())
        before = requests("GETATTR")
        for _ in range(1000):
            os.fstat(fd)
        assert requests("GETATTR") - before < 100, "the kernel would otherwise request them before each read"


def test_cores_stay_awake_only_while_opens_are_frequent(growfs: Growfs, tmp_path: Path) -> None:
    if not os.access(DEVICE, os.W_OK):
        pytest.skip(f"{DEVICE} is not writable")
    tree = make_tree(tmp_path / "remote", directories=1, files=5)
    growfs.env[SETUP_VARIABLE] = (  # how frequent opens are depends on what else runs here
        "from growfs.fuse import latency; latency.BUSY_REQUESTS, latency.BUSY_S = 8, 1.0"
    )
    growfs.mount(tmp_path / "remote")
    paths = [growfs.mountpoint / path for path in tree]

    def is_held() -> bool:
        return any(os.readlink(fd) == DEVICE for fd in Path(f"/proc/{growfs.pid}/fd").iterdir() if fd.is_symlink())

    def is_held_after_many_opens() -> bool:
        for path in paths * 20:
            path.read_bytes()
        return is_held()

    until(is_held_after_many_opens)
    until(lambda: not is_held())
