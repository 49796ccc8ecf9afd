"""A worker reports each requested file exactly once, whatever happens to it."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from growfs.errors import DiskFailed, RemoteBusy, RemoteMissing
from growfs.paths import StrPath
from growfs.remote import digest
from growfs.remote.interface import Fetched, FetchTask, Progress, RemoteFile, RemoteSpec, ignore_progress
from growfs.remote.rate_limits import SharedLimits
from growfs.workers import downloader as module
from growfs.workers.downloader import Downloader
from growfs.workers.messages import REPORT_FILES, FetchFailed, FetchFiles, FetchProgress, FetchRequest, SizeExceeded
from tests.harness import until

WAIT_S = 20


@pytest.fixture
def limits() -> Iterator[SharedLimits]:
    limits = SharedLimits()
    yield limits
    os.close(limits.fd)


@pytest.fixture
def reports() -> queue.Queue[FetchProgress]:
    return queue.Queue()


@pytest.fixture
def downloader(tmp_path: Path, limits: SharedLimits, reports: queue.Queue[FetchProgress]) -> Downloader:
    for name, size in (("small", 10), ("large", 100_000)):
        (tmp_path / "remote" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "remote" / name).write_bytes(bytes(size))
    return Downloader(RemoteSpec(str(tmp_path / "remote")), limits, reports.put)


def fetch_request(folder: Path, id: int, path: str, size_max: int = 1 << 30) -> FetchRequest:
    return FetchRequest(id, RemoteFile(path, None, None, ""), f"{folder}/{id}", size_max, False, id)


def results(reports: queue.Queue[FetchProgress], files: int) -> tuple[dict[int, Fetched | FetchFailed], int]:
    """The results of this many files by id, and the number of bytes written."""
    reported: list[tuple[int, Fetched | FetchFailed]] = []
    bytes = 0
    while len(reported) < files:
        report = reports.get(timeout=WAIT_S)
        reported += report.files
        bytes += report.bytes
    assert len(dict(reported)) == len(reported) == files
    return dict(reported), bytes


def test_each_file_has_one_result(tmp_path: Path, downloader: Downloader, reports: queue.Queue[FetchProgress]) -> None:
    (tmp_path / "3").mkdir()  # a directory where the file belongs
    downloader.submit(
        FetchFiles(
            [fetch_request(tmp_path, id, path) for id, path in ((1, "small"), (2, "gone"), (3, "small"))],
            [],
            in_background=False,
        )
    )
    downloader.submit(FetchFiles([fetch_request(tmp_path, 4, "large", 99_999)], [], False))
    by_id, bytes = results(reports, 4)
    small = by_id[1]
    assert isinstance(small, Fetched)
    assert (small.size, small.digest) == (10, digest.of(tmp_path / "1"))
    failures = {id: type(failed.error) for id, failed in by_id.items() if isinstance(failed, FetchFailed)}
    assert failures == {2: RemoteMissing, 3: DiskFailed, 4: SizeExceeded}
    assert bytes <= 10 + 100_000
    assert not (tmp_path / "4").exists()


def test_a_digest_that_is_read_back_from_the_disk_counts_as_progress(
    tmp_path: Path, downloader: Downloader, reports: queue.Queue[FetchProgress], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of a file whose bytes did not pass through this process."""
    fetch, of, resume = downloader._remote.fetch, digest.of, threading.Event()

    def fetch_elsewhere(task: FetchTask) -> RemoteFile:
        return fetch(task._replace(digest=None, progress=ignore_progress))

    def of_held(path: StrPath, progress: Progress = ignore_progress) -> str:
        def progress_held(count: int) -> None:
            progress(count)
            assert resume.wait(WAIT_S)

        return of(path, progress_held)

    monkeypatch.setattr(downloader._remote, "fetch", fetch_elsewhere)
    monkeypatch.setattr(digest, "of", of_held)
    monkeypatch.setattr(module, "HEARTBEAT_S", 0.0)
    downloader.submit(FetchFiles([fetch_request(tmp_path, 1, "small")], [], False))
    assert reports.get(timeout=WAIT_S).files == []
    resume.set()
    assert isinstance(results(reports, 1)[0][1], Fetched)


