"""growfs's own digest: one text for one content, however it came."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest
import xxhash

from growfs.cache.recovery import identity
from growfs.remote import digest
from growfs.remote.digest import Digest, of

PART = 1000
DATA = random.Random(5).randbytes(4 * PART + 300)

SIZES = [0, 1, PART - 1, PART, PART + 1, 2 * PART, len(DATA)]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "PART_BYTES", PART)
    monkeypatch.setattr(digest, "BUFFER_BYTES", 300)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "x").write_bytes(DATA)
    return tmp_path / "x"


def feed(taken: Digest, start: int, end: int, data: bytes = DATA, piece: int = 7) -> None:
    """Give a part of data in pieces, from a buffer that is written over again and again."""
    part, buffer = taken.part(start), bytearray(piece)
    for at in range(start, end, piece):
        count = min(piece, end - at)
        buffer[:count] = data[at : at + count]
        part.update(memoryview(buffer)[:count])


def test_what_it_is(path: Path) -> None:
    parts = [xxhash.xxh3_64_digest(DATA[at : at + PART]) for at in range(0, len(DATA), PART)]
    assert of(path) == xxhash.xxh3_64_hexdigest(b"".join(parts)) + "-5"
    path.write_bytes(DATA[:PART])
    assert of(path) == xxhash.xxh3_64_hexdigest(DATA[:PART])


@pytest.mark.parametrize("size", SIZES)
def test_the_order_of_parts_is_of_no_account(path: Path, size: int) -> None:
    path.write_bytes(DATA[:size])
    starts = list(range(0, size, PART))
    for seed in range(3):
        taken = Digest()
        for start in random.Random(seed).sample(starts, len(starts)):
            feed(taken, start, min(start + PART, size), DATA[:size])
        assert taken.hexdigest() == of(path)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("piece", [1, PART, 3 * PART])
def test_a_stretch_may_go_over_several_parts(path: Path, size: int, piece: int) -> None:
    path.write_bytes(DATA[:size])
    taken = Digest()
    feed(taken, 0, size, DATA[:size], piece)
    assert taken.hexdigest() == of(path)


def test_what_is_fetched_again_counts(path: Path) -> None:
    taken = Digest()
    feed(taken, 0, 2 * PART + 100, bytes(len(DATA)))
    feed(taken, PART, len(DATA))
    feed(taken, 0, PART)
    assert taken.hexdigest() == of(path)


def test_parts_side_by_side(path: Path) -> None:
    taken = Digest()
    ends = [threading.Thread(target=feed, args=(taken, at, min(at + PART, len(DATA)))) for at in range(0, 4301, PART)]
    for thread in ends:
        thread.start()
    for thread in ends:
        thread.join()
    assert taken.hexdigest() == of(path)


def test_what_is_missing_shows() -> None:
    taken = Digest()
    feed(taken, PART, 2 * PART)
    with pytest.raises(ValueError, match="missing"):
        taken.hexdigest()
    feed(taken, 0, PART - 1)
    with pytest.raises(ValueError, match="missing"):
        taken.hexdigest()
    with pytest.raises(ValueError, match="no part begins"):
        taken.part(PART // 2)


def test_a_digest_of_an_older_cache_still_counts(path: Path) -> None:
    stat = path.stat()
    for text in (xxhash.xxh3_64_hexdigest(DATA), of(path)):
        assert of(path, text) == text
        assert identity(path, text) == (stat.st_ino, stat.st_ctime_ns)
    path.write_bytes(DATA[:-1] + b"!")
    for text in (xxhash.xxh3_64_hexdigest(DATA), of(path)[:-1] + "4"):
        assert identity(path, text) is None
