"""growfs.ray: a mount on each node of a cluster. Ray's own cluster for tests has several nodes on one machine."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from growfs.client.node_mount import ClusterMountRequest, NodeMount, cluster_status
from growfs.daemon.launch import stop
from growfs.daemon.running import running
from growfs.errors import GrowfsError, UsageError
from tests.frameworks.harness import ENV
from tests.harness import make_tree, until
from tests.needs import need, use
from tests.servers import S3Server
from tests.unit.test_status_text import status

ROOT = Path(__file__).parents[1]
HOST = "127.0.0.1"
OTHER = "127.0.0.1:9"
TREE = {f"class{number % 3}/{number:02}.bin": os.urandom(10_000) for number in range(30)}


def daemons(folder: Path) -> set[int]:
    """The processes of the daemons of mounts below a folder."""
    found = (mount for mount in running() if mount.mountpoint.is_relative_to(folder))
    return {int(json.loads((mount.cache / "daemon.json").read_text())["pid"]) for mount in found}


def test_a_request_has_the_options_of_growfs_mount() -> None:
    options = {
        "cache_size": "1GB",
        "cache_dir": Path("/data/{node}"),
        "wait_files": 10,
        "no_wait": None,
        "include": ["*.jpg"],
        "storage_options": {"key": 'a"b', "client_kwargs": {"region_name": "x"}},
    }
    request = ClusterMountRequest.of("s3://b", "/mnt/{node}", options, "secret").on("n1")
    assert request.mountpoint == "/mnt/n1"
    assert request.config.splitlines() == [
        'cache-size = "1GB"',
        'cache-dir = "/data/n1"',
        "wait-files = 10",
        'include = ["*.jpg"]',
        r'storage-option = ["key=\"a\\\"b\"", "client_kwargs={\"region_name\": \"x\"}"]',
    ]
    assert "secret" not in repr(request)
    with pytest.raises(UsageError, match="no such option: cache"):
        ClusterMountRequest.of("s3://b", "/mnt", {"cache": "1GB"}, "secret")


def test_an_address_of_a_node_by_ipv6_has_brackets(tmp_path: Path) -> None:
    request = ClusterMountRequest.of("s3://b", str(tmp_path), {}, "secret")
    assert re.fullmatch(r"\[::1\]:\d+", NodeMount(request, "::1").address())


def test_the_status_of_a_cluster_is_the_sum_of_its_nodes() -> None:
    def node(remote: int, peers: int, seen: int, number: int) -> Any:
        return status(
            fetch__bytes_total=remote,
            fetch__peer_bytes_total=peers,
            cache__bytes=remote + peers,
            coverage={"files_seen": seen, "files_cached": seen, "files": 9, "pass": number},
        )

    cluster = cluster_status({"a": node(1, 2, 3, 2), "b": node(10, 20, 8, 1)}, {"c": "away"})
    assert (cluster["remote_bytes"], cluster["peer_bytes"], cluster["cached_bytes"]) == (11, 22, 33)
    assert cluster["coverage"] == {"files_seen": 8, "files_cached": 8, "files": 9, "pass": 1}
    assert cluster["errors"] == {"c": "away"}
    assert cluster_status({}, {})["coverage"] is None


def test_a_node_keeps_its_mount_and_finds_it_again(tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    make_tree(remote, directories=1, files=2)
    options = {"cache_size": "1GB", "cache_dir": tmp_path / "cache"}
    mountpoint = tmp_path / "a" / "mnt"
    request = ClusterMountRequest.of(str(remote), str(mountpoint), options, "secret")
    node = NodeMount(request, HOST)
    with pytest.raises(GrowfsError, match="not mounted"):
        node.status()
    address = node.address()
    try:
        node.keep([address])
        first = node.status()
        assert first["peers"]
        assert (first["peers"]["address"], first["peers"]["nodes"]) == (address, 1)
        assert any(mountpoint.iterdir())

        def is_found() -> bool:  # once the daemon serves the others
            try:
                again.keep([address, OTHER])
            except GrowfsError:
                return False
            return True

        again = NodeMount(request, HOST)
        assert again.address() == address
        until(is_found)
        until(lambda: (again.status()["peers"] or {"nodes": 0})["nodes"] == 2)
        assert again.status()["pid"] == first["pid"]

        stranger = ClusterMountRequest.of(str(remote), str(mountpoint), options, "another")
        with pytest.raises(GrowfsError, match="already a growfs mount"):
            NodeMount(stranger, HOST).keep([address])
    finally:
        node.unmount()
    node.keep([address])
    assert not daemons(tmp_path)


def test_a_mount_that_has_begun_is_interrupted(tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    make_tree(remote, directories=1, files=1, size=1_000_000)
    options = {"cache_size": "1GB", "cache_dir": tmp_path / "cache", "bandwidth": "1KB"}
    request = ClusterMountRequest.of(str(remote), str(tmp_path / "mnt"), options, "secret")
    node = NodeMount(request, HOST)
    with ThreadPoolExecutor() as pool:
        keeping = pool.submit(node.keep, [node.address()])
        until(lambda: daemons(tmp_path))
        node.unmount()
        with pytest.raises(GrowfsError):
            keeping.result()
    until(lambda: not daemons(tmp_path))


class FakeActor:
    """Of a node. keeps: what `keep` does."""

    def __init__(self, keeps: Callable[[], Awaitable[None]]) -> None:
        self.keep, self.address = self, self
        self._keeps = keeps

    async def remote(self, peers: object = None) -> str:
        if peers is not None:
            await self._keeps()
        return OTHER


def test_a_mount_waits_for_no_node_that_is_gone_whatever_ray_raises(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    need("ray")
    import growfs.ray

    async def mounts() -> None:
        kept.set()

    async def hangs() -> None:
        await asyncio.Event().wait()

    async def is_lost() -> None:
        raise OSError("the node is gone")

    def nodes() -> list[dict[str, Any]]:
        looks.append(kept.is_set())
        if len(looks) in (1, 3):
            raise RuntimeError("Ray is busy")
        alive = ["a"] if kept.is_set() else ["a", "b", "c"]
        return [{"NodeID": id, "Alive": True, "Labels": {}} for id in alive]

    async def play() -> None:
        controller = object.__new__(growfs.ray._Controller)
        await controller.__init__(request, {})  # type: ignore[misc]
        await asyncio.wait_for(controller.mount(request), 20)
        controller._following.cancel()

    kept, looks = asyncio.Event(), list[bool]()
    actors = {"a": FakeActor(mounts), "b": FakeActor(hangs), "c": FakeActor(is_lost)}
    monkeypatch.setattr(growfs.ray, "FOLLOW_S", 0.01)
    monkeypatch.setattr("ray.nodes", nodes)
    monkeypatch.setattr(growfs.ray._Controller, "_actor", lambda self, id: actors[id])
    request = ClusterMountRequest.of("/remote", "/mnt/{node}", {"cache_size": "1GB"}, "secret")
    asyncio.run(play())
    assert sum("trying again" in record.message for record in caplog.records) == 2


class RayCluster:
    """Three nodes. Each has a mount and a cache of its own: their paths have its ID."""

    def __init__(self, folder: Path, s3: S3Server) -> None:
        from ray.cluster_utils import Cluster

        self.folder = folder
        self.bucket = s3.bucket
        self.url = f"s3://{s3.bucket}/ray"
        for name, data in TREE.items():
            s3.put(f"ray/{name}", data)
        self.options: dict[str, Any] = {
            "cache_size": "1GB",
            "cache_dir": folder / "cache-{node}",
            "storage_options": s3.storage_options,
            "endpoint_url": s3.endpoint_url,
        }
        self.cluster = Cluster()
        for _ in range(3):
            self.add_node()
        self.cluster.wait_for_nodes()

    def run(self, recipe: str, prefix: str, *arguments: str) -> str:
        """What a program prints that mounts on this cluster, as it was written for any."""
        words = [f"s3://{self.bucket}/{prefix}", f"{self.folder}/mnt-{{node}}", "--cache-size=1GB", *arguments]
        command = [sys.executable, f"tools/recipes/{recipe}.py", f"--cache-dir={self.folder}/cache-{{node}}", *words]
        env = {**os.environ, "RAY_ADDRESS": str(self.cluster.address)}
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def add_node(self) -> Any:
        return self.cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20, include_dashboard=False)

    def mount(self) -> Any:
        import growfs.ray

        return growfs.ray.mount(self.url, self.folder / "mnt-{node}", **self.options)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, rclone_s3: S3Server) -> Iterator[RayCluster]:
    need("ray")
    import ray

    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**rclone_s3.env, "PYTHONPATH": ENV["PYTHONPATH"], "OMP_NUM_THREADS": "1"}.items():
            patch.setenv(name, value)  # which the nodes inherit
        made = RayCluster(tmp_path_factory.mktemp("ray"), rclone_s3)
        try:
            ray.init(made.cluster.address, log_to_driver=False)
            yield made
        finally:
            ray.shutdown()
            made.cluster.shutdown()


@pytest.fixture
def mounted(cluster: RayCluster) -> Iterator[Any]:
    mount = cluster.mount()
    try:
        yield mount
    finally:
        mount.unmount()
        for left in running():  # of a node that left
            if left.mountpoint.is_relative_to(cluster.folder):
                stop(left.mountpoint)


def follows(mount: Any, nodes: int) -> bool:
    """Whether each of so many nodes has mounted, knows the others, and reaches them."""
    status = mount.status()
    peers = [node["peers"] for node in status["nodes"].values()]
    return (
        not status["errors"] and [(each["nodes"], each["answering"]) for each in peers] == [(nodes, nodes - 1)] * nodes
    )


@pytest.mark.long
@pytest.mark.filterwarnings("default")
def test_each_node_has_a_mount_until_it_is_unmounted(cluster: RayCluster) -> None:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    import growfs.ray

    @ray.remote(num_cpus=0)
    def content(mount: Any) -> dict[str, bytes]:
        return {str(file.relative_to(mount.path)): file.read_bytes() for file in mount.path.rglob("*.bin")}

    mount = cluster.mount()
    try:
        until(lambda: follows(mount, 3))
        until(lambda: all(node["state"] == "complete" for node in mount.status()["nodes"].values()))
        for node in mount.status()["nodes"]:
            on_node = NodeAffinitySchedulingStrategy(node, soft=False)
            assert ray.get(content.options(scheduling_strategy=on_node).remote(mount)) == TREE
        status = mount.status()
        total = sum(map(len, TREE.values()))
        assert status["remote_bytes"] + status["peer_bytes"] == 3 * total
        assert status["peer_bytes"] > 0
        assert status["coverage"]["files_seen"] == len(TREE)
        pids = daemons(cluster.folder)
        assert len(pids) == 3
        assert {Path(f"/proc/{pid}/oom_score_adj").read_text() for pid in pids} == {"0\n"}
        assert cluster.mount().mountpoint == mount.mountpoint
        assert daemons(cluster.folder) == pids
        with pytest.raises(GrowfsError, match="perhaps with other options"):
            growfs.ray.mount(f"{cluster.url}/class0", mount.mountpoint, **cluster.options)
    finally:
        mount.unmount()
    assert not daemons(cluster.folder)
    with pytest.raises(GrowfsError, match="has not mounted it"):
        mount.status()


@pytest.mark.long
@pytest.mark.filterwarnings("default")
def test_nothing_stays_of_a_mount_that_fails(cluster: RayCluster) -> None:
    import growfs.ray

    with pytest.raises(GrowfsError, match="3 of 3 nodes could not mount"):
        growfs.ray.mount(f"{cluster.url}/none", cluster.folder / "mnt-{node}", **cluster.options)
    assert not daemons(cluster.folder)


@pytest.mark.long
@pytest.mark.filterwarnings("default")
def test_what_dies_comes_back(cluster: RayCluster, mounted: Any) -> None:
    import ray

    until(lambda: follows(mounted, 3))
    node, status = next(iter(mounted.status()["nodes"].items()))
    pids = daemons(cluster.folder)

    ray.kill(ray.get_actor(f"{mounted.mountpoint} on {node}", "growfs"), no_restart=False)
    until(lambda: follows(mounted, 3))
    assert daemons(cluster.folder) == pids

    os.kill(status["pid"], signal.SIGKILL)
    until(lambda: follows(mounted, 3))
    assert len(daemons(cluster.folder) & pids) == 2

    ray.kill(ray.get_actor(mounted.mountpoint, "growfs"), no_restart=False)
    until(lambda: follows(mounted, 3))
    assert len(daemons(cluster.folder)) == 3


@pytest.mark.long
@pytest.mark.filterwarnings("default")
def test_ray_serves_the_metrics_of_each_node(cluster: RayCluster, mounted: Any) -> None:
    import ray

    need("opencensus")  # Ray serves metrics with ray[default] only
    until(lambda: all(node["state"] == "complete" for node in mounted.status()["nodes"].values()))

    def is_served(node: dict[str, Any]) -> bool:
        """Whether Prometheus would read from a node that its mount has all files."""
        path = mounted.mountpoint.replace("{node}", node["NodeID"])
        with suppress(OSError), urllib.request.urlopen(f"http://{HOST}:{node['MetricsExportPort']}/metrics") as page:
            lines = re.findall(r"^ray_growfs_cache_files\{(.*)\} (\S+)$", page.read().decode(), re.MULTILINE)
            return any(f'mountpoint="{path}"' in labels and float(files) == len(TREE) for labels, files in lines)
        return False

    for node in ray.nodes():
        until(partial(is_served, node), 60)


@pytest.mark.long
@pytest.mark.filterwarnings("default")
def test_the_mounts_follow_nodes_that_leave_and_join(cluster: RayCluster, mounted: Any) -> None:
    until(lambda: follows(mounted, 3))
    cluster.cluster.remove_node(next(iter(cluster.cluster.worker_nodes)))
    until(lambda: follows(mounted, 2))
    cluster.add_node()
    until(lambda: follows(mounted, 3))


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("default")
def test_the_recipe_for_ray_train(cluster: RayCluster, rclone_s3: S3Server, tmp_path: Path) -> None:
    need("torch", "pydantic")
    put_images(rclone_s3, "ray-train")
    printed = cluster.run("ray_train", "ray-train", "--workers=3", "--loaders=0", "--epochs=2", f"--results={tmp_path}")
    assert re.search(r"epoch 2: \d+ files on the node of rank 0, loss", printed)
    assert re.search(r"3 nodes read [1-9][\d,]+ bytes from the remote, and [1-9][\d,]+ from one another", printed)
    assert not daemons(cluster.folder)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("default")
def test_the_recipe_for_ray_data(cluster: RayCluster, rclone_s3: S3Server) -> None:
    pyarrow, parquet = use("pyarrow"), use("pyarrow.parquet")
    put_images(rclone_s3, "ray-data/images")
    for number in range(3):
        sink = pyarrow.BufferOutputStream()
        parquet.write_table(pyarrow.table({"x": list(range(100))}), sink)
        rclone_s3.put(f"ray-data/tables/{number}.parquet", sink.getvalue().to_pybytes())
    printed = cluster.run("ray_data", "ray-data", "--epochs=2")
    assert re.search(r"epoch 2: \d+ images, mean \d+\.\d; [123]00 rows", printed)
    assert not daemons(cluster.folder)


def put_images(s3: S3Server, prefix: str) -> None:
    image = use("PIL.Image")
    for number in range(60):
        file = io.BytesIO()
        image.new("RGB", (32, 32), (number, number, number)).save(file, "PNG")
        s3.put(f"{prefix}/class{number % 3}/{number}.png", file.getvalue())
