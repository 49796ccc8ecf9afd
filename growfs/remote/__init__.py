"""Where files come from: the interface of a remote, the stores, and what wraps them.

The rest of growfs gets every remote from `open_remote`. A remote blocks, so it is used in worker processes only.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from growfs.errors import RemoteBusy
from growfs.remote.interface import Page, Progress, Remote, RemoteFile, RemoteSpec, Skipped
from growfs.remote.rate_limits import SharedLimits

if TYPE_CHECKING:
    from growfs.remote.http.threads import TransferThreads
    from growfs.remote.manifests.manifest import Manifest
    from growfs.remote.stores.fsspec import FsspecRemote

__all__ = [
    "Page",
    "Progress",
    "Remote",
    "RemoteFile",
    "RemoteSpec",
    "Skipped",
    "open_remote",
    "open_store",
    "preload",
    "preload_transfer",
]


def open_remote(
    spec: RemoteSpec,
    threads: TransferThreads | None = None,
    on_busy: Callable[[RemoteBusy], None] = lambda _: None,
    limits: SharedLimits | None = None,
    repeats: bool = True,
) -> Remote:
    """The remote that spec describes, with its wrappers. Does not touch the network and starts no thread.

    threads: the transfer threads; if none are given, the remote has a few of its own. on_busy: called with the
    error when the store is busy or fails, before a request is repeated. limits: how fast a producer may read.
    repeats: whether such requests are repeated.
    Raises UsageError if the URL, its options or a pattern is wrong, or a package is missing.
    """
    remote = _open_source(spec, threads, on_busy, limits, repeats)
    if spec.include or spec.exclude:
        from growfs.remote.filter import FilteredRemote, PathFilter

        remote = FilteredRemote(remote, PathFilter(spec.include, spec.exclude))
    if spec.producer and spec.producer.seed is None:
        from growfs.remote.wrappers.produced import ProducedRemote

        remote = ProducedRemote(remote, spec, spec.producer, limits)
    return remote


def _open_source(
    spec: RemoteSpec,
    threads: TransferThreads | None,
    on_busy: Callable[[RemoteBusy], None],
    limits: SharedLimits | None,
    repeats: bool,
) -> Remote:
    from growfs.remote.wrappers.retry import RetryingRemote

    if spec.producer and spec.producer.seed is not None:
        from growfs.remote.wrappers.produced import SampledRemote

        return SampledRemote(spec, spec.producer, limits)
    if not spec.manifest and spec.url.startswith(("http://", "https://")) and _is_table(spec.url):
        spec = replace(spec, url=spec.url.split("?")[0].rsplit("/", 1)[0] + "/", manifest=spec.url)
    remote: Remote = open_store(spec, threads)
    if spec.manifest:
        from growfs.remote.manifests.manifest import ManifestRemote

        remote = ManifestRemote(_open_manifest(spec, spec.manifest), remote)
    if spec.members:
        from growfs.remote.wrappers.members import ArchiveRemote

        assert spec.cache
        remote = ArchiveRemote(remote, spec.members, spec.cache)
    return RetryingRemote(remote, on_busy, threads.sleep if threads else time.sleep) if repeats else remote


def _is_table(url: str) -> bool:
    from growfs.remote.manifests.tables import SUFFIXES, suffix_of

    return suffix_of(url) in SUFFIXES


def preload(spec: RemoteSpec) -> None:
    """Import what open_remote(spec) and its first use import, for a process that forks afterwards.

    Creates no filesystem, thread or event loop. Raises UsageError as open_remote does.
    """
    open_remote(spec)
    from growfs.remote.stores.fsspec import store_of

    store = store_of(spec.url)
    if store == "s3" and not (spec.producer and spec.producer.seed is not None):
        from growfs.remote.stores.s3 import client

        client.preload()
    elif store == "webdav":
        import httpcore  # noqa: F401 - its first client does so otherwise


def preload_transfer() -> None:
    """Import what the first transfer of a file imports, and listings do without."""
    import awscrt.checksums  # noqa: F401 - of each file a digest is computed


def open_store(spec: RemoteSpec, threads: TransferThreads | None = None) -> FsspecRemote:
    """The store behind the remote, without its wrappers. Raises UsageError as open_remote does."""
    from growfs.remote.stores.fsspec import FsspecRemote, import_store, store_of

    store = store_of(spec.url)
    if store == "file":
        from growfs.remote.stores.local import LocalRemote

        return LocalRemote(spec, threads)
    if store == "s3":
        from growfs.remote.stores.s3.bucket import S3Remote

        return S3Remote(spec, threads)  # it imports s3fs where it needs it
    import_store(spec.url)
    if store == "http":
        from growfs.remote.stores.web import HttpRemote

        return HttpRemote(spec, threads)
    if store == "hf" and not spec.url.startswith("hf://buckets/"):
        from growfs.remote.stores.hf import HubRemote

        return HubRemote(spec, threads)
    return FsspecRemote(spec, threads)


def _open_manifest(spec: RemoteSpec, url: str) -> Manifest:
    """The manifest at url. In the same store as the files it is read with their options; in another one with none."""
    from growfs.remote.manifests.inventory import Inventory
    from growfs.remote.manifests.manifest import PathTable
    from growfs.remote.manifests.tables import open_table, suffix_of
    from growfs.remote.stores.fsspec import FsspecRemote, import_store, store_of

    import_store(url)
    same = store_of(url) == store_of(spec.url)
    manifest = FsspecRemote(replace(spec, url=url) if same else RemoteSpec(url))
    if suffix_of(url) == ".json" or url.endswith("/"):
        return Inventory(manifest, spec)
    return PathTable(open_table(manifest), spec.url)
