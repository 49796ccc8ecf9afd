"""The contract of growfs/remote/interface.py, tested with every kind of remote."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

from growfs.daemon.options import Options
from growfs.errors import RemoteChanged, RemoteError, RemoteMissing
from growfs.remote import digest, open_remote, preload
from growfs.remote.digest import Digest
from growfs.remote.file import open_seekable
from growfs.remote.interface import ByteRange, FetchTask, Page, Remote, RemoteFile
from growfs.remote.stores.registry import STORES
from tests.remote.places import BY_LIBRARY, KINDS, Kind, Place, kinds

FILES = {
    "a.bin": os.urandom(300_000),
    "zero": b"",
    "train/cat/1.jpg": b"cat one",
    "train/cat/2.jpg": b"cat two!",
    "train/dog/1.jpg": b"dog",
    "train-other/x": b"beside train",
    "deep/er/and/deeper/file.tar": os.urandom(70_000),
    "http.log": b"begins like a URL",
    "odd/sp ace": b"1",
    "odd/ünï/日本.txt": b"2",
    "odd/100%.txt": b"3",
    "odd/%41.txt": b"4",
    "odd/has#hash": b"5",
    "odd/what?.txt": b"6",
    "odd/key?versionId=7": b"7",
    "odd/star*[1-3]{a,b}.txt": b"8",
    "odd/plus+and&amp;=:;,@!$'().txt": b"9",
    "odd/back\\slash": b"10",
    'odd/"quoted"': b"11",
    "odd/~tilde": b"12",
    "odd/a::b": b"13",
    "odd/<tag>": b"14",
}

CHANGED = ("a.bin", "train/cat/1.jpg")


@dataclass
class Filled:
    """A Place with files, and a client."""

    kind: Kind
    place: Place
    files: frozenset[str]

    @cached_property
    def remote(self) -> Remote:
        return self.place.open("")


@pytest.fixture(scope="module", params=kinds())
def kind_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def kind(kind_name: str) -> Kind:
    return KINDS[kind_name.removesuffix(BY_LIBRARY)]


@pytest.fixture(autouse=True)
def configured(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "kind" in request.fixturenames and request.getfixturevalue("kind_name").endswith(BY_LIBRARY):
        monkeypatch.setattr("growfs.remote.stores.fsspec.FsspecRemote._requests_itself", False)
    monkeypatch.setattr("growfs.remote.http.threads.SEGMENT_BYTES_MIN", 50_000)
    monkeypatch.setattr("growfs.remote.http.threads.SEGMENT_BYTES_MAX", 50_000)
    monkeypatch.setattr("growfs.remote.http.threads.SEGMENT_BYTES_UNKNOWN", 50_000)
    # The files are of the current second, so the store's own times would not do as validators.
    monkeypatch.setattr("growfs.remote.http.download._has_validator", lambda _: True)


@pytest.fixture(scope="module")
def filled(kind: Kind, kind_name: str, request: pytest.FixtureRequest) -> Filled:
    """A place with FILES, which tests do not change."""
    unknown = kind.unknown_to_library if kind_name.endswith(BY_LIBRARY) else ()
    files = frozenset(path for path in FILES if not kind.unknown(path) and path not in unknown)
    place = kind.place(request)
    for path in files:
        place.put(path, FILES[path])
    return Filled(kind, place, files)


@pytest.fixture
def changing(kind: Kind, request: pytest.FixtureRequest) -> Filled:
    """A new place with the files of CHANGED, which the test may change."""
    place = kind.place(request)
    for path in CHANGED:
        place.put(path, FILES[path])
    return Filled(kind, place, frozenset(CHANGED))


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, module in sys.modules.items():
        if name.startswith("growfs.remote.") and hasattr(module, "PAGE_FILES_MAX"):
            monkeypatch.setattr(module, "PAGE_FILES_MAX", 5)


def test_each_store_is_tested() -> None:
    assert {store.name for store in STORES} == {kind.of for kind in KINDS.values()} - {""}


def listed(pages: list[Page]) -> dict[str, RemoteFile]:
    files = [file for page in pages for file in page.files]
    assert not [skipped for page in pages for skipped in page.skipped]
    found = {file.path: file for file in files}
    assert len(found) == len(files), "a path is listed twice"
    return found


def test_a_listing_is_complete_and_paged_and_resumes_from_each_cursor(filled: Filled) -> None:
    pages = list(filled.remote.pages())
    assert set(listed(pages)) == filled.files
    assert all(len(page.files) <= 5 for page in pages)
    for done, page in enumerate(pages, 1):
        rest = listed(list(filled.remote.pages(page.cursor)))
        assert set(rest) == filled.files - {file.path for page in pages[:done] for file in page.files}


def test_each_listed_file_agrees_with_stat_and_is_copied_bit_for_bit(filled: Filled, tmp_path: Path) -> None:
    target = tmp_path / "target"
    for path, file in listed(list(filled.remote.pages())).items():
        now = filled.remote.stat(path)
        assert now.size == len(FILES[path])
        assert now.version
        assert (now.mtime_ns is not None) == filled.kind.has_times
        assert file == now or not filled.kind.sizes_listed
        target.write_bytes(b"what was here before" * 20_000)
        reported: list[int] = []
        assert filled.remote.fetch(FetchTask(file, target, reported.append)) == now
        assert target.read_bytes() == FILES[path], path
        assert sum(reported) == len(FILES[path])


def test_fetch_of_a_byte_range_copies_only_that(filled: Filled, tmp_path: Path) -> None:
    file, target = filled.remote.stat("a.bin"), tmp_path / "target"
    for part in (ByteRange(0, 1000), ByteRange(123_457, 120_000), ByteRange(299_999, 1), ByteRange(0, 300_000)):
        reported: list[int] = []
        computed = Digest()
        task = FetchTask(file, target, reported.append, computed, part)
        if not filled.kind.has_ranges and part.size < 300_000:
            with pytest.raises(RemoteError, match="only whole files"):
                filled.remote.fetch(task)
            continue
        assert filled.remote.fetch(task) == file
        assert target.read_bytes() == FILES["a.bin"][part.offset : part.offset + part.size], part
        assert sum(reported) == part.size
        assert computed.bytes == 0 or computed.text() == digest.of(target)


def test_an_error_of_progress_or_of_the_disk_ends_the_fetch(filled: Filled, tmp_path: Path) -> None:
    file = filled.remote.stat("a.bin")

    def progress(_: int) -> None:
        raise InterruptedError("enough")

    with pytest.raises(InterruptedError, match="enough"):
        filled.remote.fetch(FetchTask(file, tmp_path / "target", progress))
    with pytest.raises(OSError, match="No space left"):
        filled.remote.fetch(FetchTask(file, Path("/dev/full")))


def test_another_version_than_the_listed_one_is_refused(changing: Filled, tmp_path: Path) -> None:
    remote, path, target = changing.remote, "a.bin", tmp_path / "target"
    file = remote.stat(path)
    with open_seekable(remote, file) as source:
        source.read(10)
        changing.place.put(path, b"x" * 400_000)
        source.raw.seek(0)
        with pytest.raises(RemoteChanged):
            source.raw.readall()
    for content in (b"x" * 300_001, b"short"):
        changing.place.put(path, content)
        for byte_range in (None, ByteRange(1000, 10)):
            with pytest.raises(RemoteChanged):
                remote.fetch(FetchTask(file, target, byte_range=byte_range))
        with pytest.raises(RemoteChanged):
            open_seekable(remote, file)
    now = remote.stat(path)
    assert now.version != file.version
    remote.fetch(FetchTask(now, target))
    assert target.read_bytes() == b"short"


def test_a_deleted_file_is_missing_and_a_new_one_is_listed(changing: Filled, tmp_path: Path) -> None:
    remote, (deleted, stays) = changing.remote, CHANGED
    file = remote.stat(deleted)
    assert set(listed(list(remote.pages()))) == set(CHANGED)
    changing.place.delete(deleted)
    changing.place.put("train/new/1.jpg", b"new")
    assert set(listed(list(remote.pages()))) == {stays, "train/new/1.jpg"}
    for look in (
        lambda: remote.stat(deleted),
        lambda: remote.fetch(FetchTask(file, tmp_path / "target")),
        lambda: open_seekable(remote, file),
    ):
        with pytest.raises(RemoteMissing):
            look()
    asked = [RemoteFile(path, None, None, "") for path in (deleted, stays, "never/there")]
    assert [remote.still_has(file) for file in asked] == [False, True, False]


def test_a_root_that_does_not_exist_is_missing(filled: Filled) -> None:
    with pytest.raises(RemoteMissing):
        list(filled.place.open("no-such-folder").pages())


@pytest.mark.parametrize(
    "url", ["s3://bucket/x", "/tmp", "memory://x", "https://host/folder/", "https://host/list.txt"]
)
def test_preload_starts_no_thread(url: str) -> None:
    import threading

    before = set(threading.enumerate())
    spec = Options.parse({}).remote(url)
    preload(spec)
    open_remote(spec)
    assert set(threading.enumerate()) <= before  # a server thread of the last test may end in between


def test_open_reads_a_file_from_any_position(filled: Filled) -> None:
    for path in ("a.bin", "zero", "odd/ünï/日本.txt"):
        file, content = filled.remote.stat(path), FILES[path]
        with open_seekable(filled.remote, file) as source:
            assert source.raw.file == file
            assert source.read() == content, path
            assert source.read(1) == b""
            for start in (0, len(content) // 2, len(content) - 1, len(content), len(content) // 3):
                source.seek(max(0, start))
                assert source.read(3) == content[max(0, start) :][:3], (path, start)
            source.seek(-min(5, len(content)), os.SEEK_END)
            assert source.read() == content[-5:]
