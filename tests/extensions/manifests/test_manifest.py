"""Manifests: text lists and tables that name the files of a remote."""

from __future__ import annotations

from pathlib import Path

import pytest

from growfs.daemon.options import Options
from growfs.errors import RemoteBusy, RemoteError
from growfs.extensions.manifests.layer import ManifestLayer
from growfs.remote import open_remote
from growfs.remote.interface import FetchTask, RemoteFile, RemoteSpec
from tests.servers import WebFolder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data/sub").mkdir(parents=True)
    (tmp_path / "data/a.bin").write_bytes(b"a" * 10)
    (tmp_path / "data/sub/b c.bin").write_bytes(b"bb")
    return tmp_path / "data"


def listed(root: Path, manifest: Path, text: str) -> list[RemoteFile]:
    manifest.write_text(text)
    remote = open_remote(RemoteSpec(str(root), layers=(ManifestLayer(str(manifest)),)))
    return [file for page in remote.pages() for file in page.files]


def test_a_text_manifest_is_read(data: Path, tmp_path: Path) -> None:
    text = f"\ufeff# comment\n\na.bin\r\n./sub/b c.bin\n{data}/x\n"
    assert [file.path for file in listed(data, tmp_path / "list", text)] == ["a.bin", "sub/b c.bin", "x"]
    remote = open_remote(RemoteSpec(str(data), layers=(ManifestLayer(str(tmp_path / "list")),)))
    file = next(remote.pages()).files[0]
    assert file == RemoteFile("a.bin", None, None, "")
    reported: list[int] = []
    assert remote.fetch(FetchTask(file, tmp_path / "target", reported.append)) == remote.stat("a.bin")
    assert sum(reported) == 10


def test_a_table_manifest_is_read(data: Path, tmp_path: Path) -> None:
    text = 'Path,size,mtime,etag,label\na.bin,10,2024-01-02T03:04:05Z,"""abc""",cat\n"sub/b c.bin",,,,\n'
    assert listed(data, tmp_path / "list.csv", text) == [
        RemoteFile("a.bin", 10, 1704164645 * 10**9, "abc"),
        RemoteFile("sub/b c.bin", None, None, ""),
    ]
    assert listed(data, tmp_path / "list.tsv", "size\tpath\n7\tx y\n") == [RemoteFile("x y", 7, None, "")]


def test_bad_names_are_skipped_and_counted(data: Path, tmp_path: Path) -> None:
    (tmp_path / "list").write_bytes(b"ok\n../up\na//b\n\xff\n")
    (page,) = open_remote(RemoteSpec(str(data), layers=(ManifestLayer(str(tmp_path / "list")),))).pages()
    assert [file.path for file in page.files] == ["ok"]
    assert {skipped.reason for skipped in page.skipped} == {
        "'.' or '..' in path",
        "empty path component",
        "name is not UTF-8",
    }


@pytest.mark.parametrize("name", ["list.txt", "list.csv"])
def test_a_listing_resumes_from_each_cursor(
    data: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("growfs.extensions.manifests.manifest.PAGE_FILES_MAX", 7)
    paths = [f"{number}.bin" for number in range(50)]
    (tmp_path / name).write_text("\n".join(["path", *paths]))
    remote = open_remote(RemoteSpec(str(data), layers=(ManifestLayer(str(tmp_path / name)),)))
    pages = list(remote.pages())
    assert len(pages) > 6
    every = [file.path for page in pages for file in page.files]
    assert every[-50:] == paths
    for number, page in enumerate(pages, 1):
        rest = [file.path for page in remote.pages(page.cursor) for file in page.files]
        assert rest == [file.path for page in pages[number:] for file in page.files]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("l.csv", "name,size\na,1\n", "line 1 has no column 'path'"),
        ("l.csv", "", "line 1 has no column 'path'"),
        ("l.csv", "path,size\na,1\nb,big\n", "line 3 has a size that is not a number: 'big'"),
        ("l.csv", "path,mtime\na,soon\n", "line 2 has an mtime that is not a time: 'soon'"),
        ("l.txt", "a\ns3://other/b\n", "line 2 names a file outside the remote"),
        ("l.txt", "a\n/etc/passwd\n", "line 2 names a file outside the remote"),
        ("l.txt", "a" * 100_000, "line 1 is longer than"),
        ("l.txt", "<!DOCTYPE html>\n<form>Sign in</form>\n", "line 1 is the start of a web page or XML"),
    ],
)
def test_errors_name_the_line(data: Path, tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(RemoteError, match=message):
        listed(data, tmp_path / name, text)


def test_only_a_web_table_that_is_also_the_remote_stands_for_its_folder(data: Path) -> None:
    table = data / "list.csv"
    table.write_text("path\na.bin\n")
    remote = open_remote(RemoteSpec(str(table), layers=(ManifestLayer(str(table)),)))
    with pytest.raises(RemoteBusy, match=r"list\.csv: the folder is empty, missing or not readable"):
        remote.stat("a.bin")


@pytest.mark.parametrize(
    ("name", "text"), [("list.txt", "{url}sub/b%20c\nx y\n"), ("list.csv", "path\nsub/b c\nx y\n")]
)
def test_the_url_of_a_list_is_read_as_a_manifest(http_folder: WebFolder, tmp_path: Path, name: str, text: str) -> None:
    folder = http_folder.folder / "listed"
    (folder / "sub").mkdir(parents=True, exist_ok=True)
    (folder / "sub/b c").write_bytes(b"bc")
    (folder / "x y").write_bytes(b"xy")
    (folder / name).write_text(text.format(url=f"{http_folder.url}listed/"))
    remote = open_remote(Options.parse({}).remote(f"{http_folder.url}listed/{name}"))
    (page,) = remote.pages()
    assert [file.path for file in page.files] == ["sub/b c", "x y"]
    for file in page.files:
        assert remote.fetch(FetchTask(file, tmp_path / "target")).size == 2
