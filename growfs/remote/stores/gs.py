"""`GoogleRemote`: a bucket of Google Cloud Storage, or a folder of it, by gcsfs."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from functools import partial
from types import MethodType
from typing import Any
from urllib.parse import quote

from growfs.remote.errors import status_of
from growfs.remote.http.connection import Headers, HttpRequest
from growfs.remote.interface import RemoteFile
from growfs.remote.metadata import to_ns
from growfs.remote.stores.fsspec import FsspecRemote, aiohttp_proxy, aiohttp_timeout


class GoogleRemote(FsspecRemote):
    """The version of a file is its generation, which is also in the headers of a GET."""

    name = "gs"
    schemes = ("gs", "gcs")
    takes_endpoint = True
    package = "gcsfs"
    server = "https://storage.googleapis.com"
    public_options = frozenset({"endpoint_url", "project"})
    credential_variables = ("GOOGLE_APPLICATION_CREDENTIALS",)
    login = "run 'gcloud auth application-default login', or pass --anon for a public bucket"
    no_credentials = frozenset({"DefaultCredentialsError"})
    refused = frozenset({"RefreshError", "OAuthError"})  # the second is of workload identity federation
    unreachable = frozenset({"ChecksumError"})
    sends_as_stored = True

    def _library_options(self) -> dict[str, Any]:
        options = super()._library_options()
        if self.spec.endpoint_url:
            options["endpoint_url"] = self.spec.endpoint_url
        if self.spec.anon:
            options["token"] = "anon"
        return options

    def _open_library(self, options: dict[str, Any]) -> tuple[Any, str]:
        server = options.get("endpoint_url") or os.environ.get("STORAGE_EMULATOR_HOST")
        session = {**aiohttp_proxy(server or self.server), **options.get("session_kwargs", {})}
        options = {"requests_timeout": aiohttp_timeout(), **options, "session_kwargs": session}
        if server:
            from gcsfs.core import GCSFileSystem

            # The class that gcsfs registers asks Google by gRPC about each bucket, for a minute if that is impossible.
            fs, root = GCSFileSystem(**options), str(GCSFileSystem._strip_protocol(self.spec.url))
        else:
            fs, root = super()._open_library(options)
        if request := getattr(type(fs)._request, "__wrapped__", None):  # without the decorator that repeats it
            fs._request = MethodType(request, fs)
        fs._call = partial(self._checked_call, fs._call)
        return fs, root

    async def _checked_call(
        self, call: Callable[..., Awaitable[Any]], method: str, path: str, *args: Any, **more: Any
    ) -> Any:
        """A request of the library, which takes any JSON without a token for the last page of a listing."""
        if method != "GET" or path != "b/{}/o":
            return await call(method, path, *args, **more)
        try:
            page = await call(method, path, *args, **more)
        except ValueError as error:
            raise self.not_a_listing(str(error)) from None
        if not isinstance(page, dict) or page.get("kind") != "storage#objects":
            raise self.not_a_listing("it has no kind storage#objects")
        if (token := page.get("nextPageToken")) and token == more.get("pageToken"):
            raise self.listing_without_end()
        return page

    def _get(self, key: str) -> HttpRequest:
        """With a token: the default credentials of a machine cannot sign a URL.

        An object that is stored compressed is sent as stored, and as listed, to clients that accept that: otherwise it
        is decompressed on the way (https://cloud.google.com/storage/docs/transcoding).
        """
        fs = self._shared[0]
        headers = {"Accept-Encoding": "gzip"}
        fs.credentials.apply(headers)  # gets a new token if it is about to expire
        if fs.requester_pays:
            headers["x-goog-user-project"] = fs.requester_pays if isinstance(fs.requester_pays, str) else fs.project
        return HttpRequest(f"{fs.url(key).partition('/download/')[0]}/{quote(key)}", headers)

    def _file_from_headers(self, file: RemoteFile, size: int, headers: Headers) -> RemoteFile | None:
        generation = headers.get("x-goog-generation")
        return RemoteFile(file.path, size, to_ns(headers.get("last-modified")), generation) if generation else None

    def status_of(self, error: BaseException) -> int:
        if type(error) is OSError and str(error).startswith("Forbidden: "):
            return 403  # gcsfs reports it only in this text
        return status_of(error)
