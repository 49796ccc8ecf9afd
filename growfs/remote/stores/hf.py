"""The Hugging Face Hub: `RepositoryRemote` for models, datasets and spaces, and `HubRemote` for its buckets.

Repositories are read by plain requests to the hub's HTTP API (https://huggingface.co/docs/hub/api). huggingface_hub
finds the token and parses the URL. Its filesystem lists a whole folder for each file that it looks at, so it is used
only if a plain GET is impossible.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any
from urllib.parse import quote

from growfs.errors import GrowfsError, RemoteError
from growfs.remote.errors import Problem
from growfs.remote.http.connection import REDIRECTS_MAX, TIMEOUTS, Headers, HttpRequest
from growfs.remote.http.threads import TransferThreads
from growfs.remote.interface import Page, RemoteFile, RemoteSpec, Skipped
from growfs.remote.names import reason_to_skip
from growfs.remote.stores.base import PAGE_FILES_MAX, StoreRemote
from growfs.remote.stores.fsspec import FsspecRemote


class HubRemote(FsspecRemote):
    """Anything on the hub, by huggingface_hub."""

    name = "hf"
    schemes = ("hf",)
    takes_endpoint = True
    package = "huggingface_hub"
    server = "https://huggingface.co"
    credential_variables = ("HF_TOKEN",)
    secret_variables = frozenset(credential_variables)
    login = "set HF_TOKEN, or run 'hf auth login'"
    refused = frozenset({"GatedRepoError"})

    @classmethod
    def class_for(cls, url: str) -> type[StoreRemote]:
        return cls if url.startswith("hf://buckets/") else RepositoryRemote

    @classmethod
    def _why_library(cls, spec: RemoteSpec) -> str:
        return super()._why_library(spec) or ("reads the buckets of the hub" if cls is HubRemote else "")

    def _library_options(self) -> dict[str, Any]:
        options = super()._library_options()
        if self.spec.endpoint_url:
            options["endpoint"] = self.spec.endpoint_url
        if self.spec.anon:
            options["token"] = False
        return options

    def own_error(self, problem: Problem) -> GrowfsError | None:
        if "RepositoryNotFoundError" in problem.words and "GatedRepoError" not in problem.words:
            return problem.denied("no such repository, or it is private", f"check the name; {self.login}")
        return None

    def text_of(self, error: BaseException) -> str:
        return str(getattr(error, "server_message", "") or error)


class RepositoryRemote(HubRemote):
    """The files below a folder of a repository. The cursor of a page is the URL of the next one.

    The version of a large file, which the hub redirects to another server, is its SHA-256; that of a small one is its
    git object. The listing and the ETag have the same.
    """

    def __init__(self, spec: RemoteSpec, threads: TransferThreads | None = None) -> None:
        super().__init__(spec, threads)
        self._linked: dict[str, str] = {}  # the versions of files requested from another server

    def pages(self, cursor: Any = None) -> Iterator[Page]:
        folder = self._place.path_in_repo.strip("/")
        start = len(folder) + 1 if folder else 0
        url = cursor
        if url is None:
            below = f"/{quote(folder, safe='')}" if folder else ""
            url = f"{self._api_url('tree')}{below}?recursive=true&limit={PAGE_FILES_MAX}"
        seen: set[str] = set()
        while url:
            if url in seen:
                raise self.listing_without_end()
            seen.add(url)
            entries, url = self._get_page(url)
            files, skipped = [], []
            for entry in entries:
                if entry["type"] != "file":
                    continue
                if entry["path"] == folder:
                    raise RemoteError(f"{self.safe_url()}: is a file; use the URL of its folder")
                path = entry["path"][start:]
                if reason := reason_to_skip(path):
                    skipped.append(Skipped(reason, path))
                else:
                    version = entry["lfs"]["oid"] if entry.get("lfs") else entry["oid"]
                    files.append(RemoteFile(path, entry["size"], None, version))
            yield Page(files, skipped, url)

    def stat(self, path: str, version: str = "") -> RemoteFile:
        found = self._metadata(path)
        return RemoteFile(path, found.size, None, found.etag)

    def _request(self, file: RemoteFile, method: str) -> HttpRequest:
        """A GET of the hub itself, or of the server to which it redirects."""
        self._linked.pop(file.path, None)  # it may have been requested anew, and the file another one since then
        url = self._url_of(file.path)
        from_hub = HttpRequest(url, self._headers, redirects=REDIRECTS_MAX)
        if len(file.version) == 40:  # a digest of Git
            return from_hub
        found = self._metadata(file.path)
        if found.location == url:
            return from_hub
        self._linked[file.path] = found.etag
        return HttpRequest(found.location)  # the token is only for the hub

    def _file_from_headers(self, file: RemoteFile, size: int, headers: Headers) -> RemoteFile | None:
        version = self._linked.pop(file.path, "") or headers.get("etag", "").removeprefix("W/").strip('"')
        return RemoteFile(file.path, size, None, version)

    def _metadata(self, path: str) -> Any:
        from huggingface_hub import get_hf_file_metadata

        with self.translating(path):
            return get_hf_file_metadata(self._url_of(path), token=self.fs.token)

    def _get_page(self, url: str) -> tuple[list[dict[str, Any]], str]:
        """(a page of the tree, the URL of the next page)."""
        from huggingface_hub.utils import get_session, hf_raise_for_status

        with self.translating():
            response = get_session().get(url, headers=self._headers, timeout=TIMEOUTS.read_s)
            hf_raise_for_status(response)
            try:
                entries = response.json()
            except ValueError as error:
                raise self.not_a_listing(str(error)) from None
            if not isinstance(entries, list) or not all(
                isinstance(entry, dict) and "path" in entry for entry in entries
            ):
                raise self.not_a_listing("it is not a list of paths")
            return entries, response.links.get("next", {}).get("url", "")

    def _api_url(self, what: str) -> str:
        place = self._place
        return f"{self.fs.endpoint}/api/{place.repo_type}s/{place.repo_id}/{what}/{quote(place.revision, safe='')}"

    def _url_of(self, path: str) -> str:
        from huggingface_hub import hf_hub_url

        place = self._place
        name = f"{place.path_in_repo}/{path}".lstrip("/")
        url: str = hf_hub_url(
            place.repo_id, name, repo_type=place.repo_type, revision=place.revision, endpoint=self.fs.endpoint
        )
        return url

    @property
    def _headers(self) -> dict[str, str]:
        from huggingface_hub.utils import build_hf_headers

        headers: dict[str, str] = build_hf_headers(token=self.fs.token)
        return headers

    @cached_property
    def _place(self) -> Any:
        """The repository, the revision and the folder of the URL."""
        with self.translating():
            return self.fs.resolve_path(self.root)
