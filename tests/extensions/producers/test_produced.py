"""A remote with a producer: which parts of the contract of remotes it keeps, and how producer processes are handled."""

from __future__ import annotations

import gzip
import lzma
import os
import shutil
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

import pytest

from growfs import producers
from growfs.errors import NotMade, RemoteChanged, RemoteMissing, UsageError
from growfs.extensions.producers import pool
from growfs.extensions.producers.pool import StartProducer
from growfs.extensions.producers.process import _FunctionRunner
from growfs.extensions.producers.produced import Producer
from growfs.remote import open_remote
from growfs.remote.interface import FetchTask, Remote, RemoteFile, RemoteSpec
from growfs.remote.user_functions import Function
from tests.extensions.producers import producer_functions
from tests.needs import use
from tests.remote.fake_remote import FakeRemote

FUNCTIONS = producer_functions.__file__
TREE = {"a/one.bin": os.urandom(3000), "a/two.tar.gz": b"", "zero": b"0", "odd/ünï\n{x}%.bin": b"1" * 700_000}
ORIENTATION = 0x0112  # in EXIF
TEXT_FOR_RESOLUTION = b"Exif\0\0II*\0\x08\0\0\0\1\0" + struct.pack("<HHI4sI", 0x011A, 2, 3, b"72\0", 0)
"""EXIF with a text in place of a fraction."""

Run = Callable[[RemoteFile | int, Callable[..., object]], object]
"""Makes one file from a source by a function; returns what the producer's process answers."""


def producer(folder: Path, function: str, rename: str | None = None) -> Producer:
    return Producer(Function.parse(f"{FUNCTIONS}:{function}", str(folder)), rename, 20.0, 1 << 30, 1)


def spec(folder: Path, function: str = "backwards", rename: str | None = None) -> RemoteSpec:
    return RemoteSpec(str(folder), maker=producer(folder, function, rename))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for path, content in TREE.items():
        (tmp_path / "remote" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "remote" / path).write_bytes(content)
    (tmp_path / "partial").mkdir()
    return tmp_path / "remote"


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs functions as a producer's process does, but in this process."""
    monkeypatch.chdir(folder.parent / "partial")
    start = StartProducer(RemoteSpec(str(folder)), replace(producer(folder, "copied"), timeout_s=0.0), None)
    return lambda source, make: _FunctionRunner(start, make).run(source)


def files(remote: Remote) -> dict[str, RemoteFile]:
    return {file.path: file for page in remote.pages() for file in page.files}


@pytest.mark.parametrize("rename", [None, "made/{stem}.x"])
def test_each_file_is_produced_from_its_source(folder: Path, tmp_path: Path, rename: str | None) -> None:
    remote = open_remote(spec(folder, rename=rename))
    found = files(remote)
    assert len(found) == len(TREE)
    for path, content in TREE.items():
        stem = path.rpartition(".")[0] or path
        file = found[f"made/{stem}.x" if rename else path]
        assert file.size is None
        reported: list[int] = []
        produced = remote.fetch(FetchTask(file, tmp_path / "partial" / "1", reported.append))
        assert (tmp_path / "partial" / "1").read_bytes() == content[::-1]
        assert sum(reported) == len(content) == produced.size
        assert (produced.path, produced.version, produced.mtime_ns) == (
            file.path,
            file.version,
            os.stat(folder / path).st_mtime_ns,
        )
    scratch = [path for path in (tmp_path / "partial").iterdir() if path.is_dir()]
    assert len(scratch) == 1  # one process produced all files
    assert not list(scratch[0].iterdir())


@pytest.mark.promise(40)
def test_a_changed_or_deleted_source_is_reported(folder: Path, tmp_path: Path) -> None:
    remote = open_remote(spec(folder, rename="{stem}.x"))
    file, deleted = files(remote)["a/one.x"], files(remote)["zero.x"]
    (folder / "a/one.bin").write_bytes(b"another")
    (folder / "zero").unlink()
    with pytest.raises(RemoteChanged):
        remote.fetch(FetchTask(file, tmp_path / "partial" / "1"))
    now = remote.stat(file.path, file.version)
    assert now == files(remote)[file.path] != file
    with pytest.raises(RemoteMissing):
        remote.fetch(FetchTask(deleted, tmp_path / "partial" / "1"))
    with pytest.raises(RemoteMissing):
        remote.stat(deleted.path, deleted.version)


