"""Credentials of S3, from each place where boto3 finds them (growfs.remote.stores.s3.client)."""

from __future__ import annotations

import json
import re
import sys
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


Configure = Callable[[Path, str], dict[str, str]]


def by_file(folder: Path, server: str) -> dict[str, str]:
    (folder / "keys").write_text("[default]\naws_access_key_id = found\naws_secret_access_key = s\n")
    return {"AWS_SHARED_CREDENTIALS_FILE": str(folder / "keys")}


def by_profile(folder: Path, server: str) -> dict[str, str]:
    (folder / "config").write_text("[profile team]\naws_access_key_id = found\naws_secret_access_key = s\n")
    return {"AWS_CONFIG_FILE": str(folder / "config"), "AWS_PROFILE": "team"}


def by_process(folder: Path, server: str) -> dict[str, str]:
    answer = {"Version": 1, "AccessKeyId": "found", "SecretAccessKey": "s"}
    (folder / "answer").write_text(json.dumps(answer))
    print_it = f"{sys.executable} -c \"print(open('{folder}/answer').read())\""
    (folder / "config").write_text(f"[default]\ncredential_process = {print_it}\n")
    return {"AWS_CONFIG_FILE": str(folder / "config")}


WAYS: dict[str, Configure] = {
    "environment": lambda folder, server: {"AWS_ACCESS_KEY_ID": "found", "AWS_SECRET_ACCESS_KEY": "s"},
    "file": by_file,
    "profile": by_profile,
    "process": by_process,
    "container": lambda folder, server: {"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{server}/role"},
    "machine": lambda folder, server: {
        "AWS_EC2_METADATA_DISABLED": "false",
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": server,
    },
}


def preload() -> None:
    """As the fork server does before it knows what it needs."""
    S3Remote(RemoteSpec("s3://host/")).preload()


