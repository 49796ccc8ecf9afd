"""The contract of growfs/remote/interface.py, tested with every kind of remote."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

import pytest

from growfs.errors import RemoteChanged, RemoteError, RemoteMissing
from growfs.remote import digest, open_remote, preload
from growfs.remote.digest import Digest
from growfs.remote.file import open_seekable
from growfs.remote.interface import ByteRange, FetchTask, Page, Remote, RemoteFile, RemoteSpec
from tests.remote.fake_remote import FakeRemote
from tests.store_servers import Store, nginx_folder

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
class Place:
    """A remote, and functions that change its content on the server. open: the same remote with a new client."""

    remote: Remote
    open: Callable[[], Remote]
    put: Callable[[str, bytes], None]
    delete: Callable[[str], None]
    open_folder: Callable[[str], Remote]
    sizes_listed: bool = True
    has_ranges: bool = True
    has_times: bool = True
    files: frozenset[str] = frozenset(FILES)


STORES = {"azure": "azure_store", "google": "google_store", "hub": "hub_store"}
"""The fixtures of stores by kind; of each a folder is used."""
UNKNOWN_TO = {
    "azure": {"odd/back\\slash"},  # which is a slash
    "webdav": {path for path in FILES if set(path) & set("%#?")},  # which webdav4 does not quote
    "hub by library": {"odd/a::b"},  # which is no name on Windows
}
"""Names that a store or its client cannot have, by kind."""
SERVERS = ("rclone", "moto", "http", *STORES, "nginx", "webdav")


@pytest.fixture(
    scope="module",
    params=[
        *("fake", "memory", "file", *SERVERS),
        *(f"{kind} by library" for kind in SERVERS[:3]),
        *(pytest.param(f"{kind} by library", marks=pytest.mark.long) for kind in SERVERS[3:]),
    ],
)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def configured(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "kind" in request.fixturenames and request.getfixturevalue("kind").endswith(" by library"):
        monkeypatch.setattr("growfs.remote.http.download.RangeDownloader.fetch", lambda *_: None)
    monkeypatch.setattr("growfs.remote.http.threads.PART_BYTES_MIN", 50_000)
    monkeypatch.setattr("growfs.remote.http.threads.PART_BYTES_MAX", 50_000)
    # The files are of the current second, so the store's own times would not do as validators.
    monkeypatch.setattr("growfs.remote.http.download._has_validator", lambda _: True)


def place(kind: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """An empty Place."""
    unknown = UNKNOWN_TO.get(kind) or UNKNOWN_TO.get(kind.removesuffix(" by library"), set())
    kind = kind.removesuffix(" by library")
    name = uuid.uuid4().hex
    if kind == "fake":
        fake = FakeRemote(page_files=5)
        return Place(fake, lambda: fake, fake.put, fake.delete, lambda _: FakeRemote(missing=True))
    if kind in ("rclone", "moto"):
        server = request.getfixturevalue(f"{kind}_s3")
        return Place(
            open_remote(server.spec(name)),
            lambda: open_remote(server.spec(name)),
            lambda path, data: server.put(f"{name}/{path}", data),
            lambda path: server.delete(f"{name}/{path}"),
            lambda below: open_remote(server.spec(f"{name}/{below}")),
        )
    if kind == "memory":
        import fsspec

        store = fsspec.filesystem("memory")

        return Place(
            open_remote(RemoteSpec(f"memory://{name}")),
            lambda: open_remote(RemoteSpec(f"memory://{name}")),
            lambda path, data: store.pipe_file(f"/{name}/{path}", data),
            lambda path: store.rm_file(f"/{name}/{path}"),
            lambda below: open_remote(RemoteSpec(f"memory://{name}/{below}")),
        )
    if kind in (*STORES, "nginx", "webdav"):
        if kind in STORES:
            bucket: Store = request.getfixturevalue(STORES[kind])
            prefix = f"{name}/"
        else:
            bucket, prefix = nginx_folder(request.getfixturevalue("nginx"), name, kind == "webdav"), ""
        return Place(
            open_remote(bucket.spec(prefix)),
            lambda: open_remote(bucket.spec(prefix)),
            lambda path, data: bucket.put(prefix + path, data),
            lambda path: bucket.delete(prefix + path),
            lambda below: open_remote(bucket.spec(prefix + quote(below))),
            sizes_listed=kind != "nginx",
            has_times=kind != "hub",
            files=frozenset(FILES) - unknown,
        )
    is_local = kind == "file"
    folder = tmp_path_factory.mktemp("place") if is_local else request.getfixturevalue("http_folder").folder / name

    def put(path: str, data: bytes) -> None:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
        if kind == "http":  # its versions are in whole seconds
            os.utime(folder / path, (len(data), len(data)))

    url = f"file://{folder}" if is_local else request.getfixturevalue("http_folder").url + name
    return Place(
        open_remote(RemoteSpec(url)),
        lambda: open_remote(RemoteSpec(url)),
        put,
        lambda path: (folder / path).unlink(),
        lambda below: open_remote(RemoteSpec(f"{url}/{quote(below)}")),
        sizes_listed=is_local,
        has_ranges=is_local,
    )


@pytest.fixture(scope="module")
def stored(kind: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A place with FILES, which tests do not change."""
    stored = place(kind, request, tmp_path_factory)
    for path in stored.files:
        stored.put(path, FILES[path])
    return stored


