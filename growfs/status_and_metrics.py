"""The status of a mount: each figure once, with its meaning, its unit and its metric.

The components of a mount return the sections; daemon/snapshot.py puts them together. From here come status.json, the
types of `status()` in Python, the metrics, and the tables of docs/status-and-metrics.md; the text of .growfs/status
(daemon/status_text.py) and `growfs top` read these classes. Names do not change: dashboards and scripts use them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from enum import Enum
from functools import cache, partial
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Kind = Literal["gauge", "counter"]
"""Of a metric. A counter only grows."""
Unit = Literal["", "bytes", "bytes/s", "seconds", "time"]
"""Of a figure; time: seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """What is known of a field of the status."""

    text: str
    unit: Unit
    kind: Kind | None
    """None: it is not a metric."""


def figure(text: str, unit: Unit = "", kind: Kind | None = None) -> dict[str, Meaning]:
    """The metadata of a field that is not a metric. Without any, a field is a section whose fields say it all."""
    return {"meaning": Meaning(text, unit, kind)}


def gauge(text: str, unit: Unit = "") -> dict[str, Meaning]:
    """The metadata of a field that is a metric. Where its value is None, the metric has no sample."""
    return figure(text, unit, "gauge")


def counter(text: str, unit: Unit = "") -> dict[str, Meaning]:
    """The metadata of a field that is a metric and only grows."""
    return figure(text, unit, "counter")


class MountState(Enum):
    """What a mount is doing.

    The value is the word of status.json and of the history. `text` is for people, `color` for a terminal, and
    `page_color` for the report.
    """

    text: str
    color: str
    page_color: str

    LISTING = "listing", "listing the remote", "cyan", "gray"
    SEEDING = "seeding", "fetching one file from each directory", "cyan", "teal"
    FILLING = "filling", "filling the cache", "cyan", "blue"
    ROTATING = "rotating", "replacing files that are no longer listed", "blue", "green"
    AHEAD = "ahead", "the next part is cached", "green", "green"
    HELD = "held", "full", "yellow", "soft"
    COMPLETE = "complete", "complete: every file of the remote is cached", "green", "lime"
    PAUSED = "paused", "paused: only misses are fetched", "magenta", "amber"
    WAITING = "waiting", "waiting for the remote", "red", "red"
    ERROR = "error", "fetching fails; growfs retries", "red", "red"

    def __new__(cls, value: str, text: str = "", color: str = "", page_color: str = "") -> MountState:
        """The state whose word is `value`."""
        state = object.__new__(cls)
        state._value_ = value
        state.text, state.color, state.page_color = text, color, page_color
        return state

    @property
    def label(self) -> str:
        """A word or two for the legend of a chart."""
        labels = {MountState.SEEDING: "first files", MountState.HELD: "full"}
        return labels.get(self, str(self.value))


RESTING = (MountState.AHEAD, MountState.HELD, MountState.COMPLETE)
"""The states in which nothing is left to draw."""

S = TypeVar("S", bound="Section")


@dataclass(eq=False, repr=False)
class Section(dict[str, Any]):
    """Fields with types, and the same as an object of status.json: `status.cache.files`, `status["cache"]["files"]`.

    Users have the dictionary; growfs uses the fields. Neither is changed once it is made. A name that Python does not
    allow ends with "_" as a field.
    """

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            self[name_of(each)] = value.value if isinstance(value, Enum) else value

    @classmethod
    def parse(cls: type[S], values: Mapping[str, Any]) -> S:
        """A section of a status.json.

        Raises KeyError if it has no such field, as that of an earlier growfs may, and TypeError or ValueError if a
        value cannot be that of the field, as from a program that is not growfs.
        """
        types = types_of(cls)
        return cls(**{each.name: _parsed(types[each.name], values[name_of(each)], _most(each)) for each in fields(cls)})


def _most(each: Field[Any]) -> int:
    """The largest number that a field may have."""
    meaning = each.metadata.get("meaning")
    return 1 << (40 if meaning and meaning.unit == "time" else 64)


def name_of(each: Field[Any]) -> str:
    """The name of a field in status.json."""
    return each.name.rstrip("_")


