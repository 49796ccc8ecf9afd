"""`translate` turns the exceptions of client libraries into growfs's own errors.

The libraries have no common base class. So an exception is classified by its HTTP status, its error code and the names
of its classes (which need no import), along the chain of its causes; never by its text. Exceptions of a single store's
library are described in that store (growfs/remote/stores).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from growfs.errors import (
    CredentialsRefused,
    GrowfsError,
    RemoteBusy,
    RemoteChanged,
    RemoteDenied,
    RemoteError,
    RemoteMissing,
    RemoteThrottled,
    UsageError,
)
from growfs.remote.names import redact

if TYPE_CHECKING:
    from growfs.remote.stores.base import StoreRemote

_BUSY = frozenset(
    {"ConnectionError", "TimeoutError", "timeout", "gaierror", "IncompleteRead"}  # Python, botocore, asyncio, requests
    | {"ConnectionFailed"}  # http/connection.py
    | {"ClientConnectionError", "ClientPayloadError"}  # aiohttp
    | {"TransportError"}  # httpx, google-auth
)
_NOT_THERE = frozenset({"FileNotFoundError", "NotADirectoryError", "IsADirectoryError"})
_PROXY = frozenset(
    {"ProxyFailed"}  # http/connection.py
    | {"ClientHttpProxyError", "ClientProxyConnectionError", "ProxyConnectionError"}  # aiohttp, botocore
    | {"ProxyError"}  # requests, httpx
)
_CERTIFICATE = frozenset({"SSLCertVerificationError", "ClientConnectorCertificateError"})


def secrets_in(options: Any, public: Collection[str] = (), key: str = "") -> Iterator[str]:
    """Every string in the storage options that may be a secret: all except those of public keys."""
    if isinstance(options, dict):
        for name, value in options.items():
            yield from secrets_in(value, public, str(name))
    elif isinstance(options, (list, tuple)):
        for value in options:
            yield from secrets_in(value, public, key)
    elif isinstance(options, str) and (key not in public or "@" in options):  # a URL with a password
        yield options


def userinfo(url: str) -> list[str]:
    """The secrets in the URL's user:password@ part. Without a password, the user name is a token."""
    found = re.match(r"(?:http|https|ftp|sftp|ssh|smb|webdav)://([^/?#]*)@", url, re.IGNORECASE)
    return [found[1].split(":", 1)[-1], found[1]] if found else []


class Problem:
    """An exception of a client library, read along the chain of its causes.

    chain: the exception and its causes. where: the URL concerned. words: the names of all classes, and all error codes.
    status: of HTTP, or 0. detail: the library's message. No text here contains a secret.
    """

    def __init__(self, error: BaseException, where: str, store: StoreRemote) -> None:
        chain = list(_causes(error))
        self.error, self.chain = error, chain
        self.where = store.clean(where)
        self.words = {base.__name__ for link in chain for base in type(link).__mro__}
        self.words |= {code for link in chain if (code := store.code_of(link))}
        self.status = next((status for link in chain if (status := store.status_of(link))), 0)
        texts = (
            store.text_of(link).strip() for link in chain if not isinstance(link, FileNotFoundError)
        )  # only a name
        self.detail = store.clean(next(filter(None, texts), type(error).__name__))
        self._store = store

    def is_busy(self, link: BaseException) -> bool:
        """Whether a link of the chain, without its causes, shows that a server is busy or cannot be reached."""
        words = {base.__name__ for base in type(link).__mro__} | {self._store.code_of(link)}
        status = self._store.status_of(link)
        return is_busy(status) or bool(words & (self._store.busy_codes | self._store.unreachable | _BUSY))

    def denied(self, what: str, advice: str = "", kind: type[RemoteDenied] = RemoteDenied) -> RemoteDenied:
        """The error for a refusal by the store. what: the reason. advice: if not to give other credentials."""
        found = self._store.known_credentials()
        found = found and f"; credentials: {self._store.clean(found)}"
        return kind(f"{self.where}: {what}{found}; {advice or self._store.login_advice()}")

    def without_credentials(self, why: str = "") -> RemoteDenied:
        """The error for missing credentials. why: the library's message, if it is more specific."""
        return RemoteDenied(f"{self.where}: no credentials found{why and f' ({why})'}; {self._store.login}")


