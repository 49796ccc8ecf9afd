"""Errors of remotes: each is translated to its class and a one-line message."""

from __future__ import annotations

import logging
import pickle
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.registry import _registry

from growfs.errors import (
    BucketMissing,
    CredentialsRefused,
    GrowfsError,
    RemoteBusy,
    RemoteChanged,
    RemoteDenied,
    RemoteError,
    RemoteThrottled,
    UsageError,
)
from growfs.remote import open_remote
from growfs.remote.errors import is_busy
from growfs.remote.interface import FetchTask, RemoteSpec
from growfs.remote.retries import TRIES_MAX, Retries
from growfs.remote.retrying import RetryingRemote
from growfs.remote.stores.base import StoreRemote
from growfs.remote.stores.fsspec import FsspecRemote
from growfs.remote.stores.registry import open_store, store_name
from growfs.remote.stores.s3.bucket import S3Remote
from tests.remote.fake_remote import FakeRemote
from tests.servers import QuietHandler, S3Server, free_port, serving

SECRET = "very/secret+value="


pytestmark = pytest.mark.usefixtures("alone")


def error_of(spec: RemoteSpec) -> GrowfsError:
    with pytest.raises(GrowfsError) as caught:
        list(S3Remote(spec).pages())
    assert "\n" not in str(caught.value)
    assert SECRET not in str(caught.value)
    assert pickle.loads(pickle.dumps(caught.value)).args == caught.value.args
    return caught.value


@pytest.mark.parametrize("kind", ["moto", "rclone"])
def test_a_missing_bucket_is_reported(kind: str, request: pytest.FixtureRequest) -> None:
    server: S3Server = request.getfixturevalue(f"{kind}_s3")
    spec = RemoteSpec("s3://no-such-bucket/x", server.storage_options, server.endpoint_url)
    error = error_of(spec)
    assert isinstance(error, BucketMissing)
    assert "no such bucket; check the name and --endpoint-url" in str(error)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key": "growfs-access", "secret": SECRET}, "credentials are wrong"),
        ({"key": "nobody-known", "secret": SECRET}, ""),
        ({}, "no credentials found; set AWS_ACCESS_KEY_ID"),
    ],
)
def test_wrong_and_missing_keys_are_denied(rclone_s3: S3Server, options: dict[str, str], message: str) -> None:
    error = error_of(rclone_s3.spec(storage_options=options))
    assert isinstance(error, RemoteDenied)
    assert message in str(error)


def test_a_private_bucket_is_denied(moto_s3: S3Server) -> None:
    with moto_s3.client() as client:
        client.create_bucket(Bucket="private")
        client.put_object(Bucket="private", Key="x", Body=b"", ACL="private")
    with pytest.raises(RemoteDenied, match="access denied"):
        S3Remote(RemoteSpec("s3://private", {}, moto_s3.endpoint_url, anon=True)).stat("x")


def test_an_unreachable_server_is_busy(tmp_path: Path) -> None:
    port = free_port()
    options = {"key": "growfs-access", "secret": SECRET}
    assert isinstance(error_of(RemoteSpec("s3://b", options, f"http://127.0.0.1:{port}")), RemoteBusy)
    with pytest.raises(RemoteBusy, match="cannot reach"):
        open_store(RemoteSpec(f"http://me:{port}@127.0.0.1:{port}/")).stat("x")


