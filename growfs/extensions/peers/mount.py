"""What --peers adds to a mount: files come from other nodes, too."""

from __future__ import annotations

from functools import partial

from growfs.daemon.wiring import Wiring
from growfs.extensions.peers.ownership import owner
from growfs.extensions.peers.peers import Peers, PeerSettings


class Feature:
    """See wiring.Feature."""

    def __init__(self, mount: Wiring) -> None:
        options, first, token = mount.options, mount.first, mount.spec.peer_token
        assert options.peers
        assert options.peer_addr
        assert token
        settings = PeerSettings(options.peers, options.peer_addr, token, options.peer_bandwidth)
        # With --exact, all nodes fetch the same part.
        owns = partial(owner, first.seed, first.group) if options.exact else None
        self._mount = mount
        self._peers = peers = Peers(
            settings, mount.workers, mount.database, mount.catalog, mount.store, first.place, owns
        )
        mount.locate, mount.find_owned = peers.locate, peers.find_owned
        mount.sources, mount.are_awaited = peers.holders, peers.awaits

    def connect(self) -> None:
        """See wiring.Feature."""
        mount, peers = self._mount, self._peers
        mount.prefetcher.ordered.connect(peers.note_order)
        mount.drawer.found_room.connect(peers.note_room)
        mount.drawer.drawn.connect(peers.note_drawn)
        mount.services.append(peers)
        mount.sections["peers"] = peers.status
        mount.setters["peers"] = peers.set_sources
