"""Which client reads a store: it is known when the store is opened, from the URL, the options and the environment."""

from __future__ import annotations

from typing import Any

import pytest

from growfs.errors import UsageError
from growfs.remote.client_choice import LEFT_MAX, LibraryUse
from growfs.remote.interface import RemoteFile, RemoteSpec
from growfs.remote.retries import Retries
from growfs.remote.retrying import RetryingRemote
from growfs.remote.stores.registry import choose_client
from growfs.remote.stores.s3.bucket import S3Remote
from growfs.remote.stores.web import HttpRemote
from tests.remote.fake_store import KEYS, SMALL, FakeStore, Scene

pytestmark = pytest.mark.usefixtures("small_parts")

PROXIES = {"config_kwargs": {"proxies": {"http": "http://proxy"}}}
SOCKS = "socks5://user:secret@proxy:1080"


@pytest.mark.parametrize(
    ("url", "options", "name", "reason"),
    [
        ("s3://bucket", {}, "growfs", "faster than s3fs"),
        ("s3://bucket", {"requester_pays": True, "profile": "x"}, "growfs", "faster than s3fs"),
        ("s3://bucket", {"s3_additional_kwargs": {"ServerSideEncryption": "AES256"}}, "growfs", "faster than s3fs"),
        ("s3://bucket", {"s3_additional_kwargs": {"VersionId": "7"}}, "s3fs", "only it knows the option VersionId"),
        ("s3://bucket", PROXIES, "s3fs", "only it knows the option proxies"),
        ("gs://bucket", {}, "growfs", "faster than gcsfs"),
        ("az://container", {}, "growfs", "faster than adlfs"),
        ("hf://datasets/owner/name", {}, "growfs", "faster than huggingface_hub"),
        ("hf://buckets/owner/name", {}, "huggingface_hub", "only it reads the buckets of the hub"),
        ("https://host/x/", {"headers": {"a": "b"}}, "growfs", "faster than aiohttp"),
        ("https://host/x/", {"client_kwargs": {}}, "aiohttp", "only it knows the option client_kwargs"),
        ("webdav://x", {"base_url": "http://h", "auth": ["a", "b"]}, "growfs", "faster than webdav4"),
        ("webdav://x", {"base_url": "http://h", "auth": "token"}, "webdav4", "only it knows this kind of auth"),
        ("memory://x", {}, "memory", "only it reads memory://"),
        ("/folder", {}, "growfs", "the files are local"),
    ],
)
def test_the_options_say_which_client_it_is(url: str, options: dict[str, Any], name: str, reason: str) -> None:
    choice = choose_client(RemoteSpec(url, options))
    assert (choice.name, choice.reason) == (name, reason)
    by_library = choose_client(RemoteSpec(url, options, client="library"))
    assert by_library.name == (choice.library or "growfs")
    if name == "growfs":
        assert choose_client(RemoteSpec(url, options, client="growfs")).name == "growfs"
    else:
        with pytest.raises(UsageError, match=f"^--client growfs cannot be used: only {name} "):
            choose_client(RemoteSpec(url, options, client="growfs"))


@pytest.mark.parametrize("url", ["s3://bucket", "az://container", "gs://bucket", "https://host/x/"])
def test_a_proxy_that_growfs_does_not_speak_to_is_known_at_once(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("https_proxy", SOCKS)
    choice = choose_client(RemoteSpec(url))
    assert (choice.uses_library, choice.reason) == (True, "only it may know the proxy socks5://proxy:1080")
    assert not choose_client(RemoteSpec("s3://bucket", {"client_kwargs": {"endpoint_url": "http://h"}})).uses_library
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://h")
    assert not choose_client(RemoteSpec("s3://bucket")).uses_library
    monkeypatch.setenv("no_proxy", "*")
    assert not choose_client(RemoteSpec(url)).uses_library


@pytest.mark.parametrize("client", ["growfs", "library"])
def test_the_chosen_client_reads_the_files(scene: Scene, client: str) -> None:
    store = FakeStore(SMALL)
    assert scene.fetched(HttpRemote(RemoteSpec(scene.serve(store), client=client))) == SMALL
    assert scene.by_library == (["x"] if client == "library" else [])
    assert {request.headers["User-Agent"] == "growfs" for request in store.gets} == {client == "growfs"}


@pytest.mark.parametrize("size", [len(SMALL), None])
@pytest.mark.parametrize("client", ["growfs", "library"])
def test_the_answers_to_either_client_count(scene: Scene, client: str, size: int | None) -> None:
    """Otherwise a few refusals in an hour would lower the number of streams for good."""
    spec = RemoteSpec("s3://bucket", {**KEYS}, scene.serve(FakeStore(SMALL)), client=client)
    retries = Retries()
    remote = RetryingRemote(lambda: S3Remote(spec), retries)
    assert scene.fetched(remote, RemoteFile("x", size, None, "")) == SMALL
    assert retries.answered == 1


def test_with_client_growfs_each_file_is_tried_without_the_library(scene: Scene) -> None:
    store = FakeStore(SMALL, body="chunked")
    remote = HttpRemote(RemoteSpec(scene.serve(store), client="growfs"))
    for _ in range(LEFT_MAX + 2):
        assert scene.fetched(remote) == SMALL
    assert len(scene.by_library) == LEFT_MAX + 2
    assert len([request for request in store.gets if request.headers["User-Agent"] == "growfs"]) == LEFT_MAX + 2


def test_only_what_the_library_does_in_a_row_counts() -> None:
    use = LibraryUse()
    for _ in range(2):
        for _ in range(LEFT_MAX - 1):
            use.note("no length", files=1)
        use.note("", files=1)
        assert use.gave_up == ""
        use.in_a_row = 0
    assert use.files == 2 * LEFT_MAX
