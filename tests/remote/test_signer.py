"""Signed S3 URLs: they equal those of the store's library, and real servers accept them."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.request import Request as Get
from urllib.request import urlopen

import pytest

from growfs.remote.http.checksum import expected_checksum
from growfs.remote.interface import RemoteFile, RemoteSpec
from growfs.remote.stores.s3.bucket import S3Remote
from growfs.remote.stores.s3.signer import Signer
from tests.remote.fake_store import KEYS
from tests.servers import S3Server

ODD_KEYS = [
    "x",
    "a b+c&d=e?f#g%25%zz",
    "/x",
    "//x//y/",
    "./x/../y",
    "~'()*!;:@$,[]{}|\\^`\"<>",
    "sch\xf6n/\u65e5\u672c/\U0001f600",
    "line\nfeed\ttab\r\x7f",
    "sample/sample?sample",
]
AWS = {"client_kwargs": {"region_name": "eu-central-1"}}
ENDPOINT = "http://127.0.0.1:9"
VIRTUAL = {"config_kwargs": {"s3": {"addressing_style": "virtual"}}}
CASES: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "endpoint": ("bucket", {}, ENDPOINT),
    "path": ("bucket", {}, ENDPOINT + "/some/path"),
    "slash": ("bucket", {}, ENDPOINT + "/some/path/"),
    "virtual": ("bucket", VIRTUAL, "https://store.example"),
    "named as the sample": ("sample", {}, ENDPOINT),
    "aws": ("bucket", AWS, None),
    "aws without a region": ("bucket", {}, None),
    "dots": ("my.bucket", AWS, None),
    "dual stack": ("bucket", {"config_kwargs": {"use_dualstack_endpoint": True}, **AWS}, None),
    "accelerated": ("bucket", {"config_kwargs": {"s3": {"use_accelerate_endpoint": True}}, **AWS}, None),
    "token": ("bucket", {"token": "the/token+=="}, ENDPOINT),
    "payer": ("bucket", {"requester_pays": True}, ENDPOINT),
    "no checksums": ("bucket", {"config_kwargs": {"response_checksum_validation": "when_required"}}, ENDPOINT),
    "access point": ("arn:aws:s3:eu-west-1:123456789012:accesspoint/name", AWS, None),
    "outpost": ("arn:aws:s3-outposts:eu-west-1:123456789012:outpost/op-01234567890123456/accesspoint/name", AWS, None),
}
FILE = RemoteFile("x", None, None, "")


@pytest.fixture(autouse=True)
def fixed_time(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Signatures are all of the same second, so that they can be compared."""
    if "server" not in request.fixturenames:
        now = datetime(2020, 11, 3, 10, tzinfo=timezone.utc)
        for module in ("botocore.auth", "botocore.crt.auth"):  # the latter signs if awscrt is installed
            monkeypatch.setattr(
                f"{module}.get_current_datetime",
                lambda remove_tzinfo=True: now.replace(tzinfo=None) if remove_tzinfo else now,
            )
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def signer_of(bucket: str, options: dict[str, Any], endpoint_url: str | None, anon: bool = False) -> Signer:
    keys = {} if anon else KEYS
    remote = S3Remote(RemoteSpec("s3://bucket", {**keys, **options}, endpoint_url, anon=anon))
    remote._request(FILE, "GET")
    made = remote._signer
    assert made
    return Signer(made._client, {**made._parameters, "Bucket": bucket})


@pytest.mark.parametrize("case", CASES)
def test_signed_urls_equal_those_of_the_library(case: str) -> None:
    signer = signer_of(*CASES[case])
    assert signer._is_plain
    for key in ODD_KEYS:
        for method in ("GET", "HEAD"):
            assert signer.request(key, method).url == signer._by_library(key, method), key


def test_anonymous_urls_are_not_signed() -> None:
    signer = signer_of("bucket", {}, ENDPOINT, anon=True)
    for key in ODD_KEYS:
        assert signer.request(key).url == signer._by_library(key, "GET")
    assert (signer._is_plain, signer.request("x").url) == (True, f"{ENDPOINT}/bucket/x")


def test_old_signature_versions_are_left_to_the_library() -> None:
    signer = signer_of("bucket", {"config_kwargs": {"signature_version": "s3"}}, ENDPOINT)
    assert not signer._is_plain
    assert signer.request("x").url.startswith(f"{ENDPOINT}/bucket/x?AWSAccessKeyId=")


def test_changed_credentials_are_used_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    remote = S3Remote(RemoteSpec("s3://bucket", KEYS, ENDPOINT))
    first = remote._request(FILE, "GET").url
    assert remote._signer
    remote._signer._client.boto._request_signer._credentials.access_key = "another"
    assert remote._request(FILE, "GET").url == first
    monkeypatch.setattr("growfs.remote.stores.s3.signer.FRESH_S", 0)
    assert "Credential=another%2F" in remote._request(FILE, "GET").url


def test_no_secret_is_in_the_repr() -> None:
    signer = signer_of("bucket", {"token": "the-token"}, ENDPOINT)
    for shown in (repr(signer), repr(signer.request("x"))):
        assert not [secret for secret in ("the-token", "Signature", KEYS["secret"]) if secret in shown]


@pytest.mark.parametrize("server", ["rclone_s3", "moto_s3"])
@pytest.mark.parametrize("token", [None, "the/token+=="])
def test_real_servers_accept_signed_urls(
    server: str, token: str | None, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    store: S3Server = request.getfixturevalue(server)
    data = b"of an odd name"
    for number, key in enumerate(["x", "a b+c&d=e?f#g%25%zz", "~'()*!;:@$,[]", "sch\xf6n/\u65e5\u672c"]):
        path = f"signed/{number}/{key}"
        store.put(path, data)
        remote = S3Remote(store.spec("signed"))
        if token:
            remote = S3Remote(store.spec("signed", storage_options={**store.storage_options, "token": token}))
        remote._request(FILE, "GET")
        assert remote._signer
        assert remote._signer._is_plain
        for method in ("GET", "HEAD"):
            signed = remote._signer.request(path, method)
            with urlopen(Get(signed.url, headers=signed.headers, method=method)) as answer:
                assert answer.read() == (data if method == "GET" else b"")
                expected = expected_checksum({name.lower(): text for name, text in answer.headers.items()})
            assert bool(expected) == (server == "moto_s3"), "moto sends a CRC if it is requested"
            if expected:
                expected.part(0).update(memoryview(data))
                assert expected.mismatch(len(data), tmp_path) is None
