"""The control socket: progress, results, errors, and clients that misbehave."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from growfs.daemon.control import Command, Control
from growfs.daemon.control_client import SOCKET, _Answer, call
from growfs.errors import GrowfsError, UsageError
from growfs.status_and_metrics import MountStatus
from tests.unit.test_status_text import STATUS


async def count(to: int) -> AsyncIterator[Any]:
    for number in range(1, to + 1):
        yield {"n": number}


async def fail() -> AsyncIterator[Any]:
    yield "started"
    raise GrowfsError("x: did not work; do this")


async def crash() -> AsyncIterator[None]:
    yield
    async with trio.open_nursery():
        raise KeyError("a bug")


async def refuse() -> AsyncIterator[Any]:
    yield
    raise UsageError("wrong usage")


async def break_disk() -> AsyncIterator[Any]:
    yield
    raise OSError(5, "Input/output error")


COMMANDS: list[Command] = [count, fail, refuse, break_disk, crash]


@asynccontextmanager
async def serving(folder: Path, commands: Iterable[Command] = COMMANDS) -> AsyncIterator[None]:
    """The daemon's side runs in this process."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Control(folder, commands).run)
        await trio.testing.wait_all_tasks_blocked()
        yield
        nursery.cancel_scope.cancel()


async def run(folder: Path, command: str, **request: Any) -> tuple[Any, list[Any]]:
    """(result, progress) of a command."""
    progress: list[Any] = []
    async with serving(folder):
        try:
            result = await trio.to_thread.run_sync(lambda: call(folder, command, progress.append, **request))
        except GrowfsError as error:
            result = error
    return result, progress


async def test_a_command_reports_progress_and_a_result(tmp_path: Path) -> None:
    assert await run(tmp_path, "count", to=3) == ({"n": 3}, [{"n": 1}, {"n": 2}, {"n": 3}])
    assert await run(tmp_path, "count", to=0) == (None, [])


@pytest.mark.parametrize(
    ("command", "kind", "text"),
    [
        ("fail", GrowfsError, "x: did not work; do this"),
        ("refuse", UsageError, "wrong usage"),
        ("break_disk", GrowfsError, "Input/output error"),
        ("crash", GrowfsError, "a bug in growfs: ExceptionGroup"),
        ("none", UsageError, "no such command; the commands are count, fail, refuse, break_disk, crash"),
        ("count", UsageError, "does not understand"),
    ],
)
async def test_errors_reach_the_client_with_their_class_and_text(
    tmp_path: Path, command: str, kind: type[GrowfsError], text: str
) -> None:
    error, _ = await run(tmp_path, command)
    assert type(error) is kind
    assert text in str(error)
    assert "\n" not in str(error)


async def test_an_answer_that_lacks_something_is_of_another_version(tmp_path: Path) -> None:
    """As after an upgrade, while the daemon of the earlier version goes on."""
    answer, _ = await run(tmp_path, "count", to=1)
    with pytest.raises(GrowfsError, match="mounted by another version of growfs"):
        answer["files"]
    with pytest.raises(GrowfsError, match="mounted by another version of growfs"):
        MountStatus.parse(answer)
    counts = MountStatus.parse(json.loads(json.dumps(STATUS), object_hook=partial(_Answer, tmp_path))).requests
    with pytest.raises(KeyError):
        counts["of a kind that was not counted"]


async def test_the_folder_may_be_deeper_than_a_socket_path_may_be(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 100) / ("y" * 100)
    folder.mkdir(parents=True)
    assert (await run(folder, "count", to=1))[0] == {"n": 1}


async def test_a_socket_that_a_killed_daemon_left_is_replaced_by_one_for_the_owner_only(tmp_path: Path) -> None:
    (tmp_path / SOCKET).write_text("left")
    assert (await run(tmp_path, "count", to=1))[0] == {"n": 1}
    assert stat.S_IMODE((tmp_path / SOCKET).stat().st_mode) == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: run the tests as root")
