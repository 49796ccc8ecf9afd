"""Mounts of buckets on real S3 servers and of web folders: content, manifests, filters and options."""

from __future__ import annotations

import random
import time
from pathlib import Path
from uuid import uuid4

import pytest

from growfs.remote.client_choice import LEFT_MAX
from tests.harness import Growfs, until
from tests.inventories import InventoryBucket
from tests.s3.proxy import Exchange, Response, proxy_to
from tests.servers import S3Server
from tools.benchmarks.noisy_s3 import Noise, serving

ODD = "odd names/ä ü+&=%20#?.bin"


@pytest.fixture(params=["rclone", "moto"])
def server(request: pytest.FixtureRequest, growfs: Growfs) -> S3Server:
    """Each of the servers, with its credentials in the environment."""
    server: S3Server = request.getfixturevalue(f"{request.param}_s3")
    growfs.env.update(server.env)
    return server


def put_tree(server: S3Server, files: int = 3) -> tuple[str, dict[str, bytes]]:
    """Put files below a new prefix; returns its URL, and their content by path."""
    prefix = f"tree-{uuid4().hex[:8]}"
    generator = random.Random(prefix)
    tree = {f"{folder}/{number}.bin": generator.randbytes(2000) for folder in "ab" for number in range(files)}
    for path, content in tree.items():
        server.put(f"{prefix}/{path}", content)
    return f"s3://{server.bucket}/{prefix}", tree


@pytest.mark.promise(1)
def test_all_files_are_served_bit_for_bit_with_size_and_mtime(growfs: Growfs, server: S3Server) -> None:
    url, tree = put_tree(server)
    generator = random.Random(1)
    more = {ODD: b"odd", "empty": b"", "deep/er/and/deeper": b"deep", "large": generator.randbytes(2_000_000)}
    for path, data in more.items():
        server.put(f"{url.split('/')[3]}/{path}", data)
    growfs.mount(url)
    growfs.run("wait", growfs.mountpoint, "--all", "--timeout", "60s")
    growfs.umount()
    growfs.mount(url)
    for path, content in tree.items():
        found = (growfs.mountpoint / path).stat()  # before anything is listed, which brings the attributes, too
        assert found.st_size == len(content)
        assert 0 <= time.time() - found.st_mtime < 300
    assert growfs.content() == {**tree, **more}


@pytest.mark.parametrize("client", ["auto", "library"])
def test_the_bucket_of_a_tenant(growfs: Growfs, client: str) -> None:
    """As in Ceph. Neither server of the tests knows tenants, so this one stands in, which serves any bucket."""
    growfs.env.update(AWS_ACCESS_KEY_ID="access", AWS_SECRET_ACCESS_KEY="secret")
    with serving(Noise(keys=20, size=1000)) as (_, url):
        growfs.mount("s3://tenant:bucket/d0000", "--endpoint-url", url, "--client", client, "--wait-files", 20)
        assert len(growfs.names()) == 20
        growfs.umount()


@pytest.mark.parametrize(("choice", "client"), [("auto", "growfs"), ("library", "s3fs")])
def test_one_client_makes_all_requests_and_the_status_names_it(
    growfs: Growfs, moto: S3Server, choice: str, client: str
) -> None:
    url, tree = put_tree(moto)
    with proxy_to(moto.endpoint_url) as proxy:
        growfs.env["AWS_ENDPOINT_URL"] = proxy.url
        growfs.mount(url, "--client", choice)
        growfs.run("wait", growfs.mountpoint, "--all", "--timeout", "60s")
        assert growfs.content() == tree
        agents = {request.headers["User-Agent"] == "growfs" for request in proxy.requests}
        assert agents == {client == "growfs"}
    fetch = growfs.status()["fetch"]
    reason = "faster than s3fs" if choice == "auto" else f"--client {choice}"
    assert (fetch["client"], fetch["client_reason"]) == (client, reason)
    assert fetch["library_files_total"] == (0 if client == "growfs" else len(tree))
    assert f"client     {client} ({reason})\n" in growfs.run("status", growfs.mountpoint).stdout


def test_what_the_library_alone_can_request_is_left_to_it_for_good_and_the_status_says_why(
    growfs: Growfs, moto: S3Server
) -> None:
    url, tree = put_tree(moto, files=LEFT_MAX)

    def refused(exchange: Exchange) -> None:
        exchange.send(Response(403, {}, b""))

    with proxy_to(moto.endpoint_url) as proxy:
        growfs.env["AWS_ENDPOINT_URL"] = proxy.url
        proxy.fault = lambda request: (
            refused if request.is_fetch and request.headers["User-Agent"] == "growfs" else None
        )
        growfs.mount(url, "--workers", "1")
        growfs.run("wait", growfs.mountpoint, "--all", "--timeout", "60s")
        assert growfs.content() == tree
    fetch = growfs.status()["fetch"]
    assert (fetch["client"], fetch["library_files_total"]) == ("s3fs", len(tree))
    assert fetch["client_reason"] == f"growfs could not request the last {LEFT_MAX} files: status 403"
    assert growfs.log().count("the store's library makes all requests from now on, which is slower: status 403") == 1
    text = growfs.run("status", growfs.mountpoint).stdout
    assert f"client     s3fs ({fetch['client_reason']})\n" in text


def test_a_whole_bucket_is_mounted_and_anon_sends_no_credentials(growfs: Growfs, moto_s3: S3Server) -> None:
    bucket = f"public-{uuid4().hex[:8]}"
    with moto_s3.client() as client:
        client.create_bucket(Bucket=bucket, ACL="public-read")
        client.put_object(Bucket=bucket, Key="x/y", Body=b"for all", ACL="public-read")
    growfs.env.update(moto_s3.env)  # credentials that --anon must not use
    with proxy_to(moto_s3.endpoint_url) as proxy:
        growfs.mount(f"s3://{bucket}", "--anon", "--endpoint-url", proxy.url)
        assert growfs.content() == {"x/y": b"for all"}
        assert proxy.requests
        assert not [request for request in proxy.requests if request.headers["Authorization"]]


def test_an_inventory_selects_the_files(growfs: Growfs, moto: S3Server, inventories: InventoryBucket) -> None:
    url, tree = put_tree(moto)
    prefix = url.rpartition("/")[2]
    moto.put(f"{prefix}/{ODD}", b"odd")
    rows = inventories.objects(f"{prefix}/")
    moto.put(f"{prefix}/a/later.bin", b"not in it yet")
    growfs.mount(url, "--manifest", inventories.write(rows))
    assert growfs.content() == {**tree, ODD: b"odd"}
    assert growfs.status()["remote"]["files"] == len(tree) + 1


def test_a_missing_file_of_a_local_manifest_is_reported(growfs: Growfs, moto: S3Server, tmp_path: Path) -> None:
    url, tree = put_tree(moto)
    (tmp_path / "list.txt").write_text("a/0.bin\na/gone.bin\n")
    growfs.mount(url, "--manifest", tmp_path / "list.txt", "--wait-files", "1")
    error = until(lambda: growfs.status()["last_error"])
    assert "a/gone.bin: no such file" in error
    assert growfs.content() == {"a/0.bin": tree["a/0.bin"]}