@cache
def types_of(section: type[Section]) -> dict[str, Any]:
    """The types of its fields, by name."""
    return get_type_hints(section)


def _parsed(type_: Any, value: Any, most: int) -> Any:
    if type_ is MountState:
        return MountState(value)
    section = _section(type_)
    if section is None or value is None:
        _check_type(type_, value, most)
        return dict(value) if isinstance(value, dict) else value
    if get_origin(type_) is list:
        _check_type(list, value, most)
        return [section.parse(each) for each in value]
    return section.parse(value)


def _check_type(type_: Any, value: Any, most: int) -> None:
    """Raise TypeError if a value is not of the type of its field, or a number is larger than most."""
    of, arguments = get_origin(type_) or type_, get_args(type_)
    accepted = [*arguments] if of in (Union, UnionType) else [of]
    if type(value) in (int, float) and (int in accepted or float in accepted):
        if abs(value) <= most:
            return
    elif isinstance(value, tuple(accepted)):
        if isinstance(value, (dict, list)) and arguments:
            for each in value.values() if isinstance(value, dict) else value:
                _check_type(arguments[-1], each, most)
        return
    raise TypeError(f"{value!r:.100} is not of the type {type_}")


def _section(type_: Any) -> type[Section] | None:
    """The section in the type of a field: X, X | None or list[X]."""
    candidates = (each for each in (type_, *get_args(type_)) if isinstance(each, type) and issubclass(each, Section))
    return next(candidates, None)


@dataclass(eq=False, repr=False)
class OutageStatus(Section):
    """Why the remote is away."""

    since: float = field(metadata=figure("start of the outage", "time"))
    why: str = field(metadata=figure("the error of the last request"))
    next_try_s: float = field(metadata=figure("time until the next request", "seconds"))


@dataclass(eq=False, repr=False)
class PeersStatus(Section):
    """The other nodes."""

    nodes: int = field(metadata=gauge("nodes, including this one"))
    address: str = field(metadata=figure("`--peer-addr`"))
    serving: bool = field(metadata=gauge("whether this node serves its peers"))
    answering: int = field(metadata=gauge("peers that answer"))
    waiting: bool = field(metadata=gauge("whether a fetch is waiting until a peer has the file that it would evict"))
    sent_bytes_total: int = field(metadata=counter("bytes sent to peers", "bytes"))


@dataclass(eq=False, repr=False)
class RemoteStatus(Section):
    """What the listing found."""

    files: int = field(metadata=gauge("files on the remote"))
    bytes: int = field(metadata=gauge("size of the remote", "bytes"))
    directories: int = field(metadata=gauge("directories on the remote"))
    listed: bool = field(metadata=gauge("whether the listing of the remote is complete"))
    listing: bool = field(metadata=gauge("whether the remote is being listed now"))
    listing_silent_s: float | None = field(
        metadata=gauge("if the listing is slow: time since its last page arrived; otherwise null", "seconds")
    )


@dataclass(eq=False, repr=False)
class CacheStatus(Section):
    """What is cached."""

    files: int = field(metadata=gauge("cached files"))
    bytes: int = field(metadata=gauge("disk space of the cached files", "bytes"))
    content_bytes: int = field(metadata=gauge("sum of the sizes of the cached files", "bytes"))
    limit_bytes: int = field(metadata=gauge("maximum disk space of the cache (`--cache-size`)", "bytes"))
    in_flight_bytes: int = field(metadata=gauge("disk space reserved for downloads", "bytes"))
    orphan_bytes: int = field(metadata=gauge("disk space of evicted or replaced files that are still open", "bytes"))
    left_out_bytes: int = field(metadata=gauge("disk space of outgoing files: cached, but no longer listed", "bytes"))


@dataclass(eq=False, repr=False)
class ListedStatus(Section):
    """What the current generation lists."""

    files: int = field(metadata=gauge("files that the current generation lists"))
    bytes: int = field(metadata=gauge("sum of the sizes of the listed files", "bytes"))
    new_files: int = field(metadata=gauge("cached files waiting for the next listing"))


