"""Nodes that feed one another (`--peers`), walking around the circle in steps: one file of one node each."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from growfs.rotation.circle import Position, awaits, first_place, follower, holders

FILES = 400
PATIENCE = 200
"""Steps that a node waits at most."""
HOLDERS_MAX = 2
MODEL_NODES = 8
"""More nodes are simulated as so many, whose caches together hold as much."""


@dataclass
class Node:
    """A node that draws FILES files around the circle, one each step, and keeps `room` of them.

    fetched: files from the remote. waits, waited: steps that it waited for the next node, just now and in all.
    """

    start: float
    room: int
    drawn: int = 0
    kept: deque[int] = field(default_factory=deque)
    fetched: int = 0
    waits: int = 0
    waited: int = 0

    @property
    def position(self) -> Position:
        """Where it is."""
        head = (round(self.start * FILES) + self.drawn - 1) % FILES / FILES if self.drawn else self.start
        return Position(self.start, head, len(self.kept) / FILES)

    def step(self, others: Sequence[Node]) -> None:
        """Draw the next file from another node, or the remote, unless what has to go for it is awaited."""
        positions = {str(number): other.position for number, other in enumerate(others)}
        own = self.position
        if len(self.kept) >= self.room:
            behind = follower(own, list(positions.values()))
            is_awaited = behind is not None and awaits(behind, self.kept[0] / FILES, own)
            self.waits = self.waits + 1 if is_awaited else 0
            if 0 < self.waits <= PATIENCE:
                self.waited += 1
                return
            self.kept.popleft()
        file = (round(self.start * FILES) + self.drawn) % FILES
        having = holders(file / FILES, own.head, positions, HOLDERS_MAX)
        self.fetched += not any(file in others[int(name)].kept for name in having)
        self.kept.append(file)
        self.drawn += 1


def walk(nodes: Sequence[Node], files: int, speeds: Sequence[int] | None = None) -> float:
    """Go on until each node drew so many files, by `speeds` each round; how often the remote was read meanwhile."""
    before = sum(node.fetched for node in nodes)
    ends = [node.drawn + files for node in nodes]
    while any(node.drawn < end for node, end in zip(nodes, ends, strict=True)):
        for node, speed in zip(nodes, speeds or [1] * len(nodes), strict=True):
            for _ in range(speed):
                node.step([other for other in nodes if other is not node])
    return (sum(node.fetched for node in nodes) - before) / FILES


def cluster(count: int, share: float) -> list[Node]:
    """Nodes that begin together. share: of the files that each can cache."""
    return [Node(first_place(rank, count, share, []), max(1, round(share * FILES))) for rank in range(count)]


@dataclass(frozen=True, slots=True)
class NodesResult:
    """What nodes read in a pass, all of them together, in bytes: the first pass, and each later one.

    alone_bytes: what they read of the remote without --peers. all_seen_days: until each has seen 99% of the data; None:
    never.
    """

    nodes: int
    first_remote_bytes: int
    first_peer_bytes: int
    later_remote_bytes: int
    later_peer_bytes: int
    first_alone_bytes: int
    later_alone_bytes: int
    all_seen_days: float | None


def simulate_nodes(count: int, data_bytes: int, cache_bytes: int, all_seen_days: float | None) -> NodesResult:
    """Simulate two passes of nodes with such a cache each. all_seen_days: of one of them."""
    modelled = min(count, MODEL_NODES)
    share = min(1.0, cache_bytes / data_bytes * count / modelled)
    nodes = cluster(modelled, share)
    first, later = (round(walk(nodes, FILES) * data_bytes) for _ in range(2))
    drawn = count * data_bytes
    keeps_all = cache_bytes >= data_bytes  # there is no second pass
    return NodesResult(
        nodes=count,
        first_remote_bytes=first,
        first_peer_bytes=drawn - first,
        later_remote_bytes=0 if keeps_all else later,
        later_peer_bytes=0 if keeps_all else drawn - later,
        first_alone_bytes=drawn,
        later_alone_bytes=0 if keeps_all else drawn,
        all_seen_days=all_seen_days,
    )
