"""`translate` turns the exceptions of client libraries into growfs's own errors.

The libraries have no common base class. So an exception is classified by its HTTP status, its S3 error code and the
names of its classes (which need no import), along the chain of its causes; never by its text.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Collection, Iterator
from typing import Any

from growfs.errors import (
    BucketMissing,
    GrowfsError,
    RemoteBusy,
    RemoteChanged,
    RemoteDenied,
    RemoteError,
    RemoteMissing,
    UsageError,
)
from growfs.remote.names import redact

DETAIL_CHARS_MAX = 200
DISK_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})  # only of the local disk

_BUSY_STATUS = frozenset({408, 425, 429})
_BUSY = frozenset(
    {"ConnectionError", "TimeoutError", "timeout", "gaierror"}  # Python, botocore, asyncio, requests
    | {"ConnectionFailed"}  # http/connection.py
    | {"ClientConnectionError", "ClientPayloadError"}  # aiohttp
    | {"HTTPClientError", "IncompleteReadError", "IncompleteRead", "ResponseParserError", "FlexibleChecksumError"}
    | {"ServiceRequestError", "ServiceResponseError", "TransportError", "TransportFailure", "ChecksumError"}
)
_BUSY_CODES = frozenset(
    {"SlowDown", "RequestTimeout", "ServiceUnavailable", "InternalError", "Throttling", "ThrottlingException"}
    | {"RequestLimitExceeded", "OperationAborted", "BandwidthLimitExceeded"}
)
_NO_CREDENTIALS = frozenset(
    {"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "TokenRetrievalError"}
    | {"DefaultCredentialsError", "CredentialUnavailableError", "ProfileNotFound"}
)
_WRONG_KEYS = frozenset(
    {"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken"}  # of S3
    | {"AuthenticationFailed"}  # of Azure
)
_REFUSED = frozenset({"PermissionError", "RefreshError", "ClientAuthenticationError", "GatedRepoError"})
_NOT_THERE = frozenset({"FileNotFoundError", "NotADirectoryError", "IsADirectoryError"})
_CERTIFICATE = frozenset({"SSLCertVerificationError", "ClientConnectorCertificateError"})

_NO_SECRETS = frozenset({"endpoint_url", "endpoint", "base_url", "region_name", "project", "profile"})

LOGIN = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, run 'aws configure', or pass --anon for a public bucket",
    "gs": "run 'gcloud auth application-default login', or pass --anon for a public bucket",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME, and run 'az login' or set AZURE_STORAGE_ACCOUNT_KEY,"
    " or pass --anon for a public container",
    "hf": "set HF_TOKEN, or run 'hf auth login'",
    "http": "with a password the URL is https://user:password@host/folder/",
    "webdav": 'with a password pass --storage-option \'auth=["user", "password"]\'',
}
"""How to give credentials, for each store that needs them."""


def secrets_in(options: Any, key: str = "") -> Iterator[str]:
    """Every string in the storage options that may be a secret: all but those of a few known keys."""
    if isinstance(options, dict):
        for name, value in options.items():
            yield from secrets_in(value, str(name))
    elif isinstance(options, (list, tuple)):
        for value in options:
            yield from secrets_in(value, key)
    elif isinstance(options, str) and (key not in _NO_SECRETS or "@" in options):  # a URL with a password
        yield options


def userinfo(url: str) -> list[str]:
    """The secrets in the URL's user:password@ part. Without a password the user name is a token."""
    found = re.match(r"(?:http|https|ftp|sftp|ssh|smb|webdav)://([^/?#]*)@", url, re.IGNORECASE)
    return [found[1].split(":", 1)[-1], found[1]] if found else []


