"""The order in which the parts of a daemon begin and end."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from growfs.daemon.server import _run
from growfs.daemon.supervisor import EndingSteps, Supervisor
from growfs.fuse.mounting import MountSpec

SERVICES = 5
STARTS = 20
"""trio runs in a random order what may run at the same time."""


class Daemon:
    """The components of a daemon whose remote is known from before, so that nothing waits for a listing."""

    def __init__(self) -> None:
        self.services = [self] * SERVICES
        self.engine = self.start = self.status = self
        self.ending = EndingSteps()
        self.began = 0
        self.began_before_serving: int | None = None
        self.supervisor = Supervisor(lambda: True)

    async def run(self) -> None:
        self.began += 1
        await trio.sleep_forever()

    async def serve(self) -> None:
        self.began_before_serving = self.began

    async def is_anything_listed(self) -> bool:
        return True

    is_possible = is_anything_listed

    async def ready(self, *_: object) -> None:
        await trio.sleep_forever()

    def mount(self, _: object) -> None:
        pass


@pytest.mark.promise(3)
def test_all_services_run_before_the_first_request_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("growfs.daemon.server.raise_read_ahead", lambda _: None)
    monkeypatch.setattr("os.setsid", lambda: None)
    for _ in range(STARTS):
        daemon = Daemon()
        mount = MountSpec(Path("/mnt"), Path("/cache"), allow_other=False, folder=None)
        trio.run(_run, lambda daemon=daemon: cast(Any, daemon), mount, cast(Any, SimpleNamespace()))
        assert daemon.began_before_serving == SERVICES


def test_each_step_of_the_end_runs_whatever_fails(caplog: pytest.LogCaptureFixture) -> None:
    ran: list[str] = []

    def step(name: str, fails: bool = False) -> None:
        ran.append(name)
        if fails:
            raise OSError(name)

    def end(error: Exception | None) -> None:
        with EndingSteps() as ending:
            ending.add(lambda: step("fourth"))
            ending.add(lambda: step("third", fails=True))
            ending.add(lambda: step("second", fails=True))
            ending.add(lambda: step("first"))
            if error:
                raise error

    with pytest.raises(OSError, match="second"):
        end(None)
    assert ran == ["first", "second", "third", "fourth"]
    assert "third" in caplog.text
    with pytest.raises(KeyError, match="earlier"):
        end(KeyError("earlier"))
    assert ran == 2 * ["first", "second", "third", "fourth"]
