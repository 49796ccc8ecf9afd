"""What only one kind of store has: links and devices, keys that are no paths, pages of links."""

from __future__ import annotations

import errno
import ftplib
import gzip
import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest
from fsspec import register_implementation
from fsspec.implementations.ftp import FTPFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from growfs.errors import RemoteBusy, RemoteError, RemoteMissing, UsageError
from growfs.remote import digest, open_remote
from growfs.remote.digest import Digest
from growfs.remote.interface import FetchTask, RemoteFile, RemoteSpec
from growfs.remote.retries import Retries
from growfs.remote.retrying import RetryingRemote
from growfs.remote.stores.base import Entry, walk
from growfs.remote.stores.fsspec import FsspecRemote
from growfs.remote.stores.gs import GoogleRemote
from growfs.remote.stores.hf import RepositoryRemote
from growfs.remote.stores.web import HttpRemote
from growfs.workers.messages import SizeExceeded
from tests.needs import need
from tests.remote.fake_store import DATA, FakeStore, Serve, part_starts
from tests.servers import QuietHandler, serving
from tests.store_servers import azure_container, hub_server

LARGE = random.Random(8).randbytes(3 << 20)


def listed(spec: RemoteSpec) -> tuple[set[str], dict[str, str]]:
    """The paths that a listing gives, and the reason for each that it skips."""
    pages = list(open_remote(spec).pages())
    files = {file.path for page in pages for file in page.files}
    return files, {skipped.path: skipped.reason for page in pages for skipped in page.skipped}


class OneAtATime(MemoryFileSystem):  # type: ignore[misc]
    """A library without an event loop: an instance is used by one thread, and two files are fetched at a time."""

    protocol = "one-at-a-time"
    both_begun = threading.Barrier(2, timeout=30)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._threads = set[int]()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.removeprefix("one-at-a-time://")))

    def get_file(self, rpath: str, lpath: str, **options: Any) -> None:
        self._threads.add(threading.get_ident())
        assert len(self._threads) == 1
        self.both_begun.wait()
        super().get_file(rpath, lpath, **options)


@pytest.mark.parametrize("size", [100, 3 << 20])
def test_blobs_that_are_stored_encoded_arrive_as_stored(azurite: str, tmp_path: Path, size: int) -> None:
    from azure.storage.blob import BlobServiceClient, ContentSettings

    stored = gzip.compress(random.Random(1).randbytes(size))
    with azure_container(azurite, f"encoded-{size}") as store:
        service = BlobServiceClient.from_connection_string(store.env["AZURE_STORAGE_CONNECTION_STRING"])
        with service, service.get_blob_client(f"encoded-{size}", "x.bin") as blob:
            blob.upload_blob(stored, content_settings=ContentSettings(content_encoding="gzip"))
        remote = open_remote(store.spec())
        ((file,),) = (page.files for page in remote.pages())
        assert remote.fetch(FetchTask(file, tmp_path / "x")).size == len(stored)
    assert (tmp_path / "x").read_bytes() == stored


def test_files_of_a_web_server_that_are_compressed_by_their_names_arrive_as_stored(
    serve: Serve, tmp_path: Path, library_fetches: list[str]
) -> None:
    stored = gzip.compress(DATA)
    remote = HttpRemote(RemoteSpec(serve(FakeStore(stored, extra_headers={"Content-Encoding": "gzip"}))))
    assert remote.fetch(FetchTask(RemoteFile("x.nii.gz", None, None, ""), tmp_path / "x")).size == len(stored)
    assert (tmp_path / "x").read_bytes() == stored
    assert library_fetches == []


def test_a_library_without_an_event_loop_fetches_several_files_at_a_time(tmp_path: Path) -> None:
    register_implementation("one-at-a-time", OneAtATime, clobber=True)
    MemoryFileSystem().pipe({"/shared/a": b"content a", "/shared/b": b"content b"})
    remote = FsspecRemote(RemoteSpec("one-at-a-time://shared"))
    files = [file for page in remote.pages() for file in page.files]
    with ThreadPoolExecutor(2) as pool:
        fetched = list(pool.map(lambda file: remote.fetch(FetchTask(file, tmp_path / file.path)), files))
    assert fetched == files
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"content a", "b": b"content b"}


class FtpClient:
    """A connection to a server with one large file: what fsspec uses of ftplib.

    error: what each call raises, as after a transfer that did not end. called: the method that sent the file. sent: the
    bytes that it sent last. type: what the server says of the file: file or dir.
    """

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.called = ""
        self.type = "file"
        self.sent = 0

    def mlsd(self, path: str) -> Iterator[tuple[str, dict[str, str]]]:
        assert path == "/root"
        if self.error:
            raise self.error
        yield "x", {"type": self.type, "size": str(len(LARGE)), "modify": "20240301000000"}

    def retrbinary(self, command: str, callback: Callable[[bytes], object], blocksize: int) -> None:
        assert command == "RETR /root/x"
        self._send("retrbinary", callback, blocksize)

    def _send(self, called: str, callback: Callable[[bytes], object], step: int) -> None:
        if self.error:
            raise self.error
        self.sent = 0
        self.called, self.error = called, ftplib.error_reply("a reply to the last command")
        for start in range(0, len(LARGE), step):
            piece = LARGE[start : start + step]
            self.sent += len(piece)
            callback(piece)
        self.error = None

    def close(self) -> None: ...


