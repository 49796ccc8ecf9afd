"""Nodes that feed one another (`--peers`): how often they read the bucket, and how fast one gets files from another."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from tests.servers import free_port
from tools.benchmarks.measure import BenchError, Figures, Setting, ratios, run, wait_until
from tools.benchmarks.mounts import Mount, mounted
from tools.benchmarks.servers import rclone_binary, rclone_server, running

NODES, CACHE = 4, 0.3
"""How many, and the share of the data that each can cache."""
TARGET_READS = 1.15
RATE_TARGET = 0.9
PASS_S = 13
"""How long a node takes to download the data, so that it fills for some seconds: real ones fill for hours."""
EPOCH_S = 1.0
"""A pause between epochs: readers that only read leave no core to what is fetched."""
PORT = 7070
SAMPLE_S = 0.005
NAMESPACE, LINK = "growfs-bench", "growfsb"
HERE, THERE = "10.213.77.1", "10.213.77.2"


def nodes(setting: Setting, found: Figures) -> str:
    """How often the bucket is read until each of the nodes has seen every file; then the rate between two of them."""
    files, size = (80, 16 << 10) if setting.quick else (800, 64 << 10)
    data = setting.folder / "buckets/data"
    for number in range(files):
        path = data / f"class{number % 4}/{number:05}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(size))
    (setting.folder / "token").write_text("bench\n")
    with rclone_server(setting.folder / "buckets", setting.folder / "rclone.log", etags="MD5") as server:
        for feeds in (True, False):
            reads = _reads(setting, server.endpoint, files, files * size, feeds)
            name = "the bucket is read, by nodes " + ("that feed one another" if feeds else "that do not")
            found.add(name, reads, unit="times", at_most=TARGET_READS if feeds else None)
    _add_rates(setting, found)
    return f"{NODES} nodes, each with a cache of {CACHE:.0%} of {files} files"


def _reads(setting: Setting, endpoint: str, files: int, bytes: int, feeds: bool) -> float:
    """Bytes that came from the bucket until each node had seen every file, in sizes of the bucket."""
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(NODES)]
    known = ("--peers", ",".join(addresses), "--peer-token-file", setting.folder / "token")
    flags: list[object] = ["--cache-size", int(bytes * CACHE), "--endpoint-url", endpoint, "--refresh", 0]
    flags += ("--engine", setting.contenders[0], "--bandwidth", bytes // (3 if setting.quick else PASS_S))
    with contextlib.ExitStack() as stack:
        mounts: list[Mount] = []

        def start(number: int) -> None:
            folder = setting.folder / f"{'feeding' if feeds else 'alone'}-{number}"
            more = (*known, "--peer-addr", addresses[number]) if feeds else ()
            mounts.append(stack.enter_context(mounted("s3://data", folder, *flags, *more)))

        _side_by_side([partial(start, number) for number in range(NODES)])
        if len(mounts) < NODES:
            raise BenchError("a node could not be started; see above")
        seen: list[set[str]] = [set() for _ in mounts]
        epoch_s = EPOCH_S / 10 if setting.quick else EPOCH_S
        _side_by_side(
            [
                partial(_read, mount.mountpoint, names, lambda: all(len(names) == files for names in seen), epoch_s)
                for mount, names in zip(mounts, seen, strict=True)
            ]
        )
        return float(sum(mount.status()["fetch"]["bytes_total"] for mount in mounts)) / bytes


def _side_by_side(tasks: Sequence[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=task) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _read(mountpoint: Path, seen: set[str], all_have_seen: Callable[[], bool], epoch_s: float) -> None:
    """Train in epochs, until all nodes have seen every file."""
    while not all_have_seen():
        for path in list(mountpoint.rglob("*.bin")):
            path.read_bytes()
            seen.add(path.name)
        time.sleep(epoch_s)


# The rate between two network namespaces.


def _add_rates(setting: Setting, found: Figures) -> None:
    """How fast a node gets files from another one, and rclone from rclone. Nothing where namespaces cannot be made."""
    if os.geteuid() or not shutil.which("ip") or not shutil.which("nsenter"):
        return
    folder = setting.folder / "rate"
    count, mib = (4, 2) if setting.quick else (16, 64)
    for number in range(count):
        path = folder / f"data/{number:03}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(mib << 20))
    bytes = count * mib << 20
    growfs, rclone = [], []
    with _namespace() as inside, _first_node(setting, folder, inside) as first:
        wait_until(first.all_cached, "filling the first node")
        time.sleep(1)  # until it has said so
        serve = [*inside, rclone_binary(), "serve", "http", "--addr", f"{THERE}:8080", "--read-only", folder / "data"]
        copy = [rclone_binary(), "copy", f":http,url='http://{THERE}:8080':"]
        with running(serve, folder / "rclone.log", r"\[(http://.*)\]"):
            for number in range(setting.rounds):
                target = folder / f"target-{number}"
                growfs.append(_received(bytes, partial(_second_node, setting, folder / "data", target)))
                shutil.rmtree(target)
                rclone.append(_received(bytes, partial(run, [*copy, target])))
                shutil.rmtree(target)
    found.add("between two namespaces, from node to node", *growfs, unit="MB/s")
    found.add("between two namespaces, rclone copy from rclone serve", *rclone, unit="MB/s")
    found.add("between two namespaces, of rclone's rate", *ratios(growfs, rclone), at_least=RATE_TARGET)


@contextlib.contextmanager
def _namespace() -> Iterator[list[str]]:
    """A network namespace with a link to it. Yields the words in front of a command that is to run there."""
    inside = ["nsenter", f"--net=/run/netns/{NAMESPACE}"]
    run(["ip", "netns", "add", NAMESPACE])
    try:
        run(["ip", "link", "add", f"{LINK}0", "type", "veth", "peer", "name", f"{LINK}1", "netns", NAMESPACE])
        run(["ip", "addr", "add", f"{HERE}/30", "dev", f"{LINK}0"])
        run(["ip", "link", "set", f"{LINK}0", "up"])
        run([*inside, "ip", "addr", "add", f"{THERE}/30", "dev", f"{LINK}1"])
        run([*inside, "ip", "link", "set", f"{LINK}1", "up"])
        yield inside
    finally:
        run(["ip", "netns", "del", NAMESPACE])  # and the link with it


def _peer_flags(setting: Setting, address: str) -> tuple[object, ...]:
    known = ("--peers", f"{HERE}:{PORT},{THERE}:{PORT}", "--peer-addr", f"{address}:{PORT}")
    return *known, "--peer-token-file", setting.folder / "token", "--refresh", 0, "--engine", setting.contenders[0]


def _first_node(setting: Setting, folder: Path, inside: list[str]) -> contextlib.AbstractContextManager[Mount]:
    """The node in the namespace, which gets all files."""
    flags = _peer_flags(setting, THERE)
    return mounted(folder / "data", folder / "first", *flags, start=lambda command: run([*inside, *command]))


def _second_node(setting: Setting, data: Path, folder: Path) -> None:
    """Mount at this end, until all files are there."""
    with mounted(data, folder, *_peer_flags(setting, HERE), "--no-wait") as mount:
        wait_until(mount.all_cached, "fetching from the first node", every_s=SAMPLE_S)
        if more := mount.status()["fetch"]["bytes_total"]:
            raise BenchError(f"{more} bytes did not come from the other node")


def _received(bytes: int, transfer: Callable[[], object]) -> float:
    """MB/s on the link, from the first hundredth of what a transfer brings to all of it."""
    counter = Path(f"/sys/class/net/{LINK}0/statistics/rx_bytes")
    before, ended = int(counter.read_text()), threading.Event()
    times: list[float] = []

    def sample() -> None:
        for least in (bytes // 100, bytes):
            while int(counter.read_text()) - before < least and not ended.wait(SAMPLE_S):
                pass
            times.append(time.monotonic())

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        transfer()
    finally:
        ended.set()
        sampler.join()
    return 0.99 * bytes / 1e6 / (times[1] - times[0])
