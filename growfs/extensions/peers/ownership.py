"""Which node fetches a file from the remote, if all nodes fetch the same files at about the same time. Pure."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from growfs.remote.groups import group_of
from growfs.rotation.pass_order import SHARES, draw_key, share_number

OWNED_SHARES = 1 << 14
"""The files are divided into this many shares, each of which a node owns. With 32 nodes, that is 512 for each, give or
take 4%."""

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