class SftpClient(FtpClient):
    """The same with paramiko's method for file objects."""

    def getfo(self, path: str, target: IO[bytes]) -> None:
        assert path == "/root/x"
        self._send("getfo", target.write, 32768)


class SSHException(Exception):
    """It has the name of paramiko's."""


Connections = Callable[[type[FtpClient]], list[FtpClient]]
"""Has connections be of this class; returns the list of all connections, which grows with each."""


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> Connections:
    def use(kind: type[FtpClient]) -> list[FtpClient]:
        made: list[FtpClient] = []

        def connect(self: Any) -> None:
            self.ftp = kind()
            made.append(self.ftp)

        monkeypatch.setattr(FTPFileSystem, "_connect", connect)
        return made

    return use


@pytest.mark.parametrize(("kind", "method"), [(FtpClient, "retrbinary"), (SftpClient, "getfo")])
def test_a_fetch_by_ftp_or_sftp_reports_progress_and_ends_with_any_error(
    connections: Connections, tmp_path: Path, kind: type[FtpClient], method: str
) -> None:
    made, remote = connections(kind), FsspecRemote(RemoteSpec("ftp://host/root"))
    file, target, computed = remote.stat("x"), tmp_path / "x", Digest()
    reported: list[int] = []
    task = FetchTask(file, target, reported.append, computed)
    assert remote.fetch(task) == file
    assert target.read_bytes() == LARGE
    assert sum(reported) == len(LARGE) == computed.bytes
    assert max(reported) < len(LARGE)
    assert computed.text() == digest.of(target)
    assert made[-1].called == method
    for error in (SizeExceeded("enough"), InterruptedError("enough")):
        with pytest.raises(type(error), match="enough"):
            remote.fetch(FetchTask(file, target, partial(fail, error)))
        assert made[-1].sent < len(LARGE)
        assert remote.fetch(FetchTask(file, target)) == file
    with pytest.raises(OSError, match="No space left"):
        remote.fetch(FetchTask(file, Path("/dev/full")))
    assert remote.fetch(FetchTask(file, target)) == file


def fail(error: Exception, _: int) -> None:
    raise error


def test_a_missing_file_and_a_directory_in_its_place_cost_no_ftp_connection(
    connections: Connections, tmp_path: Path
) -> None:
    made, remote = connections(FtpClient), FsspecRemote(RemoteSpec("ftp://host/root"))
    file = remote.stat("x")
    with pytest.raises(RemoteMissing):
        remote.stat("y")
    for connection in made:
        connection.type = "dir"
    before = len(made)
    with pytest.raises(RemoteMissing):
        remote.stat("x")
    assert len(made) == before
    with pytest.raises(RemoteMissing):
        remote.fetch(FetchTask(file, tmp_path / "x"))


@pytest.mark.parametrize(
    "error", [EOFError(), SSHException("SSH session not active"), OSError("Socket is closed")], ids=repr
)
def test_a_connection_of_a_library_that_was_dropped_is_made_anew(
    connections: Connections, tmp_path: Path, error: Exception
) -> None:
    made, remote = connections(SftpClient), FsspecRemote(RemoteSpec("ftp://host/root"))
    file = remote.stat("x")
    for connection in made:
        connection.error = error
    with pytest.raises(RemoteBusy, match="cannot reach the server"):
        remote.fetch(FetchTask(file, tmp_path / "x"))
    assert remote.fetch(FetchTask(file, tmp_path / "x")) == file
    assert (tmp_path / "x").read_bytes() == LARGE


class CloudStorage(MemoryFileSystem):  # type: ignore[misc]
    """What gcsfs has with the default credentials of a machine: a token, and no key to sign with."""

    protocol = "gs"
    server = ""
    async_impl = True
    requester_pays: bool | str = False
    project = "mine"

    @property
    def credentials(self) -> CloudStorage:
        return self

    def apply(self, headers: dict[str, str]) -> None:
        headers["Authorization"] = "Bearer token"

    def url(self, path: str) -> str:
        bucket, _, name = path.strip("/").partition("/")
        return f"{self.server}/download/storage/v1/b/{bucket}/o/{name}?alt=media"

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        return {"name": path, "size": len(DATA), "type": "file"}


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch, small_parts: None) -> CloudStorage:
    storage = CloudStorage()
    monkeypatch.setattr(FsspecRemote, "_new_filesystem", lambda _: (storage, "bucket"))
    return storage


