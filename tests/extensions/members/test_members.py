"""Members of archives as the files of a remote."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from threading import Timer
from typing import Any, BinaryIO

import pytest

from growfs.cache.cache_folder import folder_name
from growfs.daemon.options import Options
from growfs.errors import RemoteBusy, RemoteChanged, RemoteDenied, RemoteError, RemoteMissing, UsageError
from growfs.extensions.members.layer import MembersLayer
from growfs.extensions.members.members import BUSY_MAX, ArchiveRemote, MemberLocation, path_of
from growfs.remote import open_remote
from growfs.remote.digest import Digest
from growfs.remote.file import open_seekable
from growfs.remote.interface import ByteRange, FetchTask, RemoteFile, RemoteSpec, RemoteStream
from growfs.remote.retries import Retries
from growfs.remote.retrying import RetryingRemote
from growfs.remote.user_functions import Function
from tests.archives import by_tarfile, samples, tar_of
from tests.remote.fake_remote import FakeRemote
from tests.servers import S3Server, WebFolder

TAR = Function.parse("tar", "/")
SHARDS = {f"shards/{number}.tar": tar_of(samples(number)) for number in range(5)}
NAMES = {f"shards/{number}/{name}": data for number in range(5) for name, data in samples(number).items()}


INDEX = "from growfs import producers\ndef find(source):\n    return producers.tar(source)\n"
"""A module of a user, with an index function."""


class Shards(FakeRemote):
    """A remote of archives. read: those that were read, in order. held: reads of these wait until they are removed.
    stream: makes what is read of a stream.
    """

    def __init__(self, cache: Path, content: dict[str, bytes] = SHARDS, page_files: int = 2) -> None:
        super().__init__(page_files=page_files)
        self.read: list[str] = []
        self.held: set[str] = set()
        self.stream: Callable[[RemoteStream], RemoteStream] = lambda stream: stream
        self.cache = cache
        for path, data in content.items():
            self.put(path, data)

    def open(self, file: RemoteFile, start: int = 0) -> RemoteStream:
        if not start:
            self.read.append(file.path)
        while file.path in self.held:
            time.sleep(0.001)
        return self.stream(super().open(file, start))

    def members(self, function: Function = TAR) -> ArchiveRemote:
        return ArchiveRemote(self, function, self.cache)


@pytest.fixture
def shards(tmp_path: Path) -> Shards:
    return Shards(tmp_path / "cache")


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("growfs.extensions.members.members.PAGE_FILES_MAX", 5)


def listed(remote: Any) -> dict[str, RemoteFile]:
    return {file.path: file for page in remote.pages() for file in page.files}


def skipped(remote: Any) -> dict[str, str]:
    return {skip.path: skip.reason for page in remote.pages() for skip in page.skipped}


def fetched(remote: Any, file: RemoteFile, folder: Path) -> bytes:
    """The content, fetched with only path and version known; progress must report each byte once."""
    reported: list[int] = []
    computed = Digest()
    found = remote.fetch(
        FetchTask(RemoteFile(file.path, None, None, file.version), folder / "target", reported.append, computed)
    )
    data = (folder / "target").read_bytes()
    assert (found.path, found.size, found.version) == (file.path, len(data), file.version)
    assert sum(reported) == len(data)
    return data


def test_each_member_is_fetched_bit_for_bit(shards: Shards, tmp_path: Path) -> None:
    remote = shards.members()
    files = listed(remote)
    assert {path: file.size for path, file in files.items()} == {path: len(data) for path, data in NAMES.items()}
    assert {path: fetched(remote, file, tmp_path) for path, file in files.items()} == NAMES
    assert {remote.stat(path, file.version) for path, file in files.items()} == set(files.values())
    file = next(file for file in files.values() if (file.size or 0) > 100)
    remote.fetch(FetchTask(file, tmp_path / "target", byte_range=ByteRange(10, 50)))
    assert (tmp_path / "target").read_bytes() == NAMES[file.path][10:60]


def test_a_listing_resumes_from_each_cursor(shards: Shards) -> None:
    shards.put("shards/2x", b"no archive")
    remote = shards.members()
    pages = list(remote.pages())
    assert all(len(page.files) <= 5 for page in pages)
    for done, page in enumerate(pages, 1):
        earlier = {file.path for page in pages[:done] for file in page.files}
        rest = [file.path for page in shards.members().pages(page.cursor) for file in page.files]
        assert sorted(rest) == sorted(NAMES.keys() - earlier)
    assert len(list((shards.cache / "members").iterdir())) == len(SHARDS) + 1, "indexes of earlier pages are kept"


def test_a_member_is_there_if_its_archive_is_and_was_not_listed(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not if the archive was listed without it. Each archive is asked for once, however many members it had."""
    files = listed(shards.members())
    lost, emptied, deleted = "shards/0.tar", "shards/1.tar", "shards/2.tar"
    shards.put(emptied, tar_of({"other": b""}))
    shards.delete(deleted)
    pages = shards.pages
    monkeypatch.setattr(
        shards,
        "pages",
        lambda cursor=None: (
            page._replace(files=[file for file in page.files if file.path != lost]) for page in pages(cursor)
        ),
    )
    remote = shards.members()
    listed(remote)
    found = {
        archive: {remote.still_has(file) for path, file in files.items() if f"{archive[:-4]}/" in path}
        for archive in (lost, emptied, deleted)
    }
    assert found == {lost: {True}, emptied: {False}, deleted: {False}}
    assert [path for method, path in shards.calls if method == "still_has"] == [lost, deleted]


