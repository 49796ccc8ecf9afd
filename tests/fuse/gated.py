"""A remote that stalls and refuses as a test says: a web server with a manifest of its files."""

from __future__ import annotations

import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import unquote


class Gated:
    """files: content by path. held: paths whose content waits for `let_go`. refused: status codes by path.

    fetched counts the requests for each path's content, also those that are still held.
    """

    def __init__(self) -> None:
        self.url = ""
        self.files: dict[str, bytes] = {}
        self.held: set[str] = set()
        self.refused: dict[str, int] = {}
        self.fetched: Counter[str] = Counter()
        self._gate = threading.Event()

    @property
    def manifest(self) -> str:
        """What to mount: the URL of a manifest that tells all sizes."""
        return f"{self.url}manifest.csv"

    def let_go(self) -> None:
        """Answer all that was held, and hold nothing any more."""
        self.held = set()
        self._gate.set()

    def handler(self, *arguments: Any) -> BaseHTTPRequestHandler:
        """What `serving` asks for."""
        return _Handler(self, *arguments)

    def wait(self) -> None:
        """Return when all is let go."""
        self._gate.wait()


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, gated: Gated, *arguments: Any) -> None:
        self._gated = gated
        super().__init__(*arguments)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        path = self._path()
        self._gated.fetched[path] += 1
        if path in self._gated.held:
            self._gated.wait()
        self._answer(with_body=True)

    def _path(self) -> str:
        return unquote(self.path.lstrip("/"))

    def _answer(self, with_body: bool) -> None:
        path = self._path()
        if path == "manifest.csv":
            rows = [f"{name},{len(content)}" for name, content in self._gated.files.items()]
            content: bytes | None = "\n".join(["path,size", *rows, ""]).encode()
        else:
            content = self._gated.files.get(path)
        status = self._gated.refused.get(path, 404 if content is None else 200)
        self.send_response(status)
        body = content if content is not None and status == 200 else b""
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass
