"""Signed requests for S3: they equal those of the store's library, and real servers accept them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs

import pytest

from growfs.remote.http.connection import HttpRequest
from growfs.remote.interface import RemoteFile, RemoteSpec
from growfs.remote.stores.s3.bucket import S3Remote
from growfs.remote.stores.s3.client import Client
from growfs.remote.stores.s3.signer import Signer, signer_by_library, signer_with
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
NEW_REGION = {"client_kwargs": {"region_name": "af-south-1"}}
ENDPOINT = "http://127.0.0.1:9"
VIRTUAL = {"config_kwargs": {"s3": {"addressing_style": "virtual"}}}
CASES: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "endpoint": ("bucket", {}, ENDPOINT),
    "path": ("bucket", {}, ENDPOINT + "/some/path"),
    "slash": ("bucket", {}, ENDPOINT + "/some/path/"),
    "virtual": ("bucket", VIRTUAL, "https://store.example"),
    "named as the sample": ("sample", {}, ENDPOINT),
    "aws": ("bucket", AWS, None),
    "aws in a new region": ("bucket", NEW_REGION, None),
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


def of_library(client: Client, operation: str, parameters: dict[str, Any]) -> HttpRequest:
    """A request by the library: where it is, and what signs it."""
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    _, _, query = client.boto.generate_presigned_url(operation, parameters, 60).partition("?")
    base = sent_to(client, operation, parameters)
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


def sent_to(client: Client, operation: str, parameters: dict[str, Any]) -> str:
    """The URL, without its query, to which the library sends a request. Presigned ones may be for another server."""
    from botocore.awsrequest import AWSResponse
    from botocore.parsers import ResponseParserError

    sent: list[str] = []

    def send(request: Any, **_: object) -> Any:
        sent.append(request.url.partition("?")[0])
        return AWSResponse(request.url, 200, {}, SimpleNamespace(stream=lambda *_: iter([b""])))

    client.boto.meta.events.register_first("before-send.s3", send)
    with suppress(ResponseParserError):  # a listing is not empty
        getattr(client.boto, operation)(**parameters)
    client.boto.meta.events.unregister("before-send.s3", send)
    return sent[0]


def normal(request: HttpRequest) -> HttpRequest:
    """The request with its headers in lower case, and the fields of its query in order."""
    base, mark, query = request.url.partition("?")
    headers = {name.lower(): value for name, value in request.headers.items()}
    return replace(request, url=f"{base}{mark}{'&'.join(sorted(query.split('&')))}", headers=headers)


def remote_of(options: dict[str, Any], endpoint_url: str | None, anon: bool = False) -> S3Remote:
    keys = {} if anon else KEYS
    return S3Remote(RemoteSpec("s3://bucket", {**keys, **options}, endpoint_url, anon=anon))


def wanted(client: Client, bucket: str) -> dict[str, Any]:
    """The parameters of get_object, except the key."""
    checksums = client.boto.meta.config.response_checksum_validation == "when_supported"
    mode = {"ChecksumMode": "ENABLED"} if checksums else {}
    return client.complete(client.boto.get_object, {"Bucket": bucket, **mode})


def assert_equal(signer: Signer, client: Client, bucket: str) -> None:
    """Assert that a signer makes the same requests as the library."""
    parameters = wanted(client, bucket)
    for key in ODD_KEYS:
        for method in ("GET", "HEAD"):
            expected = of_library(client, f"{method.lower()}_object", {**parameters, "Key": key})
            assert normal(signer.request(key, method)) == normal(expected), key
        for place in ("ContinuationToken", "StartAfter"):
            page = {"Bucket": bucket, "Prefix": key, "MaxKeys": 7, place: "a/b+c="}
            expected = of_library(client, "list_objects_v2", client.complete(client.boto.list_objects_v2, page))
            assert normal(signer.page(page)) == normal(expected), key


@pytest.mark.parametrize("case", CASES)
def test_signed_requests_equal_those_of_the_library(case: str) -> None:
    bucket, options, endpoint_url = CASES[case]
    client = remote_of(options, endpoint_url)._client()
    assert_equal(signer_by_library(client, bucket), client, bucket)


REGION_FILE = "[default]\nregion = eu-west-3\noutput = json\n[profile other]\nrole_arn = x\n"
KEYS_FILE = "[default]\naws_access_key_id = found\naws_secret_access_key = s\n"
BY_VARIABLES = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}
TWO_SERVERS = {"AWS_ENDPOINT_URL": "https://a.example", "AWS_ENDPOINT_URL_S3": ENDPOINT}
STATIC: dict[str, tuple[dict[str, str], dict[str, Any], str | None]] = {
    "a server": ({}, KEYS, ENDPOINT),
    "a path": ({}, KEYS, f"{ENDPOINT}/some/path/"),
    "the server of the variables": (TWO_SERVERS, KEYS, None),
    "aws": ({}, KEYS, None),
    "a region by option": ({"AWS_DEFAULT_REGION": "eu-west-1"}, {**KEYS, **AWS}, None),
    "a region by variable": ({"AWS_DEFAULT_REGION": "eu-west-1", "AWS_REGION": "us-west-2"}, KEYS, None),
    "a region by file": ({"AWS_CONFIG_FILE": REGION_FILE}, KEYS, None),
    "a region by both files": (
        {"AWS_CONFIG_FILE": REGION_FILE, "AWS_SHARED_CREDENTIALS_FILE": f"{KEYS_FILE}region = ap-east-1"}, {}, None
    ),
    "keys by variables": ({**BY_VARIABLES, "AWS_SESSION_TOKEN": "t/+="}, {}, None),
    "keys by options and variables": ({**BY_VARIABLES, "AWS_SESSION_TOKEN": "t"}, KEYS, None),
    "keys by file": ({"AWS_SHARED_CREDENTIALS_FILE": KEYS_FILE}, {}, None),
    "keys by variables and file": (
        {**BY_VARIABLES, "AWS_SHARED_CREDENTIALS_FILE": KEYS_FILE}, {}, None
    ),
    "keys by both files": (
        {"AWS_CONFIG_FILE": KEYS_FILE.replace("found", "other"), "AWS_SHARED_CREDENTIALS_FILE": KEYS_FILE}, {}, None
    ),
    "keys by the file of settings": ({"AWS_CONFIG_FILE": KEYS_FILE}, {}, None),
    "a token": ({}, {**KEYS, "token": "the/token+=="}, ENDPOINT),
    "anonymous": ({}, {"anon": True}, None),
}  # fmt: skip
LEFT: dict[str, tuple[dict[str, str], dict[str, Any], str | None, str]] = {
    "no keys": ({}, {}, ENDPOINT, "bucket"),
    "half a key": ({"AWS_ACCESS_KEY_ID": "k", "AWS_SHARED_CREDENTIALS_FILE": KEYS_FILE}, {}, ENDPOINT, "bucket"),
    "a profile": ({"AWS_PROFILE": "other"}, KEYS, ENDPOINT, "bucket"),
    "an expiry": ({"AWS_CREDENTIAL_EXPIRATION": "2026-01-01T00:00:00Z"}, KEYS, ENDPOINT, "bucket"),
    "an empty variable": ({"AWS_DEFAULT_REGION": ""}, KEYS, ENDPOINT, "bucket"),
    "another region": ({}, {**KEYS, "client_kwargs": {"region_name": "cn-north-1"}}, None, "bucket"),
    "a role": ({"AWS_CONFIG_FILE": "[default]\nrole_arn = x\nsource_profile = y\n"}, KEYS, ENDPOINT, "bucket"),
    "addressing": ({"AWS_CONFIG_FILE": "[default]\ns3 =\n  addressing_style = virtual\n"}, KEYS, ENDPOINT, "bucket"),
    "a named default": ({"AWS_CONFIG_FILE": "[profile default]\nregion = eu-west-1\n"}, KEYS, ENDPOINT, "bucket"),
    "defaults": ({"AWS_CONFIG_FILE": "[DEFAULT]\nregion = eu-west-1\n"}, KEYS, ENDPOINT, "bucket"),
    "no file": ({"AWS_CONFIG_FILE": "region = eu-west-1\n"}, KEYS, ENDPOINT, "bucket"),
    "an option": ({}, {**KEYS, "requester_pays": True}, ENDPOINT, "bucket"),
    "a client option": ({}, {**KEYS, "client_kwargs": {"verify": False}}, ENDPOINT, "bucket"),
    "a configuration": ({}, {**KEYS, **VIRTUAL}, ENDPOINT, "bucket"),
    "a server of aws": ({}, KEYS, "https://s3.eu-west-1.amazonaws.com", "bucket"),
    "a directory bucket": ({}, KEYS, None, "bucket--use1-az4--x-s3"),
    "dots": ({}, KEYS, None, "my.bucket"),
    "an access point": ({}, KEYS, None, "arn:aws:s3:eu-west-1:123456789012:accesspoint"),
}


@pytest.fixture
def configure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[dict[str, str]], None]:
    """Sets variables, and writes the content of those that name a file to one."""

    def set_variables(variables: dict[str, str]) -> None:
        for name in [name for name in os.environ if name.startswith("AWS_") and name != "AWS_EC2_METADATA_DISABLED"]:
            monkeypatch.delenv(name)
        for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
            (tmp_path / name).write_text(variables.get(name, ""))
            monkeypatch.setenv(name, str(tmp_path / name))
        for name in variables.keys() - {"AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"}:
            monkeypatch.setenv(name, variables[name])

    return set_variables


@pytest.mark.parametrize("case", STATIC)
def test_requests_with_simple_settings_equal_those_of_the_library(
    case: str, configure: Callable[[dict[str, str]], None]
) -> None:
    variables, options, endpoint_url = STATIC[case]
    configure(variables)
    anon = options.get("anon", False)
    remote = S3Remote(RemoteSpec("s3://bucket/x", {} if anon else options, endpoint_url, anon=anon))
    settings = remote._static_settings
    assert settings
    own, by_library = signer_with(settings), signer_by_library(remote._client(), "bucket")
    for key in ODD_KEYS:
        assert own.request(key) == by_library.request(key)
        assert own.page({"Prefix": key, "MaxKeys": 7}) == by_library.page({"Prefix": key, "MaxKeys": 7})
    assert remote.access().region in (settings.region, "aws-global")


@pytest.mark.parametrize("case", LEFT)
def test_all_other_settings_are_left_to_the_library(case: str, configure: Callable[[dict[str, str]], None]) -> None:
    variables, options, endpoint_url, bucket = LEFT[case]
    configure(variables)
    assert S3Remote(RemoteSpec(f"s3://{bucket}/x", options, endpoint_url))._static_settings is None


def test_a_mount_with_simple_settings_does_not_import_the_library(
    configure: Callable[[dict[str, str]], None], rclone_s3: S3Server, tmp_path: Path
) -> None:
    rclone_s3.put("simple/x", b"content")
    configure({"AWS_ACCESS_KEY_ID": KEYS["key"], "AWS_SECRET_ACCESS_KEY": KEYS["secret"]})
    program = """
