"""Mounts of stores other than S3 on real servers: content, refresh, credentials, and what an error says."""

from __future__ import annotations

import json
import os
import random
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from growfs.errors import GrowfsError
from growfs.remote import open_remote
from growfs.remote.interface import FetchTask, RemoteSpec
from tests.harness import Growfs, until
from tests.remote.places import new_store
from tests.s3.proxy import proxy_to, s3_error
from tests.servers import QuietHandler, free_port, running, serving
from tests.store_servers import (
    AZURE_ACCOUNT,
    AZURE_KEY,
    HUB_TOKEN,
    Nginx,
    Store,
    azure_container,
    azurite_command,
    google_bucket,
    hub_data_set,
    hub_server,
    nginx_folder,
)

LARGE = 2_000_000
"""In bytes: fetched in parts."""


@pytest.fixture(params=["azure", "google", "hub", "nginx", "webdav"])
def store(request: pytest.FixtureRequest) -> Store:
    """A new place in each of the stores."""
    return new_store(str(request.param), request)


def mount(growfs: Growfs, store: Store, *flags: object) -> None:
    growfs.env.update(store.env)
    growfs.mount(store.url, *store.flags, *flags)


@pytest.mark.promise(1, 2, 16)
def test_all_files_are_served_bit_for_bit_and_changes_appear(growfs: Growfs, store: Store) -> None:
    tree = {f"{folder}/{number}.bin": f"{folder}{number}".encode() * 100 for folder in "ab" for number in range(3)}
    tree |= {"empty": b"", "odd name+ä.bin": b"odd", "large": random.Random(1).randbytes(LARGE)}
    for path, data in tree.items():
        store.put(path, data)
    mount(growfs, store, "--settle", "0", "--refresh", "0.2s")
    growfs.run("wait", growfs.mountpoint, "--all", "--timeout", "60s")
    until(lambda: growfs.names() == tree.keys())
    assert growfs.content() == tree
    store.put("e/new", b"new")
    store.delete("a/0.bin")
    until(lambda: growfs.names() == {*tree, "e/new"} - {"a/0.bin"})
    if not store.url.startswith("http"):  # a page of links has no versions
        store.put("a/1.bin", b"CHANGES AND GROWS" * 100)
        until(lambda: (growfs.mountpoint / "a/1.bin").read_bytes() == b"CHANGES AND GROWS" * 100)
    assert (growfs.mountpoint / "e/new").read_bytes() == b"new"


@pytest.mark.parametrize("options", [{}, {"auth": ["user", "pa%ss"]}])
def test_a_file_of_webdav_is_fetched_by_its_get_alone(nginx: Nginx, tmp_path: Path, options: dict[str, Any]) -> None:
    name = f"webdav-{uuid4().hex[:8]}"
    nginx_folder(nginx, name, webdav=True).put("large", data := random.Random(5).randbytes(LARGE))
    with proxy_to(nginx.url) as proxy:
        remote = open_remote(RemoteSpec(f"webdav://{name}", {"base_url": f"{proxy.url}/dav/", **options}))
        [file] = [file for page in remote.pages() for file in page.files]
        proxy.requests.clear()
        remote.fetch(FetchTask(file, tmp_path / "target"))
        assert (tmp_path / "target").read_bytes() == data
        assert {request.method for request in proxy.requests} == {"GET"}
        assert len([request.headers["Range"] for request in proxy.requests]) > 1


@pytest.mark.parametrize(
    ("kind", "url", "message"),
    [
        ("azure", "az://no-such-container", "no such file or folder; check the URL"),
        ("google", "gs://no-such-bucket", "no such file or folder; check the URL"),
        (
            "hub",
            "hf://datasets/growfs/nothing",
            "no such repository, or it is private; credentials: none, because of --anon; check the name; set HF_TOKEN",
        ),
    ],
)
def test_a_store_that_is_not_there_is_named(request: pytest.FixtureRequest, kind: str, url: str, message: str) -> None:
    with pytest.raises(GrowfsError, match=f"{url}: {message}"):
        list(open_remote(replace(new_store(kind, request).spec(), url=url)).pages())


