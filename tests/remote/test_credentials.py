"""Credentials of S3, from each place where boto3 finds them (growfs.remote.stores.s3.client)."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from growfs.remote.interface import RemoteFile, RemoteSpec
from growfs.remote.stores.s3 import client
from growfs.remote.stores.s3.bucket import S3Remote
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


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("options", [{}, {"cache_regions": False}], ids=["botocore", "s3fs"])
def test_credentials_are_found(
    way: str, options: dict[str, bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, os.devnull)
    client.preload()  # as the fork server does before it knows what it needs
    with serving(MetadataService) as url:
        for name, value in WAYS[way](tmp_path, url.rstrip("/")).items():
            monkeypatch.setenv(name, value)
        remote = S3Remote(RemoteSpec("s3://bucket", options, "http://127.0.0.1:9"))
        assert re.search("X-Amz-Credential=(.*?)%2F", remote._request(FILE, "GET").url + "%2F")[1] == "found"  # type: ignore[index]
    assert (remote._plain_client is None) == bool(options), "cache_regions is an option of s3fs alone"


def test_a_wrong_profile_is_reported_where_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    monkeypatch.setattr(client, "_loader", None)
    client.preload()
    with pytest.raises(Exception, match="nobody"):
        S3Remote(RemoteSpec("s3://bucket"))._request(FILE, "GET")