import sys
from pathlib import Path
from growfs.remote import open_remote, preload
from growfs.remote.interface import FetchTask, RemoteSpec
spec = RemoteSpec(f"s3://{sys.argv[1]}/simple", endpoint_url=sys.argv[2])
preload(RemoteSpec("s3://host/"))
preload(spec)
remote = open_remote(spec)
[file] = [file for page in remote.pages() for file in page.files]
remote.fetch(FetchTask(file, Path(sys.argv[3])))
print(sorted({name.partition(".")[0] for name in sys.modules} & {"botocore", "s3fs", "fsspec", "aiohttp"}))
"""
    words = [sys.executable, "-c", program, rclone_s3.bucket, rclone_s3.endpoint_url, str(tmp_path / "target")]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "[]\n"
    assert (tmp_path / "target").read_bytes() == b"content"


SESSION = (
    b"<CreateSessionResult><Credentials><SessionToken>T</SessionToken><SecretAccessKey>S</SecretAccessKey>"
    b"<AccessKeyId>SESSION</AccessKeyId><Expiration>2099-01-01T00:00:00Z</Expiration></Credentials></CreateSessionResult>"
)


@pytest.mark.parametrize(
    ("bucket", "signature"),
    [
        ("data--usw2-az1--x-s3", "X-Amz-S3session-Token="),
        ("arn:aws:s3::123456789012:accesspoint/mfzwi23gnjvgw.mrap", "X-Amz-Algorithm=AWS4-ECDSA-P256-SHA256"),
    ],
    ids=["a directory bucket", "a multi-region access point"],
)
def test_special_buckets_have_signatures_of_their_own(
    bucket: str, signature: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(_: object, request: Any) -> Any:
        from botocore.awsrequest import AWSResponse

        return AWSResponse(request.url, 200, {}, SimpleNamespace(stream=lambda *_: iter([SESSION])))

    monkeypatch.setattr("botocore.httpsession.URLLib3Session.send", send)
    remote = S3Remote(RemoteSpec(f"s3://{bucket}/x", {**KEYS, "client_kwargs": {"region_name": "us-west-2"}}))
    assert remote._static_settings is None
    assert signature in remote._request(FILE, "GET").url
    assert signature in remote._page_request({"Bucket": remote._bucket_and_prefix[0], "Prefix": "x/"}).url


def test_old_signature_versions_are_left_to_the_library() -> None:
    client = remote_of({"config_kwargs": {"signature_version": "s3"}}, ENDPOINT)._client()
    signer = signer_by_library(client, "bucket")
    assert signer.request("x").url.startswith(f"{ENDPOINT}/bucket/x?AWSAccessKeyId=")
    assert signer.page({"Bucket": "bucket"}).url.startswith(f"{ENDPOINT}/bucket?list-type=2&")


def test_changed_credentials_are_used_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    remote = remote_of({"requester_pays": True}, ENDPOINT)
    first = remote._request(FILE, "GET")
    remote._client().boto._request_signer._credentials.access_key = "another"
    assert remote._request(FILE, "GET") == first
    monkeypatch.setattr("growfs.remote.stores.s3.signer.FRESH_S", 0)
    assert "Credential=another/" in remote._request(FILE, "GET").headers["Authorization"]


def test_no_secret_is_in_the_repr() -> None:
    remote = remote_of({"token": "the-token"}, ENDPOINT)
    settings = remote._static_settings
    assert settings
    signer = signer_with(settings)
    for shown in (repr(settings), repr(signer), repr(signer.request("x"))):
        assert not [secret for secret in ("the-token", "Signature", KEYS["secret"]) if secret in shown]