@pytest.mark.long
@pytest.mark.promise(15)
@pytest.mark.parametrize("kind", ["azure", "google", "hub"])
def test_a_server_that_is_gone_is_named_and_filling_goes_on_when_it_is_back(
    growfs: Growfs, request: pytest.FixtureRequest, kind: str
) -> None:
    store = new_store(kind, request)
    store.put("first", b"first")
    with proxy_to(f"http://{store.server}") as proxy:
        mount(growfs, store.reached_at(urlsplit(proxy.url).netloc), "--settle", "0", "--refresh", "0.5s")
        until(lambda: growfs.names() == {"first"})
        proxy.is_away = True
        store.put("second", b"second")
        assert "cannot reach the server" in until(lambda: growfs.status()["last_error"], timeout_s=60)
        assert (growfs.mountpoint / "first").read_bytes() == b"first"
        proxy.is_away = False
        until(lambda: growfs.names() == {"first", "second"}, timeout_s=90)
        assert (growfs.mountpoint / "second").read_bytes() == b"second"


# Credentials, as the stores' own tools find them.


@contextmanager
def token_server(path: str, fields: dict[str, object]) -> Iterator[str]:
    """A server that gives a token at a path, as those of clouds do to their machines; gives its address."""

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            known = self.path.partition("?")[0].startswith(path)
            answer = fields if known else {"email": "x", "scopes": [], "aliases": []}
            self.reply(json.dumps(answer), 200, {"Metadata-Flavor": "Google", "Content-Type": "application/json"})

        do_POST = do_GET  # noqa: N815

    with serving(Handler) as url:
        yield url.rstrip("/")


