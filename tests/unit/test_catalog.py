"""The catalog follows the listings of the remote, whatever changed from one to the next and however they are paged."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from growfs.cache.catalog import ListingDiff
from growfs.remote.names import DUPLICATE_NAME, FILE_AND_DIRECTORY
from growfs.remote.protocol import RemoteFile, Skipped
from tests.unit.rooms import Rooms, file, open_rooms


async def test_a_listing_is_taken_over(rooms: Rooms) -> None:
    files = [file("a/1"), file("a/2", 50), file("b/c/3")]
    assert await rooms.list(files) == 3
    assert rooms.known() == set(files)
    assert (rooms.catalog.files, rooms.catalog.bytes, rooms.catalog.directories) == (3, 250, 4)
    assert rooms.catalog.listing == 1


async def test_listing_again_what_did_not_change_alters_nothing(rooms: Rooms) -> None:
    files = [file("a/1"), file("b/2", None), file("3", version="")]
    await rooms.list(files)
    ids = {path: rooms.node(path).id for path in ("a/1", "b/2", "3")}
    assert await rooms.list(files[::-1], page=1) == 0
    assert ids == {path: rooms.node(path).id for path in ids}
    assert rooms.catalog.listing == 2


@pytest.mark.parametrize("now", [file("a/1", version="v2"), file("a/1", 101, version="v2")])
async def test_a_changed_file_is_another_node(rooms: Rooms, now: RemoteFile) -> None:
    await rooms.list([file("a/1"), file("a/2")])
    before = rooms.node("a/1")
    await rooms.list([now, file("a/2")])
    assert rooms.node("a/1").id > before.id
    assert rooms.catalog.node(before.id) is None
    assert rooms.known() == {now, file("a/2")}
    assert rooms.catalog.bytes == (now.size or 0) + 100


@pytest.mark.parametrize(
    ("now", "differs"),
    [
        (RemoteFile("a", 100, 5, ""), False),
        (RemoteFile("a", 101, 5, ""), True),
        (RemoteFile("a", 100, 6, ""), True),
        (RemoteFile("a", None, 5, ""), False),
        (RemoteFile("a", 100, None, ""), False),
        (RemoteFile("a", 100, 5, "known now"), False),
    ],
)
async def test_what_either_side_does_not_know_cannot_differ(rooms: Rooms, now: RemoteFile, differs: bool) -> None:
    await rooms.list([RemoteFile("a", 100, 5, "")])
    assert await rooms.list([now]) == differs


async def test_the_version_decides_where_both_know_it(rooms: Rooms) -> None:
    await rooms.list([RemoteFile("a", 100, 5, "v1")])
    assert await rooms.list([RemoteFile("a", 100, 6, "v1")]) == 0
    assert await rooms.list([RemoteFile("a", 100, 5, "v2")]) == 1


async def test_an_id_is_never_used_again(rooms: Rooms) -> None:
    await rooms.list([file("a")])
    last = rooms.node("a").id
    await rooms.list([file("b")])
    assert rooms.node("b").id > last


async def test_what_the_remote_deleted_is_gone_with_the_folders_that_this_empties(rooms: Rooms) -> None:
    await rooms.list([file("a/b/c/1"), file("a/2"), file("3")])
    await rooms.list([file("a/2"), file("3")])
    assert rooms.find("a/b") is None
    assert rooms.find("a/2")
    assert rooms.catalog.directories == 2
    await rooms.list([file("3")])
    assert rooms.find("a") is None
    assert rooms.catalog.directories == 1


async def test_a_folder_that_was_emptied_can_come_back(rooms: Rooms) -> None:
    await rooms.list([file("a/b/1"), file("2")])
    await rooms.list([file("2")])
    await rooms.list([file("a/b/1"), file("2")])
    assert rooms.catalog.path(rooms.node("a/b/1")) == "a/b/1"
    assert rooms.catalog.directories == 3


@pytest.mark.parametrize("page", [1, 2])
@pytest.mark.parametrize("files", [[file("a"), file("a/b")], [file("a/b"), file("a")]])
async def test_of_a_file_and_a_directory_of_one_name_the_directory_stays(
    rooms: Rooms, files: list[RemoteFile], page: int
) -> None:
    for _ in range(2):
        await rooms.list(files, page)
        assert rooms.known() == {file("a/b")}
        assert rooms.catalog.skipped(rooms.database.rows) == [(FILE_AND_DIRECTORY, 1, "a")]
        assert (rooms.catalog.files, rooms.catalog.bytes, rooms.catalog.directories) == (1, 100, 2)


@pytest.mark.parametrize("page", [1, 2])
async def test_of_a_name_that_comes_twice_the_first_counts(rooms: Rooms, page: int) -> None:
    for _ in range(2):
        await rooms.list([file("a", version="v1"), file("b"), file("a", version="v2")], page)
        assert rooms.known() == {file("a", version="v1"), file("b")}
        assert rooms.catalog.skipped(rooms.database.rows) == [(DUPLICATE_NAME, 1, "a")]
    await rooms.list([file("new", version="v9"), file("a", version="v2"), file("new", version="v8")], page)
    assert rooms.known() == {file("a", version="v2"), file("new", version="v9")}


async def test_a_conflict_deep_in_a_path_is_named_where_it_is(rooms: Rooms) -> None:
    await rooms.list([file("a/b"), file("a/b/c/d")])
    assert rooms.known() == {file("a/b/c/d")}
    assert rooms.catalog.skipped(rooms.database.rows) == [(FILE_AND_DIRECTORY, 1, "a/b")]


async def test_a_file_becomes_a_directory_and_a_file_again(rooms: Rooms) -> None:
    for files in ([file("a")], [file("a/b")], [file("a")], [file("a/b/c")], [file("a/b")]):
        await rooms.list(files)
        assert rooms.known() == set(files)


async def test_a_cached_file_gives_way_to_a_directory(rooms: Rooms) -> None:
    await rooms.list([file("a"), file("z")])
    await rooms.admit("a", "z")
    await rooms.list([file("a/b"), file("z")])
    await rooms.admit("a/b")
    assert set(rooms.cached()) == rooms.resident() == {"a/b", "z"}


async def test_a_cached_directory_gives_way_to_a_file(rooms: Rooms) -> None:
    await rooms.list([file("a/b/c"), file("z")])
    await rooms.admit("a/b/c", "z")
    await rooms.list([file("a"), file("z")])
    await rooms.admit("a")
    assert set(rooms.cached()) == rooms.resident() == {"a", "z"}


async def test_skipped_names_are_those_of_the_last_listing(rooms: Rooms) -> None:
    names = [Skipped("too long", "x" * 300), Skipped("too long", "y" * 300), Skipped("'..' in path", "a/../b")]
    await rooms.list([file("a")], skipped=names)
    assert rooms.catalog.skipped(rooms.database.rows) == [("too long", 2, "x" * 300), ("'..' in path", 1, "a/../b")]
    await rooms.list([file("a")], skipped=names[2:])
    assert rooms.catalog.skipped(rooms.database.rows) == [("'..' in path", 1, "a/../b")]
    await rooms.list([file("a")])
    assert rooms.catalog.skipped(rooms.database.rows) == []


async def test_a_skipped_name_need_not_be_text(rooms: Rooms) -> None:
    await rooms.list([file("a")], skipped=[Skipped("name is not UTF-8", "caf\udce9")])
    assert rooms.catalog.skipped(rooms.database.rows) == [("name is not UTF-8", 1, "caf?")]


@pytest.mark.promise(16)
async def test_a_pin_holds_for_the_next_version(rooms: Rooms) -> None:
    await rooms.list([file("a"), file("b")])
    id = rooms.node("a").id
    await rooms.database.write(lambda writer: writer.execute("UPDATE node SET pinned = 1 WHERE id = ?", (id,)))
    await rooms.list([file("a", version="v2"), file("b", version="v2")])
    assert rooms.node("a").pinned
    assert not rooms.node("b").pinned


async def test_an_unknown_size_is_learned(rooms: Rooms) -> None:
    await rooms.list([RemoteFile("a", None, None, "")])
    assert (rooms.node("a").size, rooms.catalog.bytes) == (None, 0)
    await rooms.admit("a", content=b"x" * 77)
    assert (rooms.node("a").size, rooms.catalog.bytes) == (77, 77)
    assert await rooms.list([RemoteFile("a", None, None, "")]) == 0
    assert rooms.catalog.bytes == 77


async def test_a_change_of_what_is_already_replaced_is_harmless(rooms: Rooms) -> None:
    await rooms.list([file("a")])
    id = rooms.node("a").id
    await rooms.apply(ListingDiff(2, changed=[(id, file("a", version="v2"))]))
    await rooms.apply(ListingDiff(2, changed=[(id, file("a", version="v3"))], gone=[id]))
    assert rooms.known() == {file("a", version="v2")}
    assert (rooms.catalog.files, rooms.catalog.bytes) == (1, 100)


async def test_a_part_that_fails_leaves_no_trace(rooms: Rooms) -> None:
    broken = RemoteFile("new/b", b"no size".fromhex("00"), None, None)  # type: ignore[arg-type]
    await rooms.list([file("a/1")])
    with pytest.raises(Exception, match="NOT NULL"):
        await rooms.apply(ListingDiff(2, new=[file("new/a"), broken]))
    assert rooms.known() == {file("a/1")}
    await rooms.list([file("other/x"), file("new/c")])
    assert rooms.known() == {file("other/x"), file("new/c")}


PATHS = st.sampled_from(["a", "b", "a/b", "a/c", "a/b/c", "b/a", "c/a/b", "c"])
LISTINGS = st.lists(st.dictionaries(PATHS, st.sampled_from(["v1", "v2"]), min_size=1), min_size=1, max_size=4)


@pytest.mark.promise(16)
@settings(max_examples=60, deadline=None)
@given(LISTINGS, st.integers(1, 3), st.sets(PATHS))
def test_after_any_listings_the_catalog_is_the_last_of_them(
    listings: list[dict[str, str]], page: int, fetched: set[str]
) -> None:
    async def run(folder: Path) -> None:
        rooms = open_rooms(folder)
        for listing in listings:
            files = [file(path, version=version) for path, version in listing.items()]
            await rooms.list(files, page)
            for path in sorted(fetched):
                node = rooms.find(path)
                if node and not node.is_dir and node.seq is None:
                    await rooms.admit(path)
        folders = {path[:at] for path in listings[-1] for at, letter in enumerate(path) if letter == "/"}
        expected = {file(path, version=version) for path, version in listings[-1].items() if path not in folders}
        assert rooms.known() == expected
        assert rooms.catalog.files == len(expected)
        assert rooms.catalog.bytes == 100 * len(expected)
        kept = {file.path for file in expected}
        assert rooms.catalog.directories == 1 + len({p[:at] for p in kept for at, c in enumerate(p) if c == "/"})
        assert set(rooms.cached()) == rooms.resident() == kept & fetched
        assert rooms.store.resident_files == len(kept & fetched)
        rooms.close()

    with tempfile.TemporaryDirectory() as folder:
        trio.run(run, Path(folder))
