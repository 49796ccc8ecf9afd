"""`FakeRemote`: a remote in a dict. It passes the same contract tests as the real ones, and fails on request."""

from __future__ import annotations

import io
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from growfs.errors import RemoteBusy, RemoteChanged, RemoteMissing
from growfs.remote.interface import FetchTask, Page, RemoteFile, RemoteStream, Skipped
from growfs.remote.names import reason_to_skip


@dataclass
class FakeRemote:
    """data: path to content. Each put makes a new version, one second newer than the last.

    faults: what the next calls raise, by method ('pages': one for each page; None lets a call succeed).
    latency_s: a delay before each call. calls: (method, path) of each call, in order.
    """

    page_files: int = 1000
    chunk_bytes: int = 1 << 16
    latency_s: float = 0.0
    lists_size: bool = True
    has_versions: bool = True
    data: dict[str, bytes] = field(default_factory=dict)
    faults: dict[str, deque[Exception | None]] = field(default_factory=dict)
    calls: list[tuple[str, str]] = field(default_factory=list)
    missing: bool = False  # the root does not exist
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
        return self._file(path, with_size=True)

    def still_has(self, file: RemoteFile) -> bool:
        self._called("still_has", file.path)
        return file.path in self.data

    def fetch(self, task: FetchTask) -> RemoteFile:
        file, part, target = task.file, task.byte_range, task.target
        self._called("fetch", file.path)
        now = self._file(file.path, with_size=True)
        content = self.data[file.path]
        if part:
            content = content[part.offset : part.offset + part.size]
        with open(target, "wb") as out:
            for start in range(0, len(content), self.chunk_bytes):
                chunk = content[start : start + self.chunk_bytes]
                self._called("chunk", file.path)
                out.write(chunk)
                task.progress(len(chunk))
        if file.version and now.version and file.version != now.version:
            raise RemoteChanged(f"fake://{file.path}: is no longer the version that was listed; list again")
        if os.stat(target).st_size != (part.size if part else now.size):
            raise RemoteBusy(f"fake://{file.path}: cut short")
        return now

    def open(self, file: RemoteFile, start: int = 0) -> RemoteStream:
        self._called("open", file.path)
        now = self._file(file.path, with_size=True)
        if file.version and now.version and file.version != now.version:
            raise RemoteChanged(f"fake://{file.path}: is no longer the version that was listed; list again")
        return _Stream(now, io.BytesIO(self.data[file.path][start:]), lambda: self._called("chunk", file.path))

    def _called(self, method: str, path: str) -> None:
        self.calls.append((method, path))
        if self.latency_s:
            time.sleep(self.latency_s)
        pending = self.faults.get(method)
        if pending and (error := pending.popleft()) is not None:
            raise error

    def _file(self, path: str, with_size: bool = False) -> RemoteFile:
        if path not in self.data:
            raise RemoteMissing(f"fake://{path}: no such file or folder; check the URL")
        at = self._put_at[path]
        version = f"v{at}" if self.has_versions else ""
        size = len(self.data[path]) if with_size or self.lists_size else None
        return RemoteFile(path, size, (1_700_000_000 + at) * 10**9, version)


@dataclass
class _Stream:
    file: RemoteFile
    rest: io.BytesIO
    called: Callable[[], None]

    def readinto(self, buffer: memoryview) -> int:
        self.called()
        return self.rest.readinto(buffer)

    def close(self) -> None:
        self.rest.close()
