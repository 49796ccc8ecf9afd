"""Four nodes in network namespaces of their own, each behind a link of limited rate, in front of a real S3 server."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from growfs.fuse.mounting import mounted_at, unmount
from tests.forkserver import SETUP_VARIABLE
from tests.harness import Growfs, make_tree
from tests.needs import need_programs
from tests.servers import ACCESS_KEY, SECRET_KEY
from tools.benchmarks.servers import rclone_binary, running

NODES, FILES, SIZE = 4, 200, 64 << 10
CACHE = 0.4
"""So that three nodes can hold all files when the fourth is killed."""
RATE = "40mbit"
PORT = 7070
READ_S_MAX = 120.0
pytestmark = pytest.mark.long

ENTER = """
import ctypes, os
libc, namespace = ctypes.CDLL(None, use_errno=True), os.open("/run/netns/{name}", os.O_RDONLY)
if libc.setns(namespace, 0x40000000):  # CLONE_NEWNET
    raise OSError(ctypes.get_errno(), "setns")
os.close(namespace)
"""


@dataclass(frozen=True)
class Network:
    """The names of the namespaces, the hub's last, and their addresses."""

    names: list[str]
    addresses: list[str]


def ip(*words: str) -> None:
    done = subprocess.run([*words], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{' '.join(words)}: {done.stderr.strip()}")


@contextmanager
def namespace(name: str) -> Iterator[None]:
    ip("ip", "netns", "add", name)
    try:
        ip("ip", "-n", name, "link", "set", "lo", "up")
        yield
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False)


@pytest.fixture
def network() -> Iterator[Network]:
    """A bridge in a namespace, and a link to each node, which is limited in both directions."""
    if os.geteuid():
        pytest.skip("network namespaces need root")
    need_programs("ip", "tc")
    names = [f"growfs-{os.getpid()}-{number}" for number in range(NODES)]
    hub = f"growfs-{os.getpid()}-hub"
    addresses = [f"10.213.78.{number + 1}" for number in range(NODES + 1)]
    with ExitStack() as stack:
        for name in (*names, hub):
            stack.enter_context(namespace(name))
        ip("ip", "-n", hub, "link", "add", "bridge", "type", "bridge")
        ip("ip", "-n", hub, "addr", "add", f"{addresses[-1]}/24", "dev", "bridge")
        ip("ip", "-n", hub, "link", "set", "bridge", "up")
        for number, name in enumerate(names):
            ip("ip", "-n", hub, "link", "add", f"node{number}", "type", "veth", "peer", "name", "up0", "netns", name)
            ip("ip", "-n", hub, "link", "set", f"node{number}", "master", "bridge", "up")
            ip("ip", "-n", name, "addr", "add", f"{addresses[number]}/24", "dev", "up0")
            ip("ip", "-n", name, "link", "set", "up0", "up")
            for where, device in ((hub, f"node{number}"), (name, "up0")):
                limit = ("rate", RATE, "burst", "64kb", "latency", "50ms")
                ip("ip", "netns", "exec", where, "tc", "qdisc", "add", "dev", device, "root", "tbf", *limit)
        yield Network([*names, hub], addresses)


class Node(Growfs):
    """A node, and its reader, which trains in epochs. errors: of its reads."""

    def __init__(self, folder: Path, number: int, network: Network, endpoint: str) -> None:
        folder.mkdir()
        super().__init__(folder)
        self.env |= {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
        self.env |= {"GROWFS_ENGINE": "libfuse", SETUP_VARIABLE: ENTER.format(name=network.names[number])}
        self.seen: set[str] = set()
        self.errors: list[str] = []
        self.ended = False
        self._endpoint = endpoint
        self._address = f"{network.addresses[number]}:{PORT}"
        self._peers = ",".join(f"{address}:{PORT}" for address in network.addresses[:NODES])

    def start(self, token: Path) -> None:
        flags = ["--cache-size", int(CACHE * FILES * SIZE), "--endpoint-url", self._endpoint, "--refresh", 0]
        self.mount(
            "s3://data", *flags, "--peers", self._peers, "--peer-addr", self._address, "--peer-token-file", token
        )

    def train(self, tree: dict[str, bytes]) -> None:
        while not self.ended:
            try:
                for name in self.names():
                    if (self.mountpoint / name).read_bytes() != tree[name]:
                        self.errors.append(f"{name}: wrong bytes")
                    self.seen.add(name)
            except OSError as error:
                if not self.ended:
                    self.errors.append(str(error))
            time.sleep(0.2)


@pytest.mark.promise(46)
def test_of_four_nodes_one_is_killed_and_the_others_see_every_file(network: Network, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "buckets/data", directories=4, files=FILES // 4, size=SIZE)
    token = tmp_path / "token"
    token.write_text("a secret\n")
    keys = f"{ACCESS_KEY},{SECRET_KEY}"
    serve = [rclone_binary(), "serve", "s3", "--addr", f"{network.addresses[-1]}:0", "--etag-hash", "MD5"]
    serve += ["--config", os.devnull, "--auth-key", keys, tmp_path / "buckets"]
    inside = ["nsenter", f"--net=/run/netns/{network.names[-1]}"]
    with running([*inside, *serve], r"server on \[(https?://[^/\]]+)") as server:
        nodes = [Node(tmp_path / f"node{number}", number, network, server.endpoint) for number in range(NODES)]
        readers = [threading.Thread(target=node.train, args=(tree,)) for node in nodes]
        try:
            starting = [threading.Thread(target=node.start, args=(token,)) for node in nodes]
            for thread in starting:
                thread.start()
            for thread in starting:
                thread.join()
            for reader in readers:
                reader.start()
            *living, killed = nodes
            deadline = time.monotonic() + READ_S_MAX
            while not all(node.seen == set(tree) for node in living):
                assert time.monotonic() < deadline, [len(node.seen) for node in nodes]
                if not killed.ended and min(len(node.seen) for node in nodes) > FILES / 2:
                    killed.ended = True
                    fetched = killed.status()["fetch"]["bytes_total"]
                    killed.kill()
                time.sleep(0.1)
            assert killed.ended
            assert [node.errors for node in nodes] == [[]] * NODES
            fetched += sum(node.status()["fetch"]["bytes_total"] for node in living)
            from_others = sum(node.status()["fetch"]["peer_bytes_total"] for node in living)
            print(f"the bucket was read {fetched / (FILES * SIZE):.2f} times")
            assert fetched < 2 * FILES * SIZE, "without one another it would be more than three times"
            assert from_others > FILES * SIZE
        finally:
            for node, reader in zip(nodes, readers, strict=True):
                node.ended = True
                if reader.is_alive():
                    reader.join()
                if mounted_at(node.mountpoint):
                    unmount(node.mountpoint, lazy=True) if node is nodes[-1] else node.umount()
