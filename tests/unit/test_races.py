"""Requests that meet each other at a real daemon: a file is fetched once, and bad requests end nothing."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from growfs.daemon.control_client import call
from growfs.disk import BLOCK
from growfs.errors import GrowfsError
from growfs.rotation.pass_order import Candidate, Pass, draw_order
from tests.harness import Growfs, until


@contextmanager
def control(growfs: Growfs) -> Iterator[socket.socket]:
    """A connection to the daemon. unix(7) allows 107 bytes of name, so the path goes through /proc."""
    folder = os.open(growfs.cache, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(30)
        connection.connect(f"/proc/self/fd/{folder}/control.sock")
        os.close(folder)
        yield connection


def make_flat(folder: Path, count: int) -> dict[str, bytes]:
    """Files of a block each in one directory, in the order in which seed 0 draws them."""
    folder.mkdir()
    names = [f"{number:03}.bin" for number in range(count)]
    order = draw_order((Candidate(n, 1, name, BLOCK, False, False) for n, name in enumerate(names)), Pass(0, 1))
    tree = {names[n]: bytes([n]) * BLOCK for n in (*order.seeds, *order.rest)}
    for name, content in tree.items():
        (folder / name).write_bytes(content)
    return tree


@pytest.mark.promise(3)
def test_a_file_that_the_prefetcher_waits_to_draw_can_be_opened(growfs: Growfs, tmp_path: Path) -> None:
    tree = make_flat(tmp_path / "remote", 8)
    growfs.mount(tmp_path / "remote", "--cache-size", 4 * BLOCK, "--settle", 0)
    until(lambda: growfs.status()["state"] == "held")
    waiting = list(tree)[4]
    assert (growfs.mountpoint / waiting).read_bytes() == tree[waiting]
    growfs.run("set", growfs.mountpoint, "cache-size=1GB")
    assert call(growfs.cache, "fetch", globs=["*"])["failed"] == 0
    assert {name: (growfs.mountpoint / name).read_bytes() for name in tree} == tree
    status = growfs.status()
    assert status["fetch"]["failed"] == 0
    assert (growfs.cache / "files" / waiting).exists()
    assert status["cache"]["bytes"] == 8 * BLOCK


def test_a_command_may_fetch_what_the_prefetcher_is_fetching(growfs: Growfs, tmp_path: Path) -> None:
    tree = make_flat(tmp_path / "remote", 150)
    growfs.mount(tmp_path / "remote", "--no-wait", "--workers", 1)
    assert call(growfs.cache, "fetch", globs=["*"])["failed"] == 0
    until(lambda: growfs.status()["state"] == "complete")
    status = growfs.status()
    assert (status["fetch"]["failed"], status["fetch"]["files_total"]) == (0, len(tree))
    assert len(os.listdir(growfs.cache / "files")) == len(tree)


INVALID: list[object] = [
    {"command": "no such"},
    {"command": ["status"]},
    {"command": "status", "what": 1},
    {"command": "pin"},
    {"command": "pin", "globs": 5},
    {"command": "pin", "globs": [5]},
    {"command": "set", "options": 5},
    {"command": "set", "options": {"cache_size": [5]}},
    {"command": "set", "options": {"seed": "1"}},
    {"command": "set", "options": {"settle": []}},
    [],
    5,
]


def test_an_invalid_request_ends_nothing(mounted: Growfs) -> None:
    for request in INVALID:
        with control(mounted) as connection:
            connection.sendall(json.dumps(request).encode() + b"\n")
            (answer,) = [json.loads(text) for text in connection.makefile()]
        assert answer["error"], request
        assert "\n" not in answer["error"], request
        assert call(mounted.cache, "status")["state"], request
    with control(mounted) as connection:
        connection.sendall(b"[" * 100_000 + b"\n")
        connection.recv(1 << 20)
    assert call(mounted.cache, "status")["state"]
    with pytest.raises(GrowfsError, match="no file matches"):
        call(mounted.cache, "pin", globs=["*.none"])


@pytest.fixture
def mounted(growfs: Growfs, tmp_path: Path) -> Growfs:
    make_flat(tmp_path / "remote", 3)
    growfs.mount(tmp_path / "remote")
    return growfs
