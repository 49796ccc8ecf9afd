"""Where files come from: the interface of a remote, the stores, and their wrappers.

The rest of growfs gets every remote from `open_remote`. Calls of a remote block, so it is used only in worker
processes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING

from growfs.remote.interface import Remote, RemoteSpec
from growfs.remote.rate_limits import SharedLimits
from growfs.remote.retries import Retries

if TYPE_CHECKING:
    from growfs.remote.http.threads import TransferThreads


def open_remote(
    spec: RemoteSpec,
    threads: TransferThreads | None = None,
    retries: Retries | None = None,
    limits: SharedLimits | None = None,
) -> Remote:
    """The remote that spec describes, with its wrappers. Does not touch the network and starts no threads.

    threads: the transfer threads; by default, the remote has a few of its own. retries: repeats requests when the store
    is busy or fails; without it, none is repeated. limits: how fast a maker may read. Raises UsageError if the URL,
    its options or a pattern is wrong, or a package is missing.
    """
    open_source: Callable[[], Remote] = partial(_open_source, spec, threads)
    if retries:
        from growfs.remote.retrying import RetryingRemote

        open_source = partial(RetryingRemote, open_source, retries)
    return spec.maker.open(open_source, spec, limits) if spec.maker else open_source()


def _open_source(spec: RemoteSpec, threads: TransferThreads | None) -> Remote:
    from growfs.remote.stores.registry import open_folder

    open_source: Callable[[RemoteSpec], Remote] = partial(open_folder, threads=threads)
    for layer in spec.layers:
        open_source = partial(layer.open, open_source)
    remote = open_source(spec)
    if spec.include or spec.exclude:
        from growfs.remote.filter import FilteredRemote, PathFilter

        remote = FilteredRemote(remote, PathFilter(spec.include, spec.exclude))
    return remote


def preload(spec: RemoteSpec) -> None:
    """Import the modules for open_remote(spec) and its first use, in a process that forks afterwards.

    Creates no filesystem, thread or event loop. Raises UsageError like open_remote.
    """
    open_remote(spec)
    if spec.traits.has_store:
        from growfs.remote.stores.registry import open_store

        open_store(spec).preload()


def is_within(spec: RemoteSpec, containers: Collection[str]) -> Callable[[str], bool]:
    """A function that tells, by the version of a file, whether it is in one of these containers."""
    return lambda version: any(layer.container(version) in containers for layer in spec.layers)