def translate(
    error: BaseException,
    where: str,
    store: str,
    secrets: Collection[str] = (),
    server: str = "",
    credentials: Callable[[], str] = str,
) -> GrowfsError:
    """The GrowfsError that says what happened, to which URL (`where`), and what to do. store: 's3', 'gs', ...

    server: the URL of the store's server, if the user gave it. credentials: says where they come from, or nothing.
    """
    if isinstance(error, GrowfsError):
        return error
    chain = list(_causes(error))
    names = {base.__name__ for link in chain for base in type(link).__mro__}
    codes = {code for link in chain if (code := _code(link))}
    status = next((status for link in chain if (status := _status(link))), 0)
    if any(type(link) is OSError and str(link).startswith("Forbidden: ") for link in chain):
        status = 403  # gcsfs says it in this text alone
    where = clean(where, secrets)
    texts = (_text(link) for link in chain if not isinstance(link, FileNotFoundError))  # its text is only a name
    detail = next(filter(None, texts), type(error).__name__)
    detail = clean(detail.partition("\nRequestId:")[0], secrets)  # Azure's texts go on with numbers
    login = LOGIN.get(store, "see --storage-option")
    place = clean(_place(store, server), secrets)

    def denied(what: str, advice: str = "") -> RemoteDenied:
        found = credentials()
        return RemoteDenied(f"{where}: {what}{found and f'; credentials: {clean(found, secrets)}'}; {advice}{login}")

    if "NoSuchBucket" in codes:
        return BucketMissing(f"{where}: no such bucket; check the name and --endpoint-url")
    if names & _NO_CREDENTIALS:
        why = "" if "NoCredentialsError" in names else f" ({detail})"
        return RemoteDenied(f"{where}: no credentials found{why}; {login}")
    if codes & _WRONG_KEYS or "AzureSigningError" in names:
        return denied(f"the credentials are wrong or have expired ({detail})")
    if "ClientAuthenticationError" in names and not status:  # of azure-identity, which asked all that may have some
        return RemoteDenied(f"{where}: no credentials found; {login}")
    if names & _CERTIFICATE:
        why = next(filter(None, (getattr(link, "verify_message", "") for link in chain)), detail)
        variable = "AWS_CA_BUNDLE" if store == "s3" else "SSL_CERT_FILE"
        return RemoteError(
            f"{where}: the server's certificate is not trusted ({why}); check {place};"
            f" for a server of your own set {variable} to the file of its certificate"
        )
    if status in _BUSY_STATUS or codes & _BUSY_CODES or (status >= 500 and status != 501):
        return RemoteBusy(f"{where}: the server is busy or failing ({status or ''} {detail}); try again later")
    if "RepositoryNotFoundError" in names and "GatedRepoError" not in names:
        return denied("no such repository, or it is private", "check the name; ")
    if status in (401, 403):
        return denied(f"access denied ({status}: {detail})", "check its permissions; ")
    if status in (405, 501) and store == "webdav":
        return RemoteError(f"{where}: its server has no WebDAV there; check {place}")
    if status in (404, 410):
        return RemoteMissing(f"{where}: no such file or folder; check the URL")
    if status == 412:
        return RemoteChanged(f"{where}: is no longer the version that was listed; list again")
    if "ChecksumMismatch" in names:
        return RemoteBusy(f"{where}: damaged on the way: {detail}; try again, and look at the network and the disk")
    if names & _BUSY:
        return RemoteBusy(f"{where}: cannot reach the server ({detail}); check the network and {place}")
    if names & _REFUSED:
        return denied(f"access denied ({detail})")
    if names & _NOT_THERE:
        return RemoteMissing(f"{where}: no such file or folder; check the URL")
    if isinstance(error, ImportError):
        return UsageError(f"{where}: {detail}")
    return RemoteError(f"{where}: {type(error).__name__}: {detail}; check the URL and the options")


def _place(store: str, server: str) -> str:
    """Where the user says which server it is."""
    names = {"http": "the URL", "webdav": "the option base_url", "az": "--endpoint-url or the connection string"}
    name = "--endpoint-url" if server and store == "az" else names.get(store, "--endpoint-url")
    return f"{name} {server}".strip()


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        hides = error.__suppress_context__ and type(error).__module__ != "httpcore"  # whose pool hides all causes
        error = error.__cause__ or (None if hides else error.__context__)


def _text(error: BaseException) -> str:
    """What happened, without the URL and the status where the library has it so."""
    words = getattr(error, "server_message", "")  # of huggingface_hub
    if type(error).__name__ == "ClientResponseError":  # of aiohttp
        words = getattr(error, "message", "")
    return str(words or error).strip()


def _code(error: BaseException) -> str:
    response = getattr(error, "response", None)  # botocore's is a dict, requests's is not
    code = response.get("Error", {}).get("Code") if isinstance(response, dict) else getattr(error, "error_code", None)
    return str(getattr(code, "value", code) or "")  # Azure's are members of an enumeration


def _status(error: BaseException) -> int:
    """The HTTP status in a client library's exception, which may be in one of five places; 0 if there is none."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    for holder, name in ((error, "status"), (error, "status_code"), (response, "status_code"), (error, "code")):
        value = str(getattr(holder, name, ""))  # one by one: reading `code` makes aiohttp warn
        if value.isdecimal() and 300 <= int(value) <= 599:
            return int(value)
    return 0


def clean(text: str, secrets: Collection[str]) -> str:
    """The text as one line, without secrets."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, "***")
    text = " ".join(redact(text).split())
    return text if len(text) <= DETAIL_CHARS_MAX else text[:DETAIL_CHARS_MAX] + "..."