def translate(error: BaseException, where: str, store: StoreRemote) -> GrowfsError:
    """The GrowfsError that describes what happened, with which URL (`where`), and what to do."""
    if isinstance(error, GrowfsError):
        return error
    problem = Problem(error, where, store)
    if own := store.own_error(problem):
        return own
    if problem.words & store.no_credentials:
        return problem.without_credentials(problem.detail)
    if problem.words & store.wrong_credentials:
        return problem.denied(f"the credentials are wrong or have expired ({problem.detail})", kind=CredentialsRefused)
    return _common_error(problem, store)


def _common_error(problem: Problem, store: StoreRemote) -> GrowfsError:
    where, words, status, detail = problem.where, problem.words, problem.status, problem.detail
    if words & _CERTIFICATE:
        why = next(filter(None, (getattr(link, "verify_message", "") for link in problem.chain)), detail)
        return RemoteError(
            f"{where}: the server's certificate is not trusted ({why}); check {store.server_option};"
            f" for your own server, set {store.ca_variable} to its certificate file"
        )
    if words & _PROXY or status == 407:
        lasts = 400 <= status < 500 and not is_busy(status)
        return (RemoteDenied if lasts else RemoteBusy)(
            f"{where}: cannot be reached through the proxy ({detail}); check HTTPS_PROXY and HTTP_PROXY"
            " (http://user:password@host:port), or name the host in NO_PROXY"
        )
    if is_busy(status) or words & store.busy_codes:
        kind = RemoteThrottled if status in (429, 503) else RemoteBusy
        busy = kind(f"{where}: the server is busy or failing ({status or ''} {detail}); try again later")
        busy.retry_after_s = max((getattr(link, "retry_after_s", 0.0) for link in problem.chain), default=0.0)
        return busy
    if status in (401, 403):
        return problem.denied(f"access denied ({status}: {detail})", f"check its permissions; {store.login_advice()}")
    if status in (404, 410):
        return RemoteMissing(f"{where}: no such file or folder; check the URL")
    if status == 412:
        return RemoteChanged(f"{where}: is no longer the version that was listed; list again")
    if "ChecksumMismatch" in words:
        return RemoteBusy(f"{where}: damaged in transit: {detail}; try again, and check the network and the disk")
    if words & (_BUSY | store.unreachable):
        return RemoteBusy(f"{where}: cannot reach the server ({detail}); check the network and {store.server_option}")
    if words & ({"PermissionError"} | store.refused):
        return problem.denied(f"access denied ({detail})")
    if words & _NOT_THERE:
        return RemoteMissing(f"{where}: no such file or folder; check the URL")
    if isinstance(problem.error, ImportError):
        return UsageError(f"{where}: {detail}")
    return RemoteError(f"{where}: {type(problem.error).__name__}: {detail}; check the URL and the options")


def is_busy(status: int) -> bool:
    """Whether an HTTP status says that the same request may succeed later."""
    return status in (408, 425, 429) or (status >= 500 and status != 501)


def status_of(error: BaseException) -> int:
    """The HTTP status in a client library's exception, from one of four places; 0 if there is none."""
    response = getattr(error, "response", None)
    for holder, name in ((error, "status"), (error, "status_code"), (response, "status_code"), (error, "code")):
        value = str(getattr(holder, name, ""))  # one by one: reading `code` makes aiohttp warn
        if value.isdecimal():
            return int(value) if 300 <= int(value) <= 599 else 0
    return 0


def clean(text: str, secrets: Collection[str]) -> str:
    """The text as one line, without secrets."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, "***")
    text = " ".join(redact(text).split())
    return text if len(text) <= 200 else f"{text[:200]}..."


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        hides = error.__suppress_context__ and type(error).__module__ != "httpcore"  # its pool hides all causes
        error = error.__cause__ or (None if hides else error.__context__)
