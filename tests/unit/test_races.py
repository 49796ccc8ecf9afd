"""Two who want the same file at once, over a real daemon: it is fetched once, and what is there is not lost."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from growfs.daemon.control import call
from growfs.disk import BLOCK
from growfs.errors import GrowfsError
from growfs.rotation.draw_order import Candidate, Pass, draw_order
from tests.harness import Growfs, until


@contextmanager
def control(growfs: Growfs) -> Iterator[socket.socket]:
    """A line to the daemon: unix(7) allows 107 bytes of name."""
    folder = os.open(growfs.cache, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(30)
        line.connect(f"/proc/self/fd/{folder}/control.sock")
        os.close(folder)
        yield line


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
def test_a_file_that_population_waits_to_draw_is_opened_meanwhile(growfs: Growfs, tmp_path: Path) -> None:
    tree = make_flat(tmp_path / "remote", 8)
    growfs.mount(tmp_path / "remote", "--cache-size", 4 * BLOCK, "--settle", 0)
    until(lambda: growfs.status()["state"] == "held")
    waited_for = list(tree)[4]
    assert (growfs.mountpoint / waited_for).read_bytes() == tree[waited_for]
    growfs.run("set", growfs.mountpoint, "cache-size=1GB")
    assert call(growfs.cache, "fetch", globs=["*"])["failed"] == 0
    assert {name: (growfs.mountpoint / name).read_bytes() for name in tree} == tree
    status = growfs.status()
    assert status["fetch"]["failed"] == 0
    assert (growfs.cache / "files" / waited_for).exists()
    assert status["cache"]["bytes"] == 8 * BLOCK


def test_a_verb_asks_for_what_population_fetches(growfs: Growfs, tmp_path: Path) -> None:
    tree = make_flat(tmp_path / "remote", 150)
    growfs.mount(tmp_path / "remote", "--no-wait", "--workers", 1)
    assert call(growfs.cache, "fetch", globs=["*"])["failed"] == 0
    until(lambda: growfs.status()["state"] == "complete")
    status = growfs.status()
    assert (status["fetch"]["failed"], status["fetch"]["files_total"]) == (0, len(tree))
    assert len(os.listdir(growfs.cache / "files")) == len(tree)


def test_a_caller_that_hangs_up_ends_nothing_else(growfs: Growfs, tmp_path: Path) -> None:
    tree = make_flat(tmp_path / "remote", 60)
    growfs.mount(tmp_path / "remote", "--cache-size", 4 * BLOCK)
    (tmp_path / "remote").rename(tmp_path / "away")
    for _ in range(3):
        with control(growfs) as line:
            line.sendall(json.dumps({"command": "fetch", "globs": list(tree)[:6]}).encode() + b"\n")
            assert line.recv(1)
    (tmp_path / "away").rename(tmp_path / "remote")
    assert growfs.status()["fetch"]["failed"] >= 0
    assert (growfs.mountpoint / list(tree)[7]).read_bytes() == tree[list(tree)[7]]


@pytest.mark.parametrize(
    "request_",
    [
        {"command": "no such"},
        {"command": ["status"]},
        {"command": "status", "what": 1},
        {"command": "pin"},
        {"command": "pin", "globs": 5},
        {"command": "pin", "globs": [5]},
        {"command": "set", "options": 5},
        {"command": "set", "options": {"cache_size": 5.5}},
        {"command": "set", "options": {"seed": "1"}},
        {"command": "set", "options": {"settle": []}},
        [],
        5,
    ],
    ids=str,
)
def test_a_request_that_makes_no_sense_ends_nothing(mounted: Growfs, request_: object) -> None:
    with control(mounted) as line:
        line.sendall(json.dumps(request_).encode() + b"\n")
        (answer,) = [json.loads(text) for text in line.makefile()]
    assert answer["error"]
    assert "\n" not in answer["error"]
    assert call(mounted.cache, "status")["state"]


def test_a_deep_request_ends_nothing(mounted: Growfs) -> None:
    with control(mounted) as line:
        line.sendall(b"[" * 100_000 + b"\n")
        line.recv(1 << 20)
    assert call(mounted.cache, "status")["state"]


def test_a_reader_whose_name_is_cut_within_a_letter(mounted: Growfs) -> None:
    script = (
        "import ctypes, os, sys\n"
        "ctypes.CDLL(None).prctl(15, ('x' * 14 + 'é').encode())\n"  # PR_SET_NAME keeps 15 bytes (prctl(2))
        "for name in os.listdir(sys.argv[1]): open(os.path.join(sys.argv[1], name), 'rb').read()\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(mounted.mountpoint)], timeout=30, check=False)
    assert done.returncode == 0
    assert call(mounted.cache, "status")["state"]


@pytest.fixture
def mounted(growfs: Growfs, tmp_path: Path) -> Growfs:
    make_flat(tmp_path / "remote", 3)
    growfs.mount(tmp_path / "remote")
    return growfs


def test_a_verb_on_nothing_is_an_error(mounted: Growfs) -> None:
    with pytest.raises(GrowfsError, match="no file matches"):
        call(mounted.cache, "pin", globs=["*.none"])
