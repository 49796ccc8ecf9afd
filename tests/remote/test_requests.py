"""The plain GETs that are sent to a store: signatures and passwords, and that no secret is exposed."""

from __future__ import annotations

import gzip
import logging
import re
from dataclasses import replace
from typing import Any

import pytest

from growfs.errors import RemoteBusy, RemoteDenied, RemoteError
from growfs.remote.client_choice import LEFT_MAX
from growfs.remote.http.connection import ConnectionFailed, HttpRequest
from growfs.remote.http.download import HttpError
from growfs.remote.interface import FetchTask, RemoteFile, RemoteSpec
from growfs.remote.stores.gs import GoogleRemote
from growfs.remote.stores.s3.bucket import S3Remote
from growfs.remote.stores.s3.client import plain_client
from growfs.remote.stores.s3.credentials import PAUSE_S
from growfs.remote.stores.web import HttpRemote
from tests.remote.fake_store import DATA, FILE, KEYS, SMALL, FakeStore, Request, Scene, s3

pytestmark = pytest.mark.usefixtures("small_parts")


def test_an_expired_signature_is_renewed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = FakeStore(DATA)
    signed: list[str] = []
    real = S3Remote._request

    def request(self: S3Remote, file: RemoteFile, method: str) -> HttpRequest:
        found = real(self, file, method)
        if method == "HEAD":
            return found
        signed.append(found.url + f"?number={len(signed)}")  # signatures of one second are equal
        return HttpRequest(signed[-1], found.headers)

    monkeypatch.setattr(S3Remote, "_request", request)
    store.status = lambda request: 403 if len(store.gets) > 5 and request.target.endswith("number=0") else None
    with caplog.at_level(logging.INFO):
        assert scene.fetched(scene.s3(store)) == DATA
    assert (len(signed), scene.by_library) == (2, [])
    assert "X-Amz" not in caplog.text


