"""`Signer`: signed requests for the objects of a bucket, a hundred times as fast as the store's library makes them.

The library makes one URL, so that its rules say where the bucket is found and what is signed. Only the key differs in
those of other objects, so their signatures are made here, by Signature Version 4
(https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-query-string-auth.html). Where that does not give the library's
own URL again (directory buckets, older signatures), the library makes them all.
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

FRESH_S = 60  # then the library is asked anew: it changes credentials ten minutes before they end

_SAMPLE = "sample"
_HEADERS = {"RequestPayer": "x-amz-request-payer", "ChecksumMode": "x-amz-checksum-mode"}
_SIGNATURE = "&X-Amz-Signature="


class Signer:
    """May be used by several threads. It holds secrets, as a Request does."""

    def __init__(self, client: Any, loop: Any, wanted: dict[str, Any]) -> None:
        """client: aiobotocore's, which runs on loop. wanted: what get_object is told, apart from the key.

        Raises what the library does.
        """
        self._client, self._loop, self._wanted = client, loop, wanted
        self._headers = {header: wanted[name] for name, header in _HEADERS.items() if name in wanted}
        self._made_s = time.monotonic()
        url = self._by_library(_SAMPLE, "GET")
        path, _, query = url.partition("?")
        self._base, self._query = path.removesuffix(_SAMPLE), query.partition(_SIGNATURE)[0]
        self._signing: _SigningKey | None = None
        if query:
            with suppress(AttributeError, KeyError):  # it is botocore's own business how it comes by its secret
                auth = self._sync(client._request_signer.get_auth_instance, "s3", "", "s3v4-query")
                self._signing = _SigningKey(auth.credentials.secret_key, self._base, self._query, self._headers)
        self._is_plain = bool(self._signing or not query) and self._sign(_SAMPLE, "GET") == url

    @property
    def is_fresh(self) -> bool:
        """Whether its credentials are those that the library would take now."""
        return time.monotonic() - self._made_s < FRESH_S

    def request(self, key: str, method: str = "GET") -> HttpRequest:
        """One for an object, to be sent by that method, GET or HEAD. Not from the loop's own thread.

        Raises what the library does.
        """
        url = self._sign(key, method) if self._is_plain else self._by_library(key, method)
        return HttpRequest(url, self._headers, method)

    def _sign(self, key: str, method: str) -> str:
        quoted = quote(key)
        if self._signing is None:
            return self._base + quoted
        return f"{self._base}{quoted}?{self._query}{_SIGNATURE}{self._signing.signature(method, quoted)}"

    def _by_library(self, key: str, method: str) -> str:
        wanted = {**self._wanted, "Key": key}
        return str(self._sync(self._client.generate_presigned_url, f"{method.lower()}_object", wanted, SIGNED_S))

    def _sync(self, call: Any, *args: Any, **more: Any) -> Any:
        from fsspec.asyn import sync

        return sync(self._loop, call, *args, **more)


class _SigningKey:
    """What all signatures of one moment have in common."""

    def __init__(self, secret: str, base: str, query: str, headers: dict[str, str]) -> None:
        """Raises KeyError where the query is of another kind of signature."""
        told = {name: values[0] for name, values in parse_qs(query).items()}
        _, self._scope = told["X-Amz-Credential"].split("/", 1)
        self._time = told["X-Amz-Date"]
        self._key = f"AWS4{secret}".encode()
        for part in self._scope.split("/"):
            self._key = hmac.digest(self._key, part.encode(), "sha256")
        there = urlsplit(base)
        self._folder = there.path
        lines = {"host": there.netloc} | headers
        signed = told["X-Amz-SignedHeaders"]
        named = [f"{name}:{lines[name]}" for name in signed.split(";")]
        self._rest = "\n".join(["", "&".join(sorted(query.split("&"))), *named, "", signed, "UNSIGNED-PAYLOAD"])

    def signature(self, method: str, quoted: str) -> str:
        """Of a request for a key, in hexadecimal."""
        canonical = f"{method}\n{self._folder}{quoted}{self._rest}".encode()
        digest = hashlib.sha256(canonical).hexdigest()
        text = f"AWS4-HMAC-SHA256\n{self._time}\n{self._scope}\n{digest}"
        return hmac.digest(self._key, text.encode(), "sha256").hex()
