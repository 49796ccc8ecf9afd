"""`proxy_for`: the proxy for a server, according to HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY.

For each variable, the lower-case name takes precedence, and NO_PROXY is interpreted as in urllib.
"""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from growfs.errors import UsageError
from growfs.remote.names import join_address


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy. Its text form has no password."""

    scheme: str
    host: str
    port: int
    url: str = field(repr=False)
    """With the user and password, if any."""
    authorization: str = field(repr=False)
    """The value of Proxy-Authorization; empty if the URL has no user."""

    @property
    def speaks_http(self) -> bool:
        """Whether it is reached without TLS, and is not a SOCKS proxy."""
        return self.scheme == "http"

    def __str__(self) -> str:
        return f"{self.scheme}://{join_address(self.host, self.port)}"


def proxy_for(url: str) -> Proxy | None:
    """The proxy for the server of a URL; None if it is reached directly.

    Raises UsageError if the environment has something other than the URL of a proxy.
    """
    server, proxies = urlsplit(url), getproxies()
    name = server.scheme if server.scheme in proxies else "all"
    if name not in proxies or proxy_bypass(server.netloc.rpartition("@")[2]):
        return None
    found = proxies[name] if "://" in proxies[name] else f"http://{proxies[name]}"
    try:
        address = urlsplit(found)
        host, port = address.hostname or "", address.port or 80
    except ValueError:
        host = ""
    if not host:
        raise UsageError(f"{name.upper()}_PROXY is not the URL of a proxy; use http://host:port")
    authorization = ""
    if address.username is not None:
        user = f"{unquote(address.username)}:{unquote(address.password or '')}"
        authorization = f"Basic {b64encode(user.encode()).decode()}"
    return Proxy(address.scheme, host, port, found, authorization)
