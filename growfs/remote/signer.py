"""`Signer`: signed requests for the objects of a bucket, at a quarter of what the store's library takes for each.

The library makes one URL, so that its rules say where the bucket is found and what is signed; its signer then signs
each key's. Where that would give another URL (directory buckets, older signatures), the library makes them all.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs, parse_qsl, quote

from growfs.remote.connection import Request
from growfs.remote.fsspec_remote import SIGNED_S

FRESH_S = 60  # then the library is asked anew: it changes credentials ten minutes before they end

_SAMPLE = "sample"
_HEADERS = {"RequestPayer": "x-amz-request-payer", "ChecksumMode": "x-amz-checksum-mode"}


class Signer:
    """May be used by several threads. It holds secrets, as a Request does."""

    def __init__(self, client: Any, loop: Any, wanted: dict[str, Any]) -> None:
        """client: aiobotocore's, which runs on loop. wanted: what get_object is told, apart from the key.

        Raises what the library does.
        """
        self._client, self._loop, self._wanted = client, loop, wanted
        self._headers = {header: wanted[name] for name, header in _HEADERS.items() if name in wanted}
        self._made_s = time.monotonic()
        self._auth: Any = None
        url = self._by_library(_SAMPLE, "GET")
        path, _, query = url.partition("?")
        self._base = path.removesuffix(_SAMPLE)
        scope = parse_qs(query).get("X-Amz-Credential", [""])[0].split("/")
        if len(scope) == 5:
            _, _, region, service, _ = scope
            with suppress(AttributeError):  # it is botocore's own business how it comes by it
                sign = client._request_signer.get_auth_instance
                self._auth = self._sync(sign, service, region, "s3v4-query", expires=SIGNED_S)
        self._is_plain = _without_time(self._sign(_SAMPLE, "GET")) == _without_time(url)

    @property
    def is_fresh(self) -> bool:
        """Whether its credentials are those that the library would take now."""
        return time.monotonic() - self._made_s < FRESH_S

    def request(self, key: str, method: str = "GET") -> Request:
        """One for an object, to be sent by that method, GET or HEAD. Not from the loop's own thread.

        Raises what the library does.
        """
        return Request((self._sign if self._is_plain else self._by_library)(key, method), self._headers)

    def _sign(self, key: str, method: str) -> str:
        from botocore.awsrequest import AWSRequest

        request = AWSRequest(method, self._base + quote(key), self._headers)
        if self._auth:
            self._auth.add_auth(request)
        return str(request.url)

    def _by_library(self, key: str, method: str) -> str:
        wanted = {**self._wanted, "Key": key}
        return str(self._sync(self._client.generate_presigned_url, f"{method.lower()}_object", wanted, SIGNED_S))

    def _sync(self, call: Any, *args: Any, **more: Any) -> Any:
        from fsspec.asyn import sync

        return sync(self._loop, call, *args, **more)


def _without_time(url: str) -> tuple[str, list[tuple[str, str]]]:
    """All of a URL but what changes with each second."""
    path, _, query = url.partition("?")
    told = parse_qsl(query, keep_blank_values=True)
    return path, [(name, text) for name, text in told if name not in ("X-Amz-Date", "X-Amz-Signature")]
