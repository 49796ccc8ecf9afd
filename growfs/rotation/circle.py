"""The positions of nodes that feed each other (`--peers`). Pure functions.

The files lie on a circle, at the hash of their paths: a place is a fraction of it, from 0 to 1. In each pass, each node
walks around the circle. All nodes walk in the same direction, one behind the other, so a node draws files that the node
ahead has drawn and still has. After one pass it has drawn everything. A node with no other close ahead reads from the
remote. Each file is read from the remote once in total if the caches together reach around the circle, otherwise once
in each pass of all nodes together.

Files are not assigned to nodes, so nothing has to be reassigned when a node joins or leaves. If all nodes need the same
files at about the same time, each file has an owner instead, which alone reads it from the remote.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from growfs.remote.groups import group_of
from growfs.rotation.pass_order import SHARES, draw_key, share_number

CLOSE = 0.8
"""A node begins at most this fraction of its cache's span behind another: their speeds vary."""
SLACK = 1.1
"""Tolerance for files that are evicted only nearly in the order in which they were drawn."""
OWNED_SHARES = 1 << 14
"""The files are divided into this many shares, each of which a node owns. With 32 nodes, that is 512 for each, give or
take 4%."""


class Position(NamedTuple):
    """The position of a node. start: where its passes begin. head: the last file that it drew and has. span: how far
    back from there its cache reaches. All are fractions of the circle.
    """

    start: float
    head: float
    span: float


def distance(behind: float, before: float) -> float:
    """How far a node at `behind` has to go to reach `before`."""
    return (before - behind) % 1.0


def first_place(rank: int, count: int, span: float, others: Sequence[Position]) -> float:
    """Where a new node begins.

    rank: its number among `count` nodes. span: the share of the files that its cache can hold.

    Nodes that begin together begin at equal distances: all around the circle if their caches reach around it, otherwise
    one close behind the other. A node joins later if one of the others has gone further than its cache can reach back.
    It then begins behind one of them, in the widest gap. (What a node has at the moment says less, because files arrive
    out of order.)
    """
    spacing = 1 / count if count * span > 1 else CLOSE * span
    if all(distance(other.start, other.head) <= SLACK * max(span, other.span) for other in others):
        return rank * spacing
    heads = sorted(other.head for other in others)
    gaps = [
        (distance(behind, before) or 1.0, before) for behind, before in zip(heads, heads[1:] + heads[:1], strict=True)
    ]
    gap, before = max(gaps)
    return (before - min(gap / 2, CLOSE * span)) % 1.0


def hosts(place: float, head: float, others: Mapping[str, Position]) -> list[str]:
    """The nodes that are asked for the file at a place before the remote is read. The last one to draw it, which keeps
    it longest, comes first.

    head: of this node. The others' positions may be a second old: a node that was just ahead of this one has moved on.
    """
    last: dict[str, float] = {}
    for name, other in others.items():
        if distance(place, other.head) <= other.span * SLACK:
            last[name] = distance(place, other.head)
        elif distance(head, other.head) < distance(head, place):
            last[name] = 0.0
    return sorted(last, key=last.__getitem__)[:2]  # each that does not have it delays the file


def follower(own: Position, others: Sequence[Position]) -> Position | None:
    """The node that reaches this one's position next, and gets files from it.

    None for the first in a row of nodes whose caches together do not reach around the circle: the last one is the next
    to arrive, and arrives too late.
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


# Owners.

Owner = Callable[[str, tuple[str, ...]], str]
"""The name of the node that owns a file, by its path and the names of all nodes."""


def owner(seed: int, group: str | None, path: str, names: tuple[str, ...]) -> str:
    """Which of these nodes fetches a file from the remote, and the others from that node.

    If a node joins or leaves, only its own files change hands: each share goes to the node with the highest hash
    (rendezvous hashing).
    """
    return _owner(share_number(seed, OWNED_SHARES, group_of(group, path)), names)


@lru_cache(OWNED_SHARES)
def _owner(share: int, names: tuple[str, ...]) -> str:
    return max(names, key=lambda name: draw_key(share, SHARES, name))


def is_own(owner: Owner, names: tuple[str, ...], name: str, path: str) -> bool:
    """Whether the node with this name owns a file. names: of all nodes."""
    return owner(path, names) == name
