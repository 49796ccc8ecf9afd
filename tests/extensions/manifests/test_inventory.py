"""S3 Inventories as manifests."""

from __future__ import annotations

import uuid
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from growfs.errors import RemoteChanged, RemoteError, RemoteMissing, UsageError
from growfs.extensions.manifests.layer import ManifestLayer
from growfs.remote import open_remote
from growfs.remote.interface import FetchTask, RemoteFile, RemoteSpec
from growfs.remote.retries import Retries
from growfs.remote.stores.fsspec import FsspecRemote
from tests.inventories import InventoryBucket
from tests.servers import S3Server

ODD = "odd names/ä ü+&=%20%#?日本\"',.bin"
WHEN = datetime(2024, 1, 2, 3, 4, 5, 678_000, timezone.utc)
HEX_DIGITS = st.sampled_from("0123456789ABCDEF")
ESCAPES = st.builds("%{}{}".format, HEX_DIGITS, HEX_DIGITS)
"""Text that a key may hold as it is, although a URL decodes it."""
KINDS = pytest.mark.parametrize("kind", ["CSV", "Parquet"])


@pytest.fixture
def prefix() -> str:
    return f"tree-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="module")
def bucket(rclone_s3: S3Server) -> InventoryBucket:
    """Of a server that is quick, and has none of the objects that the inventories list."""
    return InventoryBucket(rclone_s3, rclone_s3.bucket, rclone_s3.put, lambda _: [])


def row(key: str, **more: Any) -> dict[str, Any]:
    return {"key": key, "size": 7, "last_modified_date": WHEN, "e_tag": "abc", **more}


def listed(bucket: InventoryBucket, manifest: str, prefix: str = "") -> list[RemoteFile]:
    remote = open_remote(bucket.source.spec(prefix, layers=(ManifestLayer(manifest),)), retries=Retries())
    return sorted((file for page in remote.pages() for file in page.files), key=lambda file: file.path)


@KINDS
def test_an_inventory_agrees_with_a_listing(
    inventories: InventoryBucket, kind: str, prefix: str, tmp_path: Path
) -> None:
    for number, name in enumerate(["a.bin", "sub/b.bin", ODD, "sub/", ".growfs/x"]):
        inventories.source.put(f"{prefix}/{name}", b"x" * number * (name != "sub/"))
    inventories.source.put(f"{prefix}-other/x", b"beside")
    manifest = inventories.write(inventories.objects(prefix), kind)
    remote = open_remote(inventories.source.spec(prefix), retries=Retries())
    files = sorted((file for page in remote.pages() for file in page.files), key=lambda file: file.path)
    assert len(files) == 3
    assert listed(inventories, manifest, prefix) == files
    by_manifest = open_remote(inventories.source.spec(prefix, layers=(ManifestLayer(manifest),)), retries=Retries())
    assert [skipped.path for page in by_manifest.pages() for skipped in page.skipped] == [".growfs/x"]
    for file in files:
        assert by_manifest.fetch(FetchTask(file, tmp_path / "target")) == file


@KINDS
def test_old_versions_and_deleted_and_archived_files_are_omitted(bucket: InventoryBucket, kind: str) -> None:
    rows = [row("a"), row("a", is_latest=False, e_tag="old"), row("b", is_delete_marker=True, size=None)]
    rows += [row("folder/", size=0), row("c", is_latest=None, is_delete_marker=None)]
    rows += [row("d", storage_class="GLACIER"), row("e", storage_class="DEEP_ARCHIVE")]
    pages = list(open_remote(bucket.source.spec("", layers=(ManifestLayer(bucket.write(rows, kind)),))).pages())
    files = sorted((file for page in pages for file in page.files), key=lambda file: file.path)
    second = int(WHEN.timestamp()) * 10**9
    assert files == [RemoteFile("a", 7, second, "abc"), RemoteFile("c", 7, second, "abc")]
    skipped = {skipped.path: skipped.reason.partition(":")[0] for page in pages for skipped in page.skipped}
    assert skipped == {"d": "archived", "e": "archived"}


@KINDS
def test_a_stale_row_is_detected_by_the_fetch(
    inventories: InventoryBucket, kind: str, prefix: str, tmp_path: Path
) -> None:
    inventories.source.put(f"{prefix}/a", b"old")
    manifest = inventories.write(inventories.objects(prefix), kind)
    inventories.source.put(f"{prefix}/a", b"new")
    remote = open_remote(inventories.source.spec(prefix, layers=(ManifestLayer(manifest),)), retries=Retries())
    ((file,),) = (page.files for page in remote.pages())
    with pytest.raises(RemoteChanged, match="no longer the version"):
        remote.fetch(FetchTask(file, tmp_path / "target"))


@KINDS
@settings(max_examples=2, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    keys=st.sets(
        st.text("aZ0 +%&=\"',;#?\\~\n\r\téü日😀", min_size=1, max_size=8)
        | st.lists(ESCAPES | st.sampled_from("+ "), min_size=1).map("".join),
        max_size=40,
    )
)
def test_any_key_is_decoded(bucket: InventoryBucket, kind: str, keys: set[str]) -> None:
    manifest = bucket.write([row(f"p/{key}") for key in keys], kind, parts=1)
    if keys:
        assert [file.path for file in listed(bucket, manifest, "p")] == sorted(keys)
    else:
        assert listed(bucket, manifest) == []


