"""The worker's side of fetching: whatever happens to a file, the daemon is told of it, once."""

from __future__ import annotations

import queue
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from growfs.errors import NoRoom, RemoteBusy, RemoteMissing
from growfs.remote import digest
from growfs.remote.limits import SharedLimits
from growfs.remote.protocol import Fetched, FetchTask, RemoteFile, RemoteSpec
from growfs.workers import downloader as module
from growfs.workers.downloader import Downloader
from growfs.workers.messages import REPORT_FILES, FetchFailed, FetchFiles, FetchProgress, FetchRequest, SizeExceeded

WAIT_S = 20


@pytest.fixture
def said() -> queue.Queue[FetchProgress]:
    return queue.Queue()


@pytest.fixture
def downloader(tmp_path: Path, said: queue.Queue[FetchProgress]) -> Downloader:
    for name, size in (("small", 10), ("large", 100_000)):
        (tmp_path / "remote" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "remote" / name).write_bytes(bytes(size))
    return Downloader(RemoteSpec(str(tmp_path / "remote")), SharedLimits(), said.put)


def wanted(folder: Path, id: int, path: str, size_max: int = 1 << 30) -> FetchRequest:
    return FetchRequest(id, RemoteFile(path, None, None, ""), folder / str(id), size_max, False)


def told(said: queue.Queue[FetchProgress], files: int) -> tuple[dict[int, Fetched | FetchFailed], int]:
    """What became of so many files, and how many bytes came."""
    found: list[tuple[int, Fetched | FetchFailed]] = []
    bytes = 0
    while len(found) < files:
        came = said.get(timeout=WAIT_S)
        found += came.files
        bytes += came.bytes
    assert len(dict(found)) == len(found) == files
    return dict(found), bytes


def test_what_becomes_of_files(tmp_path: Path, downloader: Downloader, said: queue.Queue[FetchProgress]) -> None:
    (tmp_path / "3").mkdir()  # where a file is to be written
    downloader.take(
        FetchFiles([wanted(tmp_path, 1, "small"), wanted(tmp_path, 2, "gone"), wanted(tmp_path, 3, "small")], [])
    )
    downloader.take(FetchFiles([wanted(tmp_path, 4, "large", 99_999)], []))
    found, bytes = told(said, 4)
    small = found[1]
    assert isinstance(small, Fetched)
    assert (small.size, small.digest) == (10, digest.of(tmp_path / "1"))
    assert [type(lost.error) for _, lost in sorted(found.items()) if isinstance(lost, FetchFailed)] == [
        RemoteMissing,
        NoRoom,
        SizeExceeded,
    ]
    assert bytes <= 10 + 100_000
    assert not (tmp_path / "4").exists()


def test_a_disk_that_refuses_even_to_delete(
    tmp_path: Path, downloader: Downloader, said: queue.Queue[FetchProgress], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "unlink", refuse)
    downloader.take(FetchFiles([wanted(tmp_path, id, "gone") for id in range(300)], []))
    found, _ = told(said, 300)
    assert all(isinstance(lost, FetchFailed) and isinstance(lost.error, RemoteMissing) for lost in found.values())


def test_a_bug_of_a_library_is_told(
    tmp_path: Path, downloader: Downloader, said: queue.Queue[FetchProgress], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloader._remote, "fetch", lambda *_: 1 / 0)
    downloader.take(FetchFiles([wanted(tmp_path, 1, "small")], []))
    found, _ = told(said, 1)
    lost = found[1]
    assert isinstance(lost, FetchFailed)
    assert isinstance(lost.error, RemoteBusy)
    assert "unexpected ZeroDivisionError" in str(lost.error)


def test_files_are_told_of_many_at_a_time(
    tmp_path: Path, downloader: Downloader, said: queue.Queue[FetchProgress], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message and a transaction for each would cost more than the files."""
    monkeypatch.setattr(module, "TELL_EVERY_S", 10 * WAIT_S)
    files = 5 * REPORT_FILES + 1
    downloader.take(FetchFiles([wanted(tmp_path, id, "small") for id in range(files)], []))
    told_of: list[int] = []
    while sum(told_of) < files:
        told_of.append(len(said.get(timeout=WAIT_S).files))
    assert min(told_of[:-1]) >= REPORT_FILES, "the last ones are told as soon as nothing else is under way"


def test_a_file_that_somebody_waits_for_is_told_at_once(
    tmp_path: Path, downloader: Downloader, said: queue.Queue[FetchProgress], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TELL_EVERY_S", 10 * WAIT_S)
    fetch, goes_on = downloader._remote.fetch, threading.Event()

    def held_up(task: FetchTask) -> RemoteFile:
        assert task.file.path == "small" or goes_on.wait(WAIT_S)
        return fetch(task)

    monkeypatch.setattr(downloader._remote, "fetch", held_up)
    downloader.take(FetchFiles([wanted(tmp_path, 1, "large"), replace(wanted(tmp_path, 2, "small"), urgent=True)], []))
    assert told(said, 1)[0].keys() == {2}
    goes_on.set()
    assert told(said, 1)[0].keys() == {1}
