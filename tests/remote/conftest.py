"""Fixtures for remotes that are read by plain GETs."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from growfs.remote.protocol import FetchTask, RemoteFile
from growfs.remote.stores.fsspec import FsspecRemote
from growfs.remote.stores.s3.store import S3Remote
from tests.remote.store import PART, Show


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("growfs.remote.digest.PART_BYTES", PART)
    monkeypatch.setattr("growfs.remote.http.connection.BUFFER_BYTES", 1500)
    monkeypatch.setattr("growfs.remote.http.connection.PIECE_BYTES", 300)
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "AWS_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that were left to the library."""
    left: list[str] = []
    for kind in (FsspecRemote, S3Remote):

        def by_library(self: Any, task: FetchTask, real: Any = kind._by_library) -> RemoteFile:
            left.append(task.file.path)
            fetched: RemoteFile = real(self, task)
            return fetched

        monkeypatch.setattr(kind, "_by_library", by_library)
    return left


@pytest.fixture
def show() -> Iterator[Show]:
    with ExitStack() as stack:
        yield lambda store, tls=None: stack.enter_context(store.shown(tls))


@pytest.fixture(scope="session", autouse=True)
def descriptions_are_read_once() -> None:
    """Each client of S3 reads botocore's descriptions from JSON, where workers read them once and fork."""
    import botocore.session

    botocore.session.create_loader = functools.cache(botocore.session.create_loader)