@pytest.mark.promise(35)
def test_an_unchanged_archive_is_not_read_again(shards: Shards) -> None:
    shards.put("shards/broken.tar", b"no archive")
    first = listed(shards.members())
    assert sorted(shards.read) == sorted(shards.data)
    shards.read.clear()
    assert listed(shards.members()) == first
    assert shards.read == []
    shards.put("shards/3.tar", tar_of(samples(77)))
    shards.delete("shards/1.tar")
    now = listed(shards.members())
    assert shards.read == ["shards/3.tar"]
    assert {path for path in first if now.get(path) != first[path]} == {
        path for path in first if path.startswith(("shards/3/", "shards/1/"))
    }
    assert len(list((shards.cache / "members").iterdir())) == len(shards.data)
    assert list((shards.cache / "partial").iterdir()) == []


def test_a_listing_that_fails_midway_resumes_and_keeps_what_was_read(shards: Shards) -> None:
    shards.fail("open", None, RemoteBusy("busy"), None, RemoteBusy("busy"))
    assert listed(RetryingRemote(shards.members, Retries(lambda _: None))).keys() == NAMES.keys()
    assert len(shards.read) == len(SHARDS) + 2
    assert len(list((shards.cache / "members").iterdir())) == len(SHARDS)


def test_an_archive_being_read_when_a_listing_fails_is_not_read_twice(shards: Shards) -> None:
    shards.fail("open", RemoteBusy("busy"))
    shards.held.add("shards/1.tar")
    delays: list[float] = []

    def release_later(seconds: float) -> None:
        delays.append(seconds)
        Timer(0.2, shards.held.clear).start()

    assert listed(RetryingRemote(shards.members, Retries(release_later))).keys() == NAMES.keys()
    assert len(delays) == 1
    assert sorted(shards.read) == sorted([*SHARDS, "shards/0.tar"])


@pytest.mark.promise(37)
@pytest.mark.parametrize("error", [RemoteDenied, RemoteMissing])
def test_an_unreadable_archive_is_skipped_and_retried_by_the_next_listing(
    shards: Shards, error: type[Exception]
) -> None:
    shards.page_files = 1
    shards.fail("open", error("no"))
    assert skipped(shards.members()) == {"shards/0.tar": f"not readable ({error.__name__})"}
    assert skipped(shards.members()) == {}
    assert listed(shards.members()).keys() == NAMES.keys()