def google_key_file(folder: Path, token_uri: str) -> Path:
    """What `gcloud iam service-accounts keys create` writes, for another server of tokens."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    account = {"type": "service_account", "project_id": "p", "private_key_id": "1", "private_key": key.decode()}
    account |= {"client_email": "growfs@p.iam.gserviceaccount.com", "client_id": "1", "token_uri": token_uri}
    path = folder / "adc.json"
    path.write_text(json.dumps(account))
    return path


@pytest.mark.parametrize("source", ["a key file", "the metadata server"])
def test_google_credentials_are_found(growfs: Growfs, gcs_endpoint: str, tmp_path: Path, source: str) -> None:
    store = google_bucket(gcs_endpoint, f"private-{uuid4().hex[:8]}")
    data = random.Random(2).randbytes(LARGE)
    store.put("large", data)
    path = "/computeMetadata/v1/instance/service-accounts/default/token" if source != "a key file" else "/token"
    token = {"access_token": "growfs-token", "expires_in": 3600, "token_type": "Bearer"}
    with token_server(path, token) as tokens, proxy_to(gcs_endpoint) as proxy:
        proxy.fault = lambda request: (
            None
            if request.headers["Authorization"] == "Bearer growfs-token"
            else s3_error(401, "AuthenticationRequired")
        )
        if source == "a key file":
            growfs.env["GOOGLE_APPLICATION_CREDENTIALS"] = str(google_key_file(tmp_path, f"{tokens}/token"))
        else:
            host = tokens.removeprefix("http://")
            growfs.env |= {"GCE_METADATA_HOST": host, "GCE_METADATA_IP": host, "GCE_METADATA_ROOT": host}
            growfs.env |= {"HOME": str(tmp_path), "CLOUDSDK_CONFIG": str(tmp_path)}
        growfs.mount(store.url, "--endpoint-url", proxy.url)
        assert growfs.content() == {"large": data}
        ranges = [request.headers["Range"] for request in proxy.requests if request.headers["Range"]]
        assert len(ranges) > 1


def azure_token() -> str:
    """A token of Microsoft Entra ID as Azurite takes it: it does not check who signed it."""
    tenant, now = "00000000-0000-0000-0000-000000000001", int(time.time())
    claims = {"iss": f"https://sts.windows.net/{tenant}/", "aud": "https://storage.azure.com", "tid": tenant}
    times = {"iat": now - 60, "nbf": now - 60, "exp": now + 3600}
    parts = [json.dumps(part).encode() for part in ({"alg": "RS256", "typ": "JWT"}, claims | times)]
    return ".".join(urlsafe_b64encode(part).decode().rstrip("=") for part in [*parts, b"signed"])


@pytest.fixture(scope="module")
def azurite_with_tokens(azurite: str, certificate: Path) -> Iterator[str]:
    """The endpoint of an Azurite that takes tokens, which it does over TLS only."""
    port = free_port()
    options = ["--oauth", "basic", "--cert", str(certificate), "--key", str(certificate)]
    with running(azurite_command(port, *options), port):
        yield f"https://127.0.0.1:{port}/{AZURE_ACCOUNT}"


@pytest.mark.long
@pytest.mark.parametrize("source", ["a managed identity", "az login", "a shared access signature", "nobody", "a key"])
def test_azure_credentials_are_found(
    growfs: Growfs, azurite_with_tokens: str, certificate: Path, tmp_path: Path, source: str
) -> None:
    from azure.storage.blob import ContainerSasPermissions, generate_container_sas

    name, data = f"private-{uuid4().hex[:8]}", random.Random(4).randbytes(LARGE)
    growfs.env |= {"AZURE_STORAGE_ACCOUNT_NAME": AZURE_ACCOUNT, "SSL_CERT_FILE": str(certificate)}
    growfs.starts_python = True  # aiohttp reads the certificates when it is imported
    flags = ["--endpoint-url", azurite_with_tokens]
    token: dict[str, object] = {
        "access_token": azure_token(),
        "expires_on": str(int(time.time()) + 3600),
        "resource": "storage",
    }
    with (
        azure_container(azurite_with_tokens, name, source == "nobody", connection_verify=str(certificate)) as store,
        token_server("/token", token) as tokens,
    ):
        store.put("large", data)
        store.put("small", b"small")
        if source == "a managed identity":
            growfs.env |= {"IDENTITY_ENDPOINT": f"{tokens}/token", "IDENTITY_HEADER": "x"}
        elif source == "az login":
            answer = {"accessToken": azure_token(), "expires_on": int(time.time()) + 3600}
            (tmp_path / "az").write_text(f"#!/bin/sh\necho '{json.dumps(answer)}'\n")
            (tmp_path / "az").chmod(0o755)
            growfs.env |= {"PATH": f"{tmp_path}:{os.environ['PATH']}", "AZURE_TOKEN_CREDENTIALS": "dev"}
        elif source == "a shared access signature":
            may = ContainerSasPermissions(read=True, list=True)
            expiry = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
            signature = generate_container_sas(
                AZURE_ACCOUNT, name, account_key=AZURE_KEY, permission=may, expiry=expiry
            )
            growfs.env["AZURE_STORAGE_SAS_TOKEN"] = signature
        elif source == "a key":
            growfs.env["AZURE_STORAGE_ACCOUNT_KEY"] = AZURE_KEY
        else:
            flags.append("--anon")
        growfs.mount(store.url, *flags)
        until(lambda: growfs.names() == {"large", "small"})
        assert growfs.content() == {"large": data, "small": b"small"}


@pytest.mark.parametrize("source", ["the environment", "a token file"])
def test_the_token_of_the_hub_is_found(growfs: Growfs, tmp_path: Path, source: str) -> None:
    with hub_server() as hub:
        hub.is_private = True
        data = random.Random(3).randbytes(LARGE)
        hub.files |= {"large": data, "small": b"small"}
        store = hub_data_set(hub)
        growfs.env = {name: value for name, value in growfs.env.items() if not name.startswith("HF_")}
        if source == "the environment":
            growfs.env["HF_TOKEN"] = HUB_TOKEN
        else:
            growfs.env["HF_HOME"] = str(tmp_path)
            (tmp_path / "token").write_text(HUB_TOKEN)
        growfs.mount(store.url, "--endpoint-url", hub.url)
        until(lambda: growfs.names() == {"large", "small"})
        assert growfs.content() == {"large": data, "small": b"small"}
        elsewhere = [headers for _, path, headers in hub.requests if path.startswith("/cdn/")]
        assert len(elsewhere) > 1
        assert not [headers for headers in elsewhere if "Authorization" in headers], "the token is the hub's alone"
