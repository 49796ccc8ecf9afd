"""Who the nodes are (`--peers`): addresses, and names of which DNS has the addresses (dns://NAME, dns://NAME:PORT)."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Protocol
from urllib.parse import urlsplit

from growfs.remote.names import DNS_SCHEME, join_address

LOOK_UP_S = 5.0
"""How often a name is looked up."""
FIRST_S = 3.0
"""How long the addresses of a name that is new are waited for."""

log = logging.getLogger(__name__)

LookUp = Callable[[str, int], Sequence[str]]
"""The IP addresses of a name, for a port. Raises OSError."""


class Source(Protocol):
    """Where addresses of nodes come from."""

    def addresses(self) -> Sequence[str]:
        """Of the nodes that there are now, HOST:PORT each. May block for FIRST_S at first, and never later."""

    def close(self) -> None:
        """The addresses are needed no more."""


class Members:
    """The nodes of several sources. port: of names without one."""

    def __init__(self, port: int, look_up: LookUp | None = None) -> None:
        self._port = port
        self._look_up = look_up or ip_addresses
        self._sources: dict[str, Source] = {}

    def addresses(self, sources: Sequence[str]) -> tuple[str, ...]:
        """The addresses of all nodes, HOST:PORT each. sources: HOST, HOST:PORT, or the URL of a name, each."""
        for url in set(self._sources) - set(sources):
            self._sources.pop(url).close()
        for source in sources:
            if source not in self._sources:
                self._sources[source] = self._source(source)
        return tuple(dict.fromkeys(address for source in sources for address in self._sources[source].addresses()))

    def _source(self, text: str) -> Source:
        if text.startswith(DNS_SCHEME):
            return DnsName(text, self._port, self._look_up)
        return OneAddress(text if ":" in text else join_address(text, self._port))


class OneAddress:
    """A node that is named by its address."""

    def __init__(self, address: str) -> None:
        self._address = (address,)

    def addresses(self) -> Sequence[str]:
        """The address."""
        return self._address

    def close(self) -> None:
        """There is nothing to end."""


class DnsName:
    """The addresses of a name, all A and AAAA records. A thread looks them up; where it fails, the last ones stay."""

    def __init__(self, url: str, port: int, look_up: LookUp) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or port
        self._look_up = look_up
        self._found: tuple[str, ...] = ()
        self._waited = False
        self._tried, self._closed = threading.Event(), threading.Event()
        threading.Thread(target=self._follow, daemon=True).start()

    def addresses(self) -> Sequence[str]:
        """The addresses that were found last; none before the first look-up succeeded."""
        if not self._waited:
            self._waited = True
            self._tried.wait(FIRST_S)
        return self._found

    def close(self) -> None:
        """Look up no more."""
        self._closed.set()

    def _follow(self) -> None:
        fails = False
        while True:
            try:
                ips = self._look_up(self._host, self._port)
            except (OSError, UnicodeError) as error:
                if not fails:
                    why = getattr(error, "strerror", None) or str(error)
                    log.warning("--peers: %s cannot be looked up: %s; the last list stays", self._host, why)
                fails = True
            else:
                self._found = tuple(join_address(ip, self._port) for ip in sorted(set(ips)))
                fails = False
            self._tried.set()
            if self._closed.wait(LOOK_UP_S):
                return


def ip_addresses(host: str, port: int) -> list[str]:
    """All addresses of a name. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]
