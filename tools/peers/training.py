"""Runs trainer.py over a peer behind a link, and counts what that takes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from tools.benchmarks.cgroup import Cgroup
from tools.benchmarks.formula_s3 import key
from tools.benchmarks.link_emulator import COUNTS
from tools.benchmarks.measure import BenchError, environment, run, wait_until
from tools.benchmarks.servers import behind_link
from tools.peers.environment import Environment
from tools.peers.peer import Peer, Remote, Room

TRAINER, EPOCHS, BURN = (Path(__file__).with_name(name) for name in ("trainer.py", "epochs.py", "burn.py"))
LOOKUPS = 50
LOOK_EVERY_S = 0.01
RUN_S_MAX = 240.0
"""A peer that takes longer is stopped; the epochs that it finished count."""
LIST_S_MAX = 900.0
"""For a bucket of ten million keys, which the benchmark's own server lists as fast as Python computes them."""


@dataclass(frozen=True, slots=True)
class Link:
    """Of a round trip and a rate, in bytes/s."""

    rtt_s: float
    rate: int

    def __str__(self) -> str:
        return f"{self.rate / 1e6:.0f} MB/s, {self.rtt_s * 1000:.0f} ms"


@dataclass(frozen=True, slots=True)
class Reading:
    """What is read. files: how many there are. decodes: whether as images. passes: after all were read."""

    files: int
    cache_bytes: int
    decodes: bool = False
    processes: int = 0
    passes: int = 0


@dataclass(frozen=True, slots=True)
class Training:
    """What is trained. samples: of the data set, and of an epoch. ingest: bytes/s that the accelerator takes."""

    samples: int
    sample_bytes: int
    per_shard: int
    batch: int
    ingest: int
    epochs: int
    cache_bytes: int

    def spec(self) -> dict[str, Any]:
        """For trainer.py."""
        return {
            "samples": self.samples,
            "sample_bytes": self.sample_bytes,
            "batch": self.batch,
            "step_s": self.batch * self.sample_bytes / self.ingest,
            "epochs": self.epochs,
        }


