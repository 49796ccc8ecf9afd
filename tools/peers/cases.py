"""The cases of the comparison. Each writes a dataset, runs all peers in turn, and adds to the results."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from subprocess import SubprocessError
from typing import Any

from growfs.errors import GrowfsError
from tools.benchmarks.measure import BenchError, fault_in_memory, make_file, run, size_of, temporary_folder
from tools.benchmarks.noisy_s3 import FOLDER_KEYS, Noise
from tools.benchmarks.recipe_data import images
from tools.benchmarks.servers import noisy_server, rclone_server
from tools.peers import environment
from tools.peers.peer import BUCKET, Peer, with_flags
from tools.peers.results import Results
from tools.peers.runs import Link, Stage, beside, look_up, read, train

CACHES = (0.1, 0.35, 0.65)
"""Sizes of the cache, as shares of the dataset."""


@dataclass(frozen=True, slots=True)
class Setting:
    """How to measure. folder: empty."""

    folder: Path
    quick: bool
    rounds: int
    peers: Sequence[Peer]
    results: Results

    @property
    def shard_bytes(self) -> int:
        """The size of a large file."""
        return (8 if self.quick else 64) << 20

    @property
    def mounts(self) -> list[Peer]:
        """The peers that show a folder."""
        return [peer for peer in self.peers if peer.source == "files"]

    @contextmanager
    def bucket(self, sizes: dict[str, int] | None = None) -> Iterator[tuple[str, Path]]:
        """A server with the dataset of data.py, if it has a size: (its endpoint, the bucket as a folder)."""
        bucket = self.folder / "remote" / BUCKET
        if sizes:
            words = (sizes[name] for name in ("samples", "sample_bytes", "per_shard"))
            run([environment.PYTHON, Path(__file__).with_name("data.py"), bucket, *words], **environment.VARIABLES)
        # s3torchconnector refuses objects without an ETag; this hash takes the server little time.
        with rclone_server(bucket.parent, hashes=False, etags="crc32") as server:
            for convert in {peer.convert for peer in self.peers if peer.convert}:
                try:
                    convert(server.endpoint, bucket)
                except BenchError as error:  # the runs of these peers will fail, and are noted then
                    print(f"  failed: {error}", file=sys.stderr, flush=True)
            yield server.endpoint, bucket

    def attempt(self, case: str, peer: Peer, name: str, measured: Callable[[Path], dict[str, Any]]) -> None:
        """Add a run to the results. If a peer fails, its message is noted, and the others continue."""
        print(f"{case}: {peer.name}, {name}", file=sys.stderr, flush=True)
        run = f"{peer.name} ({case}, {name})"
        fault_in_memory(2 * size_of(self.folder / "remote"))
        with temporary_folder() as folder:
            try:
                self.results.add(case, peer.name, name, measured(folder))
            except (BenchError, GrowfsError, OSError, ValueError, SubprocessError) as error:
                lines = (line for line in str(error).splitlines() if "[INF]" not in line)  # of the log of s3fs
                self.results.left_out[run] = next(lines, "")[:200]
                print(f"  failed: {error}", file=sys.stderr, flush=True)
            else:
                self.results.left_out.pop(run, None)  # --add, or another round


# 1. The dataset is larger than the cache.

LARGER = "larger-than-cache"
INGEST_FACTOR = 5
"""How much more data the accelerator consumes than the link delivers."""
SAMPLES = {"sample_bytes": 102_400, "per_shard": 10, "batch": 20}


def larger_than_cache(setting: Setting) -> None:
    """Two epochs, from an empty cache, with caches that hold a part of the dataset."""
    link = Link(0.02, 20_000_000)
    samples = 200 if setting.quick else 2000
    sizes = {"samples": samples, **SAMPLES, "epochs": 2, **asdict(link), "ingest": INGEST_FACTOR * link.rate}
    setting.results.cases[LARGER] = sizes
    caches = CACHES[1:2] if setting.quick else CACHES
    with setting.bucket(sizes) as (endpoint, plain):
        for _ in range(setting.rounds):
            for share in caches:
                for peer in setting.peers:
                    if peer.has_cache or share == caches[0]:
                        stage = Stage(peer, endpoint, plain, link, int(share * samples * sizes["sample_bytes"]))
                        name = f"{share:.0%}" if peer.has_cache else "any"
                        setting.attempt(LARGER, peer, name, partial(train, stage, sizes))


# 2. Cold start.

COLD = "cold-start"
LINKS = (Link(0.05, 5_000_000), Link(0.02, 20_000_000), Link(0.005, 100_000_000))


def cold_start(setting: Setting) -> None:
    """The first batch, from an empty cache, over three links."""
    sizes = {"samples": 400, **SAMPLES, "epochs": 0}
    setting.results.cases[COLD] = sizes
    cache_bytes = sizes["samples"] * sizes["sample_bytes"] * 35 // 100
    with setting.bucket(sizes) as (endpoint, plain):
        for _ in range(setting.rounds):
            for link in LINKS[1:2] if setting.quick else LINKS:
                for peer in setting.peers:
                    stage = Stage(peer, endpoint, plain, link, cache_bytes)
                    spec = sizes | {"ingest": INGEST_FACTOR * link.rate}
                    setting.attempt(COLD, peer, str(link), partial(train, stage, spec))


# 3. and 4. Small files, and reads of cached files.

IMAGES, WARM = "small-files", "warm-reads"
IMAGE_BYTES = 250_000
"""At most."""
NEAR = Link(0.01, 50_000_000)


def small_files(setting: Setting) -> None:
    """Directories of JPEGs of 110 kB, decoded by 2 and by 8 processes, until all were seen, and once more."""
    classes, each = (2, 20) if setting.quick else (10, 130)
    setting.results.cases[IMAGES] = {"classes": classes, "each": each, **asdict(NEAR)}
    images(setting.folder / "remote" / BUCKET / "images", classes, each)
    spec = {"files": classes * each, "passes": 1, "at": "folder"}
    with setting.bucket() as (endpoint, plain):
        for _ in range(setting.rounds):
            for processes in (2,) if setting.quick else (2, 8):
                for peer in setting.mounts:
                    stage = Stage(peer, endpoint, plain, NEAR, classes * each * IMAGE_BYTES, "images")
                    measured = partial(read, stage, spec | {"processes": processes})
                    setting.attempt(IMAGES, peer, f"{processes} processes", measured)


def warm_reads(setting: Setting) -> None:
    """Cached files, read by one thread: shards and small files, through the peer and from its cache."""
    counts = {"shards": 4, "images": 40} if setting.quick else {"shards": 16, "images": 1300}
    setting.results.cases[WARM] = {**counts, "shard_bytes": setting.shard_bytes}
    images(setting.folder / "remote" / BUCKET / "images", 10, counts["images"] // 10)
    make_shards(setting, counts["shards"])
    with setting.bucket() as (endpoint, plain):
        for _ in range(setting.rounds):
            for prefix, files in counts.items():
                cache_bytes = 2 * files * (setting.shard_bytes if prefix == "shards" else IMAGE_BYTES)
                for peer in setting.mounts:
                    stage = Stage(peer, endpoint, plain, Link(0.0, 2_000_000_000), cache_bytes, prefix)
                    for at in ("folder", "cached") if peer.name == "growfs" else ("folder",):
                        spec = {"files": files, "processes": 0, "passes": 3, "at": at}
                        setting.attempt(WARM, peer, f"{prefix}, {at}", partial(read, stage, spec))


def make_shards(setting: Setting, count: int) -> None:
    """Write large files into the bucket."""
    for number in range(count):
        make_file(setting.folder / "remote" / BUCKET / "shards" / f"{number:03}.tar", setting.shard_bytes >> 20)


# 5. The cost to a job while a peer fills.

BESIDE = "beside-filling"
FILLED = Link(0.01, 100_000_000)


def beside_filling(setting: Setting) -> None:
    """A job that needs all cores, alone and while caches fill at the link's rate."""
    shards, cores, seconds = 4 if setting.quick else 20, os.cpu_count() or 1, 0.2 if setting.quick else 6
    setting.results.cases[BESIDE] = {"processes": cores, **asdict(FILLED)}
    make_shards(setting, shards)
    with setting.bucket() as (endpoint, plain):
        for _ in range(setting.rounds):
            for peer in (peer for peer in setting.mounts if peer.name != "local disk"):
                stage = Stage(peer, endpoint, plain, FILLED, 2 * shards * setting.shard_bytes)
                setting.attempt(BESIDE, peer, "shards", partial(beside, stage, cores, seconds))


