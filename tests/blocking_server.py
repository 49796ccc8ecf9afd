"""A web server for files, whose responses a test can block or make fail."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.message import Message
from urllib.parse import unquote

from tests.servers import QuietHandler, serving


class BlockingServer:
    """The root is a listing in HTML, without sizes; `manifest` is the URL of a list with sizes."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        """Content by path."""
        self.blocked: set[str] = set()
        """Paths whose GET waits for `unblock`. The root is the path ''."""
        self.halves: set[str] = set()
        """Paths whose GET sends half of the content before it waits. It is recorded, and may be blocked, only then."""
        self.versions: dict[str, str] = {}
        """Versions by path, for the manifest and as ETags. Without them, files have none."""
        self.statuses: dict[str, int] = {}
        """Status codes by path, in the place of the content."""
        self.requested: list[str] = []
        """The path of each GET, also of those that wait."""
        self.on_headers: Callable[[Message], object] = id
        self.url = ""
        self._changed = threading.Condition()

    @property
    def manifest(self) -> str:
        return f"{self.url}manifest.csv"

    @property
    def requests(self) -> Counter[str]:
        """The number of GETs for each path."""
        return Counter(self.requested)

    def unblock(self, *paths: str) -> None:
        """Answer the blocked requests for these paths, or for all."""
        with self._changed:
            self.blocked = self.blocked.difference(paths or self.blocked)
            self._changed.notify_all()

    def wait(self, path: str) -> None:
        """Record a request, and block while its path is blocked."""
        with self._changed:
            self.requested.append(path)
            self._changed.wait_for(lambda: path not in self.blocked)

    def content(self, path: str) -> bytes | None:
        if path == "manifest.csv":
            rows = [f"{name},{len(content)},{self.versions.get(name, '')}" for name, content in self.files.items()]
            return "\n".join(["path,size,version", *rows, ""]).encode()
        listing = "".join(f'<a href="/{name}">{name}</a>' for name in self.files)
        return self.files.get(path) if path else listing.encode()


@contextmanager
def blocking_server(files: dict[str, bytes], *blocked: str) -> Iterator[BlockingServer]:
    """Serve files, of which some are blocked."""
    server = BlockingServer(files)
    server.blocked.update(blocked)

    class Handler(QuietHandler):
        protocol_version = "HTTP/1.1"  # one thread serves many requests

        def do_HEAD(self) -> None:
            self.answer()

        def do_GET(self) -> None:
            server.on_headers(self.headers)
            if self.file in server.halves:
                body = self.answer()
                self.wfile.write(body[: len(body) // 2])
                self.wfile.flush()
                server.wait(self.file)
                self.wfile.write(body[len(body) // 2 :])
            else:
                server.wait(self.file)
                self.wfile.write(self.answer())

        @property
        def file(self) -> str:
            return unquote(self.path).lstrip("/")

        def answer(self) -> bytes:
            content = server.content(self.file)
            status = server.statuses.get(self.file, 404 if content is None else 200)
            body = content if content is not None and status == 200 else b""
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            if version := server.versions.get(self.file):
                self.send_header("ETag", f'"{version}"')
                self.send_header("Accept-Ranges", "none")
            self.end_headers()
            return body

    with serving(Handler) as url:
        server.url = url
        try:
            yield server
        finally:
            server.unblock()
