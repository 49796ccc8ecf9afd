"""Files that a store's library reads in parts: side by side, complete, and with the first error."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from growfs.errors import RemoteBusy, RemoteError
from growfs.remote.digest import Digest, of
from growfs.remote.http.threads import TransferJob, TransferThreads
from growfs.remote.interface import ByteRange, FetchTask, RemoteFile, RemoteSpec
from growfs.remote.stores.fsspec import write_segments
from growfs.remote.stores.web import HttpRemote
from tests.servers import WebFolder

DATA = bytes(range(256)) * 41
PART = 1000
STREAMS = 4


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "target").touch()
    return tmp_path / "target"


def test_parts_are_read_side_by_side(target: Path) -> None:
    threads, ended = TransferThreads(lambda: STREAMS), threading.Event()
    together = threading.Barrier(STREAMS)
    reported: list[int] = []
    digest = Digest()

    def read(start: int, end: int) -> bytes:
        if start < STREAMS * PART:
            together.wait(20)
        return DATA[start:end]

    def fetch() -> None:
        task = FetchTask(RemoteFile("x", len(DATA), None, ""), target, reported.append, digest)
        write_segments(threads, task, ByteRange(0, len(DATA)), PART, read)
        ended.set()

    threads.submit(TransferJob(fetch))
    assert ended.wait(20)
    assert target.read_bytes() == DATA
    assert (sum(reported), digest.bytes, digest.text()) == (len(DATA), len(DATA), of(target))


def test_a_range_of_a_file_is_written_from_the_start(target: Path) -> None:
    task = FetchTask(RemoteFile("x", len(DATA), None, ""), target)
    write_segments(TransferThreads(), task, ByteRange(700, 2500), PART, lambda start, end: DATA[start:end])
    assert target.read_bytes() == DATA[700:3200]


class AllParts(TransferThreads):
    """Does each part, although the one before has failed: as if all of them were read at the same time."""

    def share(self, parts: Iterable[Callable[[], None]]) -> None:
        for part in parts:
            with pytest.raises(RemoteBusy, match="was sent whole"):
                part()
        raise RemoteBusy("as each of them")


@pytest.mark.parametrize("client", ["growfs", "library"])
def test_a_part_from_a_server_that_ignores_ranges_is_refused_at_once(
    http_folder: WebFolder, target: Path, client: str
) -> None:
    """A probe is such a request, and is not repeated: the server counted as away until a download was answered."""
    (http_folder.folder / "whole").write_bytes(DATA)
    remote = HttpRemote(RemoteSpec(http_folder.url, client=client))
    with pytest.raises(RemoteError, match="sends only whole files"):
        remote.fetch(FetchTask(remote.stat("whole"), target, byte_range=ByteRange(0, 1)))


def test_a_server_that_ignores_ranges_is_asked_for_the_whole(http_folder: WebFolder, target: Path) -> None:
    content = DATA * 200
    (http_folder.folder / "whole").write_bytes(content)
    remote = HttpRemote(RemoteSpec(http_folder.url, client="library"), AllParts())
    task = FetchTask(remote.stat("whole"), target)
    with pytest.raises(RemoteBusy, match="as each of them"):
        remote.fetch(task)
    remote.fetch(task)
    assert target.read_bytes() == content
