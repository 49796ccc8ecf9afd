"""`Signer`: signed requests for a bucket, made a hundred times as fast as with the store's library.

The library presigns one URL, so its rules determine the address of the bucket, the credentials, and the region and
service to sign for. All other requests are signed here, in their headers, as boto3 does: some policies deny requests
that are signed in their URL (https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html). Other
kinds of signatures (directory buckets, older versions) are the library's, in the URL.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from contextlib import suppress
from time import gmtime
from typing import Any
from urllib.parse import parse_qs, quote

from growfs.remote.http.connection import HttpRequest
from growfs.remote.stores.fsspec import SIGNED_S
from growfs.remote.stores.s3.client import Client

FRESH_S = 60  # then a new Signer is made: the library renews credentials ten minutes before they expire

_SAMPLE = "sample"
_HEADERS = {
    "RequestPayer": "x-amz-request-payer",
    "ChecksumMode": "x-amz-checksum-mode",
    "OptionalObjectAttributes": "x-amz-optional-object-attributes",
}
"""The parameters of the library that become headers."""
_ALGORITHM = "AWS4-HMAC-SHA256"
_NO_BODY = hashlib.sha256(b"").hexdigest()


class Signer:
    """Makes signed requests. Several threads may use it. It holds secrets, as an HttpRequest does."""

    def __init__(self, client: Client, parameters: dict[str, Any]) -> None:
        """parameters: those of get_object, except the key. Raises the library's errors."""
        self._client, self._parameters = client, parameters
        self._headers = _headers_of(parameters)
        self._made_s = time.monotonic()
        path, _, query = self._presigned("get_object", {**parameters, "Key": _SAMPLE}).partition("?")
        self._base = path.removesuffix(_SAMPLE)
        self._key: _SigningKey | None = None
        if query:
            with suppress(
                AttributeError, KeyError, ValueError
            ):  # these are internals of botocore, or the URL is of another kind
                auth = client.call(client.boto._request_signer.get_auth_instance, "s3", "", "s3v4-query")
                self._key = _SigningKey(auth.credentials, query)
        self._is_plain = self._key is not None or not query

    @property
    def is_fresh(self) -> bool:
        """Whether its credentials are still those that the library would use."""
        return time.monotonic() - self._made_s < FRESH_S

    def keep(self) -> None:
        """Treat it as fresh for another while."""
        self._made_s = time.monotonic()

    def request(self, key: str, method: str = "GET") -> HttpRequest:
        """A request for an object, by GET or HEAD. Raises the library's errors."""
        if self._is_plain:
            return self._signed(self._base + quote(key), "", self._headers, method)
        url = self._presigned(f"{method.lower()}_object", {**self._parameters, "Key": key})
        return HttpRequest(url, self._headers, method)

    def page(self, parameters: dict[str, Any]) -> HttpRequest:
        """A request for a page of a listing. parameters: of list_objects_v2. Raises the library's errors."""
        url, headers = self._presigned("list_objects_v2", parameters), _headers_of(parameters)
        if not self._is_plain:
            return HttpRequest(url, headers)
        base, _, query = url.partition("?")
        return self._signed(base, "&".join(part for part in query.split("&") if part[:6] != "X-Amz-"), headers)

    def _signed(self, base: str, query: str, headers: dict[str, str], method: str = "GET") -> HttpRequest:
        if self._key:
            headers = self._key.signed(base, query, headers, method)
        return HttpRequest(f"{base}?{query}" if query else base, headers, method)

    def _presigned(self, name: str, parameters: dict[str, Any]) -> str:
        return str(self._client.call(self._client.boto.generate_presigned_url, name, parameters, SIGNED_S))


class _SigningKey:
    """Credentials, and the scope that they sign for."""

    def __init__(self, credentials: Any, query: str) -> None:
        """query: of a URL that was signed with them. Raises KeyError and ValueError if it is of another kind."""
        fields = {name: values[0] for name, values in parse_qs(query).items()}
        access_key, _, *scope = fields["X-Amz-Credential"].split("/")
        if fields["X-Amz-Algorithm"] != _ALGORITHM or access_key != credentials.access_key:
            raise ValueError("another kind of signature")
        self._access_key, self._secret, self._token = access_key, credentials.secret_key, credentials.token
        self._scope = "/".join(scope)
        self._of_day = ("", hmac.new(b"", digestmod="sha256"))

    def signed(self, base: str, query: str, headers: dict[str, str], method: str) -> dict[str, str]:
        """The headers of a request, including those that sign it."""
        when = time.strftime("%Y%m%dT%H%M%SZ", gmtime())
        headers = {"x-amz-content-sha256": _NO_BODY, "x-amz-date": when, **headers}
        if self._token:
            headers["x-amz-security-token"] = self._token
        host, _, path = base.partition("://")[2].partition("/")
        lines = sorted([("host", host), *headers.items()])
        names = ";".join(name for name, _ in lines)
        canonical = "\n".join(
            [
                method,
                f"/{path}",
                "&".join(sorted(query.split("&"))),
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
        headers["Authorization"] = f"{_ALGORITHM} Credential={credential}, SignedHeaders={names}, Signature={signature}"
        return headers

    def _hmac(self, day: str) -> hmac.HMAC:
        """An HMAC with the key of a day."""
        of_day, made = self._of_day
        if of_day != day:
            key = f"AWS4{self._secret}".encode()
            for part in (day, *self._scope.split("/")):
                key = hmac.digest(key, part.encode(), "sha256")
            made = hmac.new(key, digestmod="sha256")
            self._of_day = day, made
        return made.copy()


def _headers_of(parameters: dict[str, Any]) -> dict[str, str]:
    found = {header: parameters[name] for name, header in _HEADERS.items() if name in parameters}
    return {name: ",".join(value) if isinstance(value, list) else value for name, value in found.items()}
