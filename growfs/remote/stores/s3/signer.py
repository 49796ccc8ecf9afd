"""`Signer`: signed requests for the objects of a bucket, made a hundred times as fast as by the store's library.

The library makes one URL, so its rules decide where the bucket is and what is signed. The URLs of other objects differ
in the key alone, so they are signed here, by Signature Version 4
(https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-query-string-auth.html). If that does not reproduce the
library's own URL (directory buckets, older signatures), the library makes all URLs.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from growfs.remote.http.connection import HttpRequest
from growfs.remote.stores.fsspec import SIGNED_S
from growfs.remote.stores.s3.client import Client

FRESH_S = 60  # then a new Signer is made: the library renews credentials ten minutes before they expire

_SAMPLE = "sample"
_HEADERS = {"RequestPayer": "x-amz-request-payer", "ChecksumMode": "x-amz-checksum-mode"}
_SIGNATURE = "&X-Amz-Signature="


class Signer:
    """Several threads may use it. It holds secrets, as an HttpRequest does."""

    def __init__(self, client: Client, parameters: dict[str, Any]) -> None:
        """parameters: those of get_object, but for the key. Raises what the library raises."""
        self._client, self._parameters = client, parameters
        self._headers = {header: parameters[name] for name, header in _HEADERS.items() if name in parameters}
        self._made_s = time.monotonic()
        url = self._by_library(_SAMPLE, "GET")
        path, _, query = url.partition("?")
        self._base, self._query = path.removesuffix(_SAMPLE), query.partition(_SIGNATURE)[0]
        self._signing: _SigningKey | None = None
        if query:
            with suppress(AttributeError, KeyError):  # these are internals of botocore
                auth = client.call(client.boto._request_signer.get_auth_instance, "s3", "", "s3v4-query")
                self._signing = _SigningKey(auth.credentials.secret_key, self._base, self._query, self._headers)
        self._is_plain = bool(self._signing or not query) and self._sign(_SAMPLE, "GET") == url

    @property
    def is_fresh(self) -> bool:
        """Whether its credentials are still those that the library would use."""
        return time.monotonic() - self._made_s < FRESH_S

    def keep(self) -> None:
        """Have it be fresh for another while."""
        self._made_s = time.monotonic()

    def request(self, key: str, method: str = "GET") -> HttpRequest:
        """A request for an object, by GET or HEAD. Raises what the library raises."""
        url = self._sign(key, method) if self._is_plain else self._by_library(key, method)
        return HttpRequest(url, self._headers, method)

    def _sign(self, key: str, method: str) -> str:
        quoted = quote(key)
        if self._signing is None:
            return self._base + quoted
        return f"{self._base}{quoted}?{self._query}{_SIGNATURE}{self._signing.signature(method, quoted)}"

    def _by_library(self, key: str, method: str) -> str:
        parameters = {**self._parameters, "Key": key}
        presign = self._client.boto.generate_presigned_url
        return str(self._client.call(presign, f"{method.lower()}_object", parameters, SIGNED_S))


class _SigningKey:
    """The part that all signatures of one moment share."""

    def __init__(self, secret: str, base: str, query: str, headers: dict[str, str]) -> None:
        """Raises KeyError if the query has another kind of signature."""
        fields = {name: values[0] for name, values in parse_qs(query).items()}
        _, self._scope = fields["X-Amz-Credential"].split("/", 1)
        self._time = fields["X-Amz-Date"]
        self._key = f"AWS4{secret}".encode()
        for part in self._scope.split("/"):
            self._key = hmac.digest(self._key, part.encode(), "sha256")
        there = urlsplit(base)
        self._folder = there.path
        lines = {"host": there.netloc} | headers
        signed = fields["X-Amz-SignedHeaders"]
        named = [f"{name}:{lines[name]}" for name in signed.split(";")]
        self._rest = "\n".join(["", "&".join(sorted(query.split("&"))), *named, "", signed, "UNSIGNED-PAYLOAD"])

    def signature(self, method: str, quoted: str) -> str:
        """The signature of a request for a key, in hexadecimal."""
        canonical = f"{method}\n{self._folder}{quoted}{self._rest}".encode()
        digest = hashlib.sha256(canonical).hexdigest()
        text = f"AWS4-HMAC-SHA256\n{self._time}\n{self._scope}\n{digest}"
        return hmac.digest(self._key, text.encode(), "sha256").hex()
