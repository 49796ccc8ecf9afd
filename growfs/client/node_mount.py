"""The mount of one node of a cluster, kept by a program on that node, and the status of the mounts of all nodes."""

from __future__ import annotations

import subprocess
import tempfile
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from growfs.client.mount_command import config_text, mount_command, mount_error
from growfs.daemon.control_client import call, status_of
from growfs.daemon.launch import stop_or_detach
from growfs.daemon.option_parsers import listening
from growfs.daemon.options import Options, storage_option_texts
from growfs.daemon.running import find_living
from growfs.errors import GrowfsError
from growfs.remote.names import join_address
from growfs.status_and_metrics import CoverageStatus, MountStatus

ANSWER_S = 10.0
"""How long a daemon may take to answer."""
NODE = "{node}"
"""Placeholder for the name of the node in a mountpoint and in options."""


@dataclass(frozen=True)
class ClusterMountRequest:
    """What is to be mounted on each node, and where. config: the options, in the form of a file for --config.

    token: shown by the nodes to each other.
    """

    url: str
    mountpoint: str
    config: str = field(repr=False)
    token: str = field(repr=False, compare=False)

    @classmethod
    def of(cls, url: str, mountpoint: str, options: Mapping[str, Any], token: str) -> ClusterMountRequest:
        """options: by field name, as in `growfs.mount`. Raises UsageError."""
        given = {name: value for name, value in options.items() if value is not None}
        given["storage_option"] = storage_option_texts(given.pop("storage_options", None) or {})
        Options.parse(given)
        return cls(url, mountpoint, config_text(given), token)

    def on(self, node: str) -> ClusterMountRequest:
        """The same for one node, with its name instead of NODE."""
        mountpoint, config = self.mountpoint.replace(NODE, node), self.config.replace(NODE, node)
        return ClusterMountRequest(self.url, mountpoint, config, self.token)


class NodeMount:
    """Keeps the mount of this node. The daemon, not a child of this process, outlives it; another NodeMount finds it.

    host: the name or address by which other nodes reach this one.
    """

    def __init__(self, request: ClusterMountRequest, host: str) -> None:
        self._request = request
        self._host = host
        self._mountpoint = Path(request.mountpoint)
        self._address = ""
        self._peers = ""
        self._starting = threading.Lock()
        self._mounting: subprocess.Popen[str] | None = None
        self._is_ended = False

    def address(self) -> str:
        """The address at which the daemon serves the other nodes, or will: HOST:PORT."""
        with suppress(GrowfsError):
            peers = self.status().peers
            self._address = peers.address if peers else ""
        if not self._address:
            with listening("--peer-addr", self._host, 0) as unused:
                self._address = join_address(self._host, unused.getsockname()[1])
        return self._address

    def keep(self, peers: Iterable[str]) -> None:
        """Mount if nothing is mounted, and use these nodes as peers from now on. Returns when training can start.

        Raises GrowfsError if it fails, or if something else is mounted there.
        """
        joined = ",".join(peers)
        if not self._is_mounted():
            self._mount(joined)
        elif joined != self._peers:
            call(find_living(self._mountpoint).cache, "set", answer_s=ANSWER_S, options={"peers": joined})
        self._peers = joined

    def status(self) -> MountStatus:
        """The current status. Raises GrowfsError if nothing is mounted."""
        return status_of(find_living(self._mountpoint).cache, ANSWER_S)

    def unmount(self) -> None:
        """Unmount. Interrupts `keep`, which then no longer mounts. Open files: see `growfs.Mount.unmount`."""
        with self._starting:
            self._is_ended = True
        if self._mounting:
            self._mounting.terminate()
            self._mounting.wait()
        with suppress(GrowfsError):
            stop_or_detach(self._mountpoint)

    def _is_mounted(self) -> bool:
        """Whether a mount of this cluster is there."""
        with suppress(GrowfsError):
            cache = find_living(self._mountpoint).cache
            accepted = call(cache, "accepts", answer_s=ANSWER_S, token=self._request.token)["accepts"]
            return bool(self._peers or accepted)
        return False

    def _mount(self, peers: str) -> None:
        with suppress(OSError):  # the command reports it better
            self._mountpoint.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as secrets:
            config, token = Path(secrets, "config.toml"), Path(secrets, "token")
            config.write_text(self._request.config)
            token.write_text(self._request.token)
            words = mount_command(
                self._request.url,
                self._mountpoint,
                f"--config={config}",
                f"--peers={peers}",
                f"--peer-addr={self.address()}",
                f"--peer-token-file={token}",
            )
            with self._starting:
                if self._is_ended:
                    return
                self._mounting = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
                )
            _, errors = self._mounting.communicate()
        if self._mounting.returncode:
            self._address = ""  # another program may have taken the port
            raise mount_error(self._mounting.returncode, errors)


class ClusterStatus(TypedDict):
    """The status of the mounts of all nodes, by the name of the node.

    remote_bytes, peer_bytes: fetched by all of them from the remote, and from other nodes. coverage: of the node that
    has seen least of the current pass, or None if no node answers.
    """

    nodes: dict[str, MountStatus]
    errors: dict[str, str]
    remote_bytes: int
    peer_bytes: int
    cached_bytes: int
    coverage: CoverageStatus | None


def cluster_status(nodes: dict[str, MountStatus], errors: dict[str, str]) -> ClusterStatus:
    """errors: why nodes have no mount, or do not answer."""
    coverages = [status.coverage for status in nodes.values()]
    return {
        "nodes": nodes,
        "errors": errors,
        "remote_bytes": sum(status.fetch.bytes_total for status in nodes.values()),
        "peer_bytes": sum(status.fetch.peer_bytes_total for status in nodes.values()),
        "cached_bytes": sum(status.cache.bytes for status in nodes.values()),
        "coverage": min(coverages, key=lambda seen: (seen.pass_, seen.files_seen), default=None),
    }
