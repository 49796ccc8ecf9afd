"""What --peers adds to a mount: files come from other nodes, too."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

from growfs.daemon.wiring import Wiring
from growfs.errors import UsageError
from growfs.extensions.peers.ownership import owner
from growfs.extensions.peers.peers import Peers


def read_token(path: Path) -> str:
    """The text that peers send to each other, from a file. Raises UsageError if it cannot be read, or is empty."""
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(
            f"--peer-token-file {path}: {why}; put the same secret in it on all nodes, on one line"
        ) from None
    if not token.isascii() or not token.isprintable() or not token:
        raise UsageError(f"--peer-token-file {path}: must contain one line of ASCII text, the same on all nodes")
    return token


class PeersFeature:
    """See wiring.Feature."""

    def __init__(self, mount: Wiring) -> None:
        options, first = mount.options, mount.first
        assert options.peers
        assert options.peer_addr
        assert options.peer_token_file
        token = read_token(options.peer_token_file)
        # With --exact, all nodes fetch the same part.
        owns = partial(owner, first.seed, first.group) if options.exact else None
        self._mount = mount
        self._peers = peers = Peers(
            options.peers, options.peer_addr, token, options.peer_bandwidth,
            mount.workers, mount.database, mount.catalog, mount.store, first.place, owns,
        )  # fmt: skip
        mount.other_source = peers

    def connect(self) -> None:
        """See wiring.Feature."""
        mount, peers = self._mount, self._peers
        mount.prefetcher.ordered.connect(peers.note_order)
        mount.drawer.found_room.connect(peers.note_room)
        mount.drawer.drawn.connect(peers.note_drawn)
        mount.services.append(peers)
        mount.sections["peers"] = peers.status
        mount.setters["peers"] = peers.set_sources
        mount.commands.append(self.accepts)

    async def accepts(self, token: str) -> AsyncIterator[Any]:
        """Return whether this node serves those who have a token."""
        yield {"accepts": self._peers.accepts(token)}
