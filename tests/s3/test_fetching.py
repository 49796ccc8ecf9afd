"""Concurrency, bandwidth, priority and order of the fetches of a mount, from a real server."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest

from growfs.workers.process import IDLE_GROUP, KEEP_PRIORITY_VARIABLE, NICENESS, idle_group
from tests.crash.scene import children
from tests.forkserver import SETUP_VARIABLE
from tests.harness import Growfs, until
from tests.s3.proxy import proxy_to, s3_error
from tests.servers import S3Server

RATE = 2_000_000


@pytest.fixture
def server(rclone_s3: S3Server, growfs: Growfs) -> S3Server:
    growfs.env.update(rclone_s3.env)
    return rclone_s3


def put(server: S3Server, files: int, size: int = 0) -> tuple[str, dict[str, bytes]]:
    """Put new files on the server; returns their URL, and their content by path."""
    prefix = f"fetching-{uuid4().hex[:8]}"
    tree = {f"d/{number:04}": b"%d" % number + bytes(size) for number in range(files)}
    for path, content in tree.items():
        server.put(f"{prefix}/{path}", content)
    return f"s3://{server.bucket}/{prefix}", tree


def workers_of(growfs: Growfs) -> list[int]:
    return [worker for fork_server in children(growfs.pid) for worker in children(fork_server)]


def nicenesses(pid: int) -> set[int]:
    """Of the threads of a process."""
    return {os.getpriority(os.PRIO_PROCESS, int(thread)) for thread in os.listdir(f"/proc/{pid}/task")}


def is_idle(pid: int) -> bool:
    """Whether a process is in the idle cgroup."""
    return f":/{IDLE_GROUP}\n" in Path(f"/proc/{pid}/cgroup").read_text()


def test_a_store_that_says_slow_down_gets_fewer_requests_at_once(growfs: Growfs, server: S3Server) -> None:
    url, tree = put(server, 60)
    with proxy_to(server.endpoint_url) as proxy:
        proxy.fault = lambda request: s3_error(503, "SlowDown") if request.is_fetch else None
        growfs.mount(url, "--endpoint-url", proxy.url, "--no-wait")
        until(lambda: "the store asks for fewer requests" in growfs.log())
        proxy.fault = lambda _: None
        growfs.run("wait", growfs.mountpoint, "--all", "--timeout", "50s")
    status = growfs.status()
    assert (status["cache"]["files"], status["fetch"]["failed"]) == (len(tree), 0)


@pytest.mark.promise(34)
def test_the_bandwidth_limit_is_kept_until_it_is_removed(growfs: Growfs, server: S3Server) -> None:
    """Only an upper bound is checked, so a slow machine cannot fail the test."""
    url, tree = put(server, 8, 500_000)
    began = time.monotonic()
    growfs.mount(url, "--bandwidth", "2MB/s", "--no-wait")
    received = 0
    while received <= RATE:
        fetch = growfs.status()["fetch"]
        received = fetch["bytes_total"]
        assert received <= RATE * (time.monotonic() - began) + 0.25 * RATE
        time.sleep(0.01)
    assert fetch["limit_bytes_per_s"] == RATE
    growfs.run("set", growfs.mountpoint, "bandwidth=5kB")  # what is in flight would take minutes
    until(lambda: growfs.status()["cache"]["in_flight_bytes"])
    assert growfs.status()["fetch"]["limit_bytes_per_s"] == 5000
    growfs.run("set", growfs.mountpoint, "bandwidth=0")
    growfs.run("wait", growfs.mountpoint, "--all", "--timeout", "50s")
    assert growfs.status()["fetch"]["limit_bytes_per_s"] is None
    growfs.run("set", growfs.mountpoint, "bandwidth=100PB/s")
    assert growfs.names() == set(tree)


def test_workers_run_at_a_lower_priority_than_the_daemon_once_training_can_start(
    growfs: Growfs, server: S3Server
) -> None:
    del growfs.env[KEEP_PRIORITY_VARIABLE]
    growfs.env[SETUP_VARIABLE] = "from growfs.workers import process; process.STARVED_PAUSE_S = 0.5"
    url, _ = put(server, 2)
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    with proxy_to(server.endpoint_url) as proxy, ThreadPoolExecutor() as pool:
        proxy.hold(lambda request: request.is_fetch)
        mounting = pool.submit(growfs.mount, url, "--endpoint-url", proxy.url)
        until(lambda: any(request.is_fetch for request in proxy.requests))
        workers = until(lambda: len(found := workers_of(growfs)) == 1 and found)  # that of the order has ended
        assert {nice for worker in workers for nice in nicenesses(worker)} == {niceness}
        assert not any(map(is_idle, workers))
        proxy.release()
        mounting.result()
        until(lambda: {nice for worker in workers for nice in nicenesses(worker)} == {NICENESS})
        assert all(os.getsid(worker) == worker for worker in workers)
        assert os.getsid(growfs.pid) not in workers
        assert nicenesses(growfs.pid) == {niceness}
        if idle_group():
            until(lambda: all(map(is_idle, workers)))
            assert not is_idle(growfs.pid)


def test_a_worker_that_keeps_its_priority_fetches_small_files_that_readers_wait_for(
    growfs: Growfs, server: S3Server
) -> None:
    del growfs.env[KEEP_PRIORITY_VARIABLE]
    url, tree = put(server, 8)
    growfs.mount(url, "--cache-size", f"{4 * 4096}B", "--rotation", "never", "--min-free", "0MB")
    until(lambda: all(nicenesses(worker) == {NICENESS} for worker in workers_of(growfs)))
    before = set(workers_of(growfs))
    missing = sorted(tree.keys() - growfs.names())
    for path in missing:
        assert (growfs.mountpoint / path).read_bytes() == tree[path]
    (worker,) = set(workers_of(growfs)) - before
    assert nicenesses(worker) == {os.getpriority(os.PRIO_PROCESS, 0)}
    assert not is_idle(worker)
