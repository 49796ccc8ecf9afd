"""How much is fetched at a time, how fast, by whom: through a mount, from a real server."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import time
from pathlib import Path
from uuid import uuid4

import pytest

from growfs.scheduler.concurrency import STREAMS_FIRST
from growfs.workers.process import IDLE_GROUP, NICENESS_MAX, idle_group
from tests.crash.scene import children
from tests.harness import Growfs, until
from tests.s3.proxy import Asked, Fault, Proxy, before
from tests.servers import S3Server

RATE = 2_000_000


@pytest.fixture
def server(rclone_s3: S3Server, growfs: Growfs) -> S3Server:
    growfs.env.update(rclone_s3.env)
    return rclone_s3


def put(server: S3Server, files: int, size: int = 0) -> tuple[str, dict[str, bytes]]:
    """The URL of so many new files, and their content by path."""
    prefix = f"fetching-{uuid4().hex[:8]}"
    tree = {f"d/{number:04}": b"%d" % number + bytes(size) for number in range(files)}
    for path, content in tree.items():
        server.put(f"{prefix}/{path}", content)
    return f"s3://{server.bucket}/{prefix}", tree


def workers_of(growfs: Growfs) -> list[int]:
    return [worker for fork_server in children(growfs.pid) for worker in children(fork_server)]


def hold_after(proxy: Proxy, files: int) -> None:
    """Hold all fetches back, after the first few."""
    count = itertools.count()

    def held(asked: Asked) -> bool:
        return asked.is_fetch and next(count) >= files

    proxy.hold(held)


def priority(pid: int) -> tuple[int, int]:
    """(session, niceness) of a process: proc(5)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return int(fields[3]), int(fields[16])


def is_idle(pid: int) -> bool:
    """Whether a process is in the group that is idle."""
    return f":/{IDLE_GROUP}\n" in Path(f"/proc/{pid}/cgroup").read_text()


def test_a_store_that_says_slow_down_is_asked_for_less(growfs: Growfs, server: S3Server) -> None:
    url, tree = put(server, 60)
    with before(server.endpoint_url) as proxy:
        proxy.fault = lambda asked: Fault(503, "SlowDown") if asked.is_fetch else None
        growfs.mount(url, "--endpoint-url", proxy.url, "--no-wait")
        until(lambda: growfs.status()["fetch"]["streams"] <= STREAMS_FIRST // 2)
        proxy.fault = lambda _: None
        growfs.run("wait", growfs.mountpoint, "--all", "--timeout", "50s")
    status = growfs.status()
    assert (status["cache"]["files"], status["fetch"]["failed"]) == (len(tree), 0)
    assert "the store asks for fewer requests" in growfs.log()


@pytest.mark.promise(34)
def test_a_bandwidth_is_heeded(growfs: Growfs, server: S3Server) -> None:
    """An upper bound of what comes in a time, which a slow machine cannot break."""
    url, tree = put(server, 8, 500_000)
    began = time.monotonic()
    growfs.mount(url, "--bandwidth", "2MB/s", "--no-wait")
    while True:
        fetch = growfs.status()["fetch"]
        passed_s = time.monotonic() - began
        assert fetch["bytes_total"] <= RATE * passed_s + 0.25 * RATE
        if fetch["files_total"] == len(tree):
            break
    assert passed_s > 1.5
    assert fetch["limit_bytes_per_s"] == RATE


@pytest.mark.promise(34)
def test_a_bandwidth_can_be_lifted(growfs: Growfs, server: S3Server) -> None:
    """In the middle of files for which it would take minutes."""
    url, tree = put(server, 8, 500_000)
    growfs.mount(url, "--bandwidth", "5kB", "--no-wait")
    until(lambda: growfs.status()["cache"]["in_flight_bytes"])
    assert growfs.status()["fetch"]["limit_bytes_per_s"] == 5000
    growfs.run("set", growfs.mountpoint, "bandwidth=0")
    growfs.run("wait", growfs.mountpoint, "--all", "--timeout", "50s")
    assert growfs.status()["fetch"]["limit_bytes_per_s"] is None
    growfs.run("set", growfs.mountpoint, "bandwidth=1000EB/s")
    assert growfs.names() == set(tree)


def test_workers_come_after_those_that_somebody_waits_for(growfs: Growfs, server: S3Server) -> None:
    url, _ = put(server, 20)
    with before(server.endpoint_url) as proxy:
        proxy.hold(lambda asked: asked.is_fetch)
        growfs.mount(url, "--endpoint-url", proxy.url, "--no-wait")
        until(lambda: any(asked.is_fetch for asked in proxy.asked))
        workers = until(lambda: workers_of(growfs))
        assert until(lambda: all(priority(worker) == (worker, NICENESS_MAX) for worker in workers))
        session, niceness = priority(growfs.pid)
        assert session not in workers
        assert niceness == os.getpriority(os.PRIO_PROCESS, 0)
        if idle_group():
            assert until(lambda: all(is_idle(worker) for worker in workers))
            assert not is_idle(growfs.pid)
        proxy.let_go()
        growfs.run("wait", growfs.mountpoint, "--all")


def test_no_file_is_lost_with_a_worker(growfs: Growfs, server: S3Server) -> None:
    url, tree = put(server, 300)
    with before(server.endpoint_url) as proxy:
        hold_after(proxy, 100)
        growfs.mount(url, "--endpoint-url", proxy.url, "--no-wait")
        until(lambda: sum(asked.is_fetch for asked in proxy.asked) > 100)
        os.kill(workers_of(growfs)[0], signal.SIGKILL)
        until(lambda: "its worker died" in growfs.log())
        proxy.let_go()
        growfs.run("wait", growfs.mountpoint, "--all", "--timeout", "50s")
    status = growfs.status()
    assert (status["fetch"]["failed"], status["last_error"]) == (0, None)
    growfs.run("set", growfs.mountpoint, "settle=0")
    assert {path: (growfs.mountpoint / path).read_bytes() for path in growfs.names()} == tree


@pytest.mark.promise(14)
def test_the_order_of_small_files_does_not_depend_on_the_workers(growfs: Growfs, server: S3Server) -> None:
    url, tree = put(server, 300)
    orders = []
    for workers in (1, 4):
        growfs.mount(url, "--workers", workers)
        growfs.run("wait", growfs.mountpoint, "--all")
        growfs.run("set", growfs.mountpoint, "settle=0")
        orders.append((growfs.mountpoint / ".growfs/files").read_text().splitlines())
        growfs.umount()
        shutil.rmtree(growfs.cache_dir)
    assert orders[0] == orders[1]
    assert set(orders[0]) == set(tree)
