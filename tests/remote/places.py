"""The places that the contract of a remote is tested in: a row of KINDS for each kind of store.

A new store gets a fixture of its server in tests/store_servers.py, and a row here.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Set
from dataclasses import dataclass

import pytest

from growfs.remote import open_remote
from growfs.remote.interface import Remote
from growfs.remote.retries import Retries
from tests.remote.fake_remote import FakeRemote
from tests.servers import S3Server
from tests.store_servers import Store, files_below, nginx_folder


@dataclass
class Place:
    """A folder of a remote, and functions that change its content on the server. open: at a path below it."""

    open: Callable[[str], Remote]
    put: Callable[[str, bytes], None]
    delete: Callable[[str], None]


@dataclass(frozen=True)
class Kind:
    """What the contract has to know of a kind of store."""

    new: Callable[[pytest.FixtureRequest, str], Place | Store]
    """An empty folder with this name, which no other has."""
    of: str = ""
    """The name of its store in growfs/remote/stores/registry.py, if that has it."""
    unknown: Callable[[str], bool] = lambda _: False
    """Whether it, or its client, cannot have this name."""
    unknown_to_library: Set[str] = frozenset()
    """More names that its library cannot have."""
    has_library: bool = True
    """Whether files are read by plain GETs, and by a library if that cannot be: both are tested."""
    is_quick: bool = False
    """Whether each run of the tests reads by the library, too."""
    sizes_listed: bool = True
    has_ranges: bool = True
    has_times: bool = True

    def place(self, request: pytest.FixtureRequest) -> Place:
        """An empty Place."""
        place = self.new(request, uuid.uuid4().hex)
        if isinstance(place, Place):
            return place
        return Place(lambda path: open_remote(place.spec(path), retries=Retries()), place.put, place.delete)


def new_store(kind: str, request: pytest.FixtureRequest) -> Store:
    """An empty store of one of KINDS, which no other test uses."""
    store = KINDS[kind].new(request, uuid.uuid4().hex)
    assert isinstance(store, Store)
    return store


def _fake(request: pytest.FixtureRequest, name: str) -> Place:
    fake = FakeRemote(page_files=5)
    return Place(lambda path: FakeRemote(missing=True) if path else fake, fake.put, fake.delete)


def _memory(request: pytest.FixtureRequest, name: str) -> Store:
    import fsspec

    memory = fsspec.filesystem("memory")
    return Store(
        f"memory://{name}",
        lambda path, data: memory.pipe_file(f"/{name}/{path}", data),
        lambda path: memory.rm_file(f"/{name}/{path}"),
    )


def _local(request: pytest.FixtureRequest, name: str) -> Store:
    folder = request.getfixturevalue("tmp_path_factory").mktemp("place")
    return files_below(folder, f"file://{folder}", is_dated=False)


def _simple_web(request: pytest.FixtureRequest, name: str) -> Store:
    web = request.getfixturevalue("http_folder")
    return files_below(web.folder / name, web.url + name)


def _in_bucket(fixture: str) -> Callable[[pytest.FixtureRequest, str], Store]:
    """A folder of the bucket, container or repository that a fixture gives."""

    def new(request: pytest.FixtureRequest, name: str) -> Store:
        shared: Store | S3Server = request.getfixturevalue(fixture)
        if isinstance(shared, S3Server):
            shared = Store(
                f"s3://{shared.bucket}", shared.put, shared.delete, shared.storage_options, shared.endpoint_url
            )
        return shared.below(name)

    return new


def _nginx(webdav: bool) -> Callable[[pytest.FixtureRequest, str], Store]:
    return lambda request, name: nginx_folder(request.getfixturevalue("nginx"), name, webdav)


KINDS = {
    "fake": Kind(_fake, has_library=False),
    "memory": Kind(_memory, has_library=False),
    "file": Kind(_local, "file", has_library=False),
    "rclone": Kind(_in_bucket("rclone_s3"), "s3"),
    "moto": Kind(_in_bucket("moto_s3"), "s3", is_quick=True),
    "http": Kind(_simple_web, "http", is_quick=True, sizes_listed=False, has_ranges=False),
    "azure": Kind(_in_bucket("azure_store"), "az", unknown=lambda path: "\\" in path),  # which is a slash
    "google": Kind(_in_bucket("google_store"), "gs"),
    "hub": Kind(_in_bucket("hub_store"), "hf", unknown_to_library={"odd/a::b"}, has_times=False),  # not on Windows
    "nginx": Kind(_nginx(webdav=False), "http", sizes_listed=False),
    "webdav": Kind(_nginx(webdav=True), "webdav", unknown=lambda path: bool(set(path) & set("%#?"))),  # not quoted
}
"""By name. The tests of all of them but `has_library=False` run twice: by plain GETs, and by the store's library."""

BY_LIBRARY = " by library"


def kinds() -> list[object]:
    """The parameters of the tests: each of KINDS, and each by its library."""
    by_library = {name + BY_LIBRARY: kind for name, kind in KINDS.items() if kind.has_library}
    return [
        *KINDS,
        *(name if kind.is_quick else pytest.param(name, marks=pytest.mark.long) for name, kind in by_library.items()),
    ]
