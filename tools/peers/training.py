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
from pathlib import Path
from typing import Any

from tools.benchmarks.cgroup import Cgroup
from tools.benchmarks.link_emulator import COUNTS
from tools.benchmarks.measure import BenchError, environment
from tools.benchmarks.servers import behind_link
from tools.peers.environment import Environment
from tools.peers.peer import Peer, Remote, Room

TRAINER = Path(__file__).with_name("trainer.py")
RUN_S_MAX = 240.0
"""A peer that takes longer is stopped; the epochs that it finished count."""


@dataclass(frozen=True, slots=True)
class Link:
    """Of a round trip and a rate, in bytes/s."""

    rtt_s: float
    rate: int


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
        program(peer, programs, folder / "trainer.log") as process,
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


@contextmanager
def program(peer: Peer, group: Cgroup, log: Path) -> Iterator[subprocess.Popen[str]]:
    """trainer.py for a peer, which has imported what it needs."""
    command = group.command([Environment.python(), TRAINER, peer.source])
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
            raise BenchError(f"{peer.name}: {log_of(log)}")
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