@pytest.mark.parametrize("pays", [False, True, "payer"])
def test_google_storage_is_fetched_in_parts_with_a_token_and_told_who_pays(
    cloud: CloudStorage, serve: Serve, tmp_path: Path, pays: bool | str
) -> None:
    store = FakeStore(DATA)
    cloud.server, cloud.requester_pays = serve(store), pays
    file = RemoteFile("a b/%", len(DATA), None, "")
    assert GoogleRemote(RemoteSpec("gs://bucket")).fetch(FetchTask(file, tmp_path / "file")).size == len(DATA)
    assert (tmp_path / "file").read_bytes() == DATA
    assert {request.target for request in store.requests} == {"/bucket/a%20b/%25"}
    assert {request.headers["Authorization"] for request in store.requests} == {"Bearer token"}
    assert sorted(request.start or 0 for request in store.gets) == list(part_starts(len(DATA)))
    payer = cloud.project if pays is True else pays or None
    assert {request.headers["x-goog-user-project"] for request in store.requests} == {payer}


def test_local_links_outside_the_root_and_devices_are_skipped(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / "sub/file").write_bytes(b"data")
    (tmp_path / "outside").write_bytes(b"secret")
    (root / "inside-link").symlink_to("sub/file")
    (root / "outside-link").symlink_to(tmp_path / "outside")
    (root / "dangling").symlink_to("nowhere")
    (root / "folder-link").symlink_to("sub")
    os.mkfifo(root / "fifo")
    os.mkdir(os.fsencode(root) + b"/\xff")
    files, skipped = listed(RemoteSpec(str(root)))
    assert files == {"sub/file", "inside-link"}
    assert skipped == {
        "outside-link": "link that leads outside",
        "dangling": "dangling link",
        "folder-link": "link to a folder",
        "fifo": "not a regular file",
        "\udcff": "name is not UTF-8",
    }
    remote = open_remote(RemoteSpec(f"file://{root}"))
    file = remote.stat("inside-link")
    assert file == RemoteFile("inside-link", 4, os.stat(root / "sub/file").st_mtime_ns, file.version)
    for path in ("outside-link", "fifo", "sub"):
        with pytest.raises(RemoteMissing):
            remote.fetch(FetchTask(RemoteFile(path, None, None, ""), tmp_path / "target"))
    with pytest.raises(RemoteError, match="is a file; use the URL of its folder"):
        listed(RemoteSpec(str(root / "sub/file")))


@pytest.mark.parametrize("parallel", [1, 16])
def test_a_listing_by_folder_goes_on_where_a_folder_could_not_be_read(parallel: int) -> None:
    """Not where its last thousand names ended: with few files in each of many folders, it would never be complete."""
    requests: Counter[str] = Counter()

    def read(folder: str) -> list[Entry]:
        requests[folder] += 1
        if requests.total() % 100 == 0:
            raise RemoteBusy("503")
        return [f"{number:03}/" for number in range(300)] if not folder else [RemoteFile(f"{folder}x", 1, None, "")]

    source: Any = SimpleNamespace(pages=lambda cursor=None: walk(read, parallel, cursor))
    pages = list(RetryingRemote(lambda: source, Retries(lambda _: None)).pages())
    assert sorted(file.path for page in pages for file in page.files) == [f"{number:03}/x" for number in range(300)]
    assert requests.total() < 2 * 300


@pytest.mark.parametrize("number", [errno.ENOTCONN, errno.ESTALE, errno.EIO])
def test_a_network_mount_whose_server_is_gone_is_busy_and_a_bad_file_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """As with sshfs and NFS. Otherwise each file would count as one that cannot be read."""
    (tmp_path / "root").mkdir()
    (tmp_path / "root/file").write_bytes(b"data")
    remote = open_remote(RemoteSpec(f"file://{tmp_path}/root"))
    task = FetchTask(remote.stat("file"), tmp_path / "target")
    open_file = os.open

    def fail(path: str, *arguments: Any) -> Any:
        raise OSError(number, os.strerror(number))

    def fail_to_open(path: str, flags: int, *arguments: Any, **more: Any) -> int:
        return fail(path) if str(path).endswith("root/file") else open_file(path, flags, *arguments, **more)

    monkeypatch.setattr(os, "open", fail_to_open)
    with pytest.raises(RemoteError) as caught:
        remote.fetch(task)
    assert not isinstance(caught.value, RemoteBusy)
    monkeypatch.setattr(os, "scandir", fail)
    with pytest.raises(RemoteBusy, match="check whether it is mounted"):
        remote.fetch(task)