def test_signed_urls_are_not_exposed(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "secret" not in repr(HttpRequest("https://h/x?X-Amz-Signature=secret", {"Authorization": "secret"}))
    remote = scene.s3(FakeStore(DATA), token="the-token")
    url = remote._request(FILE, "GET").url
    invalid = HttpRequest(url + " \n")  # which the plain client refuses
    monkeypatch.setattr(S3Remote, "_request", lambda *_: invalid)
    assert scene.fetched(remote) == DATA
    assert scene.by_library == ["x"]
    for error in (ConnectionFailed(f"GET {url}"), HttpError(403, f"GET {url}")):
        message = str(remote.translated(error, "x"))
        assert not [
            secret for secret in re.findall(r"(?:Signature|Credential|Token)=([^&]+)", url) if secret in message
        ]
    assert type(remote.translated(ConnectionFailed("x"), "x")) is RemoteBusy


def test_s3_requests_carry_what_the_options_say(scene: Scene) -> None:
    store = FakeStore(SMALL)
    url = scene.serve(store)
    for options in ({}, {"token": "the-token"}, {"requester_pays": True}):
        assert scene.fetched(s3(url, **options)) == SMALL
    assert scene.fetched(S3Remote(RemoteSpec("s3://bucket", {}, url, anon=True))) == SMALL
    plain, token, payer, anon = store.requests
    assert plain.headers["Authorization"].startswith("AWS4-HMAC-SHA256 Credential=")
    assert token.headers["x-amz-security-token"] == "the-token"
    assert ";x-amz-checksum-mode;x-amz-content-sha256;x-amz-date;x-amz-request-payer," in payer.headers["Authorization"]
    assert payer.headers["x-amz-request-payer"] == "requester"
    assert (anon.target.split("?"), anon.headers["Authorization"]) == (["/bucket/x"], None)
    assert scene.fetched(s3(url, s3_additional_kwargs={"ServerSideEncryption": "AES256"})) == SMALL
    assert scene.by_library == []
    for more in ({"s3_additional_kwargs": {"VersionId": "7"}}, {"config_kwargs": {"proxies": {"ftp": "x"}}}):
        assert scene.fetched(s3(url, **more)) == SMALL
    assert scene.by_library == ["x"] * 2


def test_requests_are_signed_for_the_region_of_the_bucket(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """By s3fs's own option, which has an effect only if the options name no server."""
    store = FakeStore(SMALL, extra_headers={"x-amz-bucket-region": "eu-west-1"})
    monkeypatch.setenv("AWS_ENDPOINT_URL", scene.serve(store))
    remote = S3Remote(RemoteSpec("s3://bucket", {**KEYS, "cache_regions": True}))
    assert scene.fetched(remote) == SMALL
    assert "/eu-west-1/s3/" in store.gets[-1].headers["Authorization"]
    assert scene.by_library == []


@pytest.mark.parametrize("lost", [0, 1])
def test_the_region_of_the_bucket_is_found_even_if_an_answer_is_lost(scene: Scene, lost: int) -> None:
    store = FakeStore(SMALL)
    heads: list[Request] = []

    def status(request: Request) -> int | None:
        if request.method == "HEAD":
            heads.append(request)
            return 503 if len(heads) <= lost else 400
        return None if "/eu-west-1/s3/" in request.headers["Authorization"] else 400

    def headers_for(request: Request) -> dict[str, str]:
        return {"x-amz-bucket-region": "eu-west-1"} if request.method == "HEAD" and len(heads) > lost else {}

    store.status, store.headers_for = status, headers_for
    remote = scene.s3(store, client_kwargs={"region_name": "us-east-1"})
    for _ in range(lost):
        with pytest.raises(RemoteError):
            scene.fetched(remote)
    scene.by_library.clear()
    assert scene.fetched(remote) == SMALL
    assert scene.by_library == []
    assert len(heads) == lost + 1


def test_web_requests_carry_credentials_and_headers(scene: Scene) -> None:
    store = FakeStore(SMALL)
    url = scene.serve(store).replace("://", "://me:p%40ss@") + "some%20folder/ü/"
    remote = HttpRemote(RemoteSpec(url, {"headers": {"X-Key": "k"}}))
    assert scene.fetched(remote, RemoteFile("a b#c", None, None, "")) == SMALL
    (request,) = store.requests
    assert request.target == "/some%20folder/%C3%BC/a%20b%23c"
    assert request.headers["Authorization"] == "Basic bWU6cEBzcw=="  # me:p@ss
    assert (request.headers["X-Key"], request.headers["Accept-Encoding"]) == ("k", "identity")
    remote = HttpRemote(RemoteSpec(url, {"client_kwargs": {"trust_env": True}}))
    assert (scene.fetched(remote), scene.by_library) == (SMALL, ["x"])


@pytest.mark.usefixtures("alone")
def test_missing_credentials_are_reported_without_the_library(scene: Scene) -> None:
    with pytest.raises(RemoteDenied, match="no credentials found"):
        S3Remote(RemoteSpec("s3://bucket", {}, scene.serve(FakeStore(DATA)))).fetch(
            FetchTask(FILE, scene.folder / "target")
        )
    assert scene.by_library == []


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Each client of botocore's that is made with credentials from the environment."""
    made: list[object] = []

    def counted(options: dict[str, Any]) -> Any:
        made.append(options)
        return plain_client(options)

    monkeypatch.setattr("growfs.remote.stores.s3.access.plain_client", counted)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "growfs-access")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "growfs-secret")
    return made


def test_a_denied_object_renews_nothing_while_others_are_served(scene: Scene, clients: list[object]) -> None:
    store = FakeStore(SMALL)
    remote = S3Remote(RemoteSpec("s3://bucket", endpoint_url=scene.serve(store)))
    good, bad = (RemoteFile(name, len(SMALL), None, "v1") for name in ("good", "bad"))
    assert scene.fetched(remote, good) == SMALL

    def headers_for(request: Request) -> dict[str, str]:
        if "/bad" in request.target and request.method == "GET":
            scene.fetched(remote, good)  # it is requested later, and served
        return {}

    store.headers_for = headers_for
    store.status = lambda request: 403 if "/bad" in request.target else None
    for _ in range(3):
        with pytest.raises(RemoteDenied):
            scene.fetched(remote, bad)
    assert len(clients) == 1


