"""Fixtures for remotes that are read with plain GETs."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from growfs.remote.interface import FetchTask, RemoteFile
from growfs.remote.stores.fsspec import FsspecRemote
from growfs.remote.stores.s3.bucket import S3Remote
from growfs.remote.stores.s3.credentials import Renewal
from tests.remote.fake_store import PART, Scene, Serve
from tests.s3.credentials import without_credentials


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("growfs.remote.http.threads.SEGMENT_BYTES_MIN", PART)
    monkeypatch.setattr("growfs.remote.http.threads.SEGMENT_BYTES_MAX", PART)
    monkeypatch.setattr("growfs.remote.http.threads.SEGMENT_BYTES_UNKNOWN", PART)
    monkeypatch.setattr("growfs.remote.http.connection.BUFFER_BYTES", 1500)
    monkeypatch.setattr("growfs.remote.http.connection.PIECE_BYTES", 300)
    monkeypatch.setattr("growfs.remote.http.connection.WRITE_BYTES", 700)
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "AWS_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No credentials of the machine are found."""
    env = without_credentials(os.environ)
    for name in os.environ.keys() - env.keys():
        monkeypatch.delenv(name)
    for name, value in env.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def library_fetches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of the files whose fetch fell back to the library."""
    paths: list[str] = []
    for kind in (FsspecRemote, S3Remote):

        def by_library(self: Any, task: FetchTask, real: Any = kind._by_library) -> RemoteFile:
            paths.append(task.file.path)
            fetched: RemoteFile = real(self, task)
            return fetched

        monkeypatch.setattr(kind, "_by_library", by_library)
    return paths


@pytest.fixture
def serve() -> Iterator[Serve]:
    with ExitStack() as stack:
        yield lambda store, tls=None: stack.enter_context(store.serving(tls))


@pytest.fixture
def scene(serve: Serve, tmp_path: Path, library_fetches: list[str]) -> Scene:
    return Scene(serve, tmp_path, library_fetches)


@pytest.fixture(autouse=True)
def no_shared_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test is a process that has not looked for credentials of S3 yet."""
    monkeypatch.setattr("growfs.remote.stores.s3.client._shared_credentials", None)
    monkeypatch.setattr("growfs.remote.stores.s3.client._shared_renewal", Renewal())


@pytest.fixture(scope="session", autouse=True)
def botocore_models_are_cached() -> None:
    """Each S3 client parses botocore's JSON models, which takes long; workers parse them once, before they fork."""
    import botocore.session

    botocore.session.create_loader = functools.cache(botocore.session.create_loader)