@pytest.mark.parametrize(
    ("url", "more", "message"),
    [
        ("nope://x", {}, "is not a store that fsspec knows; examples: s3://"),
        ("/tmp", {"anon": True}, "--anon does not apply to file://"),
        ("https://h/", {"endpoint_url": "http://x"}, "--endpoint-url does not apply to http://"),
        ("memory://h/", {"endpoint_url": "http://x"}, "--endpoint-url does not apply to memory://"),
        ("az://b", {"endpoint_url": "http://x"}, "must begin with https"),
    ],
)
def test_options_that_make_no_sense_are_usage_errors(url: str, more: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        open_remote(RemoteSpec(url, **more))


@pytest.mark.parametrize(
    ("url", "package"),
    [("gs://b", "gcsfs"), ("abfs://c", "adlfs"), ("hf://d", "huggingface_hub"), ("webdav://e", "webdav4")],
)
def test_a_missing_package_is_named(url: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [package, *(name for name in sys.modules if name.startswith(f"{package}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(_registry, store_name(url), raising=False)  # where another test has imported it
    monkeypatch.delitem(sys.modules, "fsspec.implementations.webdav", raising=False)
    with pytest.raises(UsageError, match=f"pip install {package}"):
        open_remote(RemoteSpec(url, {"base_url": "https://h/"} if package == "webdav4" else {}))


def test_the_server_of_azure_is_passed_on_as_the_host_of_an_account() -> None:
    store = open_store(RemoteSpec("abfs://b", {}, "https://store.example", anon=True))
    assert isinstance(store, FsspecRemote)
    assert store._options.items() >= {"account_host": "store.example", "anon": True}.items()


def test_an_unknown_storage_option_is_named(rclone_s3: S3Server) -> None:
    spec = rclone_s3.spec(storage_options={**rclone_s3.storage_options, "no_such": SECRET})
    assert "no_such" in str(error_of(spec))


class Faulty(QuietHandler):
    """Answers with the next (status, body) of `answers`, and with an empty listing when none is left."""

    answers: list[tuple[int, bytes]] = []  # noqa: RUF012
    seen: list[str] = []  # noqa: RUF012

    def do_GET(self) -> None:
        self.seen.append(self.headers["User-Agent"] or "")
        empty = 200, b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"
        status, body = self.answers.pop(0) if self.answers else empty
        self.reply(body, status, {"ETag": '"e"'})


@pytest.fixture
def faulty() -> Iterator[RemoteSpec]:
    Faulty.answers.clear()
    Faulty.seen.clear()
    with serving(Faulty) as url:
        yield RemoteSpec("s3://bucket", {"key": "growfs-access", "secret": SECRET}, url)


def xml(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>Slow {SECRET} down</Message></Error>".encode()


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (503, "SlowDown", RemoteThrottled),
        (429, "TooManyRequests", RemoteThrottled),
        (500, "InternalError", RemoteBusy),
        (502, "", RemoteBusy),
        (507, "", RemoteBusy),
        (400, "RequestTimeout", RemoteBusy),
        (400, "ExpiredToken", CredentialsRefused),
        (403, "AccessDenied", RemoteDenied),
        (403, "InvalidObjectState", RemoteError),
        (400, "KMS.DisabledException", RemoteDenied),
        (404, "NoSuchBucket", BucketMissing),
        (501, "NotImplemented", RemoteError),
        (400, "Odd", RemoteError),
    ],
)
def test_each_s3_error_is_translated(faulty: RemoteSpec, status: int, code: str, kind: type[GrowfsError]) -> None:
    Faulty.answers[:] = [(status, xml(code))] * 3
    assert type(error_of(faulty)) is kind
    by_library = [agent for agent in Faulty.seen if "Botocore" in agent]
    is_own = is_busy(status) or code in S3Remote.wrong_credentials | {"AccessDenied"}
    assert len(by_library) == (not is_own), "s3fs or botocore retried on its own"
    assert len(Faulty.seen) == len(by_library) + 1


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        ("InvalidObjectState", "is archived; restore it"),
        ("KMS.DisabledException", "check the KMS key of the object"),
        ("RequestTimeTooSkewed", "set this machine's clock"),
        ("SecondLevelDomainForbidden", "addressing_style=virtual"),
        ("AccessDenied", "the policies of the bucket, of the object's key and of the credentials"),
    ],
)
def test_what_is_wrong_with_an_object_is_not_blamed_on_the_credentials(
    faulty: RemoteSpec, code: str, advice: str
) -> None:
    Faulty.answers[:] = [(403, xml(code))] * 3
    message = str(error_of(faulty))
    assert advice in message
    assert S3Remote.login not in message


def test_busy_errors_are_retried_with_growing_delays(faulty: RemoteSpec, caplog: pytest.LogCaptureFixture) -> None:
    Faulty.answers[:] = [(503, xml("SlowDown")), (429, xml("TooManyRequests"))]
    delays: list[float] = []
    with caplog.at_level(logging.WARNING):
        assert list(RetryingRemote(lambda: S3Remote(faulty), Retries(delays.append)).pages()) == []
    assert len(delays) == len(caplog.records) == 2
    assert 0.2 <= delays[0] <= 0.4 <= delays[1] <= 0.6
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    ("method", "error", "calls"),
    [
        ("stat", RemoteBusy("busy"), TRIES_MAX),
        ("stat", RemoteDenied("no"), 1),
        ("pages", RemoteBusy("busy"), TRIES_MAX),  # of the first page
        ("pages", RemoteDenied("no"), 1),
    ],
)
def test_retries_are_limited_and_only_for_busy_errors(method: str, error: GrowfsError, calls: int) -> None:
    fake = FakeRemote()
    fake.put("a", b"x")
    fake.fail(method, *[error] * TRIES_MAX)
    remote = RetryingRemote(lambda: fake, Retries(lambda _: None))
    with pytest.raises(type(error)):
        remote.stat("a") if method == "stat" else list(remote.pages())
    assert len(fake.calls) == calls


def test_a_retried_listing_resumes_where_it_failed(tmp_path: Path) -> None:
    fake = FakeRemote(page_files=1)
    for name in "abc":
        fake.put(name, b"x")
    fake.fail("pages", *[RemoteBusy("busy")] * (TRIES_MAX - 1), None)
    fake.fail("pages", *[RemoteBusy("busy"), RemoteDenied("no")] * 1000)
    opened: list[FakeRemote] = []

    def open_source() -> FakeRemote:
        opened.append(fake)
        return fake

    pages = list(RetryingRemote(open_source, Retries(lambda _: None)).pages())
    assert [file.path for page in pages for file in page.files] == ["a", "b", "c"]
    assert len(opened) == 1 + 1000, "denied, it is opened anew, with new credentials"


def test_progress_counts_every_byte_that_arrives(tmp_path: Path) -> None:
    """A file that begins anew costs its bytes once more: --remote-budget is about them."""
    fake = FakeRemote(chunk_bytes=10)
    fake.put("a", bytes(95))
    fake.fail("chunk", None, None, None, RemoteBusy("cut"), None, RemoteBusy("cut"))
    reported: list[int] = []
    restarts: list[int] = []
    task = FetchTask(
        fake.stat("a"), tmp_path / "target", reported.append, restart=lambda: restarts.append(sum(reported))
    )
    RetryingRemote(lambda: fake, Retries(lambda _: None)).fetch(task)
    assert restarts == [0, 30, 40]
    assert sum(reported) == 40 + 95
    assert (tmp_path / "target").stat().st_size == 95


def test_secrets_are_removed_from_client_messages() -> None:
    cause = ConnectionResetError(f"GET https://me:{SECRET}@h/x?X-Amz-Signature=abc with {SECRET}\nand more")
    message = str(open_store(RemoteSpec(f"https://me:{SECRET}@h/x", {"headers": {"X-Key": SECRET}})).translated(cause))
    assert "abc" not in message
    assert "secret" not in message
    assert message.startswith("https://h/x: cannot reach the server (GET https://h/x?X-Amz-Signature=*** with ***")


def test_a_failed_precondition_means_the_file_changed() -> None:
    error = OSError("x")
    error.response = {"ResponseMetadata": {"HTTPStatusCode": 412}}  # type: ignore[attr-defined]
    assert type(open_store(RemoteSpec("s3://b/x")).translated(error)) is RemoteChanged


class Refused(Exception):
    """A client library's error with a status, and Azure's with a code."""

    def __init__(self, status: int, code: str = "") -> None:
        super().__init__("no\nRequestId:1" if code else "no")
        self.status, self.error_code = status, code


class ClientAuthenticationError(Exception):
    """By its name as azure-identity's, which has no status."""


class ClientResponseError(Exception):
    """By its name as aiohttp's."""

    def __init__(self, message: str) -> None:
        super().__init__(f"401, message={message!r}, url='http://h/'")
        self.message, self.status = message, 401


REFUSED = ConnectionError("refused")


def untrusted() -> Exception:
    error = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] and much more")
    error.verify_message = "self-signed certificate"
    return error


