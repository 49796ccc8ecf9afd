"""`Signer`: signed requests for a bucket, made a hundred times as fast as with the store's library.

Unless the settings are simple (`static_settings`), the library presigns one URL, so its rules determine the address of
the bucket, the credentials, and the region and service to sign for. All other requests are signed here, in their
headers, as boto3 does: some policies deny requests that are signed in their URL
(https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html). Other kinds of signatures (directory
buckets, older versions) are the library's, in the URL.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from time import gmtime
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from growfs.remote.http.connection import HttpRequest
from growfs.remote.stores.fsspec import SIGNED_S
from growfs.remote.stores.s3.client import Client
from growfs.remote.stores.s3.static_settings import StaticSettings, in_region

FRESH_S = 60  # then a new Signer is made: the library renews credentials ten minutes before they expire

_SAMPLE = "sample"
_CHECKSUMS = {"ChecksumMode": "ENABLED"}
_HEADERS = {
    "RequestPayer": "x-amz-request-payer",
    "ChecksumMode": "x-amz-checksum-mode",
    "OptionalObjectAttributes": "x-amz-optional-object-attributes",
}
"""The parameters of the library that become headers."""
_QUERY = {
    "ContinuationToken": "continuation-token",
    "MaxKeys": "max-keys",
    "Prefix": "prefix",
    "StartAfter": "start-after",
}
"""Those of list_objects_v2 that become a part of the query."""
_ALGORITHM = "AWS4-HMAC-SHA256"
_NO_BODY = hashlib.sha256(b"").hexdigest()


class Signer(ABC):
    """Makes signed requests. Several threads may use it. It holds secrets, as an HttpRequest does."""

    def __init__(self) -> None:
        self._made_s = time.monotonic()

    @property
    def is_fresh(self) -> bool:
        """Whether its credentials are still those that a new one would use."""
        return time.monotonic() - self._made_s < FRESH_S

    def keep(self) -> None:
        """Treat it as fresh for another while."""
        self._made_s = time.monotonic()

    @abstractmethod
    def request(self, key: str, method: str = "GET", has_checksums: bool = True) -> HttpRequest:
        """A request for an object, by GET or HEAD. Raises the library's errors.

        has_checksums: with the header that asks for checksums, if configured.
        """

    @abstractmethod
    def page(self, parameters: dict[str, Any]) -> HttpRequest:
        """A request for a page of a listing. parameters: of list_objects_v2. Raises the library's errors."""


class HeaderSigner(Signer):
    """Signs in the headers.

    base: the URL of the bucket, with a slash at the end. key: None if requests are not signed. object_headers,
    page_headers: of each request for an object, or for a page of a listing.
    """

    def __init__(
        self, base: str, key: SigningKey | None, object_headers: Mapping[str, str], page_headers: Mapping[str, str]
    ) -> None:
        super().__init__()
        self._base = base
        self._page_base = base if urlsplit(base).path == "/" else base.removesuffix("/")
        self._key = key
        self._object_headers, self._page_headers = object_headers, page_headers

    def request(self, key: str, method: str = "GET", has_checksums: bool = True) -> HttpRequest:
        return self._signed(self._base + quote(key), "", _wanted(self._object_headers, has_checksums), method)

    def page(self, parameters: dict[str, Any]) -> HttpRequest:
        fields = {"encoding-type": "url", "list-type": "2"}
        fields |= {name: str(parameters[given]) for given, name in _QUERY.items() if given in parameters}
        query = "&".join(f"{name}={quote(fields[name], safe='-._~')}" for name in sorted(fields))
        return self._signed(self._page_base, query, {**self._page_headers, **_headers_of(parameters)}, "GET")

    def _signed(self, base: str, query: str, headers: Mapping[str, str], method: str) -> HttpRequest:
        signed = self._key.signed(base, query, headers, method) if self._key else dict(headers)
        return HttpRequest(f"{base}?{query}" if query else base, signed, method)


class UrlSigner(Signer):
    """Lets the library sign each URL. parameters: of get_object, except the key."""

    def __init__(self, client: Client, parameters: dict[str, Any]) -> None:
        super().__init__()
        self._client, self._parameters = client, parameters

    def request(self, key: str, method: str = "GET", has_checksums: bool = True) -> HttpRequest:
        parameters = _wanted(self._parameters, has_checksums)
        url = _presigned(self._client, f"{method.lower()}_object", {**parameters, "Key": key})
        return HttpRequest(url, _headers_of(parameters), method)

    def page(self, parameters: dict[str, Any]) -> HttpRequest:
        complete = self._client.complete(self._client.boto.list_objects_v2, parameters)
        return HttpRequest(_presigned(self._client, "list_objects_v2", complete), _headers_of(complete))


