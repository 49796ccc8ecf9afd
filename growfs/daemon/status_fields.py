"""The fields of status.json, in their order, and which metric each figure is. docs/status-and-metrics.md has both.

Names do not change: dashboards and scripts use them. A new field, or a new metric, goes into these tables.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from growfs.scheduler.readiness import MountState


@dataclass(frozen=True, slots=True)
class StatusField:
    """A field of status.json. path: dots nest, also into the objects of a list. kind: that of its metric, if it is one.

    Sizes are in bytes, times in seconds, points in time in seconds since 1970. A field that is null is no sample.
    """

    path: str
    text: str
    kind: Literal["gauge", "counter"] | None = None

    @property
    def metric(self) -> str | None:
        """The name of its metric: its path, with whole words for units, and `_total` for what only grows."""
        if self.kind is None:
            return None
        name = "growfs_" + re.sub(r"_s(?=_|$)", "_seconds", self.path.replace(".", "_"))
        return name if self.kind == "gauge" or name.endswith("_total") else f"{name}_total"


@dataclass(frozen=True, slots=True)
class LabelledMetric:
    """A metric that is no single field. samples: (a value for each label, the value), from a status."""

    metric: str
    text: str
    kind: Literal["gauge", "counter"]
    labels: tuple[str, ...]
    samples: Callable[[dict[str, Any]], Iterable[tuple[tuple[str, ...], float]]]


FIELDS = (
    StatusField("version", "version of growfs"),
    StatusField("url", "the remote, without secrets"),
    StatusField("mountpoint", "where it is mounted"),
    StatusField("cache_dir", "folder of the cache of this mount"),
    StatusField("pid", "process of the daemon"),
    StatusField("engine", "`passthrough` or `libfuse`"),
    StatusField("engine_reason", "why this engine"),
    StatusField("metrics_url", "where the metrics are served (`--metrics-addr`), or null"),
    StatusField("ready", "whether training can start: whether `mount` has returned", "gauge"),
    StatusField("state", "what the mount is doing"),
    StatusField("outage", "null while the remote answers"),
    StatusField("outage.since", "since when the remote is away"),
    StatusField("outage.why", "the error of the last request"),
    StatusField("outage.next_try_s", "time until it is tried again"),
    StatusField("seed", "`--seed`"),
    StatusField("partition", "`--partition` as I/N, or null"),
    StatusField("peers", "the nodes that feed one another (`--peers`), or null"),
    StatusField("peers.nodes", "how many they are, with this one", "gauge"),
    StatusField("peers.address", "`--peer-addr`"),
    StatusField("peers.serving", "whether this node serves the others", "gauge"),
    StatusField("peers.answering", "how many of the other nodes answer", "gauge"),
    StatusField("peers.waiting", "whether a draw waits until another node has what would be evicted", "gauge"),
    StatusField("peers.sent_bytes_total", "bytes sent to other nodes", "counter"),
    StatusField("rotation", "`--rotation`"),
    StatusField("generation", "number of the current generation", "gauge"),
    StatusField("remote.files", "files of the remote", "gauge"),
    StatusField("remote.bytes", "size of the remote", "gauge"),
    StatusField("remote.directories", "directories of the remote", "gauge"),
    StatusField("remote.listed", "whether the listing of the remote is complete", "gauge"),
    StatusField("remote.listing", "whether the remote is being listed now", "gauge"),
    StatusField(
        "remote.listing_silent_s",
        "time since the server sent a page of a listing that is slow; null: it is not slow",
        "gauge",
    ),
    StatusField("cache.files", "cached files", "gauge"),
    StatusField("cache.bytes", "disk space of the cached files", "gauge"),
    StatusField("cache.content_bytes", "sum of the sizes of the cached files", "gauge"),
    StatusField("cache.limit_bytes", "the most disk space that the cache may take (`--cache-size`)", "gauge"),
    StatusField("cache.in_flight_bytes", "disk space that is reserved for downloads", "gauge"),
    StatusField("cache.orphan_bytes", "disk space of evicted or replaced files that are still open", "gauge"),
    StatusField("cache.left_out_bytes", "disk space of cached files that are delisted", "gauge"),
    StatusField("listed.files", "files that the current generation lists", "gauge"),
    StatusField("listed.bytes", "sum of the sizes of the listed files", "gauge"),
    StatusField("fetch.files_total", "files fetched", "counter"),
    StatusField("fetch.bytes_total", "bytes received from the remote", "counter"),
    StatusField("fetch.peer_files_total", "of these, files that other nodes sent (`--peers`)", "counter"),
    StatusField("fetch.peer_bytes_total", "bytes received from other nodes", "counter"),
    StatusField("fetch.bytes_per_s", "download rate over the last seconds"),
    StatusField("fetch.failed", "downloads that failed", "counter"),
    StatusField("fetch.streams", "most requests at a time", "gauge"),
    StatusField("fetch.limit_bytes_per_s", "`--bandwidth`, or null"),
    StatusField("fetch.eta_s", "time until the cache is full or everything is cached; null: unknown", "gauge"),
    StatusField("evict.files_total", "files evicted", "counter"),
    StatusField("evict.bytes_total", "disk space of the files evicted", "counter"),
    StatusField("miss.files_total", "opens of files that were not cached", "counter"),
    StatusField("miss.wait_s_total", "how long opens waited for files that were not cached, in total", "counter"),
    StatusField("miss.waiting", "opens that wait now", "gauge"),
    StatusField("coverage.files_seen", "files that were cached at some time", "gauge"),
    StatusField("coverage.files", "files of the remote, or of this shard", "gauge"),
    StatusField("coverage.pass", "number of the pass over the data, from 1", "gauge"),
    StatusField("budget.limit_bytes", "traffic allowed in a day (`--remote-budget`), or null", "gauge"),
    StatusField("budget.spent_bytes", "bytes received today (UTC)", "gauge"),
    StatusField("budget.resumes_s", "time until prefetching resumes, if the budget is spent; else null", "gauge"),
    StatusField("opens.total", "opens of cached files", "counter"),
    StatusField("opens.bytes_total", "sum of the sizes of the files that were opened, each time", "counter"),
    StatusField("opens.min", "opens of the file that was opened least, of all that were ever cached", "gauge"),
    StatusField("opens.max", "opens of the file that was opened most", "gauge"),
    StatusField("opens.mean", "opens per file, of all that were ever cached", "gauge"),
    StatusField("opens.dispersion", "variance of opens per file over their mean; 0: all equal", "gauge"),
    StatusField("opens.per_fetch", "opens per fetched file", "gauge"),
    StatusField("requests", "requests of the kernel by kind, with passthrough"),
    StatusField("readers", "the processes that read"),
    StatusField("readers.pid", "process; 0: all of other pid namespaces"),
    StatusField("readers.command", "its name"),
    StatusField("readers.listed_at", "when it last listed; null: never"),
    StatusField("readers.generation", "generation that it listed last"),
    StatusField("readers.files_shown", "files that it was shown in that generation"),
    StatusField("readers.files_opened", "of these, how many it opened"),
    StatusField("readers.opens", "its opens"),
    StatusField("readers.held_bytes", "disk space of delisted files that its hold keeps from eviction"),
    StatusField("readers.advice", "what is wrong with the way it reads, or null"),
    StatusField("skipped", "files that cannot be mounted or fetched"),
    StatusField("skipped.reason", "why"),
    StatusField("skipped.files", "how many"),
    StatusField("skipped.example", "one of them"),
    StatusField("unpromised", "why some directories have no file yet, or null"),
    StatusField("warnings", "what is odd about the options"),
    StatusField("last_error", "the latest failure of a file or a listing that has not succeeded since, or null"),
    StatusField("last_error_at", "when that was"),
)


def _mount(status: dict[str, Any]) -> Iterable[tuple[tuple[str, ...], float]]:
    yield tuple(status[name] for name in ("url", "mountpoint", "engine", "version")), 1.0


def _state(status: dict[str, Any]) -> Iterable[tuple[tuple[str, ...], float]]:
    return (((state.value,), float(status["state"] == state.value)) for state in MountState)


def _outage(status: dict[str, Any]) -> Iterable[tuple[tuple[str, ...], float]]:
    yield (), time.time() - status["outage"]["since"] if status["outage"] else 0.0


def _last_error(status: dict[str, Any]) -> Iterable[tuple[tuple[str, ...], float]]:
    if status["last_error_at"]:
        yield (), status["last_error_at"]


def _requests(status: dict[str, Any]) -> Iterable[tuple[tuple[str, ...], float]]:
    return (((opcode,), float(count)) for opcode, count in status["requests"].items())


def _readers(status: dict[str, Any]) -> Iterable[tuple[tuple[str, ...], float]]:
    yield (), float(len(status["readers"]))


def _held(status: dict[str, Any]) -> Iterable[tuple[tuple[str, ...], float]]:
    yield (), max((float(reader["held_bytes"]) for reader in status["readers"]), default=0.0)


def _skipped(status: dict[str, Any]) -> Iterable[tuple[tuple[str, ...], float]]:
    yield (), float(sum(skip["files"] for skip in status["skipped"]))


LABELLED = (
    LabelledMetric(
        "growfs_mount_info", "what is mounted; always 1", "gauge", ("url", "mountpoint", "engine", "version"), _mount
    ),
    LabelledMetric(
        "growfs_state", "1 for the state that the mount is in, 0 for the others", "gauge", ("state",), _state
    ),
    LabelledMetric("growfs_outage_seconds", "how long the remote has been away; 0: it is not", "gauge", (), _outage),
    LabelledMetric(
        "growfs_last_error_timestamp_seconds",
        "when the latest failure was that has not succeeded since",
        "gauge",
        (),
        _last_error,
    ),
    LabelledMetric(
        "growfs_requests_total", "requests of the kernel, with passthrough", "counter", ("opcode",), _requests
    ),
    LabelledMetric("growfs_readers", "processes that read", "gauge", (), _readers),
    LabelledMetric(
        "growfs_held_bytes",
        "disk space of delisted files that the hold of one reader keeps, of the reader that holds most",
        "gauge",
        (),
        _held,
    ),
    LabelledMetric("growfs_skipped_files", "files that cannot be mounted or fetched", "gauge", (), _skipped),
)
