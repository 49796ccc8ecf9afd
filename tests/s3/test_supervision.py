"""An error in any service of a daemon, at any moment, ends neither the mount nor its work."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from growfs.errors import GrowfsError
from tests.forkserver import SETUP_VARIABLE
from tests.harness import Growfs, until
from tests.s3.test_noise import is_whole, mount, wait_for_all
from tools.benchmarks.noisy_s3 import Noise, serving

BREAKABLE = """
import json, pathlib, trio
from growfs.daemon import supervisor

folder, names = pathlib.Path({folder!r}), []
supervisor.RETRY_S = 0.1
keep_running = supervisor.Supervisor.keep_running

class Breakable:
    def __init__(self, service):
        self.run_service, self.order = service.run, folder / f"break-{{type(service).__name__}}"

    async def run(self):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.fail)
            await self.run_service()
            nursery.cancel_scope.cancel()

    async def fail(self):
        while not self.order.exists():
            await trio.sleep(0.02)
        self.order.unlink()
        raise RuntimeError("broken for the test")

async def keep_breakable(self, service):
    names.append(type(service).__name__)
    (folder / "names").write_text(json.dumps(names))
    await keep_running(self, type(names[-1], (Breakable,), {{}})(service))

supervisor.Supervisor.keep_running = keep_breakable
"""
"""Each service fails, in the middle of whatever it does, when a file of its name appears."""


def answers(growfs: Growfs) -> bool:
    with suppress(GrowfsError):
        return bool(growfs.status())
    return False


def break_service(growfs: Growfs, folder: Path, name: str) -> None:
    (folder / f"break-{name}").touch()
    until(lambda: f"{name} failed, a bug in growfs" in growfs.log())


def test_a_service_that_fails_is_run_again_and_nothing_is_lost(growfs: Growfs, tmp_path: Path) -> None:
    growfs.tolerate_log = True
    growfs.env[SETUP_VARIABLE] = BREAKABLE.format(folder=str(tmp_path))
    noise = Noise(keys=400, size=20_000, connection_bytes_per_s=40_000)
    with serving(noise) as (_, url):
        mount(growfs, url, "--metrics-addr", "127.0.0.1:0", "--refresh", "1s")
        names = json.loads((tmp_path / "names").read_text())
        assert {
            "Outage",
            "CatalogSync",
            "Fetcher",
            "Prefetcher",
            "Space",
            "Generations",
            "Control",
            "Store",
        } <= set(names)
        for name in names:
            break_service(growfs, tmp_path, name)
        until(lambda: answers(growfs))
        assert growfs.status()["cache"]["files"] < noise.keys, "else nothing was under way"
        assert any("a part of growfs (Fetcher) failed" in warning for warning in growfs.status()["warnings"])
        assert is_whole(growfs, noise.keys - 1, noise)
        wait_for_all(growfs, noise)
        status = growfs.status()
        assert (status["fetch"]["failed"], status["cache"]["in_flight_bytes"]) == (0, 0)
        growfs.run("evict", growfs.mountpoint, "*")
        assert is_whole(growfs, 0, noise)
        growfs.umount()


def test_services_that_fail_in_an_outage_wait_it_out_even_so(growfs: Growfs, tmp_path: Path) -> None:
    growfs.tolerate_log = True
    growfs.env[SETUP_VARIABLE] = BREAKABLE.format(folder=str(tmp_path))
    noise = Noise(keys=200, size=20_000, connection_bytes_per_s=40_000)
    with serving(noise) as (store, url):
        mount(growfs, url)
        store.away = "closed"
        until(lambda: growfs.status()["outage"] is not None)
        for name in ("Fetcher", "Outage"):
            break_service(growfs, tmp_path, name)
        store.away = None
        wait_for_all(growfs, noise)
        assert growfs.status()["fetch"]["failed"] == 0
        growfs.umount()
