"""The cases: what is measured. Each writes a data set, runs all peers in turns, and adds to the results."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tools.benchmarks.formula_s3 import PER_DIRECTORY
from tools.benchmarks.measure import BenchError, make_file, run, temporary_folder
from tools.benchmarks.recipe_data import images
from tools.benchmarks.servers import formula_server, rclone_server
from tools.peers.environment import Environment
from tools.peers.peer import BUCKET, Peer
from tools.peers.results import Results
from tools.peers.training import Link, Reading, Training, beside, look_up, read, train

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
    """A server with the data set of data.py, if it has a size: (its endpoint, the bucket as a folder)."""
    if sizes:
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
    samples = 200 if setting.quick else 2000
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
                        attempt(setting, LARGER, peer, name, partial(train, peer, endpoint, plain, link, training))


# 2. Cold start.

COLD = "cold-start"
LINKS = (Link(0.05, 5_000_000), Link(0.02, 20_000_000), Link(0.005, 100_000_000))


def cold_start(setting: Setting) -> None:
    """The first batch, from an empty cache, at three links."""
    sizes = {"samples": 400, "sample_bytes": 102_400, "per_shard": 10, "batch": 20, "epochs": 0}
    setting.results.cases[COLD] = sizes
    cache_bytes = sizes["samples"] * sizes["sample_bytes"] * 35 // 100
    with bucket(setting.folder, [400, 102_400, 10]) as (endpoint, plain):
        for _ in range(setting.rounds):
            for link in LINKS[1:2] if setting.quick else LINKS:
                for peer in setting.peers:
                    training = Training(**sizes, ingest=INGEST_FACTOR * link.rate, cache_bytes=cache_bytes)
                    attempt(setting, COLD, peer, str(link), partial(train, peer, endpoint, plain, link, training))


# 3. and 4. Small files, and reads of what is cached.

IMAGES, WARM = "small-files", "warm-reads"
NEAR = Link(0.01, 50_000_000)
FAST = Link(0.0, 2_000_000_000)
PASSES = 3


def small_files(setting: Setting) -> None:
    """Directories of JPEGs of 110 kB, decoded by 2 and by 8 processes, until all were seen and once more."""
    classes, each = (2, 20) if setting.quick else (10, 130)
    setting.results.cases[IMAGES] = {"classes": classes, "each": each, **asdict(NEAR)}
    images(setting.folder / "remote" / BUCKET / "images", classes, each)
    work = Reading(classes * each, classes * each * 250_000, decodes=True, passes=1)
    with bucket(setting.folder, ()) as (endpoint, plain):
        for _ in range(setting.rounds):
            for processes in (2,) if setting.quick else (2, 8):
                for peer in (peer for peer in setting.peers if peer.source == "files"):
                    loader = replace(work, processes=processes)
                    measured = partial(read, peer, endpoint, plain, NEAR, loader, prefix="images")
                    attempt(setting, IMAGES, peer, f"{processes} processes", measured)


def warm_reads(setting: Setting) -> None:
    """Files that are cached, read by one thread: shards and small files, through the peer and from its cache."""
    counts = {"shards": 4, "images": 40} if setting.quick else {"shards": 16, "images": 1300}
    setting.results.cases[WARM] = {**counts, "shard_bytes": SHARD_BYTES}
    images(setting.folder / "remote" / BUCKET / "images", 10, counts["images"] // 10)
    for number in range(counts["shards"]):
        make_file(setting.folder / "remote" / BUCKET / "shards" / f"{number:03}.tar", SHARD_BYTES >> 20)
    with bucket(setting.folder, ()) as (endpoint, plain):
        for _ in range(setting.rounds):
            for prefix, files in counts.items():
                size = SHARD_BYTES if prefix == "shards" else 250_000
                work = Reading(files, 2 * files * size, passes=PASSES)
                for peer in (peer for peer in setting.peers if peer.source == "files"):
                    for at in ("folder", "cached") if peer.name == "growfs" else ("folder",):
                        measured = partial(read, peer, endpoint, plain, FAST, work, prefix=prefix, at=at)
                        attempt(setting, WARM, peer, f"{prefix}, {at}", measured)


SHARD_BYTES = 64 << 20


# 5. What a job loses while a peer fills.

BESIDE = "beside-filling"
FILLED = Link(0.01, 100_000_000)


def beside_filling(setting: Setting) -> None:
    """A job that needs all cores, alone and while caches fill at the link's rate."""
    shards, cores, seconds = 4 if setting.quick else 20, os.cpu_count() or 1, 1 if setting.quick else 6
    setting.results.cases[BESIDE] = {"processes": cores, **asdict(FILLED)}
    for number in range(shards):
        make_file(setting.folder / "remote" / BUCKET / "shards" / f"{number:03}.tar", SHARD_BYTES >> 20)
    work = Reading(shards, 2 * shards * SHARD_BYTES, processes=cores)
    with bucket(setting.folder, ()) as (endpoint, plain):
        for _ in range(setting.rounds):
            for peer in (peer for peer in setting.peers if peer.source == "files" and peer.name != "local disk"):
                measured = partial(beside, peer, endpoint, plain, FILLED, work, prefix="shards", seconds=seconds)
                attempt(setting, BESIDE, peer, "shards", measured)


# 6. The catalog.

CATALOG = "catalog"
KEYS = (10_000, 100_000, 1_000_000, 10_000_000)
KEY_BYTES = 1000


def catalog(setting: Setting) -> None:
    """Buckets of many keys in directories of a thousand: time to a name, and memory."""
    setting.results.cases[CATALOG] = {"per_directory": PER_DIRECTORY}
    for keys in KEYS[:1] if setting.quick else KEYS:
        with formula_server(keys, KEY_BYTES, setting.folder / "formula.log") as endpoint:
            for _ in range(setting.rounds):
                for peer in (peer for peer in setting.peers if peer.source == "files" and peer.has_cache):
                    measured = partial(look_up, peer, endpoint, keys, cache_bytes=CATALOG_CACHE)
                    attempt(setting, CATALOG, peer, f"{keys:,} keys", measured)


CATALOG_CACHE = 8 << 20
"""Small, as a mount waits until a tenth is filled, and what is measured is the catalog."""


CASES: dict[str, Callable[[Setting], None]] = {
    LARGER: larger_than_cache,
    COLD: cold_start,
    IMAGES: small_files,
    WARM: warm_reads,
    BESIDE: beside_filling,
    CATALOG: catalog,
}
