"""Runs a program over a peer behind a link, and counts its traffic."""

from __future__ import annotations

import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from tools.benchmarks.cgroup import Cgroup
from tools.benchmarks.child import Child
from tools.benchmarks.measure import memory_bytes, run, wait_until
from tools.benchmarks.noisy_s3 import key
from tools.benchmarks.servers import behind_link
from tools.peers.environment import PYTHON, VARIABLES
from tools.peers.peer import Peer, Room

TRAINER = Path(__file__).with_name("trainer.py")
LOOK_EVERY_S = 0.01
RUN_S_MAX = 240.0
"""A peer that takes longer is stopped; epochs that it finished count."""
LIST_S_MAX = 900.0
"""For a bucket of ten million keys, which the benchmark's own server lists as fast as Python computes them."""


@dataclass(frozen=True, slots=True)
class Link:
    rtt_s: float
    rate: int

    def __str__(self) -> str:
        return f"{self.rate / 1e6:.0f} MB/s, {self.rtt_s * 1000:.0f} ms"


@dataclass(frozen=True, slots=True)
class Stage:
    """server: its endpoint. plain: the bucket as a folder. prefix: the folder of the bucket."""

    peer: Peer
    server: str
    plain: Path
    link: Link
    cache_bytes: int
    prefix: str = "shards"

    def room(self, folder: Path, endpoint: str, group: Cgroup) -> Room:
        """The place where the peer works, in a new folder below the given one. endpoint: the near end of the link."""
        (folder / "peer").mkdir()
        return Room(endpoint, self.plain, folder / "peer", self.cache_bytes, group, prefix=self.prefix)


def train(stage: Stage, spec: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Train, from an empty cache. spec: for trainer.py. folder: an empty one.

    `epochs` has the output of trainer.py for each epoch, with the bytes and requests on the link. Raises BenchError.
    """
    spec = spec | {"step_s": spec["batch"] * spec["sample_bytes"] / spec["ingest"]}
    (first, *epochs), daemon_mb = _over_peer(stage, [TRAINER, stage.peer.source], spec, folder)
    return {"first_batch_s": first["first_batch_s"], "epochs": epochs, "daemon_mb": daemon_mb}


def read(stage: Stage, spec: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Read all files of a folder of the bucket, from an empty cache that has room for them, and then repeatedly.

    spec: for trainer.py. Returns its output.
    """
    (first, *passes), daemon_mb = _over_peer(stage, [TRAINER, "decode" if spec["processes"] else "read"], spec, folder)
    return {**first, "passes": passes, "daemon_mb": daemon_mb}


def _over_peer(
    stage: Stage, words: list[object], spec: dict[str, Any], folder: Path
) -> tuple[list[dict[str, Any]], float]:
    """The lines that a program prints, with the counts at that time; and the final memory of the peer's daemons."""
    with (
        behind_link(stage.server, stage.link.rtt_s, stage.link.rate) as near,
        Cgroup("-daemons") as daemons,
        Cgroup("-program") as programs,
        Child(programs.command([PYTHON, *words]), VARIABLES, answers=True, name=stage.peer.name) as program,
    ):
        program.expect("ready")
        room = stage.room(folder, near.endpoint, daemons)
        before, began = programs.cpu_s() or 0.0, time.monotonic()
        with stage.peer.running(room) as more:
            program.send(json.dumps({**spec, **more, "began": began}))
            lines = []
            for line in program.lines(RUN_S_MAX):
                if line.startswith("{"):
                    bytes, lists, gets = near.traffic()
                    cpu = {"daemon_cpu_s": daemons.cpu_s(), "program_cpu_s": (programs.cpu_s() or 0.0) - before}
                    lines.append(json.loads(line) | cpu | {"remote_bytes": bytes, "lists": lists, "gets": gets})
            if not lines:
                raise program.error()
            return lines, _memory_mb(daemons)


def beside(stage: Stage, processes: int, seconds: float, folder: Path) -> dict[str, Any]:
    """The samples that a job that needs all cores makes in that time, alone and while a peer fills its cache."""
    link = stage.link

    def job() -> float:
        return float(run([PYTHON, TRAINER, "burn", seconds, processes], **VARIABLES))

    def fill() -> None:
        with stage.peer.running(stage.room(folder, near.endpoint, daemons)) as more:
            if not stage.peer.fills_by_itself:
                for path in Path(more["folder"]).rglob("*.*"):
                    if ended.is_set():
                        break
                    path.read_bytes()
            ended.wait()

    with (
        behind_link(stage.server, link.rtt_s, link.rate) as near,
        Cgroup("-daemons") as daemons,
        ThreadPoolExecutor(1) as pool,
    ):
        alone, ended = job(), threading.Event()
        filling = pool.submit(fill)

        def is_filling() -> bool:
            if filling.done():
                filling.result()  # raises why
            return near.traffic().bytes > link.rate / 10

        try:
            wait_until(is_filling, "filling", every_s=0.05)
            before = near.traffic().bytes
            figures = {
                "alone_per_s": alone,
                "beside_per_s": job(),
                "bytes_per_s": (near.traffic().bytes - before) / seconds,
            }
        finally:
            ended.set()
        filling.result()
        return figures


def look_up(peer: Peer, endpoint: str, keys: int, cache_bytes: int, folder: Path) -> dict[str, Any]:
    """The times until a file is listed and until a name is found in a large bucket, and the memory of the daemon."""
    generator = Random(7)
    with Cgroup("-daemons") as daemons:
        began = time.monotonic()
        with peer.running(Room(endpoint, folder, folder, cache_bytes, daemons, "noise", "")) as more:
            wait_until(lambda: any(names for *_, names in os.walk(more["folder"])), "a file", LOOK_EVERY_S, LIST_S_MAX)
            first_file_s, waits = time.monotonic() - began, []
            for _ in range(50):
                path = os.path.join(more["folder"], key(generator.randrange(keys)))
                wait_until(partial(os.path.exists, path), path, LOOK_EVERY_S, LIST_S_MAX)  # it may not be listed yet
                waits.append(time.monotonic() - began)
                began = time.monotonic()
            times = {"first_file_s": first_file_s, "ready_s": waits[0]}
            return {**times, "other_ms": 1000 * median(waits[1:]), "daemon_mb": _memory_mb(daemons)}


def _memory_mb(group: Cgroup) -> float:
    return sum(memory_bytes(pid) or 0 for pid in group.processes()) / 1e6
