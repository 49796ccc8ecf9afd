"""Both kinds of queues report the same events, fanotify also the process; and which directories a counter watches."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from growfs.vfs import file_events
from growfs.vfs.file_events import (
    CLOSE_WRITE,
    DELETE,
    GONE,
    IS_DIRECTORY,
    MODIFY,
    MOVED_FROM,
    OPEN,
    UNKNOWN,
    Fanotify,
    FileEvents,
    Inotify,
)
from growfs.vfs.open_counter import OpenCounter

MASK = OPEN | MODIFY | CLOSE_WRITE | MOVED_FROM | DELETE
NAMES = ["plain", "new\nline", "ünï 中文 🎉", os.fsdecode(b"not \xff UTF-8"), "x" * 255]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "folder").mkdir()
    return tmp_path / "folder"


@pytest.fixture(params=[Inotify, Fanotify])
def events(request: pytest.FixtureRequest, folder: Path) -> Iterator[FileEvents]:
    try:
        queue: FileEvents = Inotify() if request.param is Inotify else Fanotify(folder)
    except OSError as error:
        pytest.skip(f"fanotify cannot run here: {error}")
    with closing(queue):
        yield queue


def happened(events: FileEvents) -> dict[tuple[int, str], int]:
    """What happened to files, as bits by watch and name, and that nothing is left to read."""
    found: dict[tuple[int, str], int] = {}
    for event in events.read():
        assert event.pid in (UNKNOWN, os.getpid())
        if not event.mask & IS_DIRECTORY:
            found[event.watch, event.name] = found.get((event.watch, event.name), 0) | event.mask
    assert events.read() == []
    return found


def test_files_are_reported_by_name_and_folder(events: FileEvents, folder: Path) -> None:
    folders = [folder / str(number) for number in range(3)]
    for each in folders:
        each.mkdir()
        for name in NAMES:
            (each / name).write_text("")
    numbers = [events.watch(each, MASK) for each in folders[:2]]
    assert [events.watch(each, MASK) for each in folders[:2]] == numbers
    for each in folders:
        for name in NAMES:
            (each / name).read_text()
    assert happened(events) == {(number, name): OPEN for number in numbers for name in NAMES}
    assert happened(events) == {}


def test_changes_are_reported(events: FileEvents, folder: Path, tmp_path: Path) -> None:
    for name in ("written", "deleted", "moved"):
        (folder / name).write_text("old")
    number = events.watch(folder, MASK)
    (folder / "written").write_text("new")
    (folder / "deleted").unlink()
    (folder / "moved").rename(tmp_path / "moved")
    assert happened(events) == {
        (number, "written"): OPEN | MODIFY | CLOSE_WRITE,
        (number, "deleted"): DELETE,
        (number, "moved"): MOVED_FROM,
    }


def test_a_folder_that_was_created_again_is_watched_when_asked_to(events: FileEvents, folder: Path) -> None:
    number = events.watch(folder, MASK)
    shutil.rmtree(folder)
    assert [event.watch for event in events.read() if event.mask & GONE] == [number]
    folder.mkdir()
    (folder / "unseen").write_text("")
    assert happened(events) == {}
    again = events.watch(folder, MASK)
    assert again != number
    (folder / "unseen").read_text()
    assert happened(events) == {(again, "unseen"): OPEN}


def test_a_folder_is_gone_after_its_files(events: FileEvents, folder: Path) -> None:
    for name in NAMES:
        (folder / name).write_text("")
    number = events.watch(folder, MASK)
    shutil.rmtree(folder)  # lists it first, and fanotify merges that with its deletion
    found = [event for event in events.read() if event.mask & (DELETE | GONE)]
    assert {event.name for event in found[:-1]} == set(NAMES)
    assert (found[-1].watch, found[-1].mask & GONE) == (number, GONE)


def test_many_events_are_all_reported(events: FileEvents, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than one read takes."""
    monkeypatch.setattr(file_events, "_READ_BYTES", 1 << 12)
    number = events.watch(folder, MASK)
    names = [f"{count:05}" for count in range(500)]
    for name in names:
        os.close(os.open(folder / name, os.O_CREAT | os.O_RDONLY))
    assert sorted(happened(events)) == [(number, name) for name in names]


@pytest.mark.parametrize("sees_processes", [False, True])
def test_a_directory_of_a_tree_that_is_reused_is_no_longer_one_of_the_earlier_tree(
    tmp_path: Path, sees_processes: bool
) -> None:
    counter = OpenCounter(lambda *_: None, processes_in=tmp_path if sees_processes else None)
    tree = tmp_path / "0"
    tree.mkdir()
    for number in range(1, 6):
        tree = tree.rename(tmp_path / str(number))
        counter.watch(number, {7: tree})
    counter.close()
    assert [number for number in range(6) if counter.is_watched(number, 7)] == [5]
