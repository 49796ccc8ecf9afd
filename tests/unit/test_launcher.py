"""What a daemon tells the command that started it, which may be stopped or gone."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
import trio

from growfs.daemon.launch import _wait_until_ready
from growfs.daemon.server import Launcher
from growfs.errors import GrowfsError

LONG = "x" * 5000
"""More than a pipe takes in one piece (pipe(7), PIPE_BUF)."""


class Command:
    """The side of the command that mounts."""

    def __init__(self, reading: int) -> None:
        self.reading = reading
        self._received = b""
        os.set_blocking(reading, False)

    def read(self) -> list[dict[str, Any]]:
        """The messages that have arrived as a whole."""
        try:
            while part := os.read(self.reading, 1 << 20):
                self._received += part
        except BlockingIOError:
            pass
        *lines, self._received = self._received.split(b"\n")
        return [json.loads(line) for line in lines]


@pytest.fixture
def pipe() -> Iterator[tuple[Launcher, Command]]:
    """The daemon's side, and the command's."""
    reading, writing = os.pipe()
    yield Launcher(writing), Command(reading)
    os.close(reading)


async def test_a_stopped_command_does_not_block_the_daemon(pipe: tuple[Launcher, Command]) -> None:
    launcher, command = pipe
    for number in range(1000):
        launcher.report(progress=[number, LONG])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(launcher.ready, {"files": 7})
        await trio.testing.wait_all_tasks_blocked()
        received = command.read()
    received += command.read()
    *progress, last = received
    assert 0 < len(progress) < 100
    assert [message["progress"][0] for message in progress] == list(range(len(progress))), "a message was cut or lost"
    assert last == {"ready": {"files": 7}}


async def test_a_command_that_reads_later_gets_progress_again(pipe: tuple[Launcher, Command]) -> None:
    launcher, command = pipe
    for _ in range(1000):
        launcher.report(progress=LONG)
    command.read()
    launcher.report(progress="now")
    assert command.read()[-1] == {"progress": "now"}


def test_an_error_is_the_last_message(pipe: tuple[Launcher, Command]) -> None:
    launcher, command = pipe
    launcher.report(progress=1)
    launcher.fail(error="no such bucket", exit_code=1)
    launcher.fail(error="another", exit_code=1)
    assert command.read() == [{"progress": 1}, {"error": "no such bucket", "exit_code": 1, "log": None}]


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("", "the daemon died without an error message"),
        ("Traceback:\nImportError: no libfuse\n", "ImportError: no libfuse"),
    ],
)
def test_what_a_daemon_printed_before_it_died_is_shown(printed: str, shown: str) -> None:
    with pytest.raises(GrowfsError, match=shown) as caught:
        _wait_until_ready(iter([]), None, io.StringIO(printed))
    assert "\n" not in str(caught.value)


async def test_a_command_that_is_gone_ends_a_mount_that_is_not_ready() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    launcher = Launcher(writing)
    with pytest.raises(GrowfsError, match="exited before the mount was ready"):
        launcher.report(progress=1)
    await launcher.ready({})