def test_an_unexpected_exception_is_reported_as_an_error(
    tmp_path: Path, downloader: Downloader, reports: queue.Queue[FetchProgress], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloader._remote, "fetch", lambda *_: 1 / 0)
    downloader.submit(FetchFiles([fetch_request(tmp_path, 1, "small")], [], False))
    by_id, _ = results(reports, 1)
    failed = by_id[1]
    assert isinstance(failed, FetchFailed)
    assert isinstance(failed.error, RemoteBusy)
    assert "unexpected ZeroDivisionError" in str(failed.error)


def test_many_files_are_reported_in_one_message(
    tmp_path: Path, downloader: Downloader, reports: queue.Queue[FetchProgress], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message and a transaction for each file would cost more than the files themselves."""
    monkeypatch.setattr(module, "REPORT_EVERY_S", 10 * WAIT_S)
    files = 5 * REPORT_FILES + 1
    downloader.submit(FetchFiles([fetch_request(tmp_path, id, "small") for id in range(files)], [], False))
    counts: list[int] = []
    while sum(counts) < files:
        counts.append(len(reports.get(timeout=WAIT_S).files))
    assert min(counts[1:-1]) >= REPORT_FILES, "the last ones are reported as soon as all are finished"


@pytest.mark.parametrize(("urgent", "at_once_bytes"), [(True, 1 << 30), (False, 10)])
def test_the_first_file_and_an_urgent_or_large_one_are_reported_at_once(
    tmp_path: Path,
    limits: SharedLimits,
    downloader: Downloader,
    reports: queue.Queue[FetchProgress],
    monkeypatch: pytest.MonkeyPatch,
    urgent: bool,
    at_once_bytes: int,
) -> None:
    monkeypatch.setattr(module, "AT_ONCE_BYTES", at_once_bytes)
    monkeypatch.setattr(module, "REPORT_EVERY_S", 10 * WAIT_S)
    limits.set(2, 1, 0, 0.0)
    fetch, resume = downloader._remote.fetch, threading.Event()

    def fetch_held(task: FetchTask) -> RemoteFile:
        assert task.file.path == "small" or resume.wait(WAIT_S)
        return fetch(task)

    monkeypatch.setattr(downloader._remote, "fetch", fetch_held)
    downloader.submit(FetchFiles([fetch_request(tmp_path, 1, "small"), fetch_request(tmp_path, 2, "large")], [], False))
    assert results(reports, 1)[0].keys() == {1}
    other = fetch_request(tmp_path, 3, "small")._replace(file=RemoteFile("small", 10, None, ""), urgent=urgent)
    downloader.submit(FetchFiles([other], [], False))
    assert results(reports, 1)[0].keys() == {3}
    resume.set()
    assert results(reports, 1)[0].keys() == {2}


def test_a_raised_limit_is_noticed(
    tmp_path: Path,
    limits: SharedLimits,
    downloader: Downloader,
    reports: queue.Queue[FetchProgress],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While nothing arrives, and nothing ends, after which another file would begin anyway."""
    fetch, resume = downloader._remote.fetch, threading.Event()
    begun: list[str] = []

    def fetch_held(task: FetchTask) -> RemoteFile:
        begun.append(task.file.path)
        assert resume.wait(WAIT_S)
        return fetch(task)

    monkeypatch.setattr(downloader._remote, "fetch", fetch_held)
    limits.set(2, 1, 0)
    downloader.submit(FetchFiles([fetch_request(tmp_path, id, "small") for id in range(30)], [], False))
    until(lambda: len(begun) == 2)
    limits.set(10, 1, 0)
    until(lambda: len(begun) == 10)
    resume.set()
    results(reports, 30)
