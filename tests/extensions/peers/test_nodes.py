"""Several nodes on one machine (`--peers`): each has a mount, a cache and a port of its own."""

from __future__ import annotations

import http.client
import http.server
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from uuid import uuid4

import pytest

from growfs import proc
from growfs.daemon.options import Options
from growfs.disk import BLOCK
from growfs.errors import UsageError
from growfs.fuse.links.view import OWN_OPEN_S
from growfs.fuse.mounting import mounted_at, unmount
from growfs.status_and_metrics import PeersStatus
from tests.forkserver import SETUP_VARIABLE
from tests.fuse.conftest import only
from tests.fuse.reader import Reader
from tests.fuse.rotation_helpers import epoch
from tests.harness import Growfs, make_tree, until
from tests.s3.proxy import proxy_to
from tests.servers import QuietHandler, S3Server, free_port, serving

SIZE = 10_000
VERSION = "x-growfs-version"
READ_S_MAX = 120.0
pytestmark = only("libfuse")


class Nodes:
    """Nodes that mount the same remote. addresses: of all of them, whether they run or not."""

    def __init__(self, folder: Path, engine: str, count: int) -> None:
        self.remote = folder / "remote"
        self.addresses = [f"127.0.0.1:{free_port()}" for _ in range(count)]
        self.running: list[Growfs] = []
        self._folder, self.engine = folder, engine
        self.token = folder / "token"
        self.token.write_text("a secret\n")

    def start(
        self,
        number: int,
        *flags: object,
        url: str = "",
        peers: str = "",
        token: Path | None = None,
        env: dict[str, str] | None = None,
    ) -> Growfs:
        folder = self._folder / f"node{number}"
        folder.mkdir()
        node = Growfs(folder)
        self.running.append(node)
        node.env |= {"GROWFS_ENGINE": self.engine, **(env or {})}
        node.mount(url or self.remote, *self.flags(number, peers, token), *flags)
        return node

    def flags(self, number: int, peers: str = "", token: Path | None = None) -> tuple[object, ...]:
        """The flags by which a node knows the others. peers: by default, all."""
        address, peers = self.addresses[number], peers or ",".join(self.addresses)
        return "--peers", peers, "--peer-addr", address, "--peer-token-file", token or self.token

    def start_with_all(self, number: int, *flags: object, env: dict[str, str] | None = None) -> Growfs:
        """Start a node, and return when it has everything, and tells others so."""
        node = self.start(number, *flags, env=env)
        until(lambda: (json.loads(self.get(number, "/position")[1])["position"] or {"span": 0})["span"] == 1.0)
        return node

    def stop(self) -> None:
        for node in self.running:
            if mounted_at(node.mountpoint):
                node.umount()
            assert "Traceback" not in node.log()

    def get(self, number: int, path: str, token: str = "a secret", **headers: str) -> tuple[int, bytes]:
        """(the status, the body) of a request to a node, past the client."""
        connection = http.client.HTTPConnection(self.addresses[number], timeout=10)
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {token}", **headers})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


@pytest.fixture
def nodes(request: pytest.FixtureRequest, tmp_path: Path, engine: str) -> Iterator[Nodes]:
    """Three, or as many as the parameter says."""
    started = Nodes(tmp_path, engine, getattr(request, "param", 3))
    yield started
    started.stop()


def server_process(address: str) -> int | None:
    """The process that listens at an address of this machine."""
    port = int(address.rpartition(":")[2])
    sockets = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listens = {
        f"socket:[{fields[9]}]" for fields in sockets if fields[1].endswith(f":{port:04X}") and fields[3] == "0A"
    }
    for pid in proc.pids():
        with suppress(OSError):  # it has ended
            if proc.opened(pid) & listens:
                return pid
    return None


def version_of(file: Path) -> str:
    """The version of a file of a local remote: its time and its size."""
    return f"{file.stat().st_mtime_ns}-{file.stat().st_size}"


def is_complete(node: Growfs) -> bool:
    return bool(node.status()["state"] == "complete")