@pytest.mark.parametrize(("way", "by_s3fs"), [*((way, False) for way in WAYS), ("file", True), ("machine", True)])
@pytest.mark.usefixtures("alone")
def test_credentials_are_found(way: str, by_s3fs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"cache_regions": False} if by_s3fs else {}
    preload()
    with serving(MetadataService) as url:
        for name, value in WAYS[way](tmp_path, url.rstrip("/")).items():
            monkeypatch.setenv(name, value)
        remote = S3Remote(RemoteSpec("s3://bucket", options, "http://127.0.0.1:9"))
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


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("env", "profile", "kind", "message"),
    [
        (
            {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://127.0.0.1:9/role"},
            "",
            RemoteDenied,
            "no credentials from the role of the container",
        ),
        ({}, LOGIN, RemoteDenied, "no credentials from aws login"),
        (
            {},
            f"role_arn = r\nsource_profile = root\n[profile root]\n{LOGIN}",
            RemoteDenied,
            "'aws login --profile root'",
        ),
        ({}, "credential_process = false", RemoteDenied, "run that command, and fix it"),
        (
            {"AWS_ENDPOINT_URL_STS": "http://127.0.0.1:9"},
            "role_arn = arn:aws:iam::123456789012:role/growfs\nweb_identity_token_file = /proc/version",
            RemoteBusy,
            'cannot reach the server (Could not connect to the endpoint URL: "http://127.0.0.1:9/"',
        ),
    ],
    ids=["container", "login", "role", "process", "unreachable"],
)
def test_credentials_that_cannot_be_had_are_an_outage(
    env: dict[str, str],
    profile: str,
    kind: type[GrowfsError],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever the class of the error is: it is told by where it occurs."""
    monkeypatch.setattr("botocore.utils.ContainerMetadataFetcher.SLEEP_TIME", 0)
    monkeypatch.setattr("botocore.retryhandler.delay_exponential", lambda *_, **__: 0)
    (tmp_path / "config").write_text(f"[profile team]\n{profile}\n")
    for name, value in {"AWS_CONFIG_FILE": str(tmp_path / "config"), "AWS_PROFILE": "team", **env}.items():
        monkeypatch.setenv(name, value)
    for options in ({}, {"cache_regions": False}) if "container" in message else ({},):  # botocore, s3fs
        remote = S3Remote(RemoteSpec("s3://bucket", options, "http://127.0.0.1:9"))
        with pytest.raises(kind, match=re.escape(message)):
            remote._request(FILE, "GET")
        with pytest.raises(kind, match=re.escape(message)):
            next(iter(remote.pages()))


class RefusingService(QuietHandler):
    """Security Token Service (STS), which refuses every request."""

    def do_POST(self) -> None:
        self.reply("<ErrorResponse><Error><Code>AccessDenied</Code><Message>no</Message></Error></ErrorResponse>", 403)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("profile", "message"),
    [
        (
            "role_arn = arn:aws:iam::123456789012:role/growfs\nsource_profile = keys\n"
            "[profile keys]\naws_access_key_id = a\naws_secret_access_key = s",
            "no credentials from a role that ~/.aws/config assumes",
        ),
        (
            "role_arn = arn:aws:iam::123456789012:role/growfs\nweb_identity_token_file = /proc/version",
            "no credentials from a role by web identity",
        ),
        (
            "sso_start_url = https://x\nsso_region = us-east-1\nsso_account_id = 1\nsso_role_name = r",
            "no credentials from the single sign-on",
        ),
    ],
    ids=["role", "web identity", "sign-on"],
)
def test_the_service_that_refuses_credentials_is_named(
    profile: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").write_text(f"[profile team]\n{profile}\n")
    with serving(RefusingService) as url:
        env = {"AWS_CONFIG_FILE": str(tmp_path / "config"), "AWS_PROFILE": "team", "AWS_ENDPOINT_URL_STS": url}
        for name, value in {**env, "AWS_DEFAULT_REGION": "us-east-1"}.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(RemoteDenied, match=re.escape(message)):
            S3Remote(RemoteSpec("s3://bucket", {}, "http://127.0.0.1:9"))._request(FILE, "GET")


@pytest.mark.usefixtures("alone")
def test_what_credentials_are_good_for_is_used_up_and_they_are_asked_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, asked, config = (tmp_path / name for name in ("answer", "asked", "config"))
    soon = (datetime.now(timezone.utc) + timedelta(minutes=5)).isoformat()
    answer.write_text(
        json.dumps(
            {"Version": 1, "AccessKeyId": "found", "SecretAccessKey": "s", "SessionToken": "t", "Expiration": soon}
        )
    )
    config.write_text(f"[default]\ncredential_process = sh -c 'echo >> {asked}; cat {answer}'\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setattr("growfs.remote.stores.s3.signer.FRESH_S", 0)
    remote = S3Remote(RemoteSpec("s3://bucket", {}, "http://127.0.0.1:9"))
    remote._request(FILE, "GET")
    answer.unlink()
    assert "Credential=found/" in remote._request(FILE, "GET").headers["Authorization"], (
        "the store has not refused them"
    )
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


@pytest.mark.usefixtures("alone")
def test_a_remote_that_is_opened_anew_does_not_ask_for_other_credentials_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a listing does that waits until access is allowed."""
    asked, config = tmp_path / "asked", tmp_path / "config"
    answer = {"Version": 1, "AccessKeyId": "found", "SecretAccessKey": "s", "Expiration": CREDENTIALS["Expiration"]}
    (tmp_path / "answer").write_text(json.dumps(answer))
    config.write_text(f"[default]\ncredential_process = sh -c 'echo >> {asked}; cat {tmp_path}/answer'\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    preload()
    with serving(Denying) as url:
        for _ in range(5):
            with pytest.raises(RemoteDenied, match="access denied"):
                next(iter(S3Remote(RemoteSpec("s3://bucket", {}, url)).pages()))
    assert asked.read_text() == "\n\n", "the first ones, and others when those were denied"


def test_a_signer_of_a_client_that_is_forgotten_meanwhile_is_used_once(monkeypatch: pytest.MonkeyPatch) -> None:
    remote = S3Remote(RemoteSpec("s3://bucket", {"key": "k", "secret": "s"}, "http://127.0.0.1:9"))
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