@pytest.mark.parametrize("is_empty", [False, True])
def test_no_file_is_deleted_where_the_whole_folder_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_empty: bool
) -> None:
    root, away = tmp_path / "root", tmp_path / "away"
    (root / "sub").mkdir(parents=True)
    (root / "sub/file").write_bytes(b"data")
    remote = open_remote(RemoteSpec(f"file://{root}"))
    file, scandir = remote.stat("sub/file"), os.scandir

    def unmount_after_root(path: str) -> Any:
        found = scandir(path)
        if path == str(root) + "/":
            root.rename(away)
            if is_empty:
                root.mkdir()
        return found

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", unmount_after_root)
        with pytest.raises(RemoteBusy, match="check whether it is mounted"):
            list(remote.pages())
    with pytest.raises(RemoteBusy, match="check whether it is mounted"):
        remote.fetch(FetchTask(file, tmp_path / "target"))
    if is_empty:
        root.rmdir()
    away.rename(root)
    assert remote.fetch(FetchTask(file, tmp_path / "target")) == file
    (root / "other").touch()
    (root / "sub/file").unlink()
    with pytest.raises(RemoteMissing):
        remote.fetch(FetchTask(file, tmp_path / "target"))


PAGE = """<html><body><a href="?C=N;O=D">Name</a> <a href="../">up</a> <a name="x">no link</a>
<a href="./plain.txt">x</a> <A HREF='/root/absolute.txt'>x</A> <a href="deep/er/file.tar">x</a>
<a href="..%2F..%2Fetc%2Fpasswd">x</a> <a href="https://elsewhere/root/x">x</a> <a href="//elsewhere/y">x</a>
<a href="a&amp;b.txt">x</a> <a href="http.log">x</a> <a href="latin%E9.txt">x</a> <a href="plain.txt#top">x</a>
<a href="sub/">x</a> <a href="sub/one.txt">x</a> <a href="/other/z">x</a> <a href="./">x</a> <a href="plain.txt">x</a>
<a href="http://[foo">no URL</a></body></html>"""


class Pages(QuietHandler):
    pages = {  # noqa: RUF012
        "/root/": PAGE.encode(),
        "/root/sub/": b'<a href="one.txt">1</a><a href="../plain.txt">2</a><a href="/root/sub/">3</a>',
        "/bin/": b"<a href='x'>" + b"\0" * 100,
    }

    def do_GET(self) -> None:
        body = self.pages.get(self.path)
        self.reply(body or b"", 200 if body is not None else 404)

    do_HEAD = do_GET  # noqa: N815


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with serving(Pages) as url:
        yield url


@pytest.mark.parametrize("slash", ["", "/"])
def test_links_of_an_html_page_are_listed(site: str, slash: str) -> None:
    files, skipped = listed(RemoteSpec(f"{site}root{slash}"))
    expected = {"plain.txt", "absolute.txt", "deep/er/file.tar", "a&b.txt", "http.log", "sub/one.txt"}
    assert files == expected
    assert skipped == {"../../etc/passwd": "'.' or '..' in path", "latin\udce9.txt": "name is not UTF-8"}


def test_folders_are_listed_in_parallel() -> None:
    """The server answers for four folders only once all four are requested."""
    all_requested = threading.Barrier(4)
    root = "".join(f'<a href="{number}/">{number}</a>' for number in range(4)).encode()

    class Waiting(Pages):
        pages = {"/": root, **{f"/{number}/": b'<a href="file">1</a>' for number in range(4)}}  # noqa: RUF012

        def do_GET(self) -> None:
            if self.path != "/":
                all_requested.wait(10)
            super().do_GET()

    with serving(Waiting) as url:
        assert listed(RemoteSpec(url)) == ({f"{number}/file" for number in range(4)}, {})


def test_a_url_that_is_no_page_of_links_is_refused(site: str) -> None:
    with pytest.raises(RemoteError, match="is not a page of links"):
        listed(RemoteSpec(f"{site}bin"))
    with pytest.raises(UsageError, match="without \\? or #"):
        open_remote(RemoteSpec(f"{site}root/?list=1"))


def test_a_large_file_of_the_hub_may_become_a_small_one(tmp_path: Path, library_fetches: list[str]) -> None:
    need("huggingface_hub")
    with hub_server() as hub:
        remote = RepositoryRemote(RemoteSpec(f"hf://datasets/{hub.name}", endpoint_url=hub.url, anon=True))

        def fetch(data: bytes) -> RemoteFile:
            hub.files["x"] = data
            ((file,),) = (page.files for page in remote.pages())
            assert remote.fetch(FetchTask(file, tmp_path / "x")) == file
            assert (tmp_path / "x").read_bytes() == data
            return file

        large = fetch(bytes(hub.lfs_bytes))
        remote._sign(large)  # as for a part, once the first signature has expired
        fetch(b"small")
    assert library_fetches == [], "the library is not needed"
