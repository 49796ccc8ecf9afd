"""Credentials of S3, from each place where boto3 finds them (growfs.remote.stores.s3.client)."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from growfs.errors import GrowfsError, RemoteBusy, RemoteDenied
from growfs.remote.interface import RemoteFile, RemoteSpec
from growfs.remote.stores.s3 import client
from growfs.remote.stores.s3.bucket import S3Remote
from growfs.remote.stores.s3.signer import Signer
from tests.servers import QuietHandler, serving

FILE = RemoteFile("x", None, None, "")

CREDENTIALS = {
    "AccessKeyId": "found",
    "SecretAccessKey": "a-secret",
    "Token": "a-token",
    "Expiration": "2099-01-01T00:00:00Z",
}


class MetadataService(QuietHandler):
    """Of a container, and of a machine (IMDSv2)."""

    def do_PUT(self) -> None:
        """The token of a session."""
        self.reply("session")

    def do_GET(self) -> None:
        """The name of the role, or its credentials."""
        is_list = self.path.endswith("/security-credentials/")
        self.reply("role" if is_list else json.dumps(CREDENTIALS | {"Code": "Success"}))


CLOSED = "http://127.0.0.1:9"
FOUND = "aws_access_key_id = found\naws_secret_access_key = s"
ANSWER = {"Version": 1, "AccessKeyId": "found", "SecretAccessKey": "s"}
WAYS = {
    "environment": {"AWS_ACCESS_KEY_ID": "found", "AWS_SECRET_ACCESS_KEY": "s"},
    "file": {"AWS_SHARED_CREDENTIALS_FILE": f"[default]\n{FOUND}"},
    "profile": {"AWS_CONFIG_FILE": f"[profile team]\n{FOUND}", "AWS_PROFILE": "team"},
    "process": {"AWS_CONFIG_FILE": f"[default]\ncredential_process = echo {json.dumps(json.dumps(ANSWER))}"},
    "container": {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "{server}role"},
    "machine": {"AWS_EC2_METADATA_DISABLED": "false", "AWS_EC2_METADATA_SERVICE_ENDPOINT": "{server}"},
}
"""The variables of each; instead of the path of a file, they have its content."""
Configure = Callable[[dict[str, str]], None]


@pytest.fixture
def configure(alone: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Configure:
    """Sets variables, and writes the content of those that name a file to one."""

    def set_variables(variables: dict[str, str]) -> None:
        for name, value in variables.items():
            if name.endswith("_FILE"):
                (tmp_path / name).write_text(value)
            monkeypatch.setenv(name, str(tmp_path / name) if name.endswith("_FILE") else value)

    return set_variables


def preload() -> None:
    """As the fork server does before it knows what it needs."""
    S3Remote(RemoteSpec("s3://host/")).preload()


@pytest.mark.parametrize(("way", "by_s3fs"), [*((way, False) for way in WAYS), ("file", True), ("machine", True)])
def test_credentials_are_found(way: str, by_s3fs: bool, configure: Configure) -> None:
    options = {"cache_regions": False} if by_s3fs else {}
    preload()
    with serving(MetadataService) as url:
        configure({name: value.replace("{server}", url) for name, value in WAYS[way].items()})
        remote = S3Remote(RemoteSpec("s3://bucket", options, CLOSED))
        assert "Credential=found/" in remote._request(FILE, "GET").headers["Authorization"]
    assert (remote._plain_client is None) == by_s3fs, "cache_regions is an option of s3fs alone"


def test_what_processes_share_stays_when_more_is_preloaded() -> None:
    preload()
    shared = client._shared_credentials
    preload()
    assert client._shared_credentials is shared


def test_a_wrong_profile_is_reported_where_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    monkeypatch.setattr(client, "_loader", None)
    client.preload()
    with pytest.raises(Exception, match="nobody"):
        S3Remote(RemoteSpec("s3://bucket"))._request(FILE, "GET")


LOGIN = "login_session = arn:aws:iam::1:user/me"


class RefusingService(QuietHandler):
    """Security Token Service (STS), which refuses every request."""

    def do_POST(self) -> None:
        self.reply("<ErrorResponse><Error><Code>AccessDenied</Code><Message>no</Message></Error></ErrorResponse>", 403)


BY_CONTAINER = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{CLOSED}/role"}
BY_CLOSED_STS = {"AWS_ENDPOINT_URL_STS": CLOSED}
ROLE = "role_arn = arn:aws:iam::123456789012:role/growfs\n"
WEB_IDENTITY = f"{ROLE}web_identity_token_file = /proc/version"
KEYS_PROFILE = "[profile keys]\naws_access_key_id = a\naws_secret_access_key = s"
SIGN_ON = "sso_start_url = https://x\nsso_region = us-east-1\nsso_account_id = 1\nsso_role_name = r"


@pytest.mark.parametrize(
    ("env", "profile", "kind", "message"),
    [
        (BY_CONTAINER, "", RemoteDenied, "no credentials from the role of the container"),
        ({}, LOGIN, RemoteDenied, "no credentials from aws login"),
        ({}, f"{ROLE}source_profile = root\n[profile root]\n{LOGIN}", RemoteDenied, "'aws login --profile root'"),
        ({}, "credential_process = false", RemoteDenied, "run that command, and fix it"),
        (BY_CLOSED_STS, WEB_IDENTITY, RemoteBusy, "cannot reach the server (Could not connect to the endpoint URL"),
        ({}, f"{ROLE}source_profile = keys\n{KEYS_PROFILE}", RemoteDenied, "a role that ~/.aws/config assumes"),
        ({}, WEB_IDENTITY, RemoteDenied, "no credentials from a role by web identity"),
        ({}, SIGN_ON, RemoteDenied, "no credentials from the single sign-on"),
    ],
    ids=["container", "login", "role by login", "process", "unreachable", "role", "web identity", "sign-on"],
)
def test_credentials_that_cannot_be_had_are_an_outage_and_their_source_is_named(
    env: dict[str, str],
    profile: str,
    kind: type[GrowfsError],
    message: str,
    configure: Configure,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever the class of the error is: it is told by where it occurs."""
    monkeypatch.setattr("botocore.utils.ContainerMetadataFetcher.SLEEP_TIME", 0)
    monkeypatch.setattr("botocore.retryhandler.delay_exponential", lambda *_, **__: 0)
    shared = {"AWS_CONFIG_FILE": f"[profile team]\n{profile}", "AWS_PROFILE": "team", "AWS_DEFAULT_REGION": "us-east-1"}
    with serving(RefusingService) as url:
        configure({**shared, "AWS_ENDPOINT_URL_STS": url, **env})
        for options in ({}, {"cache_regions": False}) if env == BY_CONTAINER else ({},):  # botocore, s3fs
            remote = S3Remote(RemoteSpec("s3://bucket", options, CLOSED))
            with pytest.raises(kind, match=re.escape(message)):
                remote._request(FILE, "GET")
            with pytest.raises(kind, match=re.escape(message)):
                next(iter(remote.pages()))