async def test_another_user_is_refused(tmp_path: Path) -> None:
    script = (
        "import os, sys\nfrom pathlib import Path\nfrom growfs.daemon.control_client import call\n"
        "folder = os.open(sys.argv[1], os.O_PATH)\nos.setuid(65534)\n"
        "try: call(Path(f'/proc/self/fd/{folder}'), 'count', to=1)\n"
        "except Exception as error: sys.exit(str(error))\n"
    )
    folder = tmp_path / "open"
    folder.mkdir(mode=0o755)
    async with serving(folder):
        for mode in (0o600, 0o666):  # even if the mode of the socket admits them
            (folder / SOCKET).chmod(mode)
            done = await trio.run_process([sys.executable, "-c", script, str(folder)], check=False, capture_stderr=True)
            assert done.returncode == 1
            assert b"belongs to another user" in (done.stderr or b"")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: run the tests as root")
async def test_a_link_to_the_socket_of_another_user_is_refused(tmp_path: Path) -> None:
    """Who owns a cache could lead a command of root to another daemon."""
    (tmp_path / "of root").mkdir()
    (tmp_path / "prepared").mkdir()
    (tmp_path / "prepared" / SOCKET).symlink_to(tmp_path / "of root" / SOCKET)
    os.chown(tmp_path / "prepared", 65534, 65534)
    async with serving(tmp_path / "of root"):
        with pytest.raises(GrowfsError, match="belongs to another user"):
            await trio.to_thread.run_sync(lambda: call(tmp_path / "prepared", "count", to=1))


def test_where_no_daemon_answers_the_error_names_the_log(tmp_path: Path) -> None:
    with pytest.raises(GrowfsError, match="does not answer") as raised:
        call(tmp_path, "status")
    assert str(tmp_path / "log") in str(raised.value)


async def test_a_daemon_that_closes_the_connection_is_reported(tmp_path: Path) -> None:
    listener = trio.socket.socket(trio.socket.AF_UNIX)
    await listener.bind(os.path.relpath(tmp_path / SOCKET))
    listener.listen()

    async def hang_up() -> None:
        connection, _ = await listener.accept()
        await connection.recv(100)
        connection.close()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hang_up)
        with pytest.raises(GrowfsError, match="closed the connection"):
            await trio.to_thread.run_sync(lambda: call(tmp_path, "status"))
    listener.close()


async def test_a_malformed_request_is_refused_and_others_are_served(tmp_path: Path) -> None:
    async with serving(tmp_path):
        for request in (b"", b"no json\n", b'{"command": ', b"\xff\xfe\n", b"5\n", b"[]\n", b"null\n"):
            async with await trio.open_unix_socket(os.path.relpath(tmp_path / SOCKET)) as connection:
                await connection.send_all(request)
                await connection.send_eof()
                answer = b"".join([part async for part in connection])
            assert b'"error"' in answer
        assert await trio.to_thread.run_sync(lambda: call(tmp_path, "count", to=1)) == {"n": 1}


async def test_a_client_that_disconnects_does_not_harm_the_others(tmp_path: Path) -> None:
    ended = trio.Event()

    async def long() -> AsyncIterator[Any]:
        async with trio.open_nursery() as nursery:  # like the commands that fetch several files
            nursery.start_soon(trio.sleep, 0)
            for _ in range(100):
                await trio.lowlevel.checkpoint()
                yield "x" * 10_000
        ended.set()

    async with serving(tmp_path, [*COMMANDS, long]):
        connection = await trio.open_unix_socket(os.path.relpath(tmp_path / SOCKET))
        await connection.send_all(b'{"command": "long"}\n')
        await connection.receive_some(1)
        await connection.aclose()
        await ended.wait()
        assert await trio.to_thread.run_sync(lambda: call(tmp_path, "count", to=1)) == {"n": 1}
