"""Helpers for the tests of rotation: a full cache that is smaller than the remote, and epochs of a reader."""

from __future__ import annotations

import json
import random
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from growfs.fuse.mounting import mounted_at
from tests.forkserver import SETUP_VARIABLE
from tests.fuse.reader import Reader
from tests.harness import GROWFS, Growfs, forks_for, make_tree, until

SIZE = 4096
CAPACITY = 10
"""Files in a full cache."""
HALF = "--turnover", "50%"


def mount_status(growfs: Growfs) -> dict[str, Any]:
    """The status, read through the mount: faster than `growfs status`, and it does not count as a listing."""
    return dict(json.loads((growfs.mountpoint / ".growfs/status.json").read_text()))


def full_cache(
    growfs: Growfs, remote: Path, *flags: object, files: int = 40, capacity: int = CAPACITY
) -> dict[str, bytes]:
    """Mount files in two directories with a cache of `capacity` files, and wait until it is full."""
    tree = make_tree(remote, directories=2, files=files // 2, size=SIZE)
    growfs.mount(remote, "--cache-size", capacity * SIZE, *(flags or HALF))
    growfs.until_cached(capacity)
    return tree


IN_A_PID_NAMESPACE = f"""
import ctypes, os, signal
del os.environ["{SETUP_VARIABLE}"]
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x20000000):  # CLONE_NEWPID
    raise OSError(ctypes.get_errno(), "unshare")
if child := os.fork():
    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
"""
"""Runs a program in a pid namespace of its own, as `unshare --pid --fork --kill-child` does."""


@contextmanager
def mounted_in_a_pid_namespace(growfs: Growfs, url: object, *flags: object) -> Iterator[None]:
    """A mount whose daemon is in a pid namespace of its own, so that the processes of the test are outside it."""
    words = [*GROWFS[1:], *growfs.mount_words(url, *flags, "--foreground")]
    env = {**growfs.env, SETUP_VARIABLE: IN_A_PID_NAMESPACE}
    with tempfile.TemporaryFile("w+") as output:
        process = forks_for(words).start(words, env, stdout=output, stderr=output, new_session=True)
        try:
            until(lambda: mounted_at(growfs.mountpoint) or process.poll() is not None)
            output.seek(0)
            if process.poll() is not None and "unshare" in output.read():
                pytest.skip("this machine allows no pid namespace")
            yield
            growfs.umount()
            process.wait(30)
        finally:
            process.kill()


def wait_for_replacement(growfs: Growfs, capacity: int = CAPACITY) -> dict[str, Any]:
    """Wait until new files, not listed yet, have replaced all delisted ones; returns the status."""

    def status() -> dict[str, Any] | None:
        now = mount_status(growfs)
        cache = now["cache"]
        arrived = cache["files"] == capacity and cache["left_out_bytes"] == 0 and now["listed"]["files"] < capacity
        return now if arrived else None

    return dict(until(status))


def epoch(reader: Reader, path: str = "") -> set[str]:
    """List everything below a directory, and read every file; returns the names."""
    names = reader.walk(path)
    reader.read_all(shuffled(names))
    return names


def shuffled(names: Iterable[str], seed: int = 0) -> list[str]:
    """The names in a random order, the same each time."""
    names = sorted(names)
    random.Random(seed).shuffle(names)
    return names


def local(growfs: Growfs) -> set[str]:
    """The files that are on the local disk."""
    files = growfs.cache / "files"
    return {str(path.relative_to(files)) for path in files.rglob("*") if path.is_file()}


def admissions(growfs: Growfs) -> list[str]:
    """The local files, in the order of admission."""
    with closing(sqlite3.connect(growfs.cache / "catalog.sqlite")) as connection:
        rows = connection.execute(
            "SELECT d.name || '/' || n.name FROM resident r JOIN node n USING (id) JOIN node d ON d.id = n.parent"
            " WHERE n.is_dir = 0 ORDER BY r.seq"
        ).fetchall()
    return [name for (name,) in rows]


def waited_opens(growfs: Growfs) -> int:
    """How many opens had to wait for a fetch."""
    return int(mount_status(growfs)["miss"]["files_total"])