@pytest.mark.promise(46)
def test_a_new_node_gets_everything_from_another_one(nodes: Nodes) -> None:
    tree = make_tree(nodes.remote, directories=2, files=20, size=SIZE)
    tree["large.bin"] = bytes(range(256)) * 8192
    (nodes.remote / "large.bin").write_bytes(tree["large.bin"])
    first = nodes.start_with_all(0)
    second = nodes.start(1)
    until(lambda: is_complete(second))
    fetch = second.status()["fetch"]
    total = sum(map(len, tree.values()))
    assert (fetch["bytes_total"], fetch["peer_bytes_total"]) == (0, total)
    assert fetch["peer_files_total"] == len(tree)
    until(lambda: first.status()["peers"]["sent_bytes_total"] == total)
    assert second.content() == tree
    for name in tree:
        assert (second.mountpoint / name).stat().st_mtime_ns == (nodes.remote / name).stat().st_mtime_ns
    assert "2 of 3 answer" in second.run("status", second.mountpoint).stdout
    assert PeersStatus.parse(second.status()["peers"]).nodes == 3


@pytest.mark.promise(46)
def test_a_node_that_is_killed_while_it_serves_harms_no_reader(nodes: Nodes) -> None:
    nodes.remote.mkdir()
    content = bytes(range(256)) * (8 << 12)
    (nodes.remote / "large.bin").write_bytes(content)
    first = nodes.start_with_all(0, "--peer-bandwidth", "1MB/s")
    second = nodes.start(1, "--no-wait")
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append((second.mountpoint / "large.bin").read_bytes()))
    until(lambda: second.status()["fetch"]["peer_bytes_total"] > 0)
    reader.start()
    first.kill()
    reader.join(60)
    assert read == [content]
    assert second.status()["fetch"]["bytes_total"] >= len(content)
    unmount(first.mountpoint, lazy=True)


