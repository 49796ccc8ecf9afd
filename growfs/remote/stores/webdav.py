"""`WebdavRemote`: a folder of a WebDAV server, by webdav4."""

from __future__ import annotations

import weakref
from base64 import b64encode
from typing import Any
from urllib.parse import quote

from growfs.errors import GrowfsError, RemoteError, UsageError
from growfs.remote.errors import Problem
from growfs.remote.http.connection import REDIRECTS_MAX, TIMEOUTS, Headers, HttpRequest
from growfs.remote.interface import RemoteFile, RemoteSpec
from growfs.remote.metadata import file_from_headers
from growfs.remote.stores.fsspec import PAGE_READ_S, FsspecRemote


class WebdavRemote(FsspecRemote):
    """The URL names the folder, and the option base_url its server."""

    name = "webdav"
    schemes = ("webdav",)
    package = "webdav4"
    public_options = frozenset({"base_url"})
    own_options = frozenset({"base_url", "auth", "timeout"})
    default_credentials = "none"
    login = 'with a password pass --storage-option \'auth=["user", "password"]\''
    fresh_options = {}  # noqa: RUF012 - it has no cache, and would pass the option to its HTTP client

    def preload(self) -> None:
        import httpcore  # noqa: F401 - otherwise its first client would import it

    @classmethod
    def _why_library(cls, spec: RemoteSpec) -> str:
        is_plain = isinstance(spec.storage_options.get("auth", ()), (list, tuple))
        return super()._why_library(spec) if is_plain else "knows this kind of auth"

    @classmethod
    def _given_server(cls, spec: RemoteSpec) -> str | None:
        return spec.storage_options.get("base_url")

    def _library_options(self) -> dict[str, Any]:
        options = super()._library_options()
        if not options.get("base_url"):
            raise UsageError(f"{self.safe_url()}: needs its server: --storage-option base_url=https://host/dav/")
        options.setdefault("timeout", (TIMEOUTS.connect_s, PAGE_READ_S, PAGE_READ_S, TIMEOUTS.connect_s))  # of httpx
        if isinstance(options.get("auth"), list):
            options["auth"] = tuple(options["auth"])  # in JSON it is a list
        return options

    def _open_library(self, options: dict[str, Any]) -> tuple[Any, str]:
        fs, root = super()._open_library(options)
        weakref.finalize(fs, fs.client.http.close)
        fs.client.http.event_hooks["response"].append(self._check_response)
        return fs, root

    def _check_response(self, response: Any) -> None:
        """Raise an error for a listing that is not one: the library takes it for an empty folder."""
        if response.request.method == "PROPFIND" and response.is_success:
            self._parsed_listing(response.read(), "{DAV:}multistatus", "{DAV:}response")

    def _get(self, key: str) -> HttpRequest:
        """With a name and a password, if there are any."""
        fs = self._shared[0]
        http, auth = fs.client.http, fs.storage_options.get("auth")
        headers = {}
        if auth:
            headers["Authorization"] = f"Basic {b64encode(':'.join(auth).encode()).decode()}"
        return HttpRequest(f"{str(http.base_url).rstrip('/')}/{quote(key)}", headers, redirects=REDIRECTS_MAX)

    def _file_from_headers(self, file: RemoteFile, size: int, headers: Headers) -> RemoteFile | None:
        now = file_from_headers(file.path, size, headers)
        return now if self._is_listed(file, now) else None

    @property
    def server_option(self) -> str:
        return f"the option base_url {self.clean(self._options['base_url'])}"

    def own_error(self, problem: Problem) -> GrowfsError | None:
        if problem.status in (405, 501):
            return RemoteError(f"{problem.where}: its server does not offer WebDAV there; check {self.server_option}")
        return None