# 6. The catalog.

CATALOG = "catalog"
KEYS = (10_000, 100_000, 1_000_000, 10_000_000)
EARLY = "--wait-files 100"
"""With this, growfs does not wait for the listing."""
CATALOG_CACHE = 8 << 20
"""Small, because a mount waits until a tenth is filled, and only the catalog is measured."""


def catalog(setting: Setting) -> None:
    """Buckets of many keys in directories of a thousand: time to a file and to a name, and memory."""
    setting.results.cases[CATALOG] = {"per_directory": FOLDER_KEYS}
    for keys in KEYS[:1] if setting.quick else KEYS:
        with noisy_server(Noise(keys, 1000)) as endpoint:
            for _ in range(setting.rounds):
                for peer in (peer for peer in setting.mounts if peer.has_cache and not peer.convert):
                    for flags, started in starts(peer):
                        measured = partial(look_up, started, endpoint, keys, CATALOG_CACHE)
                        setting.attempt(CATALOG, peer, f"{keys:,} keys{flags}", measured)


def starts(peer: Peer) -> Iterator[tuple[str, Peer]]:
    """The peer as it is, and growfs in a hurry, too, with its flags."""
    yield "", peer
    if peer.name == "growfs":
        yield f", {EARLY}", with_flags(peer, EARLY.split())


CASES: dict[str, Callable[[Setting], None]] = {
    LARGER: larger_than_cache,
    COLD: cold_start,
    IMAGES: small_files,
    WARM: warm_reads,
    BESIDE: beside_filling,
    CATALOG: catalog,
}
