"""User functions for the tests of producers. One of them misbehaves, depending on the name of the file."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import BinaryIO

STEP = 300_000
OUTSIDE = "GROWFS_TEST_OUTSIDE"  # an environment variable: the folder that a producer must not write to


def backwards(source: BinaryIO, out: BinaryIO) -> None:
    """Copy the content backwards, so that the source is not read in order."""
    size = source.seek(0, os.SEEK_END)
    for end in range(size, 0, -STEP):
        source.seek(max(0, end - STEP))
        out.write(source.read(min(STEP, end))[::-1])


def copied(source: BinaryIO, out: BinaryIO) -> None:
    """Copy, and print the name of the file."""
    print(f"copying {source.name}", flush=True)
    shutil.copyfileobj(source, out)


def troubled(source: BinaryIO, out: BinaryIO) -> None:
    """Misbehave in the way that the name of the file selects."""
    name = Path(source.name).stem
    print(f"printed over {name}", flush=True)
    os.write(1, b"written to 1\n")
    print("and to stderr", file=sys.stderr)
    subprocess.run(["echo", f"echoed over {name}"], check=True)
    out.write(b"what is left of it")
    if name == "raises":
        raise ValueError("no sense in this one")
    if name == "hangs":
        subprocess.Popen(["sleep", "4711"])
        time.sleep(600)
    if name == "exits":
        os._exit(3)
    if name == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "leaks":
        keep.append(b"x" * (400 << 20))
        time.sleep(5)
    if name == "links":
        os.unlink(out.name)
        os.symlink("/etc/hostname", out.name)
    if name == "elsewhere":
        Path(os.environ[OUTSIDE], "was here").write_text("x")
    if name == "input":
        assert sys.stdin.read() == ""
    if name == "scratch":
        with tempfile.NamedTemporaryFile("wb", delete=False) as scratch:
            scratch.write(b"by another name")
        Path("here too").write_bytes(b"x")
        os.replace(scratch.name, out.name)


keep: list[bytes] = []


def sometimes(source: BinaryIO, out: BinaryIO) -> None:
    """Fail until the folder OUTSIDE has a file of the same name."""
    marks = Path(os.environ[OUTSIDE])
    mark = marks / Path(source.name).name
    if mark.exists():
        out.write(source.read())
        return
    raise RuntimeError(f"not yet, {mark.name}")


def sample(index: int, rng: random.Random, out: BinaryIO) -> None:
    out.write(f"{index}:".encode() + rng.randbytes(1000))