@dataclass(eq=False, repr=False)
class ExactStatus(Section):
    """The position in the passes of `--exact`."""

    pass_: int = field(metadata=gauge("number of the pass, from 1"))
    part: int = field(metadata=gauge("number of the latest part to begin, from 1; 0: none has begun"))
    parts: int = field(metadata=gauge("parts of the pass; 0: not known yet"))
    kept_bytes: int = field(metadata=gauge("disk space of the files that stay cached", "bytes"))
    streamed_bytes: int = field(metadata=gauge("disk space of the files that each pass fetches", "bytes"))
    in_use: str = field(metadata=figure("parts in use that were opened by path, such as `3/7, 3/8`"))
    waited_for: str = field(metadata=figure("parts that processes are waiting for"))
    missing_files: int = field(metadata=gauge("files of the next part that are not cached yet"))
    missing_bytes: int = field(metadata=gauge("their size", "bytes"))
    waiting: int = field(metadata=gauge("processes waiting for a part"))
    left_out_files: int = field(metadata=gauge("files left out of this pass because they could not be fetched"))
    left_out_example: str = field(metadata=figure("path of one of them, or empty"))


@dataclass(eq=False, repr=False)
class FetchStatus(Section):
    """What was fetched."""

    files_total: int = field(metadata=counter("files fetched"))
    bytes_total: int = field(metadata=counter("bytes received from the remote", "bytes"))
    peer_files_total: int = field(metadata=counter("of `fetch.files_total`, files that peers sent (`--peers`)"))
    peer_bytes_total: int = field(metadata=counter("bytes received from peers", "bytes"))
    bytes_per_s: float = field(metadata=figure("download rate over the last few seconds", "bytes/s"))
    failed: int = field(metadata=counter("failed downloads"))
    streams: int = field(metadata=gauge("maximum number of concurrent requests"))
    limit_bytes_per_s: int | None = field(metadata=figure("`--bandwidth`, or null", "bytes/s"))
    client: str = field(metadata=figure("client that requests files: `growfs`, or the store's library; at first empty"))
    client_reason: str = field(metadata=figure("why this client was chosen (`--client`)"))
    library_files_total: int = field(metadata=counter("files that the store's library fetched"))
    late_file: str | None = field(
        metadata=figure("a file that arrives so slowly that later files are listed without it, or null")
    )
    eta_s: float | None = field(
        metadata=gauge("time until the cache is full or everything is cached; null: unknown", "seconds")
    )


@dataclass(eq=False, repr=False)
class EvictStatus(Section):
    """What was evicted."""

    files_total: int = field(metadata=counter("files evicted"))
    bytes_total: int = field(metadata=counter("disk space of the files evicted", "bytes"))


@dataclass(eq=False, repr=False)
class MissStatus(Section):
    """Opens of files that were not cached."""

    files_total: int = field(metadata=counter("opens of files that were not cached"))
    wait_s_total: float = field(
        metadata=counter("total time that opens waited for files that were not cached", "seconds")
    )
    waiting: int = field(metadata=gauge("opens that are waiting"))


@dataclass(eq=False, repr=False)
class CoverageStatus(Section):
    """How much of the data was cached at some time."""

    files_seen: int = field(metadata=gauge("of `coverage.files`, those that were ever cached"))
    files_cached: int = field(metadata=gauge("of `coverage.files`, those that are cached now"))
    files: int = field(metadata=gauge("files on the remote, or in this node's share"))
    pass_: int = field(metadata=gauge("number of the pass over the data, from 1"))


@dataclass(eq=False, repr=False)
class BudgetStatus(Section):
    """The traffic of today."""

    limit_bytes: int | None = field(metadata=gauge("traffic allowed per day (`--remote-budget`), or null", "bytes"))
    spent_bytes: int = field(metadata=gauge("bytes received today (UTC)", "bytes"))
    resumes_s: float | None = field(
        metadata=gauge("time until prefetching resumes, if the budget is spent; otherwise null", "seconds")
    )


@dataclass(eq=False, repr=False)
class OpensStatus(Section):
    """How often files were opened."""

    total: int = field(metadata=counter("opens of cached files"))
    bytes_total: int = field(metadata=counter("sum of the sizes of the opened files, once per open", "bytes"))
    min: int = field(metadata=gauge("opens of the least opened file, among all that were ever cached"))
    max: int = field(metadata=gauge("opens of the most opened file"))
    mean: float = field(metadata=gauge("mean opens per file, over all that were ever cached"))
    dispersion: float = field(metadata=gauge("variance of the opens per file, divided by their mean; 0: all equal"))
    per_fetch: float = field(metadata=gauge("opens per fetched file"))


@dataclass(eq=False, repr=False)
class ReaderStatus(Section):
    """A process that reads."""

    pid: int = field(metadata=figure("process ID; 0: all processes in other PID namespaces"))
    command: str = field(metadata=figure("name of the process"))
    listed_at: float | None = field(metadata=figure("its last listing; null: it has never listed", "time"))
    generation: int = field(metadata=figure("generation of its last listing"))
    part: str | None = field(metadata=figure("with `--exact`: its pass and part, such as `3/7`; or null"))
    files_shown: int = field(metadata=figure("files that its program listed in that generation, except frozen ones"))
    files_opened: int = field(metadata=figure("how many of these it opened"))
    opens: int = field(metadata=figure("times that it opened a file"))
    held_bytes: int = field(
        metadata=figure("disk space of outgoing files that it holds, estimated from their mean size", "bytes")
    )
    advice: str | None = field(metadata=figure("how to read without waiting, or to see more files; or null"))


@dataclass(eq=False, repr=False)
class SkippedStatus(Section):
    """Files that cannot be mounted or fetched, for one reason."""

    reason: str = field(metadata=figure("why"))
    files: int = field(metadata=figure("number of files"))
    example: str = field(metadata=figure("path of one of them"))


@dataclass(eq=False, repr=False)
class StartStatus(Section):
    """How far `mount` is from its return."""

    done: int = field(metadata=figure("files or bytes that are cached"))
    needed: int = field(metadata=figure("files or bytes needed before training can start"))
    unit: str = field(metadata=figure("`files` or `bytes`"))


@dataclass(eq=False, repr=False)
class MountInfo(Section):
    """What does not change while the daemon runs. The report has it from the database."""

    version: str = field(metadata=figure("version of growfs"))
    url: str = field(metadata=figure("the remote, without secrets"))
    mountpoint: str = field(metadata=figure("the folder where it is mounted"))
    cache_dir: str = field(metadata=figure("cache folder of this mount"))
    pid: int = field(metadata=figure("process ID of the daemon"))
    engine: str = field(metadata=figure("`passthrough`, `links` or `libfuse`; `folder` for `growfs fill`"))
    engine_reason: str = field(metadata=figure("why this engine was chosen"))
    metrics_url: str | None = field(metadata=figure("URL of the metrics (`--metrics-addr`), or null"))
    seed: int = field(metadata=figure("`--seed`"))
    partition: str | None = field(metadata=figure("`--partition` as I/N, or null"))


@dataclass(eq=False, repr=False, kw_only=True)
class MountStatus(MountInfo):
    """The content of status.json."""

    ready: bool = field(metadata=gauge("whether `mount` has returned, so that training can start"))
    waited_for: str | None = field(metadata=figure("what `mount` waited for; null: it has not returned yet"))
    start: StartStatus | None = field(metadata=figure("progress of `mount` toward the start of training, or null"))
    state: MountState = field(metadata=figure("state of the mount"))
    outage: OutageStatus | None = field(metadata=figure("null while the remote answers"))
    peers: PeersStatus | None = field(default=None, metadata=figure("the peers (`--peers`), or null"))
    rotation: str = field(metadata=figure("`--rotation`"))
    generation: int = field(metadata=gauge("number of the current generation"))
    remote: RemoteStatus
    cache: CacheStatus
    listed: ListedStatus
    exact: ExactStatus | None = field(default=None, metadata=figure("the position in the passes of `--exact`, or null"))
    fetch: FetchStatus
    evict: EvictStatus
    miss: MissStatus
    coverage: CoverageStatus
    budget: BudgetStatus
    opens: OpensStatus
    requests: dict[str, int] = field(metadata=figure("requests from the kernel by kind, with passthrough and links"))
    readers: list[ReaderStatus] = field(metadata=figure("processes that read"))
    skipped: list[SkippedStatus] = field(metadata=figure("files that cannot be mounted or fetched"))
    unpromised: str | None = field(metadata=figure("why some directories have no file yet, or null"))
    warnings: list[str] = field(metadata=figure("conflicting options, and failures that are retried"))
    last_error: str | None = field(
        metadata=figure("latest failure of a file or listing that has not succeeded since, or null")
    )
    last_error_at: float | None = field(metadata=figure("time of that failure", "time"))


@dataclass(frozen=True, slots=True)
class StatusField:
    """A field of status.json. path: dots nest, also into the objects of a list."""

    path: str
    meaning: Meaning

    @property
    def metric(self) -> str | None:
        """The name of its metric: its path, with whole words for units, and `_total` for what only grows."""
        if self.meaning.kind is None:
            return None
        name = "growfs_" + self.path.replace(".", "_")
        if self.meaning.unit == "seconds":
            name = name.replace("_s_", "_seconds_") if "_s_" in name else f"{name.removesuffix('_s')}_seconds"
        return name if self.meaning.kind == "gauge" or name.endswith("_total") else f"{name}_total"


@cache
def status_fields() -> tuple[StatusField, ...]:
    """All fields of status.json, in their order."""
    return tuple(_fields_of(MountStatus, ""))


def _fields_of(section: type[Section], prefix: str) -> Iterator[StatusField]:
    types = get_type_hints(section)
    for each in fields(section):
        path = prefix + name_of(each)
        if each.metadata:
            yield StatusField(path, each.metadata["meaning"])
        if inner := _section(types[each.name]):
            yield from _fields_of(inner, f"{path}.")


Sample = tuple[tuple[str, ...], float]
"""(a value for each label, the value)"""


@dataclass(frozen=True, slots=True)
class Metric:
    """samples: returns the samples for a status."""

    name: str
    text: str
    samples: Callable[[MountStatus], Iterable[Sample]]
    labels: tuple[str, ...] = ()
    kind: Kind = "gauge"


METRICS = (
    Metric(
        "growfs_mount_info",
        "always 1; the labels describe the mount",
        lambda status: [((status.url, status.mountpoint, status.engine, status.version), 1)],
        ("url", "mountpoint", "engine", "version"),
    ),
    Metric(
        "growfs_state",
        "1 for the state of the mount, 0 for all others",
        lambda status: [((state.value,), state is status.state) for state in MountState],
        ("state",),
    ),
    Metric(
        "growfs_outage_seconds",
        "duration of the current outage of the remote; 0: none",
        lambda status: [((), time.time() - status.outage.since if status.outage else 0)],
    ),
    Metric(
        "growfs_last_error_timestamp_seconds",
        "time of the failure in `last_error`",
        lambda status: [((), status.last_error_at)] if status.last_error_at else [],
    ),
    Metric(
        "growfs_requests_total",
        "requests from the kernel, with passthrough and links",
        lambda status: [((opcode,), count) for opcode, count in status.requests.items()],
        ("opcode",),
        "counter",
    ),
    Metric("growfs_readers", "processes that read", lambda status: [((), len(status.readers))]),
    Metric(
        "growfs_held_bytes",
        "disk space of outgoing files held by the reader that holds the most",
        lambda status: [((), max((reader.held_bytes for reader in status.readers), default=0))],
    ),
    Metric(
        "growfs_skipped_files",
        "files that cannot be mounted or fetched",
        lambda status: [((), sum(skip.files for skip in status.skipped))],
    ),
)
"""Those that are not a single field of the status."""


def metrics() -> Iterator[Metric]:
    """All metrics, those of single fields first."""
    for each in status_fields():
        if each.metric and each.meaning.kind:
            yield Metric(each.metric, each.meaning.text, partial(_sample_of, each.path), kind=each.meaning.kind)
    yield from METRICS


def _sample_of(path: str, status: MountStatus) -> list[Sample]:
    """The sample of a field, unless that is null."""
    value: Any = status
    for name in path.split("."):
        value = value and value[name]
    return [] if value is None else [((), value)]