@pytest.fixture
def asked(configure: Configure, tmp_path: Path) -> Path:
    """A file that gets a line each time that the process is asked which prints the file `answer`."""
    path = tmp_path / "asked"
    process = f"sh -c 'echo >> {path}; cat {tmp_path}/answer'"
    configure({"AWS_CONFIG_FILE": f"[default]\ncredential_process = {process}"})
    return path


def test_what_credentials_are_good_for_is_used_up_and_they_are_asked_for_once(
    asked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    soon = (datetime.now(timezone.utc) + timedelta(minutes=5)).isoformat()
    (tmp_path / "answer").write_text(json.dumps(ANSWER | {"SessionToken": "t", "Expiration": soon}))
    monkeypatch.setattr("growfs.remote.stores.s3.signer.FRESH_S", 0)
    remote = S3Remote(RemoteSpec("s3://bucket", {}, CLOSED))
    remote._request(FILE, "GET")
    (tmp_path / "answer").unlink()
    request = remote._request(FILE, "GET")
    assert "Credential=found/" in request.headers["Authorization"], "the store has not refused them"
    remote._signer = None
    asked.unlink()
    for _ in range(3):
        with pytest.raises(RemoteDenied, match="no credentials from the credential_process"):
            remote._request(FILE, "GET")
    assert asked.read_text() == "\n"


class Denying(QuietHandler):
    """An S3 server that denies every request."""

    def do_GET(self) -> None:
        self.reply("<Error><Code>AccessDenied</Code></Error>", 403)


def test_a_remote_that_is_opened_anew_does_not_ask_for_other_credentials_each_time(asked: Path, tmp_path: Path) -> None:
    """As a listing does that waits until access is allowed."""
    (tmp_path / "answer").write_text(json.dumps(ANSWER | {"Expiration": CREDENTIALS["Expiration"]}))
    preload()
    with serving(Denying) as url:
        for _ in range(5):
            with pytest.raises(RemoteDenied, match="access denied"):
                next(iter(S3Remote(RemoteSpec("s3://bucket", {}, url)).pages()))
    assert asked.read_text() == "\n\n", "the first ones, and others when those were denied"


def test_a_signer_of_a_client_that_is_forgotten_meanwhile_is_used_once(monkeypatch: pytest.MonkeyPatch) -> None:
    remote = S3Remote(RemoteSpec("s3://bucket", {"key": "k", "secret": "s"}, CLOSED))
    make = remote._new_signer
    forgetting = threading.Thread(target=remote._forget_client)

    def make_meanwhile() -> Signer:
        forgetting.start()
        return make()

    monkeypatch.setattr(remote, "_new_signer", make_meanwhile)
    old = remote._fresh_signer()
    forgetting.join()
    monkeypatch.setattr(remote, "_new_signer", make)
    new = remote._fresh_signer()
    assert new is not old
    assert remote._fresh_signer() is new
