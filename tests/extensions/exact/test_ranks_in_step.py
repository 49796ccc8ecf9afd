"""Eight ranks with eight workers each, which start one after the other and meet in a collective after each batch."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import pytest

import tests.ranks_in_step
from tests.cli.support import OtherUser, other_user
from tests.fuse.conftest import only
from tests.fuse.rotation_helpers import waited_opens
from tests.harness import ENGINES, Growfs, make_tree, until
from tests.part_ranks import assert_each_once_in_each_pass
from tests.ranks_in_step import Collective, digest

RANKS, WORKERS, BATCHES = 8, 8, 84
"""In each folder, half of the ranks have 10 batches, and the others 11."""
START_EVERY_S = 20 / (RANKS - 1)
KILLED, KILLED_AFTER = 3, (30, 200, 370)
"""The rank that is killed, each time that it has read this many files."""
OF_ANOTHER_USER, IN_A_PID_NAMESPACE = 5, 6
READ_S_MAX = 400.0
SIZE = 4096
PROGRAM = Path(tests.ranks_in_step.__file__).read_text()
pytestmark = [pytest.mark.long, pytest.mark.timeout(900), only(*ENGINES)]


@pytest.fixture
def user(growfs: Growfs) -> Iterator[OtherUser]:
    """The user nobody, with a mountpoint."""
    with other_user() as user:
        growfs.mountpoint = user.folder / "mnt"
        growfs.mountpoint.mkdir()
        yield user
        growfs.umount()


def run_job(growfs: Growfs, user: OtherUser, folder: str, names: Sequence[str]) -> dict[str, list[str]]:
    """Run the ranks of a job over these folders; returns the files that they read of each."""
    out = user.folder / "out"
    out.mkdir()
    out.chmod(0o777)
    collective = Collective(RANKS)

    def start(rank: int) -> subprocess.Popen[bytes]:
        prefix, python = tuple[str, ...](), sys.executable
        if rank == OF_ANOTHER_USER and growfs.env["GROWFS_ENGINE"] != "links":  # which lead into the cache of root
            prefix, python = user.prefix, user.python
        if rank == IN_A_PID_NAMESPACE:
            prefix = "unshare", "--pid", "--fork", "--kill-child"
        numbers = rank, RANKS, WORKERS, BATCHES, collective.server_address[1]
        words = [*map(str, (*numbers, out / str(rank), growfs.mountpoint / folder)), *names]
        command = [*prefix, python, "-c", PROGRAM, *words]
        process = stack.enter_context(subprocess.Popen(command, env=user.env if prefix else None, cwd="/"))
        stack.callback(process.kill)
        return process

    def lines(rank: int) -> list[str]:
        with suppress(FileNotFoundError):
            return [line for line in (out / str(rank)).read_text().splitlines() if " " in line]
        return []

    def has_read(files: int) -> bool:
        return len(lines(KILLED)) >= files

    with ExitStack() as stack:
        stack.callback(collective.end)
        ranks = list[subprocess.Popen[bytes]]()
        for rank in range(RANKS):
            ranks.append(start(rank))
            time.sleep(START_EVERY_S)
        for files in KILLED_AFTER:
            until(partial(has_read, files), READ_S_MAX)
            ranks[KILLED].kill()
            ranks[KILLED].wait()
            ranks[KILLED] = start(KILLED)
        assert [rank.wait(READ_S_MAX) for rank in ranks] == RANKS * [0]
    read = defaultdict[str, list[str]](list)
    for line in [line for rank in range(RANKS) for line in lines(rank)]:
        name, _, file = line.partition(" ")
        read[name].append(file)
    assert list(collective.listings) == list(names)
    assert {name: {digest(files)} for name, files in read.items()} == collective.listings
    return read


@pytest.mark.promise(47, 48)
def test_each_file_is_read_once_in_each_pass(growfs: Growfs, user: OtherUser, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "remote", directories=8, files=250, size=SIZE)
    growfs.mount(tmp_path / "remote", "--exact", "--cache-size", len(tree) * SIZE * 35 // 100, "--part-size", "40%")
    passes, parts = growfs.mountpoint / ".growfs/passes", list[str]()
    for number in (1, 2):
        count = json.loads((passes / str(number) / "parts.json").read_text())["parts"]
        parts += [f"{number}/{part}" for part in range(1, count + 1)]
    read = run_job(growfs, user, ".growfs/passes", parts)
    assert_each_once_in_each_pass([f"{part} {file}" for part in read for file in read[part]], tree, (1, 2))
    assert waited_opens(growfs) == 0


@pytest.mark.promise(49, 50)
def test_all_read_the_same_generations(growfs: Growfs, user: OtherUser, tmp_path: Path) -> None:
    """Two are kept, so that a rank that was killed in the one before the newest can go on."""
    tree = make_tree(tmp_path / "remote", directories=8, files=250, size=SIZE)
    growfs.mount(tmp_path / "remote", "--cache-size", len(tree) // 2 * SIZE, "--keep-generations", 2)
    growfs.until_cached(len(tree) // 2)
    read = run_job(growfs, user, ".growfs/generations", ["1", "2", "3", "4"])
    assert all(len(files) == len(set(files)) for files in read.values())
    assert set(read["1"]) != set(read["2"])
    assert waited_opens(growfs) == 0
