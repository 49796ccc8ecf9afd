"""A mount on every node of a Ray cluster, whose nodes feed each other. It needs the extra `ray`.

mount = growfs.ray.mount("s3://bucket/train", "/mnt/train", cache_size="2TB")

Ray places one actor on each node, restarts it, and reports the nodes; a controller passes them to the mounts.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.metrics import Gauge
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from growfs.client.node_mount import NODE, ClusterMountRequest, ClusterStatus, NodeMount, cluster_status
from growfs.errors import GrowfsError
from growfs.status_and_metrics import MountStatus, metrics

FOLLOW_S = 5.0
"""How often the nodes, and whether each has its mount, are checked."""
ACTOR = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1, "lifetime": "detached", "namespace": "growfs"}
"""The actors' calls are idempotent, so Ray repeats those that were under way when an actor died."""

log = logging.getLogger(__name__)


def mount(
    url: str,
    mountpoint: str | os.PathLike[str],
    *,
    storage_options: dict[str, Any] | None = None,
    labels: Mapping[str, str] | None = None,
    **options: Any,
) -> ClusterMount:
    """Mount on all nodes of the Ray cluster, and on each that joins; returns when training can start on all of them.

    The mounts stay when this process ends, until `.unmount()`; the same call in another process finds them. labels:
    mount only on nodes that have these Ray labels. The other arguments are those of `growfs.mount`; "{node}" in the
    mountpoint and in options stands for the node's Ray ID. Each node needs growfs and the rights to read the remote.
    Raises growfs.errors.GrowfsError if mounting fails on one of the nodes; then nothing stays mounted. A node that is
    lost meanwhile does not count.
    """
    given = options | {"storage_options": storage_options}
    request = ClusterMountRequest.of(url, os.fspath(mountpoint), given, secrets.token_urlsafe())
    handle = ClusterMount(request.mountpoint)
    try:
        handle._ask("mount", request)
    except NotMountedError:
        ray.remote(_Controller).options(name=request.mountpoint, get_if_exists=True, **ACTOR).remote(
            request, dict(labels or {})
        )
        try:
            handle._ask("mount", request)
        except BaseException:
            handle.unmount()
            raise
    return handle


class NotMountedError(GrowfsError):
    """The Ray cluster has no such mount."""


class ClusterMount:
    """A mount on every node of the Ray cluster. It can be passed to tasks and actors as an argument.

    mountpoint: as given to `mount`.
    """

    def __init__(self, mountpoint: str) -> None:
        self.mountpoint = mountpoint

    @property
    def path(self) -> Path:
        """The mountpoint on the node of this process."""
        return Path(self.mountpoint.replace(NODE, ray.get_runtime_context().get_node_id()))

    def status(self) -> ClusterStatus:
        """The status of all nodes, by their Ray IDs, with sums. Raises GrowfsError if there is no such mount."""
        status: ClusterStatus = self._ask("status")
        return status

    def unmount(self) -> None:
        """Unmount on all nodes. Cached files stay for the next mount. Raises GrowfsError if there is no such mount.

        A file that is still open stays readable, and the daemon of that node ends once it is closed.
        """
        self._ask("unmount")
        ray.kill(self._controller())

    def _controller(self) -> Any:
        try:
            return ray.get_actor(self.mountpoint, "growfs")
        except ValueError:
            raise NotMountedError(f"{self.mountpoint}: growfs.ray has not mounted it on this cluster") from None

    def _ask(self, method: str, *arguments: object) -> Any:
        try:
            return ray.get(getattr(self._controller(), method).remote(*arguments))
        except RayTaskError as error:
            if isinstance(error.cause, GrowfsError):
                raise error.cause from None
            raise


@dataclass
class _Node:
    """The controller's state of a node. error: why it has no mount. tried: set while it has a mount or such an error,
    and once no caller has to wait for the node."""

    actor: Any
    address: str = ""
    error: str = ""
    tried: asyncio.Event = field(default_factory=asyncio.Event)
    keeping: asyncio.Task[None] | None = None


