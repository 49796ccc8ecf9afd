"""Signed requests for S3: they equal those of the store's library, and real servers accept them."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs
from urllib.request import Request as Get
from urllib.request import urlopen

import pytest

from growfs.remote.http.checksum import expected_checksum
from growfs.remote.http.connection import HttpRequest
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


NOW = datetime(2020, 11, 3, 10, tzinfo=timezone.utc)


@pytest.fixture(autouse=True)
def fixed_time(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Signatures are all of the same second, so that they can be compared."""
    if "server" not in request.fixturenames:
        monkeypatch.setattr("growfs.remote.stores.s3.signer.gmtime", NOW.utctimetuple)
        monkeypatch.setattr(
            "botocore.auth.get_current_datetime",
            lambda remove_tzinfo=True: NOW.replace(tzinfo=None) if remove_tzinfo else NOW,
        )
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def of_library(signer: Signer, operation: str, parameters: dict[str, Any]) -> HttpRequest:
    """The same request by the library: where it is, and what signs it."""
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    presigned = signer._presigned(operation, parameters)
    base, _, query = presigned.partition("?")
    rest = "&".join(part for part in query.split("&") if not part.startswith("X-Amz-"))
    url = f"{base}?{rest}" if rest else base
    fields = parse_qs(query)
    headers = {
        name: value
        for name, value in (("x-amz-checksum-mode", "ENABLED"), ("x-amz-request-payer", "requester"))
        if name in fields["X-Amz-SignedHeaders"][0].split(";")
    }
    *_, region, service, _ = fields["X-Amz-Credential"][0].split("/")
    token = fields.get("X-Amz-Security-Token", [None])[0]
    request = AWSRequest(operation.partition("_")[0].upper().replace("LIST", "GET"), url, headers)
    S3SigV4Auth(Credentials(KEYS["key"], KEYS["secret"], token), service, region).add_auth(request)
    return HttpRequest(url, {name.lower(): value for name, value in request.headers.items()}, request.method)


def lowered(request: HttpRequest) -> HttpRequest:
    return replace(request, headers={name.lower(): value for name, value in request.headers.items()})


def signer_of(bucket: str, options: dict[str, Any], endpoint_url: str | None, anon: bool = False) -> Signer:
    keys = {} if anon else KEYS
    remote = S3Remote(RemoteSpec("s3://bucket", {**keys, **options}, endpoint_url, anon=anon))
    remote._request(FILE, "GET")
    made = remote._signer
    assert made
    return Signer(made._client, {**made._parameters, "Bucket": bucket})


@pytest.mark.parametrize("case", CASES)
def test_signed_requests_equal_those_of_the_library(case: str) -> None:
    signer = signer_of(*CASES[case])
    assert signer._is_plain
    for key in ODD_KEYS:
        for method in ("GET", "HEAD"):
            parameters = {**signer._parameters, "Key": key}
            assert lowered(signer.request(key, method)) == of_library(signer, f"{method.lower()}_object", parameters), (
                key
            )
        page = {"Bucket": signer._parameters["Bucket"], "Prefix": key, "MaxKeys": 7, "ContinuationToken": "a/b+c="}
        assert lowered(signer.page(page)) == of_library(signer, "list_objects_v2", page), key


def test_anonymous_requests_are_not_signed() -> None:
    signer = signer_of("bucket", {}, ENDPOINT, anon=True)
    for key in ODD_KEYS:
        parameters = {**signer._parameters, "Key": key}
        assert signer.request(key) == HttpRequest(signer._presigned("get_object", parameters), signer._headers)
    assert (signer._is_plain, signer.request("x").url) == (True, f"{ENDPOINT}/bucket/x")


def test_old_signature_versions_are_left_to_the_library() -> None:
    signer = signer_of("bucket", {"config_kwargs": {"signature_version": "s3"}}, ENDPOINT)
    assert not signer._is_plain
    assert signer.request("x").url.startswith(f"{ENDPOINT}/bucket/x?AWSAccessKeyId=")


def test_changed_credentials_are_used_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    remote = S3Remote(RemoteSpec("s3://bucket", KEYS, ENDPOINT))
    first = remote._request(FILE, "GET")
    assert remote._signer
    remote._signer._client.boto._request_signer._credentials.access_key = "another"
    assert remote._request(FILE, "GET") == first
    monkeypatch.setattr("growfs.remote.stores.s3.signer.FRESH_S", 0)
    assert "Credential=another/" in remote._request(FILE, "GET").headers["Authorization"]


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
            if expected and (part := expected.part(0)):
                part.update(memoryview(data))
                assert expected.mismatch(len(data), tmp_path) is None