@pytest.mark.long
@pytest.mark.promise(46)
@pytest.mark.parametrize("nodes", [4], indirect=True)
def test_of_four_nodes_one_is_killed_and_the_others_see_every_file(nodes: Nodes) -> None:
    """Three caches hold all files. Each node trains in epochs, over a slow link to the remote."""
    tree = make_tree(nodes.remote, directories=4, files=50, size=64 << 10)
    data_bytes = sum(map(len, tree.values()))
    flags = "--cache-size", data_bytes * 2 // 5, "--refresh", 0, "--bandwidth", "5MB/s", "--no-wait"
    *living, killed = (nodes.start(number, *flags) for number in range(4))
    seen: dict[Growfs, set[str]] = {node: set() for node in nodes.running}

    def train(node: Growfs) -> None:
        while seen[node] != tree.keys() and not (node is killed and len(seen[node]) > len(tree) // 2):
            for name in node.names():
                assert (node.mountpoint / name).read_bytes() == tree[name]
                seen[node].add(name)

    with ThreadPoolExecutor(4) as threads:
        training = [threads.submit(train, node) for node in nodes.running]
        training[-1].result(READ_S_MAX)
        fetched = killed.status()["fetch"]["bytes_total"]
        killed.kill()
        unmount(killed.mountpoint, lazy=True)
        for each in training:
            each.result(READ_S_MAX)
    figures = [node.status()["fetch"] for node in living]
    fetched += sum(fetch["bytes_total"] for fetch in figures)
    assert fetched < 2 * data_bytes, "without one another it would be more than three times"
    assert sum(fetch["peer_bytes_total"] for fetch in figures) > data_bytes


@pytest.mark.promise(46)
def test_what_another_node_has_is_served_while_the_remote_is_away(
    nodes: Nodes, rclone_s3: S3Server, tmp_path: Path
) -> None:
    """A node fills itself from the other one, and so do misses of a full cache."""
    size, prefix = 100_000, f"nodes-{uuid4().hex[:8]}"
    quick = {**rclone_s3.env, SETUP_VARIABLE: "from growfs.remote import retries; retries.DELAY_S_MIN = 0.01"}

    def put(name: str) -> bytes:
        content = name.encode().ljust(size, b".")
        rclone_s3.put(f"{prefix}/d/{name}", content)
        return content

    with proxy_to(rclone_s3.endpoint_url) as proxy:
        flags = ("--endpoint-url", proxy.url, "--refresh", "0.3s", "--settle", "0")
        put("first")
        url = f"s3://{rclone_s3.bucket}/{prefix}"
        source = nodes.start(0, *flags, "--exclude", "rare", url=url, env=quick)
        node = nodes.start(1, *flags, "--miss-timeout", "20s", url=url, env=quick)
        node.run("pause", node.mountpoint)
        tree = {name: put(name) for name in (f"new{number:02}" for number in range(15))}
        rare = put("rare")
        until(lambda: node.status()["remote"]["files"] == 17 and source.status()["cache"]["files"] == 16)
        proxy.is_away = True
        until(lambda: node.status()["outage"])
        node.run("resume", node.mountpoint)
        node.until_cached(16)
        node.run("pause", node.mountpoint)
        node.run("set", node.mountpoint, "cache-size=1MB")
        before = node.status()["fetch"]
        assert {name: (node.mountpoint / "d" / name).read_bytes() for name in tree} == tree
        after = node.status()["fetch"]
        assert after["peer_files_total"] - before["peer_files_total"] >= len(tree) - 1_000_000 // size
        assert after["failed"] == 0
        node.run("set", node.mountpoint, "miss-timeout=1s")
        with pytest.raises(TimeoutError):
            (node.mountpoint / "d/rare").read_bytes()
        assert node.status()["outage"]
        node.run("set", node.mountpoint, "miss-timeout=50s")
        proxy.is_away = False
        assert (node.mountpoint / "d/rare").read_bytes() == rare


def test_nodes_come_and_go_while_mounted(nodes: Nodes) -> None:
    tree = make_tree(nodes.remote, directories=1, files=6, size=SIZE)
    first = nodes.start_with_all(0)
    alone = nodes.start(1, "--cache-size", 3 * 12288, "--wait-files", "1", peers=nodes.addresses[1])
    alone.until_cached(3)
    assert alone.status()["fetch"]["peer_bytes_total"] == 0
    alone.run("set", alone.mountpoint, f"peers={nodes.addresses[0]},{nodes.addresses[1]}")
    until(lambda: alone.status()["peers"]["answering"] == 1)

    def peer_bytes_after_misses() -> int:
        assert {name: (alone.mountpoint / name).read_bytes() for name in tree} == tree
        return int(alone.status()["fetch"]["peer_bytes_total"])

    until(lambda: peer_bytes_after_misses() > 0)
    before = peer_bytes_after_misses()
    serves = server_process(nodes.addresses[0])
    assert serves
    os.kill(serves, signal.SIGKILL)
    until(lambda: server_process(nodes.addresses[0]) not in (serves, None))
    until(lambda: peer_bytes_after_misses() > before)  # once it is known again where the node is
    first.umount()
    until(lambda: alone.status()["peers"]["answering"] == 0)
    peer_bytes_after_misses()
    assert f"the node {nodes.addresses[0]} does not answer" in alone.log()


class Lies(QuietHandler):
    """Passes requests on to a node, and changes the last byte of what it sends of files. Subclasses set the address."""

    address = ""
    lies = 0
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        connection = http.client.HTTPConnection(self.address, timeout=10)
        connection.request("GET", self.path, headers={k: v for k, v in self.headers.items() if k.lower() != "host"})
        response = connection.getresponse()
        body = response.read()
        connection.close()
        if self.path.startswith("/files/") and response.status < 300:
            type(self).lies += 1
            body = body[:-1] + bytes([body[-1] ^ 1])
        self.send_response(response.status)
        for name, value in response.getheaders():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


@pytest.mark.promise(46)
def test_a_node_that_lies_harms_no_reader(nodes: Nodes) -> None:
    """tests/extensions/peers/test_peer_client.py has other misdeeds."""
    tree = make_tree(nodes.remote, directories=1, files=6, size=SIZE)
    tree["large.bin"] = bytes(range(256)) * 16384  # it is sent in parts
    (nodes.remote / "large.bin").write_bytes(tree["large.bin"])
    nodes.start_with_all(0)

    class Handler(Lies):
        address = nodes.addresses[0]

    with serving(Handler) as url:
        address = url.partition("://")[2].strip("/")
        second = nodes.start(1, peers=f"{address},{nodes.addresses[1]}")
        until(lambda: is_complete(second))
        assert Handler.lies
        assert second.content() == tree
        assert second.status()["fetch"]["bytes_total"] >= len(tree["large.bin"]), "it comes from the remote instead"
        assert f"not fetched from the node {address}" in second.log()


RESOLVER = """
import pathlib, socket
from growfs.extensions.peers import membership
membership.LOOK_UP_S = 0.05
def look_up(host, port, family):
    assert host == "growfs.test"
    if not (records := pathlib.Path({records!r}).read_text().split()):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    return records
membership.ip_addresses = look_up
"""


def set_records(records: Path, addresses: str) -> None:
    """What the name server knows, from one moment to the next."""
    new = records.with_suffix(".new")
    new.write_text(addresses)
    new.replace(records)


@pytest.mark.promise(46)
def test_the_nodes_are_those_that_dns_knows(nodes: Nodes, tmp_path: Path) -> None:
    """A list that flaps harms no reader: now without the others, now without itself, now empty, now with one that is
    not there.
    """
    tree = make_tree(nodes.remote, directories=1, files=6, size=SIZE)
    records, port = tmp_path / "records", nodes.addresses[0].rpartition(":")[2]
    nodes.addresses = [f"127.0.0.{number}:{port}" for number in (1, 2, 3)]
    first = nodes.start_with_all(0)
    set_records(records, "127.0.0.2")
    alone = nodes.start(
        1,
        *("--cache-size", 3 * 12288, "--wait-files", "1"),
        peers=f"dns://growfs.test:{port}",
        env={SETUP_VARIABLE: RESOLVER.format(records=str(records))},
    )
    alone.until_cached(3)
    assert (alone.status()["peers"]["nodes"], alone.status()["fetch"]["peer_bytes_total"]) == (1, 0)
    set_records(records, "127.0.0.1 127.0.0.2")
    until(lambda: alone.status()["peers"]["answering"] == 1)
    set_records(records, "")
    until(lambda: "growfs.test cannot be looked up: Name or service not known" in alone.log())
    assert alone.status()["peers"]["nodes"] == 2, "the last list stays"
    missing = next(name for name in tree if name not in alone.names())
    assert (alone.mountpoint / missing).read_bytes() == tree[missing]
    assert alone.status()["fetch"]["peer_bytes_total"] == SIZE
    until(lambda: first.status()["peers"]["sent_bytes_total"] == SIZE)
    assert alone.log().count("cannot be looked up") == 1

    def peer_bytes_after_misses() -> int:
        assert {name: (alone.mountpoint / name).read_bytes() for name in tree} == tree
        return int(alone.status()["fetch"]["peer_bytes_total"])

    for addresses in ("127.0.0.2", "127.0.0.1", "", "127.0.0.1 127.0.0.2", "127.0.0.2 127.0.0.3"):
        set_records(records, addresses)
        time.sleep(0.06)  # it is looked up every 0.05 s
        peer_bytes_after_misses()
    set_records(records, "127.0.0.1 127.0.0.2")
    until(lambda: alone.status()["peers"]["answering"] == 1)
    before = peer_bytes_after_misses()
    until(lambda: peer_bytes_after_misses() > before)  # once it is known again where the node is


def test_only_nodes_with_the_token_are_served_and_only_cached_files_of_the_right_version(
    nodes: Nodes, tmp_path: Path
) -> None:
    """Nor is a node with another token asked."""
    tree = make_tree(nodes.remote, directories=1, files=3, size=SIZE)
    first = nodes.start_with_all(0)
    other = tmp_path / "other"
    other.write_text("another\n")
    stranger = nodes.start(1, token=other)
    until(lambda: is_complete(stranger))
    fetch = stranger.status()["fetch"]
    assert (fetch["bytes_total"], fetch["peer_bytes_total"]) == (3 * SIZE, 0)
    assert "its --peer-token-file contains another token" in stranger.log()
    name, content = next(iter(tree.items()))
    assert nodes.get(0, "/position", token="wrong")[0] == 403
    assert nodes.get(0, f"/files/{name}", token="wrong") == (403, b"")
    assert first.status()["peers"]["sent_bytes_total"] == 0
    for path in (f"/files/{name}", "/files/../token", f"/files/{name}/", "/files/class0", "/files/", "/", "/files/no"):
        assert nodes.get(0, path, **{VERSION: "another"}) == (404, b""), path
    headers = {VERSION: version_of(nodes.remote / name)}
    assert nodes.get(0, f"/files/{name}", **headers) == (200, content)
    assert nodes.get(0, f"/files/{name}", Range="bytes=10-19", **headers) == (206, content[10:20])
    assert nodes.get(0, f"/files/{name}", Range="bytes=20000-30000", **headers)[0] == 416


def test_connections_without_a_token_cost_little_and_are_closed(nodes: Nodes) -> None:
    """They send nothing, half a head, or headers without end; another node is served meanwhile."""
    tree = make_tree(nodes.remote, directories=1, files=2, size=SIZE)
    few = {SETUP_VARIABLE: "from growfs.extensions.peers import server; server.NEW_MAX = 150"}
    nodes.start(0, env=few)
    until(lambda: json.loads(nodes.get(0, "/position")[1])["position"])
    pid = server_process(nodes.addresses[0])
    host, _, port = nodes.addresses[0].partition(":")
    address = host, int(port)

    def descriptors() -> int:
        return len(os.listdir(f"/proc/{pid}/fd"))

    def resident_bytes() -> int:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    def is_closed(connection: socket.socket) -> bool:
        try:
            return not connection.recv(1)
        except BlockingIOError:
            return False
        except ConnectionError:
            return True

    line = b"X: " + b"x" * 60_000 + b"\r\n"
    sends = (b"", b"GET /position HTTP/1.1\r\nAuthorization: Bear", b"GET /position HTTP/1.1\r\n" + 90 * line)
    before, descriptors_before = resident_bytes(), descriptors()
    with ExitStack() as stack:
        connections = []
        for number in range(200):
            connection = stack.enter_context(socket.create_connection(address))
            connection.setblocking(False)
            connection.send(sends[number % 3])
            connections.append(connection)
        until(lambda: sum(map(is_closed, connections)) >= 50)
        assert descriptors() <= descriptors_before + 150
        assert resident_bytes() < before + (10 << 20)
        second = nodes.start(1)
        until(lambda: is_complete(second))
        assert second.status()["fetch"]["peer_files_total"] == len(tree)
        until(lambda: all(map(is_closed, connections)))
        assert resident_bytes() < before + (10 << 20)
        with socket.create_connection(address, timeout=10) as stranger:
            stranger.sendall(b"GET /position HTTP/1.1\r\nAuthorization: Bearer wrong\r\n\r\n")
            assert stranger.makefile("rb").read().startswith(b"HTTP/1.1 403 "), "and then it is closed"


INOTIFY = """
from growfs.vfs import file_events
def refuse(directory):
    raise PermissionError
file_events.Fanotify = refuse
"""
"""As for a user who is not root: the kernel does not say who opens a file."""


@pytest.mark.promise(17, 46)
def test_a_file_that_is_served_does_not_count_as_opened(nodes: Nodes) -> None:
    nodes.engine = "links"  # the kernel reports opens by the daemon, too
    (name, other, *_) = make_tree(nodes.remote, directories=1, files=3, size=SIZE)
    first = nodes.start_with_all(0, env={SETUP_VARIABLE: INOTIFY})
    with Reader(first.mountpoint) as reader:
        reader.walk()
        for _ in range(2):
            assert nodes.get(0, f"/files/{name}", **{VERSION: version_of(nodes.remote / name)})[0] == 200
            time.sleep(OWN_OPEN_S + 0.1)
        reader.read(other)
        until(lambda: first.status()["readers"][0]["opens"] > 0)
        assert first.status()["readers"][0]["opens"] == 1


def test_an_address_that_is_in_use_is_refused(nodes: Nodes, tmp_path: Path) -> None:
    make_tree(nodes.remote, directories=1, files=1)
    (tmp_path / "node").mkdir()
    node = Growfs(tmp_path / "node")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        flags = ("--peers", address, "--peer-addr", address, "--peer-token-file", nodes.token)
        done = node.mount(nodes.remote, *flags, check=False)
    assert done.returncode == 1
    assert "--peer-addr: cannot listen on 127.0.0.1 port" in done.stderr


def test_a_token_that_cannot_be_read_is_noticed_before_the_cache_changes(growfs: Growfs, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "remote", directories=2, files=3)
    growfs.mount(tmp_path / "remote")
    growfs.until_cached(len(tree))
    growfs.umount()
    path = tmp_path / "token"
    peers = ("--peers", "127.0.0.1:7070", "--peer-addr", f"127.0.0.1:{free_port()}", "--peer-token-file", path)
    for token, message in (
        (None, "No such file or directory; put the same secret in it on all nodes"),
        (b"\xff\xff", "it is not text; put the same secret in it on all nodes"),
        (b"\n", "must contain one line of ASCII text"),
    ):
        if token is not None:
            path.write_bytes(token)
        done = growfs.mount(tmp_path / "remote", "--exclude", "class0/**", *peers, check=False)
        assert (done.returncode, done.stderr.count("\n"), message in done.stderr) == (2, 1, True)
        doctor = growfs.run("doctor", tmp_path / "remote", *peers, check=False)
        assert (doctor.returncode, message in doctor.stderr) == (2, True)
    assert sum(path.is_file() for path in growfs.cache.glob("files/**/*")) == len(tree)


def test_a_mount_without_peers_gets_none_later_and_no_bandwidth_for_them(growfs: Growfs, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--peer-bandwidth needs --peers; see docs/many-nodes"):
        Options.parse({"peer_bandwidth": "1MB/s"}).remote("s3://bucket")
    make_tree(tmp_path / "remote", directories=1, files=1)
    growfs.mount(tmp_path / "remote")
    done = growfs.run("set", growfs.mountpoint, "peers=127.0.0.1:7070", check=False)
    assert (done.returncode, "mounted without --peers" in done.stderr) == (1, True)


@pytest.mark.promise(47)
def test_nodes_with_the_same_parts_get_files_from_their_owners(nodes: Nodes) -> None:
    """With --exact. Each of two nodes starts with an empty cache while the other one has every file. Passes do not go
    around the circle of an earlier mount: otherwise draws would wait for nodes that never follow.
    """
    tree = make_tree(nodes.remote, directories=2, files=30, size=BLOCK)
    first = nodes.start_with_all(0)
    first.umount()
    first.mount(nodes.remote, *nodes.flags(0), "--exact")
    until(lambda: first.status()["peers"]["serving"])
    assert json.loads(nodes.get(0, "/position")[1])["position"] is None
    second = nodes.start(1, "--exact")
    second.until_cached(len(tree))
    first.umount()
    first.run("cache", "remove", first.cache)
    first.mount(nodes.remote, *nodes.flags(0), "--exact")
    first.until_cached(len(tree))
    from_owners = [node.status()["fetch"]["peer_files_total"] for node in (first, second)]
    assert sum(from_owners) == len(tree), "each file is one node's own"
    assert all(from_owners)
    with ExitStack() as stack:
        readers = [stack.enter_context(Reader(node.mountpoint)) for node in (first, second)]
        parts = [[epoch(reader) for reader in readers] for _ in range(first.status()["exact"]["parts"])]
    assert all(one == other for one, other in parts), "the nodes train on the same parts"
    assert sorted(name for one, _ in parts for name in one) == sorted(tree)
