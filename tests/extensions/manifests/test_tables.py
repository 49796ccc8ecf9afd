"""Tables as manifests: compressed with gzip, or Parquet."""

from __future__ import annotations

import gzip
import io
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from growfs.errors import RemoteError, UsageError
from growfs.extensions.manifests.layer import ManifestLayer
from growfs.remote import open_remote
from growfs.remote.interface import RemoteFile, RemoteSpec
from growfs.remote.stores.local import LocalRemote
from tests.needs import need, use

SECONDS = 1704164645
NS = SECONDS * 10**9
WHEN = datetime(2024, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


def listed(manifest: Path) -> list[RemoteFile]:
    remote = open_remote(RemoteSpec(str(manifest.parent), layers=(ManifestLayer(str(manifest)),)))
    return [file for page in remote.pages() for file in page.files]


def write_parquet(path: Path, columns: dict[str, Any], **how: Any) -> None:
    pyarrow = use("pyarrow")
    from pyarrow.parquet import write_table

    write_table(pyarrow.table(columns), path, **how)


@pytest.mark.parametrize(
    ("name", "text"),
    [("l.txt.gz", "# all\na b\nü\n"), ("l.csv.gz", "size,path\n7,a b\n,ü\n"), ("L.TSV.GZ", "path\tsize\na b\t7\nü\n")],
)
def test_gzipped_manifests_are_read(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_bytes(gzip.compress(text.encode("utf-8-sig")))
    size = None if "txt" in name else 7
    assert listed(tmp_path / name) == [RemoteFile("a b", size, None, ""), RemoteFile("ü", None, None, "")]


def test_gzip_is_recognized_by_content_and_not_by_name(tmp_path: Path) -> None:
    (tmp_path / "l.csv.gz").write_text("path\na\n")
    (tmp_path / "l.csv").write_bytes(gzip.compress(b"path\n") + gzip.compress(b"a\n"))
    assert listed(tmp_path / "l.csv.gz") == listed(tmp_path / "l.csv") == [RemoteFile("a", None, None, "")]


def test_truncated_or_damaged_gzip_is_refused(tmp_path: Path) -> None:
    data = gzip.compress(b"path\n" + b"a\n" * 1000)
    (tmp_path / "cut.csv.gz").write_bytes(data[:-4])
    with pytest.raises(RemoteError, match=r"cut\.csv\.gz: is cut short or damaged after line 1001; write it again"):
        listed(tmp_path / "cut.csv.gz")
    (tmp_path / "other.csv.gz").write_bytes(data[:-8] + b"12345678")
    with pytest.raises(RemoteError, match="is cut short or damaged"):
        listed(tmp_path / "other.csv.gz")


def test_parquet_manifests_are_read(tmp_path: Path) -> None:
    pyarrow = use("pyarrow")
    columns = {
        "label": ["x", "y", "z"],
        "Path": ["a b", "./ü", None],
        "size": [7, None, 1],
        "mtime": pyarrow.array([WHEN, None, WHEN], pyarrow.timestamp("ms", "Europe/Berlin")),
        "ETag": ['"abc"', None, "d"],
    }
    write_parquet(tmp_path / "l.parquet", columns)
    files = [RemoteFile("a b", 7, NS, "abc"), RemoteFile("ü", None, None, "")]
    assert listed(tmp_path / "l.parquet") == files
    bare = {
        "path": pyarrow.array([b"a b", "ü".encode(), b"\xff"]),
        "size": [7.0, None, 1.0],
        "version": ["abc"] + [""] * 2,
    }
    for times in (
        [float(SECONDS), None, 1.0],
        pyarrow.array([WHEN.replace(tzinfo=None), None, WHEN.replace(tzinfo=None)], pyarrow.timestamp("ns")),
        ["2024-01-02T03:04:05Z", "", None],
        pyarrow.array(["2024-01-02T03:04:05Z", None, None]).dictionary_encode(),
    ):
        write_parquet(tmp_path / "l.parquet", {**bare, "mtime": times})
        assert listed(tmp_path / "l.parquet") == files


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"name": ["a"]}, r"l\.parquet: has no column 'path'"),
        ({"path": ["a", "b"], "size": [1.0, 1.5]}, "row 2 has a size that is not a number: 1.5"),
        ({"path": ["a"], "size": [-1]}, "row 1 has a size that is not a number: -1"),
        ({"path": ["a"], "size": [[1]]}, "row 1 has a size that is not a number"),
        ({"path": ["a"], "mtime": ["soon"]}, "row 1 has an mtime that is not a time: 'soon'"),
        ({"path": ["s3://other/b"]}, "row 1 names a file outside the remote"),
        (None, r"l\.parquet: is not a complete Parquet file"),
    ],
)
def test_errors_in_parquet_name_the_row(tmp_path: Path, columns: dict[str, Any] | None, message: str) -> None:
    need("pyarrow")
    if columns is None:
        (tmp_path / "l.parquet").write_text("path\na\n")
    else:
        write_parquet(tmp_path / "l.parquet", columns)
    with pytest.raises(RemoteError, match=message):
        listed(tmp_path / "l.parquet")


def test_parquet_without_its_package_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("growfs.extensions.manifests.tables.find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"l\.parquet: Parquet needs a package .* pip install 'growfs\[inventory\]'"):
        open_remote(RemoteSpec(str(tmp_path), layers=(ManifestLayer(str(tmp_path / "l.parquet")),)))


def test_only_the_needed_columns_and_rows_of_parquet_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("growfs.extensions.manifests.manifest.PAGE_FILES_MAX", 100)
    paths = [f"{number:05}.bin" for number in range(1000)]
    columns = {"path": paths, "picture": [path.encode() * 1000 for path in paths]}
    write_parquet(tmp_path / "l.parquet", columns, row_group_size=150, compression="none", use_dictionary=False)
    read: list[int] = []

    class Counted(io.FileIO):
        def read(self, size: int | None = -1) -> Any:
            data = super().read(-1 if size is None else size)
            read.append(len(data or b""))
            return data

    monkeypatch.setattr(LocalRemote, "as_file", lambda self, *_, **__: Counted(self.spec.url))
    remote = open_remote(RemoteSpec(str(tmp_path), layers=(ManifestLayer(str(tmp_path / "l.parquet")),)))
    pages = list(remote.pages())
    whole = sum(read)
    assert [file.path for page in pages for file in page.files] == paths
    assert whole < 200_000 < (tmp_path / "l.parquet").stat().st_size
    for number, page in enumerate(pages, 1):
        read.clear()
        assert [file.path for rest in remote.pages(page.cursor) for file in rest.files] == paths[number * 100 :]
    assert sum(read) < whole - 10_000, "the last cursor reads the footer, but no earlier rows"
