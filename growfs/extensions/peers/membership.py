"""The addresses of the nodes (`--peers`), given directly or by DNS names, and their positions, by short requests."""

from __future__ import annotations

import http.client
import json
import logging
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

from growfs.extensions.peers.client import POSITION, authorization
from growfs.extensions.peers.messages import PeersSeen
from growfs.remote.names import DNS_SCHEME, join_address
from growfs.rotation.circle import Position, distance

LOOK_UP_S = 5.0
"""How often a name is looked up."""
FIRST_S = 3.0
"""How long to wait for the addresses of a new name."""
TIMEOUT_S = 1.0
NEAR = 8
"""Nodes before and behind this one that are polled each time."""
OTHERS = 24
"""The number of other nodes that are polled each time."""

log = logging.getLogger(__name__)


class Members:
    """The nodes of several sources. port: for names without one. family: of the address at which this node serves."""

    def __init__(self, port: int, family: int) -> None:
        self._port, self._family = port, family
        self._names: dict[str, DnsName] = {}

    def addresses(self, sources: Sequence[str]) -> tuple[str, ...]:
        """The addresses of all nodes, each as HOST:PORT. sources: each is HOST, HOST:PORT, or the URL of a name.

        May block for FIRST_S if a name is new.
        """
        for url in set(self._names) - set(sources):
            self._names.pop(url).close()
        return tuple(dict.fromkeys(address for source in sources for address in self._addresses(source)))

    def _addresses(self, source: str) -> Sequence[str]:
        if not source.startswith(DNS_SCHEME):
            return (source if ":" in source else join_address(source, self._port),)
        if source not in self._names:
            self._names[source] = DnsName(source, self._port, self._family)
        return self._names[source].addresses()


class DnsName:
    """The addresses of a name. A thread looks them up; if that fails, the last ones stay."""

    def __init__(self, url: str, port: int, family: int) -> None:
        parts = urlsplit(url)
        self._host, self._port, self._family = parts.hostname or "", parts.port or port, family
        self._found: tuple[str, ...] = ()
        self._waited = False
        self._tried, self._closed = threading.Event(), threading.Event()
        threading.Thread(target=self._follow, daemon=True).start()

    def addresses(self) -> Sequence[str]:
        """The addresses found last; empty before the first successful look-up."""
        if not self._waited:
            self._waited = True
            self._tried.wait(FIRST_S)
        return self._found

    def close(self) -> None:
        """Stop looking up the name."""
        self._closed.set()

    def _follow(self) -> None:
        fails = False
        while True:
            try:
                ips = ip_addresses(self._host, self._port, self._family)
            except (OSError, UnicodeError) as error:
                if not fails:
                    why = getattr(error, "strerror", None) or str(error)
                    log.warning("--peers: %s cannot be looked up: %s; keeping the last list", self._host, why)
                fails = True
            else:
                self._found = tuple(join_address(ip, self._port) for ip in sorted(set(ips)))
                fails = False
            self._tried.set()
            if self._closed.wait(LOOK_UP_S):
                return


def ip_addresses(host: str, port: int, family: int) -> list[str]:
    """The addresses of a name in one family: a node that has two would count twice. Raises OSError.

    For IPv6, a name with only IPv4 addresses yields those in the form ::ffff:192.0.2.1.
    """
    found = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, flags=socket.AI_V4MAPPED)
    return [str(address[0]) for *_, address in found]


class PeerPoll:
    """Remembers the positions of the other nodes. node: the name of this one, whose address may be among the others."""

    def __init__(self, node: str, token: str) -> None:
        self._node = node
        self._headers = {"Authorization": authorization(token)}
        self._pool = ThreadPoolExecutor(32)
        self._seen = PeersSeen(None, {}, {}, ())
        self._next = 0

    def look(self, peers: Sequence[str], position: Position | None) -> PeersSeen:
        """Ask some of these nodes for their positions, always the nearest ones. position: of this node. Blocks."""
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
        most = OTHERS if self._seen.peers else len(peers)  # at first all of them, because this node is among them
        others = [*peers[self._next :], *peers[: self._next]][:most]
        self._next = (self._next + OTHERS) % len(peers) if len(peers) > OTHERS else 0
        return [peer for peer in dict.fromkeys([*near, *others]) if peer in peers]

    def _ask(self, peer: str) -> tuple[str, Position | None] | str:
        """(name of the node at an address, its position), or the reason why that is not known."""
        connection = http.client.HTTPConnection(peer, timeout=TIMEOUT_S)
        try:
            connection.request("GET", POSITION, headers=self._headers)
            response = connection.getresponse()
            if response.status == http.HTTPStatus.FORBIDDEN:
                return "its --peer-token-file contains another token; use the same one on all nodes"
            reply = json.loads(response.read(10_000))
            at = reply["position"]
            return reply["node"], at and Position(*(float(at[name]) for name in ("start", "head", "span")))
        except OSError as error:
            return error.strerror or str(error)
        except (http.client.HTTPException, ValueError, TypeError, LookupError):
            return "it is not a growfs node, or runs another version"
        finally:
            connection.close()
