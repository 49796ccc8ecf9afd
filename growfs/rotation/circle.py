"""Where each node is, where nodes feed one another (`--peers`). Pure.

The files are on a circle, at the hash of their paths: a place is a fraction of it, from 0 to 1. Each node walks around
it in each pass, and all of them in the same direction, one behind the other. So a node draws what the node before it
has drawn and still has, and after one pass has drawn everything. The remote is read by a node that has none close
before it: once for each pass of all nodes together where their caches do not reach around the circle, else once.

Nobody deals the files out: where a node joins or leaves, no file belongs to another one than before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

CLOSE = 0.8
"""A node begins behind another by so much of what its cache holds at most: both are not always equally fast."""
SLACK = 1.1
"""Files are evicted nearly in the order in which they were drawn."""
HOLDERS_MAX = 2
"""Nodes of which a file is requested before the remote is read."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where a node is. start: where its passes begin. head: the last file that it drew and has. span: how far back
    from there its cache reaches; all of them fractions of the circle.
    """

    start: float
    head: float
    span: float

    def may_have(self, place: float) -> bool:
        """Whether the node may have the file at a place in its cache."""
        return distance(place, self.head) <= self.span * SLACK

    @property
    def has_all_since_start(self) -> bool:
        """Whether the node has evicted nothing that it drew in its first pass."""
        return distance(self.start, self.head) <= self.span * SLACK


def distance(behind: float, before: float) -> float:
    """How far a node at `behind` has to go to be at `before`."""
    return (before - behind) % 1.0


def first_place(rank: int, count: int, span: float, others: Sequence[Position]) -> float:
    """Where a node begins that is new. rank: its number among `count` nodes. span: the share of the files that its
    cache can hold.

    Nodes that begin together begin at equal distances: all around the circle if their caches reach around it, else one
    close behind the other. One that joins others later begins behind one of them, in the widest gap.
    """
    spacing = 1 / count if count * span > 1 else CLOSE * span
    if all(other.has_all_since_start for other in others):
        return rank * spacing
    heads = sorted(other.head for other in others)
    gaps = [
        (distance(behind, before) or 1.0, before) for behind, before in zip(heads, heads[1:] + heads[:1], strict=True)
    ]
    gap, before = max(gaps)
    return (before - min(gap / 2, CLOSE * span)) % 1.0


def holders(place: float, head: float, others: Mapping[str, Position], most: int) -> list[str]:
    """Up to `most` nodes that may have the file at a place: first the one that drew it last, and keeps it longest.

    head: of this node. Where the others were may be a second old: one that was before this node has gone on.
    """
    last: dict[str, float] = {}
    for name, other in others.items():
        if other.may_have(place):
            last[name] = distance(place, other.head)
        elif distance(head, other.head) < distance(head, place):
            last[name] = 0.0
    return sorted(last, key=last.__getitem__)[:most]


def follower(own: Position, others: Sequence[Position]) -> Position | None:
    """The node that comes next to where this one is, and gets files from it.

    None for the first in a row of nodes whose caches together do not reach around the circle: the last one is the next
    to come there, and comes too late.
    """
    if not others:
        return None
    heads = sorted([own.head, *(other.head for other in others)])
    gap = min(distance(other.head, own.head) for other in others)
    widest = max(distance(behind, before) for behind, before in zip(heads, heads[1:] + heads[:1], strict=True))
    if gap == widest and own.span + sum(other.span for other in others) < 1.0:
        return None
    return min(others, key=lambda other: distance(other.head, own.head))


def awaits(behind: Position, place: float, own: Position) -> bool:
    """Whether the node behind this one may still draw the file at a place from it."""
    return 0.0 < distance(behind.head, place) < min(own.span, distance(behind.head, own.head))
