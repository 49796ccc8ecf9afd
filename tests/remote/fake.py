"""`FakeRemote`: a remote in a dict, that passes the same contract suite as the real ones and fails on request."""

from __future__ import annotations

import io
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from growfs.errors import RemoteBusy, RemoteChanged, RemoteMissing
from growfs.remote.names import reason_to_skip
from growfs.remote.protocol import FetchTask, Page, RemoteFile, RemoteStream, Skipped


@dataclass
class FakeRemote:
    """data: path to content. Each put is a new version, a second later than the last.

    faults: what the next calls raise, by method ('pages': one for each page; None lets a call through).
    latency_s: waited before each call. calls: (method, path) of each, in order.
    """

    page_files: int = 1000
    chunk_bytes: int = 1 << 16
    latency_s: float = 0.0
    tells_size: bool = True
    tells_version: bool = True
    data: dict[str, bytes] = field(default_factory=dict)
    faults: dict[str, deque[Exception | None]] = field(default_factory=dict)
    calls: list[tuple[str, str]] = field(default_factory=list)
    missing: bool = False  # the root itself
    _put_at: dict[str, int] = field(default_factory=dict)
    _puts: int = 0

    def put(self, path: str, content: bytes) -> None:
        self._puts += 1
        self.data[path] = content
        self._put_at[path] = self._puts

    def delete(self, path: str) -> None:
        del self.data[path]

    def fail(self, method: str, *errors: Exception | None) -> None:
        self.faults.setdefault(method, deque()).extend(errors)

    def pages(self, cursor: Any = None) -> Iterator[Page]:
        if self.missing:
            raise RemoteMissing("fake://: no such bucket; check the name and --endpoint-url")
        after: str = cursor or ""
        while left := sorted(path for path in self.data if path > after)[: self.page_files]:
            self._called("pages", after)
            after = left[-1]
            skipped = [Skipped(reason, path) for path in left if (reason := reason_to_skip(path))]
            files = [self._file(path) for path in left if not reason_to_skip(path)]
            yield Page(files, skipped, after)

    def stat(self, path: str, version: str = "") -> RemoteFile:
        self._called("stat", path)
        return self._file(path, asked=True)

    def fetch(self, task: FetchTask) -> RemoteFile:
        file, part, target = task.file, task.byte_range, task.target
        self._called("fetch", file.path)
        now = self._file(file.path, asked=True)
        content = self.data[file.path]
        if part:
            content = content[part.offset : part.offset + part.size]
        with target.open("wb") as out:
            for start in range(0, len(content), self.chunk_bytes):
                chunk = content[start : start + self.chunk_bytes]
                self._called("chunk", file.path)
                out.write(chunk)
                task.progress(len(chunk))
        if file.version and now.version and file.version != now.version:
            raise RemoteChanged(f"fake://{file.path}: is no longer the version that was listed; list again")
        if target.stat().st_size != (part.size if part else now.size):
            raise RemoteBusy(f"fake://{file.path}: cut short")
        return now

    def open(self, file: RemoteFile, start: int = 0) -> RemoteStream:
        self._called("open", file.path)
        now = self._file(file.path, asked=True)
        if file.version and now.version and file.version != now.version:
            raise RemoteChanged(f"fake://{file.path}: is no longer the version that was listed; list again")
        return _Opened(now, io.BytesIO(self.data[file.path][start:]), lambda: self._called("chunk", file.path))

    def _called(self, method: str, path: str) -> None:
        self.calls.append((method, path))
        if self.latency_s:
            time.sleep(self.latency_s)
        waiting = self.faults.get(method)
        if waiting and (error := waiting.popleft()) is not None:
            raise error

    def _file(self, path: str, asked: bool = False) -> RemoteFile:
        if path not in self.data:
            raise RemoteMissing(f"fake://{path}: no such file or folder; check the URL")
        at = self._put_at[path]
        version = f"v{at}" if self.tells_version else ""
        size = len(self.data[path]) if asked or self.tells_size else None
        return RemoteFile(path, size, (1_700_000_000 + at) * 10**9, version)


@dataclass
class _Opened:
    file: RemoteFile
    rest: io.BytesIO
    called: Callable[[], None]

    def readinto(self, buffer: memoryview) -> int:
        self.called()
        return self.rest.readinto(buffer)

    def close(self) -> None:
        self.rest.close()
