"""Nodes that feed each other (`--peers`), walking around the circle in steps: one file of one node each."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from growfs.rotation.circle import Position, awaits, first_place, follower, hosts

FILES = 400
"""How many files the data has at least."""
PATIENCE = 0.5
"""The maximum share of a pass that a node waits."""
MODEL_NODES = 8
"""More nodes are simulated as this many, whose caches together hold as much."""


@dataclass
class SimulatedNode:
    """A node that draws all `files` around the circle, one in each step, and keeps `room` of them."""

    start: float
    room: int
    files: int = FILES
    drawn: int = 0
    steps: int = 0
    kept: dict[int, int] = field(default_factory=dict)
    """The step at which each kept file was drawn, oldest first."""
    shown_steps: dict[int, int] = field(default_factory=dict)
    """How many steps each file was kept before it was evicted."""
    fetched: int = 0
    """Number of files from the remote."""
    waits: int = 0
    """Steps that it has been waiting for the next node so far."""
    waited: int = 0
    """Steps that it has waited in total."""

    def __post_init__(self) -> None:
        self.position = Position(self.start, self.start, 0.0)

    def step(self, others: Sequence[SimulatedNode]) -> None:
        """Draw the next file from another node or the remote, unless a file that has to be evicted is awaited."""
        positions = {str(number): other.position for number, other in enumerate(others)}
        own = self.position
        self.steps += 1
        if len(self.kept) >= self.room:
            oldest = next(iter(self.kept))
            behind = follower(own, list(positions.values()))
            is_awaited = behind is not None and awaits(behind, oldest / self.files, own)
            self.waits = self.waits + 1 if is_awaited else 0
            if 0 < self.waits <= PATIENCE * self.files:
                self.waited += 1
                return
            self.shown_steps[oldest] = self.shown(oldest)
            del self.kept[oldest]
        file = self._file(self.drawn)
        asked = hosts(file / self.files, own.head, positions)
        self.fetched += not any(file in others[int(name)].kept for name in asked)
        self.kept[file] = self.steps
        self.drawn += 1
        self.position = Position(self.start, file / self.files, len(self.kept) / self.files)

    def shown(self, file: int) -> int:
        """How many steps a file has been kept."""
        return self.shown_steps.get(file, 0) + (self.steps - self.kept[file] if file in self.kept else 0)

    @property
    def unevenness(self) -> float:
        """The coefficient of variation of how long the files were shown; 0 if all equally long."""
        shown = [self.shown(file) for file in range(self.files)]
        return statistics.pstdev(shown) / statistics.fmean(shown)

    def _file(self, number: int) -> int:
        return (round(self.start * self.files) + number) % self.files


def walk(nodes: Sequence[SimulatedNode], passes: float, speeds: Sequence[int] | None = None) -> float:
    """Step until each node has drawn `passes`, `speeds` files a round; returns the remote's reads, in datasets."""
    files = nodes[0].files
    before = sum(node.fetched for node in nodes)
    ends = [node.drawn + round(passes * files) for node in nodes]
    others = [[other for other in nodes if other is not node] for node in nodes]
    while any(node.drawn < end for node, end in zip(nodes, ends, strict=True)):
        for node, its_others, speed in zip(nodes, others, speeds or [1] * len(nodes), strict=True):
            for _ in range(speed):
                node.step(its_others)
    return (sum(node.fetched for node in nodes) - before) / files


def cluster(count: int, share: float) -> list[SimulatedNode]:
    """Nodes that begin together. share: the part of the files that each can cache."""
    files = min(6400, max(FILES, math.ceil(8 / share)))  # each cache holds 8 if so many suffice
    room = max(1, round(share * files))
    return [SimulatedNode(first_place(rank, count, share, []), room, files) for rank in range(count)]


@dataclass(frozen=True, slots=True)
class NodesResult:
    """The bytes that all nodes together read in a pass: the first one, and each later one."""

    nodes: int
    first_remote_bytes: int
    first_peer_bytes: int
    later_remote_bytes: int
    later_peer_bytes: int
    first_alone_bytes: int
    """Bytes that they read from the remote without --peers."""
    later_alone_bytes: int
    unevenness: float
    """The unevenness of the most uneven node, after two passes."""
    all_seen_days: float | None
    """Until each node has seen 99% of the data; None if never."""


def simulate_nodes(count: int, data_bytes: int, cache_bytes: int, all_seen_days: float | None) -> NodesResult:
    """Simulate two passes of nodes with such a cache each. all_seen_days: of a single node."""
    modelled = min(count, MODEL_NODES)
    nodes = cluster(modelled, min(1.0, cache_bytes / data_bytes * count / modelled))
    first, later = (round(walk(nodes, 1) * data_bytes) for _ in range(2))
    drawn = count * data_bytes
    keeps_all = cache_bytes >= data_bytes  # then there is no second pass
    return NodesResult(
        nodes=count,
        first_remote_bytes=first,
        first_peer_bytes=drawn - first,
        later_remote_bytes=0 if keeps_all else later,
        later_peer_bytes=0 if keeps_all else drawn - later,
        first_alone_bytes=drawn,
        later_alone_bytes=0 if keeps_all else drawn,
        unevenness=max(node.unevenness for node in nodes),
        all_seen_days=all_seen_days,
    )