@pytest.mark.usefixtures("alone")
def test_keys_that_are_replaced_in_their_file_are_used(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(key: str) -> None:
        (scene.folder / "keys").write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = s\n")

    write("old")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(scene.folder / "keys"))
    store, valid = FakeStore(SMALL), "old"
    store.status = lambda request: None if f"Credential={valid}/" in request.headers["Authorization"] else 403
    remote = S3Remote(RemoteSpec("s3://bucket", endpoint_url=scene.serve(store)))
    assert remote._static_settings
    assert scene.fetched(remote) == SMALL
    valid = "new"
    with pytest.raises(RemoteDenied):
        scene.fetched(remote)
    write(valid)
    remote._renewal._pause_s = 0
    assert scene.fetched(remote) == SMALL


def test_what_is_denied_to_the_library_too_does_not_leave_the_rest_to_it(scene: Scene) -> None:
    store = FakeStore(SMALL)
    store.status = lambda request: 403 if "/bad" in request.target else None
    remote = scene.s3(store)
    for number in range(2 * LEFT_MAX):
        with pytest.raises(RemoteDenied):
            scene.fetched(remote, RemoteFile(f"bad{number}", len(SMALL), None, "v1"))
    scene.by_library.clear()
    assert scene.fetched(remote, RemoteFile("good", len(SMALL), None, "v1")) == SMALL
    assert scene.by_library == []


def test_a_file_is_requested_again_if_another_one_was_served_with_renewed_credentials(
    scene: Scene, clients: list[object]
) -> None:
    """Its refusal arrives late, after the other one was refused, renewed the credentials, and was served."""
    store, elsewhere = FakeStore(SMALL), replace(scene, folder=scene.folder / "other")
    remote = S3Remote(RemoteSpec("s3://bucket", endpoint_url=scene.serve(store)))
    refusals = {"/bucket/late": 2, "/bucket/other": 2}  # of the request, and then of the library's
    elsewhere.folder.mkdir()

    def status(request: Request) -> int | None:
        path = request.target.partition("?")[0]
        refusals[path] -= 1
        return 403 if refusals[path] >= 0 else None

    def headers(request: Request) -> dict[str, str]:
        if request.target == "/bucket/late" and refusals["/bucket/other"] == 2:
            assert elsewhere.fetched(remote, RemoteFile("other", len(SMALL), None, "v1")) == SMALL
        return {}

    store.status, store.headers_for = status, headers
    assert scene.fetched(remote, RemoteFile("late", len(SMALL), None, "v1")) == SMALL
    assert len(clients) == 2, "the second is made with the renewed credentials"


@pytest.mark.parametrize("others_are_served", [False, True])
def test_credentials_that_do_not_help_are_looked_for_ever_more_rarely(
    scene: Scene, clients: list[object], monkeypatch: pytest.MonkeyPatch, others_are_served: bool
) -> None:
    now = [1000.0]
    monkeypatch.setattr("growfs.remote.stores.s3.bucket.time.monotonic", lambda: now[0])
    store = FakeStore(SMALL)
    remote = S3Remote(RemoteSpec("s3://bucket", endpoint_url=scene.serve(store)))
    good = RemoteFile("good", len(SMALL), None, "v1")
    assert scene.fetched(remote, good) == SMALL
    store.status = lambda request: 403 if "/bad" in request.target else None
    for _ in range(20):
        now[0] += PAUSE_S + 1
        with pytest.raises(RemoteDenied):
            scene.fetched(remote, RemoteFile("bad", len(SMALL), None, "v1"))
        if others_are_served:
            now[0] += 1
            scene.fetched(remote, good)
    assert 4 <= len(clients) <= 8, "in 10 minutes"


def test_a_compressed_object_of_google_comes_as_it_is_stored(scene: Scene) -> None:
    stored = gzip.compress(SMALL)
    store = FakeStore(stored, extra_headers={"Content-Encoding": "gzip", "x-goog-generation": "7"})
    remote = GoogleRemote(RemoteSpec("gs://bucket", endpoint_url=scene.serve(store), anon=True))
    assert scene.fetched(remote, RemoteFile("x", len(stored), None, "7")) == stored
    assert {request.headers["Accept-Encoding"] for request in store.gets} == {"gzip"}
    assert scene.by_library == []
