"""Credentials reach only the remote: they are not in status, log, cache, process list, mount table or errors."""

from __future__ import annotations

import base64
import os
import signal
from pathlib import Path

import pytest

from tests.blocking_server import blocking_server
from tests.cli.support import Done, leftovers, mark_environment, processes_of, start_mount
from tests.harness import Growfs, make_tree, until
from tests.s3.credentials import without_credentials
from tests.servers import S3Server

PASSWORD = "hunter2-pass-0815"


@pytest.fixture(autouse=True)
def marked(growfs: Growfs) -> None:
    growfs.env = without_credentials(growfs.env)
    mark_environment(growfs)


def all_shown(growfs: Growfs) -> dict[str, bytes]:
    """Everything that a running mount shows or writes, by its place."""
    shown = {"growfs list": growfs.run("list").stdout.encode()}
    for flags in ([], ["--json"]):
        shown[f"growfs status {flags}"] = growfs.run("status", growfs.mountpoint, *flags).stdout.encode()
    for path in filter(Path.is_file, (growfs.mountpoint / ".growfs").iterdir()):
        shown[str(path)] = path.read_bytes()
    for path in growfs.cache_dir.rglob("*"):
        shown[f"name of {path}"] = os.fsencode(path)
        if path.is_file() and "files" not in path.relative_to(growfs.cache_dir).parts:
            shown[str(path)] = path.read_bytes()
    shown["mounts"] = Path("/proc/self/mountinfo").read_bytes()
    assert processes_of(growfs.mountpoint.parent), "there is no process to examine"
    for process in Path("/proc").glob("[0-9]*"):
        if int(process.name) == os.getpid():
            continue
        try:
            shown[f"command line of {process.name}"] = (process / "cmdline").read_bytes()
        except OSError:
            continue
    return shown


def assert_hidden(growfs: Growfs, done: Done, *secrets: str) -> None:
    assert not [secret for secret in secrets if secret in done.stdout + done.stderr]
    shown = all_shown(growfs)
    assert [where for where, content in shown.items() for secret in secrets if secret.encode() in content] == []
    assert sum(bytes(growfs.mountpoint) in content for content in shown.values()) > 5, "the search finds nothing"


@pytest.mark.promise(32)
@pytest.mark.parametrize("way", ["option", "file"])
def test_bucket_keys_are_hidden(growfs: Growfs, rclone_s3: S3Server, tmp_path: Path, way: str) -> None:
    rclone_s3.put("secret-test/a.bin", b"a")
    flags: tuple[object, ...] = ("--endpoint-url", rclone_s3.endpoint_url)
    key, secret = rclone_s3.access_key, rclone_s3.secret_key
    if way == "option":
        flags += ("--storage-option", f"key={key}", f"--storage-option=secret={secret}")
    else:
        (tmp_path / "growfs.toml").write_text(f'[storage-option]\nkey = "{key}"\nsecret = "{secret}"\n')
        flags += ("--config", tmp_path / "growfs.toml")
    done = growfs.mount(f"s3://{rclone_s3.bucket}/secret-test", *flags)
    assert growfs.names() == {"a.bin"}
    assert_hidden(growfs, done, secret, key)


@pytest.mark.promise(32)
def test_a_password_in_a_url_is_hidden(growfs: Growfs) -> None:
    seen: list[str | None] = []
    with blocking_server({"a": b"a", "b": b"b"}) as server:
        server.on_headers = lambda headers: seen.append(headers["Authorization"])
        server.statuses["b"] = 403
        done = growfs.mount(server.url.replace("http://", f"http://someone:{PASSWORD}@"), "--wait-files", "1")
        assert growfs.names() == {"a"}
        error = until(lambda: growfs.status()["last_error"])
        assert f"{server.url}b: access denied" in error
        assert_hidden(growfs, done, PASSWORD, "someone:")
    expected = "Basic " + base64.b64encode(f"someone:{PASSWORD}".encode()).decode()
    assert set(seen) == {expected}, "the password never reached the server"


@pytest.mark.promise(32)
def test_an_error_shows_no_secret(growfs: Growfs, rclone_s3: S3Server) -> None:
    secret = "wrong-secret-with-much-entropy"
    flags = ("--endpoint-url", rclone_s3.endpoint_url, "--storage-option", f"key={rclone_s3.access_key}")
    done = growfs.mount(f"s3://{rclone_s3.bucket}", *flags, "--storage-option", f"secret={secret}", check=False)
    assert done.returncode == 1
    assert secret not in done.stderr
    assert leftovers(growfs) == []


@pytest.mark.promise(32)
@pytest.mark.parametrize(
    ("more", "debug"),
    [
        ((), ()),
        ((), ("--debug",)),
        (("--seed", "x"), ("--debug",)),
        (("--storage-option", f"={PASSWORD}"), ()),
        (("--storage-option", PASSWORD), ("--debug",)),
    ],
)
def test_an_error_shows_no_password(growfs: Growfs, more: tuple[str, ...], debug: tuple[str, ...]) -> None:
    with blocking_server({"a": b"a"}) as server:
        server.statuses[""] = 403
        url = server.url.replace("http://", f"http://someone:{PASSWORD}@")
        flags = ("--cache-dir", growfs.cache_dir, *more)
        done = growfs.run(*debug, "mount", url, growfs.mountpoint, *flags, check=False)
    assert done.returncode != 0
    assert ("Traceback" in done.stderr) == bool(debug)
    assert PASSWORD not in done.stdout + done.stderr
    assert leftovers(growfs) == []


@pytest.mark.promise(32)
@pytest.mark.parametrize("joined", [True, False])
def test_a_waiting_mount_command_hides_its_arguments(growfs: Growfs, joined: bool) -> None:
    """Every user who may list processes could read them."""
    header = "headers.X-Token=s3kr1t-t0ken"
    option = (f"--storage-option={header}",) if joined else ("--storage-option", header)
    with blocking_server({"a": b"a"}, "") as server:
        url = server.url.replace("http://", f"http://someone:{PASSWORD}@")
        with start_mount(growfs, url, *option) as mounting:
            until(lambda: server.requested or mounting.poll() is not None)
            assert mounting.poll() is None, mounting.communicate(30)
            command = Path(f"/proc/{mounting.pid}/cmdline").read_bytes()
            assert command.startswith(b"growfs mount http://127.0.0.1")
            shown = command.decode() + "".join(processes_of(growfs.mountpoint.parent))
            assert PASSWORD not in shown
            assert "s3kr1t" not in shown
            mounting.send_signal(signal.SIGTERM)
            mounting.wait(30)
            until(lambda: leftovers(growfs) == [])


@pytest.mark.promise(32)
def test_cache_files_are_accessible_only_to_the_owner(growfs: Growfs, tmp_path: Path) -> None:
    make_tree(tmp_path / "remote", directories=1, files=1)
    growfs.mount(tmp_path / "remote")
    assert growfs.cache_dir.stat().st_mode & 0o077 == 0
    for path in (growfs.cache, *growfs.cache.iterdir()):
        assert path.stat().st_mode & 0o077 == 0, path
