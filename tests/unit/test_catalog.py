"""The catalog follows the listings of the remote, whatever changed from one to the next and however they are paged."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from growfs.cache import catalog
from growfs.cache.listing_diff import ListingDiff
from growfs.remote.filter import PathFilter
from growfs.remote.interface import RemoteFile, Skipped
from growfs.remote.names import DUPLICATE_NAME, FILE_AND_DIRECTORY
from growfs.status_and_metrics import SkippedStatus
from tests.unit.local_cache import LocalCache, file, open_local_cache, run_in_memory


async def test_an_unchanged_listing_alters_nothing(cache: LocalCache) -> None:
    files = [file("a/1"), file("b/2", None), file("3", version="")]
    await cache.list(files)
    ids = {path: cache.node(path).id for path in ("a/1", "b/2", "3")}
    assert await cache.list(files[::-1], page=1) == 0
    assert ids == {path: cache.node(path).id for path in ids}
    assert cache.catalog.listing == 2


@pytest.mark.parametrize("now", [file("a/1", version="v2"), file("a/1", 101, version="v2")])
async def test_a_changed_file_is_another_node(cache: LocalCache, now: RemoteFile) -> None:
    await cache.list([file("a/1"), file("a/2")])
    before = cache.node("a/1")
    await cache.list([now, file("a/2")])
    assert cache.node("a/1").id > before.id
    assert cache.catalog.node(before.id) is None
    assert cache.catalog_files() == {now, file("a/2")}
    assert cache.catalog.bytes == (now.size or 0) + 100


@pytest.mark.parametrize(
    ("version", "now", "differs"),
    [
        ("", RemoteFile("a", 100, 5, ""), False),
        ("", RemoteFile("a", 101, 5, ""), True),
        ("", RemoteFile("a", 100, 6, ""), True),
        ("", RemoteFile("a", None, 5, ""), False),
        ("", RemoteFile("a", 100, None, ""), False),
        ("", RemoteFile("a", 100, 5, "known now"), False),
        ("v1", RemoteFile("a", 100, 6, "v1"), True),
        ("v1", RemoteFile("a", 100, 4, "v1"), False),
        ("v1", RemoteFile("a", 100, 5, "v2"), True),
    ],
)
async def test_a_version_decides_and_an_unknown_attribute_does_not_differ(
    cache: LocalCache, version: str, now: RemoteFile, differs: bool
) -> None:
    await cache.list([RemoteFile("a", 100, 5, version)])
    assert await cache.list([now]) == differs


async def test_a_version_that_was_stored_again_is_the_same_node_with_the_newer_time(cache: LocalCache) -> None:
    await cache.list([RemoteFile("a", 100, 5, "v1")])
    before = cache.node("a")
    await cache.list([RemoteFile("a", 100, 6, "v1")])
    assert cache.node("a") == before._replace(mtime_ns=6)
    assert (cache.catalog.files, cache.catalog.bytes) == (1, 100)


@pytest.mark.parametrize("page", [1, 2])
@pytest.mark.parametrize("paths", [["a", "a/b"], ["a/b", "a"], ["a/b", "a/b/c/d"]])
async def test_if_a_file_and_a_directory_have_one_name_the_directory_stays(
    cache: LocalCache, paths: list[str], page: int
) -> None:
    shorter, longer = sorted(paths)
    for _ in range(2):
        await cache.list([file(path) for path in paths], page)
        assert cache.catalog_files() == {file(longer)}
        assert cache.catalog.skipped(cache.database.rows) == [SkippedStatus(FILE_AND_DIRECTORY, 1, shorter)]
        assert (cache.catalog.files, cache.catalog.bytes) == (1, 100)
        assert cache.catalog.directories == 1 + longer.count("/")


@pytest.mark.parametrize("page", [1, 2])
async def test_of_a_duplicate_name_the_first_counts(cache: LocalCache, page: int) -> None:
    for _ in range(2):
        await cache.list([file("a", version="v1"), file("b"), file("a", version="v2")], page)
        assert cache.catalog_files() == {file("a", version="v1"), file("b")}
        assert cache.catalog.skipped(cache.database.rows) == [SkippedStatus(DUPLICATE_NAME, 1, "a")]
    await cache.list([file("new", version="v9"), file("a", version="v2"), file("new", version="v8")], page)
    assert cache.catalog_files() == {file("a", version="v2"), file("new", version="v9")}


async def test_skipped_names_are_those_of_the_last_listing(cache: LocalCache) -> None:
    names = [Skipped("too long", "x" * 300), Skipped("too long", "y" * 300), Skipped("not UTF-8", "caf\udce9")]
    await cache.list([file("a")], skipped=names)
    assert cache.catalog.skipped(cache.database.rows) == [
        SkippedStatus("too long", 2, "x" * 300),
        SkippedStatus("not UTF-8", 1, "caf?"),
    ]
    await cache.list([file("a")], skipped=names[2:])
    assert cache.catalog.skipped(cache.database.rows) == [SkippedStatus("not UTF-8", 1, "caf?")]
    await cache.list([file("a")])
    assert cache.catalog.skipped(cache.database.rows) == []


@pytest.mark.promise(16)
async def test_a_pin_holds_for_the_next_version(cache: LocalCache) -> None:
    await cache.list([file("a"), file("b")])
    id = cache.node("a").id
    await cache.database.write(lambda writer: writer.execute("UPDATE node SET pinned = 1 WHERE id = ?", (id,)))
    await cache.list([file("a", version="v2"), file("b", version="v2")])
    assert cache.node("a").pinned
    assert not cache.node("b").pinned


async def test_an_unknown_size_is_learned(cache: LocalCache) -> None:
    await cache.list([RemoteFile("a", None, None, "")])
    assert (cache.node("a").size, cache.catalog.bytes) == (None, 0)
    await cache.admit("a", content=b"x" * 77)
    assert (cache.node("a").size, cache.catalog.bytes) == (77, 77)
    assert await cache.list([RemoteFile("a", None, None, "")]) == 0
    assert cache.catalog.bytes == 77


async def test_a_change_of_a_file_already_replaced_is_ignored(cache: LocalCache) -> None:
    await cache.list([file("a")])
    id = cache.node("a").id
    await cache.apply(ListingDiff(2, changed=[(id, file("a", version="v2"))]))
    await cache.apply(ListingDiff(2, changed=[(id, file("a", version="v3"))], gone=[id]))
    assert cache.catalog_files() == {file("a", version="v2")}
    assert (cache.catalog.files, cache.catalog.bytes) == (1, 100)


async def test_a_part_of_a_listing_that_fails_changes_nothing(cache: LocalCache) -> None:
    broken = RemoteFile("new/b", b"no size".fromhex("00"), None, None)  # type: ignore[arg-type]
    await cache.list([file("a/1")])
    with pytest.raises(Exception, match="NOT NULL"):
        await cache.apply(ListingDiff(2, new=[file("new/a"), broken]))
    assert cache.catalog_files() == {file("a/1")}
    await cache.list([file("other/x"), file("new/c")])
    assert cache.catalog_files() == {file("other/x"), file("new/c")}


PATHS = st.sampled_from(["a", "b", "a/b", "a/c", "a/b/c", "b/a", "c/a/b", "c"])
LISTINGS = st.lists(st.dictionaries(PATHS, st.sampled_from(["v1", "v2"]), min_size=1), min_size=1, max_size=4)


@pytest.mark.promise(16)
@settings(max_examples=30)
@given(LISTINGS, st.integers(1, 3), st.sets(PATHS))
def test_after_any_listings_the_catalog_equals_the_last_one(
    listings: list[dict[str, str]], page: int, fetched: set[str]
) -> None:
    async def run(folder: Path) -> None:
        cache = open_local_cache(folder)
        for listing in listings:
            files = [file(path, version=version) for path, version in listing.items()]
            await cache.list(files, page)
            for path in sorted(fetched):
                node = cache.find(path)
                if node and not node.is_dir and node.seq is None:
                    await cache.admit(path)
        folders = {path[:at] for path in listings[-1] for at, letter in enumerate(path) if letter == "/"}
        expected = {file(path, version=version) for path, version in listings[-1].items() if path not in folders}
        assert cache.catalog_files() == expected
        assert cache.catalog.files == len(expected)
        assert cache.catalog.bytes == 100 * len(expected)
        kept = {file.path for file in expected}
        assert cache.catalog.directories == 1 + len({p[:at] for p in kept for at, c in enumerate(p) if c == "/"})
        assert set(cache.cached()) == cache.resident() == kept & fetched
        assert cache.store.resident_files == len(kept & fetched)
        cache.close()

    run_in_memory(run)


@pytest.mark.parametrize("excluded", [["b", "a/x"], ["*"]])
async def test_what_is_excluded_is_forgotten_in_batches(
    cache: LocalCache, monkeypatch: pytest.MonkeyPatch, excluded: list[str]
) -> None:
    monkeypatch.setattr(catalog, "PAGE_FILES", 10)
    await cache.list([file(f"{folder}/{number:02}") for folder in ("a", "a/x", "b", "c/d") for number in range(25)])
    await cache.admit("a/03", "b/24", "c/d/07")
    paths = PathFilter((), excluded)
    kept = {known for known in cache.catalog_files() if paths.matches(known.path)}
    for changes in cache.catalog.forget_excluded(paths, "other options"):
        assert 0 < len(changes.removed) <= 10
        cache.store.drop_files(changes)
        cache.store.count_gone(changes.removed)
    assert cache.catalog_files() == kept
    assert set(cache.cached()) == cache.resident() == {known.path for known in kept} & {"a/03", "b/24", "c/d/07"}
    assert (cache.catalog.files, cache.catalog.bytes) == (len(kept), 100 * len(kept))
    folders = cache.database.row("SELECT count(*) FROM node WHERE is_dir = 1")
    assert folders == (cache.catalog.directories,) == (4 if kept else 1,)
    assert cache.catalog.listing == bool(kept), "an empty catalog serves nobody"
    assert not list(cache.catalog.forget_excluded(PathFilter((), ["*"]), "other options"))