def test_an_archive_whose_read_error_its_function_catches_is_retried_by_the_next_listing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its index would lack the members behind, until the archive changes."""
    find_members = TAR.load()

    def tolerant(source: BinaryIO) -> Iterator[Any]:
        with suppress(Exception):
            yield from find_members(source)

    monkeypatch.setattr(Function, "load", lambda _: tolerant)
    shards = Shards(tmp_path / "cache", {"a.tar": tar_of({"1": bytes(200_000), "2": bytes(200_000)})})
    shards.fail("chunk", None, RemoteDenied("no"))
    assert skipped(shards.members()) == {"a.tar": "not readable (RemoteDenied)"}
    assert list((shards.cache / "members").iterdir()) == []
    assert listed(shards.members()).keys() == {"a/1", "a/2"}


@pytest.mark.promise(37)
@pytest.mark.parametrize("bad", [{0}, {2}, {4}, {0, 3, 4}])
def test_an_archive_that_its_store_never_delivers_does_not_keep_the_others_from_being_listed(
    tmp_path: Path, bad: set[int]
) -> None:
    """It keeps its members, as it may still have them."""

    class Failing(Shards):
        def open(self, file: RemoteFile, start: int = 0) -> RemoteStream:
            if file.path in {f"shards/{number}.tar" for number in bad}:
                raise RemoteBusy("500")
            return super().open(file, start)

    pages = list(RetryingRemote(Failing(tmp_path / "cache").members, Retries(lambda _: None)).pages())
    assert {file.path.split("/")[1] for page in pages for file in page.files} == {str(n) for n in {*range(5)} - bad}
    found = [skip for page in pages for skip in page.skipped]
    assert {(skip.path, skip.unread) for skip in found} == {(f"shards/{number}.tar", True) for number in bad}


class Dripping:
    """A stream that delivers a few bytes at a time, slowly; if breaks: once, and then breaks."""

    def __init__(self, stream: RemoteStream, breaks: bool) -> None:
        self.file, self._stream, self._breaks, self._reads = stream.file, stream, breaks, 0

    def readinto(self, buffer: memoryview) -> int:
        if self._breaks and self._reads:
            raise RemoteBusy("too slow")
        self._reads += 1
        time.sleep(0.01)
        return self._stream.readinto(buffer[: 1 if self._breaks else 100])

    def close(self) -> None:
        self._stream.close()


def test_a_listing_yields_pages_while_an_archive_arrives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("growfs.extensions.members.members.KEEPALIVE_S", 0.1)
    shards = Shards(tmp_path / "cache", {"a.tar": tar_of({"member": bytes(5000)})})
    shards.stream = partial(Dripping, breaks=False)
    pages = list(shards.members().pages())
    assert pages[0].files == []
    assert [file.path for page in pages for file in page.files] == ["a/member"]


@pytest.mark.parametrize("has_time", [True, False])
def test_connections_that_break_after_a_byte_are_not_opened_forever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_time: bool
) -> None:
    monkeypatch.setattr("growfs.remote.file.BREAKING_S_MAX", 1000.0 if has_time else 0.0)
    remote = Shards(tmp_path / "cache", {"a.tar": b"content"})
    remote.stream = partial(Dripping, breaks=True)
    with open_seekable(remote, remote.stat("a.tar")) as source:
        if has_time:
            assert source.read() == b"content"
        else:
            with pytest.raises(RemoteBusy, match="too slow"):
                source.read()


@pytest.mark.parametrize(("held", "late"), [(("shards/3.tar", "shards/4.tar"), 0), (("shards/4.tar",), 1)])
def test_archives_are_not_skipped_while_the_store_is_away(shards: Shards, held: tuple[str, ...], late: int) -> None:
    """late: how many requests that were under way fail once it is back."""
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3 * BUSY_MAX:
            shards.faults.clear()
            shards.fail("open", *[RemoteBusy("503")] * late)

    shards.page_files, shards.held = len(SHARDS), set(held)
    listing = RetryingRemote(shards.members, Retries(pause)).pages()
    pages = list(islice(listing, len(SHARDS) - len(held)))  # nothing else is being read
    for method in ("open", "pages"):
        shards.fail(method, *[RemoteBusy("503")] * 100)
    shards.held.clear()
    pages += listing
    assert {file.path for page in pages for file in page.files} == NAMES.keys()
    assert [page.skipped for page in pages if page.skipped] == []
    # The last request for the second archive may have been under way, too.
    assert len(pauses) - 3 * BUSY_MAX - late in range(len(held))


@pytest.mark.promise(36)
@pytest.mark.parametrize("times", [1, 2, 3])
def test_an_archive_that_changes_while_it_is_read_is_read_again(tmp_path: Path, times: int) -> None:
    new = {"new": b"1", "large": bytes(3000)}

    class Changing(Shards):
        def open(self, file: RemoteFile, start: int = 0) -> RemoteStream:
            opened = super().open(file, start)
            if file.path == "shards/1.tar" and self.read.count(file.path) <= times:
                self.put(file.path, tar_of(new))
            return opened

    shards = Changing(tmp_path / "cache")
    remote = shards.members()
    if times == 3:
        with pytest.raises(RemoteBusy, match="keeps changing"):
            listed(remote)
        return
    others = {path for path in NAMES if not path.startswith("shards/1/")}
    files = listed(remote)
    assert files.keys() == others | {f"shards/1/{name}" for name in new}
    assert files["shards/1/large"].mtime_ns == shards.stat("shards/1.tar").mtime_ns


def test_each_members_function_has_its_own_cache_folder() -> None:
    options: list[dict[str, str]] = [{}, {"members": "tar"}, {"members": "a:b"}]
    specs = [Options.parse(given).remote("s3://bucket") for given in options]
    assert len({folder_name(spec, spec.url) for spec in specs}) == 3


def test_names_that_cannot_be_files_are_skipped(tmp_path: Path) -> None:
    names = ["../x", "a//b", "ok", "d/../../y", ".growfs/x"]
    content = {"s.tar": tar_of(dict.fromkeys(names, b"1")), "bad.tar": b"x" * 2000}
    remote = Shards(tmp_path, content).members()
    assert skipped(remote) == {
        "s/../x": "'.' or '..' in path",
        "s/a//b": "empty path component",
        "s/d/../../y": "'.' or '..' in path",
        "bad.tar": "not readable by growfs.producers:tar: invalid header",
    }
    assert listed(remote).keys() == {"s/ok", "s/.growfs/x"}


def with_members(monkeypatch: pytest.MonkeyPatch, cache: Path, *members: Any) -> ArchiveRemote:
    """A file of 100 bytes, in which the function finds these members."""
    monkeypatch.setattr(Function, "load", lambda _: lambda source: iter(members))
    return Shards(cache, {"dir/x.bin": bytes(100)}).members()


@pytest.mark.parametrize(
    ("member", "reason"),
    [
        (("a", 50, 51), "a extends past the end of the file"),
        (("a", -1, 5), "('a', -1, 5) is not a member: a name, an offset and a size"),
        ((b"a", 1, 5), "(b'a', 1, 5) is not a member: a name, an offset and a size"),
        (("a", 1), "not enough values to unpack (expected 3, got 2)"),
    ],
)
def test_an_invalid_member_makes_the_archive_unreadable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, member: tuple[Any, ...], reason: str
) -> None:
    assert skipped(with_members(monkeypatch, tmp_path, ("good", 0, 1), member)) == {
        "dir/x.bin": f"not readable by growfs.producers:tar: {reason}"
    }


def test_an_absolute_member_name_is_relative_to_the_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    remote = with_members(monkeypatch, tmp_path, ("/cat/1", 0, 10), ("dog/2", 90, 10), ("/", 0, 1), ("", 0, 1))
    assert listed(remote).keys() == {"cat/1", "dir/x/dog/2"}
    assert skipped(remote) == {"dir/x.bin: /": "empty path component", "dir/x/": "empty path component"}


@pytest.mark.parametrize(
    ("archive", "path"),
    [("a.tar", "a/n"), ("d.x/a", "d.x/a/n"), ("d/a.b.tar", "d/a.b/n"), ("d/.tar", "d/.tar/n"), (".a.tar", ".a/n")],
)
def test_members_are_placed_in_a_folder_named_after_the_archive(archive: str, path: str) -> None:
    assert path_of(archive, "n") == path


@pytest.mark.parametrize("path", ["a b/c", "ä%20\n", "\udcff", "a"])
@pytest.mark.parametrize("version", ["", "v 1 2", "abc-3"])
def test_a_member_location_can_be_parsed_from_the_version(path: str, version: str) -> None:
    location = MemberLocation(ByteRange(3, 4), path, version)
    assert MemberLocation.parse(str(location)) == location


def test_a_member_of_a_changed_archive_is_looked_up_again(shards: Shards, tmp_path: Path) -> None:
    remote = shards.members()
    files = listed(remote)
    removed, kept = (files[f"shards/2/0020000.{kind}"] for kind in ("bin", "cls"))
    shards.put("shards/2.tar", tar_of({"first": b"1", "0020000.cls": b"9999"}))
    for file in (removed, kept):
        with pytest.raises(RemoteChanged):
            fetched(remote, file, tmp_path)
    shards.read.clear()
    now = remote.stat(kept.path, kept.version)
    assert fetched(remote, now, tmp_path) == b"9999"
    with pytest.raises(RemoteMissing):
        remote.stat(removed.path, removed.version)
    assert shards.read == ["shards/2.tar"]
    shards.delete("shards/2.tar")
    with pytest.raises(RemoteMissing):
        remote.stat(kept.path, kept.version)
    with pytest.raises(RemoteError):
        remote.stat(kept.path)


@pytest.mark.promise(35)
def test_an_edited_function_reads_all_archives_again(tmp_path: Path) -> None:
    shards = Shards(tmp_path)
    for last_line, times in (("", 5), ("", 5), ("# edited", 10)):
        (tmp_path / "users_index.py").write_text(INDEX + last_line)
        list(shards.members(Function.parse("./users_index.py:find", str(tmp_path))).pages())
        assert len(shards.read) == times


def test_the_module_of_a_function_is_executed_once(tmp_path: Path) -> None:
    note = f"with open({str(tmp_path / 'log')!r}, 'a') as log:\n    log.write('executed ')\n"
    (tmp_path / "users_index.py").write_text(note + INDEX)
    function = Function.parse("./users_index.py:find", str(tmp_path))
    assert listed(Shards(tmp_path).members(function)).keys() == NAMES.keys()
    assert (tmp_path / "log").read_text() == "executed "


@pytest.mark.promise(35)
def test_a_function_whose_module_ends_python_is_refused(tmp_path: Path) -> None:
    (tmp_path / "users_exit.py").write_text("import os\nos._exit(7)\n")
    with pytest.raises(UsageError, match=r"^users_exit:find: importing it made Python exit \(7\)$"):
        MembersLayer(Function.parse("users_exit:find", str(tmp_path))).check()


def test_archives_without_a_version_are_read_by_each_listing(tmp_path: Path) -> None:
    shards = Shards(tmp_path)
    shards.has_versions = False
    files = listed(shards.members())
    assert listed(shards.members()).keys() == files.keys() == NAMES.keys()
    assert len(shards.read) == 2 * len(SHARDS)


@pytest.mark.parametrize("kind", ["rclone_s3", "http"])
@pytest.mark.parametrize("by_library", [False, True])
def test_members_are_fetched_from_a_store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, by_library: bool
) -> None:
    if by_library:
        monkeypatch.setattr("growfs.remote.stores.fsspec.FsspecRemote._requests_itself", False)
    archive = tar_of(samples(1) | {"large.bin": bytes(6 << 20), "z": b"behind"})
    if kind == "rclone_s3":
        server: S3Server = request.getfixturevalue(kind)
        server.put("members/x.tar", archive)
        spec = server.spec("members")
    else:
        web: WebFolder = request.getfixturevalue("http_folder")
        (web.folder / "members").mkdir(exist_ok=True)
        (web.folder / "members/x.tar").write_bytes(archive)
        spec = RemoteSpec(f"{web.url}members/")
    remote = open_remote(replace(spec, layers=(MembersLayer(TAR),), cache=tmp_path / "cache"), retries=Retries())
    files = listed(remote)
    if kind == "http":  # this server sends whole files only
        with pytest.raises(RemoteError, match="sends only whole files; use one that supports byte ranges"):
            fetched(remote, files["x/z"], tmp_path)
        return
    expected = {f"x/{name}": data for name, data in by_tarfile(archive).items()}
    assert {path: fetched(remote, file, tmp_path) for path, file in files.items()} == expected