def test_an_error_of_the_source_counts_though_the_function_catches_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the output, which is cut short, would count as complete."""
    remote = FakeRemote()
    remote.put("x", bytes(400_000))
    remote.fail("chunk", None, None, RemoteChanged("x: is no longer the version that was listed"))
    monkeypatch.setattr("growfs.extensions.producers.process.open_remote", lambda *_: remote)

    def make(source: BinaryIO, out: BinaryIO) -> None:
        with suppress(Exception):
            shutil.copyfileobj(source, out)

    assert isinstance(run(remote.stat("x"), make), RemoteChanged)


def test_a_source_that_is_overwritten_in_place_while_it_is_read_has_changed(run: Run, folder: Path) -> None:
    path = folder / "source"
    path.write_bytes(bytes(400_000))

    def make(source: BinaryIO, out: BinaryIO) -> None:
        out.write(source.read(200_000))
        path.write_bytes(b"1" * 400_000)
        os.utime(path, ns=(1, 1))
        out.write(source.read())

    assert isinstance(run(RemoteFile("source", None, None, ""), make), RemoteChanged)


def test_an_exception_in_progress_ends_the_function(folder: Path, tmp_path: Path) -> None:
    (folder / "hangs.bin").touch()
    remote = open_remote(spec(folder, "troubled"))

    def progress(_: int) -> None:
        raise InterruptedError("enough")

    began = time.monotonic()
    with pytest.raises(InterruptedError, match="enough"):
        remote.fetch(FetchTask(files(remote)["hangs.bin"], tmp_path / "partial" / "1", progress))
    assert time.monotonic() - began < 20
    assert not list((tmp_path / "partial").iterdir())


def test_a_module_that_is_not_imported_in_time_is_reported(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "START_S_MAX", 0.5)
    module = tmp_path / "slow.py"
    module.write_text("import time\ntime.sleep(60)\n\n\ndef make(source, out): ...\n")
    producer = Producer(Function.parse(f"{module}:make", "/"), None, 20.0, 1 << 30, 0)
    remote = open_remote(RemoteSpec(str(folder), maker=producer))
    with pytest.raises(NotMade, match=r"its module was not imported within 0\.5 seconds; skipped"):
        remote.fetch(FetchTask(files(remote)["zero"], tmp_path / "partial" / "1"))


def test_a_missing_function_is_a_usage_error(folder: Path) -> None:
    for function in ("nothing", "STEP"):
        with pytest.raises(UsageError, match=function):
            producer(folder, function).check(spec(folder, function))


def test_generated_samples_are_numbered(tmp_path: Path) -> None:
    sample = Function.parse(f"{FUNCTIONS}:sample", "/")
    producer = Producer(sample, "{index:02d}.x", 20.0, 1 << 30, 0, seed=5, count=120)
    remote = open_remote(RemoteSpec("py:x:y", maker=producer))
    found = files(remote)
    assert next(iter(found)) == "00.x"
    assert list(found)[-1] == "119.x"
    assert len(found) == 120
    assert remote.stat("07.x") == found["07.x"]
    for wrong in ("7.x", "120.x", "x", "07.xx"):
        with pytest.raises(RemoteMissing):
            remote.stat(wrong)
    for page in remote.pages():
        assert len([file for later in remote.pages(page.cursor) for file in later.files]) < 120
    alone = Producer(sample, None, 20.0, 1 << 30, 0, seed=5, count=1)
    assert list(files(open_remote(RemoteSpec("py:x:y", maker=alone)))) == ["00000000"]
    for wrong in ("../{index}", "{index:x}", "{index:,}"):
        with pytest.raises(UsageError, match="--rename"):
            open_remote(RemoteSpec("py:x:y", maker=Producer(sample, wrong, 1, 1, 0, seed=0)))


def compressed() -> Iterator[tuple[str, bytes]]:
    yield "gunzip", gzip.compress(b"what is in it" * 1000)
    yield "unxz", lzma.compress(b"what is in it" * 1000)
    zstd = use("backports.zstd")
    yield "unzstd", zstd.compress(b"what is in it" * 1000)


def test_ready_made_producers_decompress() -> None:
    for name, content in compressed():
        out = BytesIO()
        getattr(producers, name)(BytesIO(content), out)
        assert out.getvalue() == b"what is in it" * 1000, name


@pytest.mark.parametrize(
    "format",
    ["JPEG", "PNG", "WEBP", "TIFF"],
)
def test_ready_made_producers_resize_images_and_keep_their_orientation(format: str) -> None:
    image, ops = use("PIL.Image"), use("PIL.ImageOps")
    source, out = BytesIO(), BytesIO()
    picture, exif = image.new("RGB", (1000, 500), "red"), image.Exif()
    picture.paste("blue", (500, 0, 1000, 500))
    exif[ORIENTATION] = 6  # shown with its left side at the top
    picture.save(source, format, exif=exif)
    producers.at_most_256(source, out)
    made = image.open(out)
    assert made.format == format
    shown = ops.exif_transpose(made)
    assert shown.size == (128, 256)
    (top, _, _), (_, _, bottom) = shown.getpixel((64, 10)), shown.getpixel((64, 245))
    assert min(top, bottom) > 200


@pytest.mark.parametrize("exif", [TEXT_FOR_RESOLUTION, b"Exif\0\0garbagegarbage", b"Exif\0\0II*\0\x08"], ids=repr)
def test_an_image_with_broken_exif_is_resized(exif: bytes) -> None:
    image = use("PIL.Image")
    source, out = BytesIO(), BytesIO()
    image.new("RGB", (1000, 500)).save(source, "JPEG", exif=exif)
    producers.at_most_256(source, out)
    assert image.open(out).size == (256, 128)