def train(peer: Peer, server: str, plain: Path, link: Link, training: Training, folder: Path) -> dict[str, Any]:
    """Train, from an empty cache. server: its endpoint. plain: the bucket as a folder. folder: an empty one.

    `epochs` has what trainer.py prints of each, with the bytes and requests that went over the link. Raises BenchError.
    """
    counts = folder / "counts"
    (folder / "peer").mkdir()
    with (
        behind_link(server, link.rtt_s, link.rate, folder / "link.log", counts) as near,
        Cgroup("-daemons") as daemons,
        Cgroup("-program") as programs,
        program(peer.name, [TRAINER, peer.source], programs, folder / "trainer.log") as process,
    ):
        remote = Remote(near.endpoint, plain, training.samples // training.per_shard)
        room = Room(folder / "peer", training.cache_bytes, daemons)
        before = programs.cpu_s() or 0.0
        began = time.monotonic()
        with peer.running(remote, room) as more:
            words = {**training.spec(), **more, "began": began}
            first_s, epochs = None, []
            for found in answers(process, words, RUN_S_MAX):
                if "first_batch_s" in found:
                    first_s = found["first_batch_s"]
                    continue
                bytes, lists, gets = COUNTS.unpack(counts.read_bytes())
                cpu = {"daemon_cpu_s": daemons.cpu_s(), "program_cpu_s": (programs.cpu_s() or 0.0) - before}
                epochs.append(found | cpu | {"remote_bytes": bytes, "lists": lists, "gets": gets})
            if first_s is None:
                raise BenchError(f"{peer.name}: {log_of(folder / 'trainer.log')}")
            return {"first_batch_s": first_s, "epochs": epochs, "daemon_mb": memory_mb(daemons)}


def read(
    peer: Peer, server: str, plain: Path, link: Link, work: Reading, folder: Path, prefix: str, at: str = "folder"
) -> dict[str, Any]:
    """Read all files of a folder of the bucket, from an empty cache that holds them, and then again and again.

    at: what of the peer is read: its mount, or what it cached. Returns what epochs.py prints.
    """
    (folder / "peer").mkdir()
    with (
        behind_link(server, link.rtt_s, link.rate, folder / "link.log") as near,
        Cgroup("-daemons") as daemons,
        Cgroup("-program") as programs,
        program(peer.name, [EPOCHS, "decode" if work.decodes else "read"], programs, folder / "reader.log") as process,
    ):
        began = time.monotonic()
        with peer.running(
            Remote(near.endpoint, plain), Room(folder / "peer", work.cache_bytes, daemons), prefix
        ) as more:
            words = {"folder": more[at], "files": work.files, "processes": work.processes, "passes": work.passes}
            found = list(answers(process, words | {"began": began}, RUN_S_MAX))
            if not found:
                raise BenchError(f"{peer.name}: {log_of(folder / 'reader.log')}")
            return {**found[0], "passes": found[1:], "daemon_mb": memory_mb(daemons)}


def beside(
    peer: Peer, server: str, plain: Path, link: Link, work: Reading, folder: Path, prefix: str, seconds: int
) -> dict[str, Any]:
    """What a job that needs all cores makes in so many seconds alone, and while a peer fills its cache."""
    (folder / "peer").mkdir()
    counts = folder / "counts"
    command = [Environment.python(), BURN, seconds, work.processes]

    def fill() -> None:
        with peer.running(remote, Room(folder / "peer", work.cache_bytes, daemons), prefix) as more:
            if not peer.fills_by_itself:
                for path in Path(more["folder"]).rglob("*.*"):
                    if ended.is_set():
                        break
                    path.read_bytes()
            ended.wait()

    with behind_link(server, link.rtt_s, link.rate, folder / "link.log", counts) as near, Cgroup("-daemons") as daemons:
        alone = float(run(command, **Environment.variables()))
        remote, ended = Remote(near.endpoint, plain), threading.Event()
        filling = threading.Thread(target=fill)
        filling.start()
        try:
            wait_until(lambda: COUNTS.unpack(counts.read_bytes())[0] > link.rate / 10, "filling", every_s=0.05)
            before = COUNTS.unpack(counts.read_bytes())[0]
            busy = float(run(command, **Environment.variables()))
            rate = (COUNTS.unpack(counts.read_bytes())[0] - before) / seconds
        finally:
            ended.set()
            filling.join()
        return {"alone_per_s": alone, "beside_per_s": busy, "bytes_per_s": rate}


def look_up(peer: Peer, endpoint: str, keys: int, folder: Path, cache_bytes: int) -> dict[str, Any]:
    """The time until a name of a large bucket is found, that of other names, and the daemon's memory."""
    generator = Random(7)
    names = [key(generator.randrange(keys)) for _ in range(LOOKUPS)]
    with Cgroup("-daemons") as daemons:
        began = time.monotonic()
        (folder / "peer").mkdir()
        remote = Remote(endpoint, folder, bucket="formula")
        with peer.running(remote, Room(folder / "peer", cache_bytes, daemons), "") as more:
            waits = []
            for name in names:
                found = os.path.join(more["folder"], name)
                wait_until(partial(os.path.exists, found), name, LOOK_EVERY_S, LIST_S_MAX)  # it may not be listed yet
                waits.append(time.monotonic() - began)
                began = time.monotonic()
            return {"ready_s": waits[0], "other_ms": 1000 * median(waits[1:]), "daemon_mb": memory_mb(daemons)}


@contextmanager
def program(name: str, words: list[object], group: Cgroup, log: Path) -> Iterator[subprocess.Popen[str]]:
    """A program of the peers' environment, which has imported what it needs. name: of the peer."""
    command = group.command([Environment.python(), *words])
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
            start_new_session=True,
            env=environment() | Environment.variables(),
        )
    assert process.stdout
    try:
        if process.stdout.readline().strip() != "ready":
            raise BenchError(f"{name}: {log_of(log)}")
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def answers(process: subprocess.Popen[str], words: dict[str, Any], limit_s: float) -> Iterator[dict[str, Any]]:
    """Start the program's work, and yield the lines that it prints, until it ends or the time is over."""
    assert process.stdin
    assert process.stdout
    timer = threading.Timer(limit_s, process.kill)
    timer.start()
    try:
        process.stdin.write(json.dumps(words) + "\n")
        process.stdin.flush()
        for line in process.stdout:
            if line.startswith("{"):
                yield json.loads(line)
    finally:
        timer.cancel()


def memory_mb(group: Cgroup) -> float:
    """The proportional set size of the group's processes, in 10^6 bytes."""
    total = 0
    for pid in group.processes():
        with suppress(OSError, IndexError):  # it has ended, or is the kernel's
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
            total += int(text.split("\nPss:")[1].split()[0])
    return total * 1024 / 1e6


def log_of(path: Path) -> str:
    """The last line of a log."""
    lines = path.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it ended without a message"