@pytest.fixture
def filled(stored: Place) -> Place:
    """The same Place with a new client, because a client remembers what the server cannot do."""
    return replace(stored, remote=stored.open())


@pytest.fixture
def changing(kind: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A new Place with the files of CHANGED, which the test may change."""
    changing = place(kind, request, tmp_path_factory)
    for path in CHANGED:
        changing.put(path, FILES[path])
    return changing


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("growfs.remote.walk.PAGE_FILES_MAX", 5)
    monkeypatch.setattr("growfs.remote.stores.s3.bucket.PAGE_FILES_MAX", 5)
    monkeypatch.setattr("growfs.remote.stores.hf.PAGE_FILES_MAX", 5)


def listed(pages: list[Page]) -> dict[str, RemoteFile]:
    files = [file for page in pages for file in page.files]
    assert not [skipped for page in pages for skipped in page.skipped]
    found = {file.path: file for file in files}
    assert len(found) == len(files), "a path is listed twice"
    return found


def test_a_listing_is_complete_and_paged(filled: Place) -> None:
    pages = list(filled.remote.pages())
    assert set(listed(pages)) == filled.files
    assert all(len(page.files) <= 5 for page in pages)


def test_a_listing_resumes_from_each_cursor(filled: Place) -> None:
    pages = list(filled.remote.pages())
    for done, page in enumerate(pages, 1):
        rest = listed(list(filled.remote.pages(page.cursor)))
        assert set(rest) == filled.files - {file.path for page in pages[:done] for file in page.files}


def test_a_listing_agrees_with_stat(filled: Place) -> None:
    for path, file in listed(list(filled.remote.pages())).items():
        now = filled.remote.stat(path)
        assert now.size == len(FILES[path])
        assert now.version
        assert (now.mtime_ns is not None) == filled.has_times
        if filled.sizes_listed:
            assert file == now


def test_fetch_copies_each_file_bit_for_bit(filled: Place, tmp_path: Path) -> None:
    target = tmp_path / "target"
    for path, file in listed(list(filled.remote.pages())).items():
        target.write_bytes(b"what was here before" * 20_000)
        reported: list[int] = []
        fetched = filled.remote.fetch(FetchTask(file, target, reported.append))
        assert target.read_bytes() == FILES[path], path
        assert sum(reported) == len(FILES[path])
        assert fetched == filled.remote.stat(path)


@pytest.mark.parametrize(
    "part", [ByteRange(0, 1000), ByteRange(123_457, 120_000), ByteRange(299_999, 1), ByteRange(0, 300_000)]
)
def test_fetch_of_a_byte_range_copies_only_that(filled: Place, tmp_path: Path, part: ByteRange) -> None:
    file, target = filled.remote.stat("a.bin"), tmp_path / "target"
    reported: list[int] = []
    computed = Digest()
    if not filled.has_ranges and part.size < 300_000:
        with pytest.raises(RemoteError, match="whole files only"):
            filled.remote.fetch(FetchTask(file, target, reported.append, computed, part))
        return
    assert filled.remote.fetch(FetchTask(file, target, reported.append, computed, part)) == file
    assert target.read_bytes() == FILES["a.bin"][part.offset : part.offset + part.size]
    assert sum(reported) == part.size
    assert computed.bytes == 0 or computed.text() == digest.of(target)


@pytest.mark.parametrize("content", [b"x" * 300_001, b"short"])
def test_a_byte_range_of_another_version_is_refused(changing: Place, tmp_path: Path, content: bytes) -> None:
    file = changing.remote.stat("a.bin")
    changing.put("a.bin", content)
    with pytest.raises(RemoteChanged):
        changing.remote.fetch(FetchTask(file, tmp_path / "target", byte_range=ByteRange(1000, 10)))


def test_an_exception_in_progress_ends_the_fetch(filled: Place, tmp_path: Path) -> None:
    file = filled.remote.stat("a.bin")

    def progress(_: int) -> None:
        raise InterruptedError("enough")

    with pytest.raises(InterruptedError, match="enough"):
        filled.remote.fetch(FetchTask(file, tmp_path / "target", progress))


def test_another_version_than_the_listed_one_is_refused(changing: Place, tmp_path: Path) -> None:
    file = changing.remote.stat("train/cat/1.jpg")
    changing.put("train/cat/1.jpg", b"quite another cat")
    with pytest.raises(RemoteChanged):
        changing.remote.fetch(FetchTask(file, tmp_path / "target"))
    now = changing.remote.stat("train/cat/1.jpg")
    assert now.version != file.version
    changing.remote.fetch(FetchTask(now, tmp_path / "target"))
    assert (tmp_path / "target").read_bytes() == b"quite another cat"


def test_a_deleted_file_is_missing(changing: Place, tmp_path: Path) -> None:
    file = changing.remote.stat("a.bin")
    changing.delete("a.bin")
    with pytest.raises(RemoteMissing):
        changing.remote.stat("a.bin")
    with pytest.raises(RemoteMissing):
        changing.remote.fetch(FetchTask(file, tmp_path / "target"))
    assert "a.bin" not in listed(list(changing.remote.pages()))


def test_a_listing_includes_new_files(changing: Place) -> None:
    list(changing.remote.pages())
    changing.put("train/new/1.jpg", b"new")
    assert set(listed(list(changing.remote.pages()))) == {*CHANGED, "train/new/1.jpg"}


def test_a_root_that_does_not_exist_is_missing(filled: Place) -> None:
    with pytest.raises(RemoteMissing):
        list(filled.open_folder("no such folder").pages())


def test_a_full_disk_raises_the_os_error(filled: Place) -> None:
    with pytest.raises(OSError, match="No space left"):
        filled.remote.fetch(FetchTask(filled.remote.stat("a.bin"), Path("/dev/full")))


@pytest.mark.parametrize(
    "url", ["s3://bucket/x", "/tmp", "memory://x", "https://host/folder/", "https://host/list.txt"]
)
def test_preload_starts_no_thread(url: str) -> None:
    import threading

    before = set(threading.enumerate())
    preload(RemoteSpec(url))
    open_remote(RemoteSpec(url))
    assert set(threading.enumerate()) <= before  # a server thread of the last test may end in between


def test_open_reads_each_file_from_any_position(filled: Place) -> None:
    for path, file in listed(list(filled.remote.pages())).items():
        content = FILES[path]
        with open_seekable(filled.remote, file) as source:
            assert source.raw.file == filled.remote.stat(path)
            assert source.read() == content, path
            assert source.read(1) == b""
            for start in (0, len(content) // 2, len(content) - 1, len(content), len(content) // 3):
                source.seek(max(0, start))
                assert source.read(3) == content[max(0, start) :][:3], (path, start)
            source.seek(-min(5, len(content)), os.SEEK_END)
            assert source.read() == content[-5:]


def test_open_refuses_another_version_than_the_listed_one(changing: Place) -> None:
    file = changing.remote.stat("train/cat/1.jpg")
    changing.put("train/cat/1.jpg", b"quite another cat")
    with pytest.raises(RemoteChanged):
        open_seekable(changing.remote, file)
    changing.delete("train/cat/1.jpg")
    with pytest.raises(RemoteMissing):
        open_seekable(changing.remote, file)


def test_a_file_that_changes_while_it_is_read_is_noticed(changing: Place) -> None:
    with open_seekable(changing.remote, changing.remote.stat("a.bin")) as source:
        source.read(10)
        changing.put("a.bin", os.urandom(400_000))
        source.raw.seek(0)
        with pytest.raises(RemoteChanged):
            source.raw.readall()
