"""What --peers adds to a mount: files come from other nodes, too."""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from growfs.daemon.option_parsers import listening
from growfs.daemon.options import MountRequest
from growfs.daemon.wiring import Feature, Wiring
from growfs.errors import UsageError
from growfs.extensions.peers.messages import Token
from growfs.extensions.peers.options import PeersOptions
from growfs.extensions.peers.peers import Peers
from growfs.rotation.circle import owner


class PeersFeature(Feature):
    """See Feature."""

    def __init__(self, mount: Wiring) -> None:
        """See Feature. The port is only tried: a worker does the listening."""
        super().__init__(mount)
        address = mount.options.of(PeersOptions).peer_addr
        assert address
        listening("--peer-addr", *address).close()

    @staticmethod
    def check(request: MountRequest) -> None:
        """See Feature."""
        _token(request.options.of(PeersOptions))

    def build(self) -> None:
        """See Feature."""
        mount, first, options = self.mount, self.mount.first, self.mount.options.of(PeersOptions)
        assert options.peers
        assert options.peer_addr
        self._token = _token(options)
        mount.other_source = self._peers = Peers(
            options.peers, options.peer_addr, self._token, options.peer_bandwidth,
            mount.workers, mount.database, mount.catalog, mount.store, first.place,
            # With --exact, all nodes fetch the same part.
            partial(owner, first.seed, first.group) if mount.options.by_name().get("exact") else None,
        )  # fmt: skip

    def connect(self) -> None:
        """See Feature."""
        mount, peers = self.mount, self._peers
        mount.prefetcher.ordered.connect(peers.note_order)
        mount.drawer.found_room.connect(peers.note_room)
        mount.drawer.drawn.connect(peers.note_drawn)
        mount.services.append(peers)
        mount.sections["peers"] = peers.status
        mount.setters["peers"] = peers.set_sources
        mount.commands.append(self.accepts)

    async def accepts(self, token: str) -> AsyncIterator[Any]:
        """Return whether a token is that of this node."""
        yield {"accepts": hmac.compare_digest(token.encode(), self._token.encode())}


def _token(options: PeersOptions) -> Token:
    """The secret that all nodes send. Raises UsageError if its file cannot be read, or is empty."""
    path = options.peer_token_file
    assert path
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(
            f"--peer-token-file {path}: {why}; put the same secret in it on all nodes, on one line"
        ) from None
    if not token.isascii() or not token.isprintable() or not token:
        raise UsageError(f"--peer-token-file {path}: must contain one line of ASCII text, the same on all nodes")
    return Token(token)
