"""The stores that growfs knows. A new one is a file alongside this one, and a line in STORES.

Importing this module imports no client library.
"""

from __future__ import annotations

from growfs.errors import UsageError
from growfs.remote.client_choice import ClientChoice
from growfs.remote.http.threads import TransferThreads
from growfs.remote.interface import RemoteSpec
from growfs.remote.stores.az import AzureRemote
from growfs.remote.stores.base import StoreRemote
from growfs.remote.stores.fsspec import FsspecRemote, scheme_of
from growfs.remote.stores.gs import GoogleRemote
from growfs.remote.stores.hf import HubRemote
from growfs.remote.stores.local import LocalRemote
from growfs.remote.stores.s3.bucket import S3Remote
from growfs.remote.stores.web import HttpRemote
from growfs.remote.stores.webdav import WebdavRemote

STORES: tuple[type[StoreRemote], ...] = (
    S3Remote,
    GoogleRemote,
    AzureRemote,
    HubRemote,
    HttpRemote,
    WebdavRemote,
    LocalRemote,
)


def store_class(url: str) -> type[StoreRemote]:
    """The class of the store at a URL: FsspecRemote if it is not in STORES."""
    scheme = scheme_of(url)
    return next((store.class_for(url) for store in STORES if scheme in store.schemes), FsspecRemote)


def store_name(url: str) -> str:
    """The name of the store at a URL: 's3', 'gs', ..., or the scheme of another one that fsspec opens."""
    return store_class(url).name or scheme_of(url)


def choose_client(spec: RemoteSpec) -> ClientChoice:
    """The client that reads the remote. Raises UsageError if the one in spec.client cannot."""
    return (
        store_class(spec.url).choose_client(spec)
        if spec.traits.has_store
        else ClientChoice("", False, "there is no remote")
    )


def open_folder(spec: RemoteSpec, threads: TransferThreads | None = None) -> StoreRemote:
    """The folder of files at the URL of spec. As `open_store`."""
    store_class(spec.url).check_folder(spec.url)
    return open_store(spec, threads)


def open_store(spec: RemoteSpec, threads: TransferThreads | None = None) -> StoreRemote:
    """The store behind a remote, without its wrappers. Does not touch the network.

    Raises UsageError if the URL or its options are wrong, or a package is missing.
    """
    store = store_class(spec.url)
    for given, option in ((spec.endpoint_url, "--endpoint-url"), (spec.anon, "--anon")):
        if given and not store.takes_endpoint:
            *most, last = (known.name for known in STORES if known.takes_endpoint)
            raise UsageError(
                f"{option} does not apply to {store_name(spec.url)}://; it is for {', '.join(most)} and {last}"
            )
    return store(spec, threads)