@pytest.mark.parametrize(
    ("error", "url", "server", "message"),
    [
        (REFUSED, "s3://b", "http://h:1", "(refused); check the network and --endpoint-url http://h:1"),
        (REFUSED, "webdav://x", "http://h/", "and the option base_url http://h/"),
        (REFUSED, "az://c", "", "and --endpoint-url or the connection string"),
        (REFUSED, "az://c", "https://h", "the network and --endpoint-url https://h"),
        (untrusted(), "s3://b", "https://h", "(self-signed certificate); check --endpoint-url https://h; for your own"),
        (untrusted(), "s3://b", "", "for your own server, set AWS_CA_BUNDLE"),
        (Refused(405), "webdav://x", "https://h/", "x: its server does not offer WebDAV there; check the option base_"),
        (ClientResponseError("No"), "http://u:p@h/", "", "access denied (401: No); credentials: in the URL"),
        (untrusted(), "https://h/", "", "check the URL; for your own server, set SSL_CERT_FILE"),
        (Refused(403), "hf://datasets/d", "", "denied (403: no); credentials: HF_TOKEN in the environment; check its"),
        (Refused(403, "AuthenticationFailed"), "az://c", "", "expired (no); credentials: AZURE_STORAGE_SAS_TOKEN in"),
        (ClientAuthenticationError("a page"), "az://c", "", "no credentials found; set AZURE_STORAGE_ACCOUNT_NAME"),
    ],
)
def test_a_message_names_the_server_the_credentials_and_what_to_do(
    error: Exception, url: str, server: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "t")
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "t")
    is_webdav = url.startswith("webdav")
    spec = RemoteSpec(url, {"base_url": server} if is_webdav else {}, None if is_webdav else server or None)
    assert message in str(open_store(spec).translated(error))


