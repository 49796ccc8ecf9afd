"""The cases: what is measured. Each writes a data set, runs all peers in turns, and adds to the results."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tools.benchmarks.measure import BenchError, run, temporary_folder
from tools.benchmarks.servers import rclone_server
from tools.peers.environment import Environment
from tools.peers.peer import BUCKET, Peer
from tools.peers.results import Results
from tools.peers.training import Link, Training, train

CACHES = (0.1, 0.35, 0.65)
"""Sizes of the cache, as shares of the data set."""
ETAGS = "crc32"
"""A hash that takes the server little time. s3torchconnector refuses objects without an ETag."""


@dataclass(frozen=True, slots=True)
class Setting:
    """How to measure. folder: empty."""

    folder: Path
    quick: bool
    rounds: int
    peers: Sequence[Peer]
    results: Results


def attempt(setting: Setting, case: str, peer: Peer, name: str, measured: Callable[[Path], dict[str, Any]]) -> None:
    """Add a run to the results. A peer that fails is noted with the message, and the others go on."""
    print(f"{case}: {peer.name}, {name}", file=sys.stderr, flush=True)
    with temporary_folder() as folder:
        try:
            setting.results.add(case, peer.name, name, measured(folder))
        except (BenchError, OSError, ValueError) as error:
            setting.results.left_out[f"{peer.name} ({case}, {name})"] = str(error).splitlines()[0][:200]
            print(f"  failed: {error}", file=sys.stderr, flush=True)


@contextmanager
def bucket(folder: Path, sizes: Sequence[int]) -> Iterator[tuple[str, Path]]:
    """A server with the data set of data.py: (its endpoint, the bucket as a folder)."""
    if not (folder / "remote").exists():
        data = Path(__file__).with_name("data.py")
        run([Environment.python(), data, folder / "remote" / BUCKET, *sizes], **Environment.variables())
    with rclone_server(folder / "remote", folder / "server.log", hashes=False, etags=ETAGS) as server:
        yield server.endpoint, folder / "remote" / BUCKET


# 1. The data set is larger than the cache.

LARGER = "larger-than-cache"
INGEST_FACTOR = 5
"""How much more the accelerator takes than the link brings."""


def larger_than_cache(setting: Setting) -> None:
    """Three epochs, from an empty cache, with caches that hold a part of the data set."""
    samples = 400 if setting.quick else 2000
    link = Link(0.02, 20_000_000)
    sizes = {
        "samples": samples,
        "sample_bytes": 102_400,
        "per_shard": 10,
        "batch": 20,
        "epochs": 2 if setting.quick else 3,
    }
    setting.results.cases[LARGER] = {**sizes, **asdict(link), "ingest": INGEST_FACTOR * link.rate}
    caches = CACHES[1:2] if setting.quick else CACHES
    with bucket(setting.folder, [samples, sizes["sample_bytes"], sizes["per_shard"]]) as (endpoint, plain):
        for _ in range(setting.rounds):
            for share in caches:
                for peer in setting.peers:
                    if peer.has_cache or share == caches[0]:
                        training = Training(
                            **sizes,
                            ingest=INGEST_FACTOR * link.rate,
                            cache_bytes=int(share * samples * sizes["sample_bytes"]),
                        )
                        name = f"{share:.0%}" if peer.has_cache else "any"
                        attempt(
                            setting, LARGER, peer, name,
                            lambda folder: train(peer, endpoint, plain, link, training, folder),  # noqa: B023
                        )  # fmt: skip
    shutil.rmtree(setting.folder / "remote")


CASES: dict[str, Callable[[Setting], None]] = {LARGER: larger_than_cache}
