"""The paths of directories, which several threads ask for at once."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

import growfs.cache.schema
from growfs.cache.schema import ROOT, DirectoryPaths

DIRECTORIES = 40
"""Each is in the one before it, from the root on."""
SIZE_MAX = 10
"""So that what is known is forgotten again and again."""


def parent_of(_: str, id: int) -> list[tuple[int, str]]:
    """The row of a directory, as a query has it; there is none below the root."""
    return [(id - 1, str(id))] if id >= ROOT else []


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growfs.cache.schema, "DIRECTORY_CACHE_MAX", SIZE_MAX)


def expected(id: int) -> str:
    return "/".join(map(str, range(ROOT + 1, id + 1)))


def test_a_path_is_right_however_much_is_forgotten() -> None:
    paths = DirectoryPaths()
    for id in (DIRECTORIES, ROOT, 3, DIRECTORIES, DIRECTORIES - 1):
        assert paths.of(parent_of, id) == expected(id)
    with pytest.raises(KeyError):
        paths.of(lambda *_: [], DIRECTORIES + 1)


def test_another_thread_that_asks_at_any_moment_gets_right_paths() -> None:
    """It asks within each query of the first: also right before and after what is known is forgotten."""
    paths = DirectoryPaths()
    found: list[str] = []

    def in_thread(run: Callable[[], Any]) -> None:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()

    def ask(query: str, id: int) -> list[tuple[int, str]]:
        in_thread(lambda: found.append(paths.of(parent_of, DIRECTORIES // 2)))
        return parent_of(query, id)

    assert paths.of(ask, DIRECTORIES) == expected(DIRECTORIES)
    assert set(found) == {expected(DIRECTORIES // 2)}


def test_many_threads_get_right_paths() -> None:
    paths, wrong = DirectoryPaths(), list[Exception | str]()

    def read() -> None:
        try:
            for id in range(ROOT, 200):
                path = paths.of(parent_of, id % DIRECTORIES + ROOT)
                if path != expected(id % DIRECTORIES + ROOT):
                    wrong.append(path)
        except Exception as error:  # noqa: BLE001 - it would only end the thread
            wrong.append(error)

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(interval_s)
    assert wrong == []
