"""The peers that are libraries: a training program uses them in the place of files. trainer.py has their use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from tools.benchmarks.servers import s5cmd_binary
from tools.peers.environment import PACKAGES, Environment
from tools.peers.peer import Peer, Remote, Room


class Library(Peer):
    """What they share: nothing is started, and the program reads."""

    package: ClassVar[str]
    parameters: ClassVar[str]

    def version(self) -> str:
        """Of the package."""
        return Environment.version(self.package)

    def flags(self) -> str:
        """The parameters that differ from the defaults."""
        return self.parameters

    def unavailable(self) -> str | None:
        """Whether it can be imported."""
        return Environment.missing_module(PACKAGES.get(self.package, self.package))

    @contextmanager
    def running(self, remote: Remote, room: Room, prefix: str = "shards") -> Iterator[dict[str, Any]]:
        """Nothing has to be started."""
        yield {
            "endpoint": remote.endpoint,
            "bucket": remote.bucket,
            "shards": remote.shards,
            "cache_dir": str(room.folder / "cache"),
            "cache_bytes": room.cache_bytes,
        }


class Mosaicml(Library):
    """MosaicML Streaming."""

    name = "MosaicML Streaming"
    about = "data set in Python, own format, cache of shards"
    documents = "https://docs.mosaicml.com/projects/streaming/en/stable/dataset_configuration/shard_retrieval.html"
    source = "mosaicml"
    package = "mosaicml-streaming"
    parameters = (
        "cache_limit=SIZE, shuffle=True, shuffle_block_size of half of the cache; StreamingDataLoader of 2 processes"
    )
    note = "downloads what it evicted, in each epoch"


class S3Torch(Library):
    """The Amazon S3 Connector for PyTorch."""

    name = "s3torchconnector"
    about = "data set in Python and Rust, no cache"
    documents = "https://github.com/awslabs/s3-connector-for-pytorch#readme"
    source = "s3torch"
    package = "s3torchconnector"
    parameters = "S3MapDataset, DataLoader of 8 processes"
    has_cache = False
    note = "fetches everything in each epoch"


class WebDataset(Library):
    """WebDataset over pipes."""

    name = "WebDataset, pipe"
    about = "tar files through `s5cmd cat`, no cache"
    documents = "https://github.com/webdataset/webdataset#readme"
    source = "webdataset"
    package = "webdataset"
    parameters = "pipe:s5cmd cat URL, DataLoader of 8 processes"
    has_cache = False
    note = "fetches everything in each epoch"

    @contextmanager
    def running(self, remote: Remote, room: Room, prefix: str = "shards") -> Iterator[dict[str, Any]]:
        """With the command of the pipe."""
        with super().running(remote, room, prefix) as spec:
            yield spec | {"cat": f"{s5cmd_binary()} --endpoint-url {remote.endpoint} cat"}


class NeverEvict(Library):
    """A cache that never evicts."""

    name = "never evict"
    about = "what came first stays, the rest is fetched (boto3, 8 threads)"
    documents = "https://arxiv.org/abs/2007.06775"
    source = "keep"
    package = "boto3"
    parameters = "a reader of this benchmark's own"
    note = "fetches what does not fit, in each epoch"