@KINDS
def test_a_listing_resumes_from_each_cursor(
    bucket: InventoryBucket, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("growfs.extensions.manifests.manifest.PAGE_FILES_MAX", 7)
    manifest = bucket.write([row(f"{number}.bin") for number in range(26)], kind, parts=3)
    remote = open_remote(bucket.source.spec(layers=(ManifestLayer(manifest),)), retries=Retries())
    pages = list(remote.pages())
    assert len(pages) == 4
    assert len({file.path for page in pages for file in page.files}) == 26
    for number, page in enumerate(pages, 1):
        rest = [file.path for page in remote.pages(page.cursor) for file in page.files]
        assert rest == [file.path for page in pages[number:] for file in page.files]


@KINDS
def test_an_error_midway_loses_no_file_and_rereads_no_finished_data_file(
    bucket: InventoryBucket, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("growfs.extensions.manifests.manifest.PAGE_FILES_MAX", 7)
    monkeypatch.setattr("growfs.remote.retries.DELAY_S_MIN", 0.0)
    manifest = bucket.write([row(f"{number}.bin") for number in range(30)], kind, parts=3)
    real = FsspecRemote.as_file
    opened: list[str] = []

    def as_file(self: FsspecRemote, path: str = "", **how: Any) -> Any:
        opened.append(path)
        if len(set(opened)) == 4 and opened.count(path) == 1:  # the third data file, after manifest.json and two others
            raise ConnectionResetError("gone")
        return real(self, path, **how)

    monkeypatch.setattr(FsspecRemote, "as_file", as_file)
    files = listed(bucket, manifest)
    assert len(files) == len({file.path for file in files}) == 30
    assert opened == ["", first := opened[1], second := opened[2], third := opened[3], "", second, third]
    assert first not in (second, third)


def test_the_newest_manifest_of_a_configuration_folder_is_used(bucket: InventoryBucket, prefix: str) -> None:
    folder = f"inv/{bucket.source.bucket}/{prefix}"
    with pytest.raises(RemoteError, match="no such file or folder"):
        listed(bucket, f"s3://{bucket.name}/{folder}/")
    bucket.put(f"{folder}/hive/dt=2026-01-02-01-00/symlink.txt", b"s3://x")
    with pytest.raises(RemoteMissing, match=r"contains no folder such as 2026-01-31T01-00Z with a manifest\.json"):
        listed(bucket, f"s3://{bucket.name}/{folder}/")
    for day in ("2026-01-02", "2026-01-09", "2025-12-31"):
        bucket.write([row(day)], parts=1, folder=f"{folder}/{day}T01-00Z")
    bucket.put(f"{folder}/2026-02-01T01-00Z/manifest.checksum", b"not yet")
    assert [file.path for file in listed(bucket, f"s3://{bucket.name}/{folder}/")] == ["2026-01-09"]


@pytest.mark.parametrize(
    ("kind", "rows", "changes", "message"),
    [
        ("CSV", [row("a")], {"fileFormat": "ORC"}, "its files are ORC; configure the inventory to write CSV"),
        ("CSV", [row("a")], {"sourceBucket": "theirs"}, "is the inventory of s3://theirs, not of s3://growfs-test"),
        ("CSV", [row("a")], {"fileSchema": "Bucket, Name"}, "line 1 has no column 'key'"),
        ("CSV", [row("a")], {"fileSchema": "Bucket, Key"}, "line 1 has 9 columns, not 2"),
        ("CSV", [row("a")], {"files": None}, r"is not a manifest\.json of an S3 Inventory \(TypeError"),
        ("CSV", [row("a")], {"files": [{"key": "inv/gone.csv.gz"}]}, r"inv/gone\.csv\.gz: no such file"),
        ("CSV", [row("a"), row("b", size="big")], {}, "line 2 has a size that is not a number: 'big'"),
        ("CSV", [row("a", bucket="theirs")], {}, "line 1 is of s3://theirs, not of s3://growfs-test"),
        ("Parquet", [row("a", bucket="theirs")], {}, "row 1 is of s3://theirs, not of s3://growfs-test"),
        ("Parquet", [row("a")], {"files": [{"key": "inv/gone.parquet"}]}, r"inv/gone\.parquet: no such file"),
    ],
)
def test_errors_name_what_is_wrong(
    bucket: InventoryBucket, kind: str, rows: list[dict[str, Any]], changes: dict[str, Any], message: str
) -> None:
    manifest = bucket.write(rows, kind, parts=1, **changes)
    with pytest.raises(RemoteError, match=message):
        listed(bucket, manifest)


@pytest.mark.parametrize(
    ("kind", "at", "message"),
    [
        ("CSV", slice(-20), "is cut short or damaged after line"),
        ("CSV", slice(0), r"is not the file that the inventory lists \(its MD5 differs\)"),
        ("Parquet", slice(-20), "is not a complete Parquet file"),
    ],
)
def test_truncated_data_files_are_refused(bucket: InventoryBucket, kind: str, at: slice, message: str) -> None:
    manifest = bucket.write([row(str(number)) for number in range(100)], kind, parts=1, pack=lambda data: data[at])
    with pytest.raises(RemoteError, match=message):
        listed(bucket, manifest)


def test_what_is_no_inventory_of_the_remote_is_refused(bucket: InventoryBucket, tmp_path: Path) -> None:
    bucket.put("some/manifest.json", b"[1, 2]")
    with pytest.raises(RemoteError, match=r"some/manifest\.json: is not a manifest\.json of an S3 Inventory"):
        listed(bucket, f"s3://{bucket.name}/some/manifest.json")
    manifest = bucket.write([row("a"), row("train")])
    with pytest.raises(RemoteMissing, match="lists nothing below s3://growfs-test/train; check the prefix"):
        listed(bucket, manifest, "train")
    with pytest.raises(UsageError, match="is an inventory of a bucket; mount the bucket: s3://bucket/prefix"):
        open_remote(RemoteSpec(str(tmp_path), layers=(ManifestLayer("s3://inv/manifest.json"),)))
