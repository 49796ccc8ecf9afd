"""The contents of large virtual files are shared, so that many readers take the disk and the work of one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from growfs.errors import TooManyOpen, Unreadable
from growfs.rotation.rules import Generation
from growfs.vfs.virtual import SHARED_CONTENTS_MAX, SHARED_S, VirtualFile, VirtualFolder


class Scene:
    """A folder with a large and a small file. What is rendered: how often that was begun before."""

    def __init__(self, scratch: Path) -> None:
        self.large = VirtualFile("large", self._render, needs_generation=True, shared=True)
        self.small = VirtualFile("small", self._render)
        self.folder = VirtualFolder([self.large, self.small], scratch)
        self.renderings = 0
        self.may_end = trio.Event()
        self.may_end.set()
        self.generation = Generation(1, 100)
        self.error: Exception | None = None

    async def _render(self, out: IO[bytes], generation: Generation | None) -> None:
        out.write(b"%d" % self.renderings)
        self.renderings += 1
        await self.may_end.wait()
        if error := self.error:
            self.error = None
            raise error

    async def _begin_listing(self) -> Generation:
        return self.generation

    async def open(self, file: VirtualFile | None = None) -> int:
        return await self.folder.open(file or self.large, self._begin_listing)

    async def open_into(self, handles: list[int]) -> None:
        handles.append(await self.open())


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    assert not scene.folder._contents, "each was closed with its last handle"


async def test_many_opens_at_once_cost_one_rendering(scene: Scene) -> None:
    scene.may_end, handles = trio.Event(), list[int]()
    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(scene.open_into, handles)
        await wait_all_tasks_blocked()
        scene.may_end.set()
    handles.append(await scene.open())
    assert scene.renderings == 1
    assert len(set(handles)) == 51
    assert len({scene.folder.content(handle) for handle in handles}) == 1
    for handle in handles:
        assert scene.folder.content(handle)[1] == 1
        scene.folder.close(handle)


async def test_later_opens_see_later_content(scene: Scene, autojump_clock: MockClock) -> None:
    handles = [await scene.open()]
    await trio.sleep(SHARED_S)
    handles.append(await scene.open())
    scene.generation = Generation(2, 200)
    handles.append(await scene.open())
    handles += [await scene.open(scene.small) for _ in range(2)]
    assert scene.renderings == len(handles)
    for handle in handles:
        scene.folder.close(handle)


async def test_an_open_that_is_interrupted_leaves_the_content_to_the_others(scene: Scene) -> None:
    scene.may_end, handles = trio.Event(), list[int]()

    async def open(scope: trio.CancelScope) -> None:
        with scope:
            await scene.open_into(handles)

    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(open, interrupted := trio.CancelScope())
            await wait_all_tasks_blocked()
        interrupted.cancel()
        await wait_all_tasks_blocked()
        scene.may_end.set()
    (handle,) = handles
    assert scene.folder.content(handle)[1] == 1
    scene.folder.close(handle)


async def test_an_open_whose_content_another_could_not_render_renders_it(scene: Scene) -> None:
    scene.may_end, scene.error, handles = trio.Event(), Unreadable("damaged"), list[int]()

    async def fail_to_open() -> None:
        with pytest.raises(Unreadable):
            await scene.open()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fail_to_open)
        await wait_all_tasks_blocked()
        nursery.start_soon(scene.open_into, handles)
        await wait_all_tasks_blocked()
        scene.may_end.set()
    assert scene.renderings == 2
    scene.folder.close(*handles)


async def test_a_large_file_takes_the_disk_a_few_times_at_most(scene: Scene, autojump_clock: MockClock) -> None:
    handles = []
    for _ in range(2 * SHARED_CONTENTS_MAX):
        handles.append(await scene.open())
        await trio.sleep(SHARED_S)
    assert scene.renderings == SHARED_CONTENTS_MAX
    scene.generation = Generation(2, 200)
    with pytest.raises(TooManyOpen, match="8 versions of"):
        await scene.open()
    for handle in handles:
        scene.folder.close(handle)
