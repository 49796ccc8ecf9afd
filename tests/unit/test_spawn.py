"""The daemon's process, which `growfs mount` starts before it has read its command line."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from growfs.daemon import spawn
from growfs.daemon.spawn import daemon_process, start_early
from growfs.workers.fork_server import ForkServer

END_S = 60
pytestmark = pytest.mark.usefixtures("daemons_are_forked")


@pytest.fixture(autouse=True)
def nothing_early() -> Iterator[None]:
    yield
    if early := spawn._early:
        spawn._early = None
        early.close()
        early.process.wait(END_S)


def test_a_daemon_that_was_started_early_is_used_unless_it_is_for_another_store() -> None:
    start_early(["mount", "--endpoint-url=http://host", "memory://folder", "/mnt"])
    early = spawn._early
    daemon = daemon_process("memory")
    assert daemon is early
    assert daemon.process.stdin
    daemon.process.stdin.close()
    assert daemon.process.wait(END_S) == 0
    daemon.errors.seek(0)
    assert daemon.errors.read() == "", "without a request, it ends as if nothing were wrong"
    daemon.close()
    start_early(["mount", "--endpoint-url", "http://host", "memory://folder", "/mnt"])
    early = spawn._early
    assert early
    daemon = daemon_process("memory")
    assert (early.scheme, daemon.scheme) == ("http", "memory")
    for process in (early, daemon):
        process.close()
        assert process.process.wait(END_S) == 0


def test_paths_in_the_environment_are_those_of_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_CA_BUNDLE", "ca.pem")
    monkeypatch.setenv("AWS_CONFIG_FILE", "~/.aws/config")
    monkeypatch.setenv("SSL_CERT_DIR", "/etc/ssl")
    assert spawn._environment() == os.environ | {"AWS_CA_BUNDLE": f"{tmp_path}/ca.pem"}


def test_a_daemon_starts_without_a_folder_for_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/no/such/folder")
    daemon = daemon_process("memory")
    daemon.close()
    assert daemon.process.wait(END_S) == 0


def test_a_fork_server_that_is_stopped_is_ended() -> None:
    server = ForkServer("file")
    os.kill(server._process.pid, signal.SIGSTOP)
    server.stop()
    assert server._process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("arguments", [[], ["--help"], ["list"], ["mount", "/remote", "/mnt"], ["plan", "s3://bucket"]])
def test_no_daemon_is_started_where_none_may_be_needed(arguments: list[str]) -> None:
    start_early(arguments)
    assert spawn._early is None