class _Controller:
    """Makes each node of the cluster mount, and tells it about the others. All of its state can be recovered, so Ray
    may restart it at any time.
    """

    # A coroutine, because Ray then calls it in the event loop.
    async def __init__(self, request: ClusterMountRequest, labels: dict[str, str]) -> None:  # type: ignore[misc]
        self._request = request
        self._labels = labels
        self._nodes: dict[str, _Node] = {}
        self._looked = asyncio.Event()
        self._following = asyncio.create_task(self._follow())

    async def mount(self, request: ClusterMountRequest) -> None:
        """Return when all nodes have mounted. Raises GrowfsError if one cannot."""
        if request != self._request:
            raise GrowfsError(
                f"{request.mountpoint}: growfs.ray has already mounted {self._request.url} there, perhaps with other"
                " options; unmount it first"
            )
        await self._looked.wait()
        while untried := [node.tried for node in self._nodes.values() if not node.tried.is_set()]:
            await asyncio.gather(*(tried.wait() for tried in untried))
        if failed := [(id, node.error) for id, node in self._nodes.items() if node.error]:
            (id, error), *_ = failed
            raise GrowfsError(f"{len(failed)} of {len(self._nodes)} nodes could not mount; node {id}: {error}")

    async def status(self) -> ClusterStatus:
        """See `ClusterMount.status`."""
        nodes: dict[str, MountStatus] = {}
        errors: dict[str, str] = {}

        async def ask(id: str, node: _Node) -> None:
            try:
                nodes[id] = await asyncio.wait_for(node.actor.status.remote(), timeout=15.0)
            except (RayError, asyncio.TimeoutError) as error:
                errors[id] = node.error or _text(error)

        await asyncio.gather(*(ask(id, node) for id, node in self._nodes.items()))
        return cluster_status(nodes, errors)

    async def unmount(self) -> None:
        """Unmount on all nodes, and end their actors."""
        await self._looked.wait()
        self._following.cancel()

        async def end(node: _Node) -> None:
            if node.keeping:
                node.keeping.cancel()
            with suppress(RayError):
                await node.actor.unmount.remote()
            ray.kill(node.actor)

        await asyncio.gather(*(end(node) for node in self._nodes.values()))

    async def _follow(self) -> None:
        while True:
            try:
                await self._look()
            except Exception:  # Ray's services raise it when busy; otherwise no node would be followed
                log.exception("%s: the nodes of the cluster are not known; trying again", self._request.mountpoint)
            await asyncio.sleep(FOLLOW_S)

    async def _look(self) -> None:
        """Make new nodes mount, and stop waiting for those that are gone."""
        alive = {
            node["NodeID"] for node in ray.nodes() if node["Alive"] and self._labels.items() <= node["Labels"].items()
        }
        for id in self._nodes.keys() - alive:
            node = self._nodes.pop(id)
            node.tried.set()
            if node.keeping:
                node.keeping.cancel()
        for id in alive - self._nodes.keys():
            self._nodes[id] = _Node(self._actor(id))
        joined = {id: node for id, node in self._nodes.items() if node.keeping is None}
        # A daemon that knows only itself would begin at the same place as each of the others.
        if joined:
            locating = [asyncio.create_task(self._locate(node)) for node in joined.values()]
            await asyncio.wait(locating, timeout=60.0)  # then the others mount without those that are still starting
        for id, node in joined.items():
            node.keeping = asyncio.create_task(self._keep(id, node))
        self._looked.set()

    def _actor(self, id: str) -> Any:
        return (
            ray.remote(_NodeActor)
            .options(
                name=f"{self._request.mountpoint} on {id}",
                get_if_exists=True,
                scheduling_strategy=NodeAffinitySchedulingStrategy(id, soft=False),
                max_concurrency=4,
                **ACTOR,
            )
            .remote(self._request.on(id))
        )

    async def _locate(self, node: _Node) -> None:
        with suppress(RayError):
            node.address = await node.actor.address.remote()

    async def _keep(self, id: str, node: _Node) -> None:
        answered_at = time.monotonic()
        while True:
            error, has_answered = "", True
            try:
                if node.error:
                    node.actor = self._actor(id)  # Ray restarts it, except after some of its own failures
                await self._locate(node)
                await node.actor.keep.remote(sorted(each.address for each in self._nodes.values() if each.address))
            except Exception as failed:  # noqa: BLE001 - Ray raises many kinds, and only this loop retries
                error, has_answered = _text(failed), isinstance(failed, RayTaskError)
            if error and error != node.error:
                log.warning("%s: %s", self._request.mountpoint, error)
            node.error = error
            if has_answered:
                answered_at = time.monotonic()
            # Ray takes up to half a minute to notice that a node is gone.
            if has_answered or time.monotonic() >= answered_at + 60.0:
                node.tried.set()
            else:
                node.tried.clear()  # the node may be gone, which `_look` will find
            await asyncio.sleep(FOLLOW_S)


class _NodeActor(NodeMount):
    """The mount of the node on which Ray placed it."""

    def __init__(self, request: ClusterMountRequest) -> None:
        super().__init__(request, ray.util.get_node_ip_address())
        self._metrics = _Metrics(request.mountpoint)
        with suppress(OSError):  # if memory runs out, the kernel ends Ray's workers first, not the daemon
            Path("/proc/self/oom_score_adj").write_text("0")

    def keep(self, peers: Iterable[str]) -> None:
        """See `NodeMount.keep`; also passes the metrics of the mount to Ray."""
        super().keep(peers)
        with suppress(GrowfsError):
            self._metrics.set(self.status())


class _Metrics:
    """The metrics of a mount as Ray metrics, which Ray serves on each node for Prometheus and its dashboard."""

    def __init__(self, mountpoint: str) -> None:
        self._mountpoint = mountpoint
        self._gauges: dict[str, Gauge] = {}

    def set(self, status: MountStatus) -> None:
        """Set all of them. Counters are also gauges, because Ray's counters cannot be set."""
        for metric in metrics():
            for labels, value in metric.samples(status):
                tags = {"mountpoint": self._mountpoint, **dict(zip(metric.labels, labels, strict=True))}
                if (gauge := self._gauges.get(metric.name)) is None:
                    gauge = self._gauges[metric.name] = Gauge(metric.name, metric.text, tag_keys=tuple(tags))
                gauge.set(float(value), tags)


def _text(error: Exception) -> str:
    cause = error.cause if isinstance(error, RayTaskError) else error
    return str(cause) if isinstance(cause, GrowfsError) else f"{type(cause).__name__}: {cause}"