def signer_with(settings: StaticSettings) -> Signer:
    """The signer for a bucket with simple settings."""
    key = None
    if settings.access_key is not None:
        scope = f"{settings.region}/s3/aws4_request"
        key = SigningKey(settings.access_key, settings.secret_key, settings.token, scope)
    return HeaderSigner(settings.base, key, _headers_of(_CHECKSUMS), {})


def signer_by_library(client: Client, bucket: str) -> Signer:
    """The signer for a bucket, as the library would sign. Raises the library's errors."""
    boto = client.boto
    wants_checksums = getattr(boto.meta.config, "response_checksum_validation", "") == "when_supported"
    wanted = {"Bucket": bucket, "Key": "", **(_CHECKSUMS if wants_checksums else {})}
    parameters = client.complete(boto.get_object, wanted)
    base, _, query = _presigned(client, "get_object", {**parameters, "Key": _SAMPLE}).partition("?")
    key = None
    if query:
        try:  # these are internals of botocore, or the URL is of another kind
            auth = client.call(boto._request_signer.get_auth_instance, "s3", "", "s3v4-query")
            key = SigningKey.of_url(auth.credentials, query)
        except (AttributeError, KeyError, ValueError):
            return UrlSigner(client, parameters)
    page_headers = _headers_of(client.complete(boto.list_objects_v2, {"Bucket": bucket}))
    base = in_region(base.removesuffix(_SAMPLE), boto.meta.region_name)
    return HeaderSigner(base, key, _headers_of(parameters), page_headers)


class SigningKey:
    """Credentials, and the scope that they sign for: region, service and a constant, without the day."""

    def __init__(self, access_key: str, secret_key: str, token: str | None, scope: str) -> None:
        self._access_key, self._secret, self._token, self._scope = access_key, secret_key, token, scope
        self._of_day = ("", hmac.new(b"", digestmod="sha256"))

    @classmethod
    def of_url(cls, credentials: Any, query: str) -> SigningKey:
        """The key that signed a URL. query: of the URL. Raises KeyError and ValueError if it is of another kind."""
        fields = {name: values[0] for name, values in parse_qs(query).items()}
        access_key, _, *scope = fields["X-Amz-Credential"].split("/")
        if fields["X-Amz-Algorithm"] != _ALGORITHM or access_key != credentials.access_key:
            raise ValueError("another kind of signature")
        return cls(access_key, credentials.secret_key, credentials.token, "/".join(scope))

    def signed(self, base: str, query: str, headers: Mapping[str, str], method: str) -> dict[str, str]:
        """The headers of a request, including those that sign it. query: its fields in the order of their names."""
        when = time.strftime("%Y%m%dT%H%M%SZ", gmtime())
        signed = {"x-amz-content-sha256": _NO_BODY, "x-amz-date": when, **headers}
        if self._token:
            signed["x-amz-security-token"] = self._token
        host, _, path = base.partition("://")[2].partition("/")
        lines = sorted([("host", host), *signed.items()])
        names = ";".join(name for name, _ in lines)
        canonical = "\n".join(
            [
                method,
                f"/{path}",
                query,
                *(f"{name}:{value}" for name, value in lines),
                "",
                names,
                _NO_BODY,
            ]
        )
        day, scope = when[:8], f"{when[:8]}/{self._scope}"
        text = f"{_ALGORITHM}\n{when}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        signing = self._hmac(day)
        signing.update(text.encode())
        credential, signature = f"{self._access_key}/{scope}", signing.hexdigest()
        signed["Authorization"] = f"{_ALGORITHM} Credential={credential}, SignedHeaders={names}, Signature={signature}"
        return signed

    def _hmac(self, day: str) -> hmac.HMAC:
        """An HMAC with the key of a day."""
        of_day, made = self._of_day
        if of_day != day:
            key = f"AWS4{self._secret}".encode()
            for level in (day, *self._scope.split("/")):
                key = hmac.digest(key, level.encode(), "sha256")
            made = hmac.new(key, digestmod="sha256")
            self._of_day = day, made
        return made.copy()


def _presigned(client: Client, name: str, parameters: dict[str, Any]) -> str:
    return str(client.call(client.boto.generate_presigned_url, name, parameters, SIGNED_S))


def _wanted(given: Mapping[str, Any], has_checksums: bool) -> Mapping[str, Any]:
    """The parameters or headers of a request for an object."""
    if has_checksums:
        return given
    return {name: value for name, value in given.items() if name not in ("ChecksumMode", _HEADERS["ChecksumMode"])}


def _headers_of(parameters: Mapping[str, Any]) -> dict[str, str]:
    found = {header: parameters[name] for name, header in _HEADERS.items() if name in parameters}
    return {name: ",".join(value) if isinstance(value, list) else value for name, value in found.items()}
