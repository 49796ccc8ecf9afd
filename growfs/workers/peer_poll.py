"""Finds out where the other nodes are, by short requests."""

from __future__ import annotations

import http.client
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from growfs.remote.peer_client import POSITION, authorization
from growfs.rotation.circle import Position, distance
from growfs.workers.messages import PeersSeen

TIMEOUT_S = 1.0
NEAR = 8
"""Nodes before and behind this one that are polled each time."""
OTHERS = 24
"""Of all others, so many each time."""
THREADS = 8
REPLY_BYTES_MAX = 10_000


class PeerPoll:
    """Remembers where the other nodes were. node: the name of this one, which may be among the addresses too."""

    def __init__(self, node: str, token: str) -> None:
        self._node = node
        self._headers = {"Authorization": authorization(token)}
        self._pool = ThreadPoolExecutor(THREADS)
        self._seen = PeersSeen(None, {}, {}, ())
        self._next = 0

    def look(self, peers: Sequence[str], position: Position | None) -> PeersSeen:
        """Ask some of these nodes where they are, the nearest ones each time. position: where this one is. Blocks."""
        own, seen, failed = self._seen.own, dict(self._seen.positions), dict(self._seen.failed)
        due = self._due([peer for peer in peers if peer != own], position)
        for peer, reply in zip(due, self._pool.map(self._ask, due), strict=True):
            seen.pop(peer, None)
            failed.pop(peer, None)
            if isinstance(reply, str):
                failed[peer] = reply
            elif reply[0] == self._node:
                own = peer
            else:
                seen[peer] = reply[1]
        self._seen = PeersSeen(
            own,
            {peer: seen[peer] for peer in peers if peer in seen},
            {peer: failed[peer] for peer in peers if peer in failed},
            tuple(peers),
        )
        return self._seen

    def _due(self, peers: Sequence[str], position: Position | None) -> list[str]:
        near: list[str] = []
        if position:
            known = [(distance(seen.head, position.head), peer) for peer, seen in self._seen.positions.items() if seen]
            in_order = [peer for _, peer in sorted(known)]
            near = [*in_order[:NEAR], *in_order[-NEAR:]]
        others = [*peers[self._next :], *peers[: self._next]][:OTHERS]
        self._next = (self._next + OTHERS) % len(peers) if len(peers) > OTHERS else 0
        return [peer for peer in dict.fromkeys([*near, *others]) if peer in peers]

    def _ask(self, peer: str) -> tuple[str, Position | None] | str:
        """(the name of the node at an address, where it is), or why that is not known."""
        connection = http.client.HTTPConnection(peer, timeout=TIMEOUT_S)
        try:
            connection.request("GET", POSITION, headers=self._headers)
            response = connection.getresponse()
            if response.status == http.HTTPStatus.FORBIDDEN:
                return "its --peer-token-file has another token; write the same one on all nodes"
            reply = json.loads(response.read(REPLY_BYTES_MAX))
            at = reply["position"]
            return reply["node"], at and Position(*(float(at[name]) for name in ("start", "head", "span")))
        except OSError as error:
            return error.strerror or str(error)
        except (http.client.HTTPException, ValueError, TypeError, LookupError):
            return "what is there is no node of growfs, or of another version"
        finally:
            connection.close()
