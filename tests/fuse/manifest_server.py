"""A web server with a manifest of its files, whose responses a test can block or make fail."""

from __future__ import annotations

import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import unquote


class ManifestServer:
    """files: content by path. blocked: paths whose content waits for `unblock`. statuses: status codes by path.

    requests: the number of GET requests for each path, including blocked ones.
    """

    def __init__(self) -> None:
        self.url = ""
        self.files: dict[str, bytes] = {}
        self.blocked: set[str] = set()
        self.statuses: dict[str, int] = {}
        self.requests: Counter[str] = Counter()
        self._gate = threading.Event()

    @property
    def manifest(self) -> str:
        """The URL to mount: a manifest with the size of every file."""
        return f"{self.url}manifest.csv"

    def unblock(self) -> None:
        """Answer all blocked requests, and block none from now on."""
        self.blocked = set()
        self._gate.set()

    def handler(self, *arguments: Any) -> BaseHTTPRequestHandler:
        """The handler factory for `serving`."""
        return _Handler(self, *arguments)

    def wait(self) -> None:
        """Block until `unblock` is called."""
        self._gate.wait()


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, server: ManifestServer, *arguments: Any) -> None:
        self._server = server
        super().__init__(*arguments)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        path = self._path()
        self._server.requests[path] += 1
        if path in self._server.blocked:
            self._server.wait()
        self._answer(with_body=True)

    def _path(self) -> str:
        return unquote(self.path.lstrip("/"))

    def _answer(self, with_body: bool) -> None:
        path = self._path()
        if path == "manifest.csv":
            rows = [f"{name},{len(content)}" for name, content in self._server.files.items()]
            content: bytes | None = "\n".join(["path,size", *rows, ""]).encode()
        else:
            content = self._server.files.get(path)
        status = self._server.statuses.get(path, 404 if content is None else 200)
        self.send_response(status)
        body = content if content is not None and status == 200 else b""
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass
