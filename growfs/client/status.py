"""The types of status.json. growfs.daemon.status_fields says what each field means."""

from __future__ import annotations

from typing import Literal, TypedDict

State = Literal["listing", "seeding", "filling", "rotating", "held", "complete", "paused", "waiting", "error"]


class Outage(TypedDict):
    """Why the remote is away."""

    since: float
    why: str
    next_try_s: float


class Remote(TypedDict):
    """What the listing found."""

    files: int
    bytes: int
    directories: int
    listed: bool
    listing: bool
    listing_silent_s: float | None


class Cache(TypedDict):
    """What is cached."""

    files: int
    bytes: int
    content_bytes: int
    limit_bytes: int
    in_flight_bytes: int
    orphan_bytes: int
    left_out_bytes: int


class Listed(TypedDict):
    """What the current generation lists."""

    files: int
    bytes: int


class Fetch(TypedDict):
    """What was fetched."""

    files_total: int
    bytes_total: int
    peer_files_total: int
    peer_bytes_total: int
    bytes_per_s: float
    failed: int
    streams: int
    limit_bytes_per_s: int | None
    eta_s: float | None


class Evict(TypedDict):
    """What was evicted."""

    files_total: int
    bytes_total: int


class Miss(TypedDict):
    """Opens of files that were not cached."""

    files_total: int
    wait_s_total: float
    waiting: int


Coverage = TypedDict("Coverage", {"files_seen": int, "files": int, "pass": int})
"""How much of the data was cached at some time."""


class Budget(TypedDict):
    """The traffic of today."""

    limit_bytes: int | None
    spent_bytes: int
    resumes_s: float | None


class Opens(TypedDict):
    """How often files were opened."""

    total: int
    bytes_total: int
    min: int
    max: int
    mean: float
    dispersion: float
    per_fetch: float


class Peers(TypedDict):
    """The other nodes (`--peers`)."""

    nodes: int
    address: str
    serving: bool
    answering: int
    waiting: bool
    sent_bytes_total: int


class Reader(TypedDict):
    """A process that reads."""

    pid: int
    command: str
    listed_at: float | None
    generation: int
    files_shown: int
    files_opened: int
    opens: int
    held_bytes: int
    advice: str | None


class Skipped(TypedDict):
    """Files that cannot be mounted or fetched."""

    reason: str
    files: int
    example: str


class MountStatus(TypedDict):
    """The content of status.json."""

    version: str
    url: str
    mountpoint: str
    cache_dir: str
    pid: int
    engine: Literal["passthrough", "libfuse"]
    engine_reason: str
    metrics_url: str | None
    state: State
    ready: bool
    outage: Outage | None
    seed: int
    partition: str | None
    peers: Peers | None
    rotation: Literal["auto", "never", "always"]
    generation: int
    remote: Remote
    cache: Cache
    listed: Listed
    fetch: Fetch
    evict: Evict
    miss: Miss
    coverage: Coverage
    budget: Budget
    opens: Opens
    requests: dict[str, int]
    readers: list[Reader]
    skipped: list[Skipped]
    unpromised: str | None
    warnings: list[str]
    last_error: str | None
    last_error_at: float | None