def open_webdav(server: str) -> StoreRemote:
    return open_store(RemoteSpec("webdav://x", {"base_url": server}))


def test_the_certificate_is_named_where_httpcore_hides_the_cause() -> None:
    import httpcore
    import httpx

    error, hidden = httpx.ConnectError("failed"), httpcore.ConnectError("failed")
    hidden.__context__, hidden.__suppress_context__ = untrusted(), True
    error.__cause__ = hidden
    assert "the server's certificate is not trusted" in str(open_webdav("https://h/").translated(error))


def test_the_server_of_webdav_is_named_without_a_password() -> None:
    with pytest.raises(RemoteBusy, match="base_url https://h:1/dav/"), open_webdav("https://h:1/dav/").translating():
        raise ConnectionError("refused")
    with pytest.raises(RemoteDenied, match="credentials: none; check"), open_webdav("https://h:1/dav/").translating():
        raise Refused(401)
    with pytest.raises(RemoteBusy) as caught, open_webdav(f"https://me:{SECRET}@h:1/dav/").translating():
        raise ConnectionError(f"https://me:{SECRET}@h:1/dav/")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("name", ["RefreshError", "OAuthError"])
def test_expired_credentials_of_google_are_named(name: str) -> None:
    """The second error is of workload identity federation. Nothing else of a mount could be fetched."""
    import google.auth.exceptions

    error = getattr(google.auth.exceptions, name)("invalid_grant: the token has expired")
    translated = open_store(RemoteSpec("gs://b/x")).translated(error)
    assert type(translated) is RemoteDenied
    assert "the token has expired); run 'gcloud auth application-default login'" in str(translated)
