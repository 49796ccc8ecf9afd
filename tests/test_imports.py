"""What a process must not import: each of these modules takes a tenth of a second or more, at every start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from growfs.extensions import ALL
from tests.servers import S3Server

COMMANDS = {"trio", "rich", "asyncio", "ssl", "botocore", "fsspec", "pyfuse3", "growfs.daemon.options"}
SMALL = "import sys; from growfs import cli, main; import growfs.daemon.status_text; sys.argv[1:] = {}\ntry: main()\n"
S3 = {"s3fs", "aiobotocore", "aiohttp", "fsspec", "asyncio"}
FETCH = """
import sys
from growfs.remote import open_remote, preload
from growfs.remote.interface import FetchTask, RemoteSpec
spec = RemoteSpec({url!r})
preload(spec)
remote = open_remote(spec)
for page in remote.pages():
    for file in page.files:
        remote.fetch(FetchTask(file, __import__("pathlib").Path({target!r})))
"""


def imported(script: str, modules: set[str], **env: str) -> list[str]:
    """Those of the modules that a script imports."""
    script += f"\nsys.stderr.write(' '.join(sys.modules.keys() & {modules!r}))"
    command, environment = [sys.executable, "-c", script], os.environ | env
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    *_, last = done.stderr.split("\n")
    return last.split()


@pytest.mark.parametrize("words", [["--help"], ["status", "/"], ["list"], ["umount", "--help"]])
def test_a_small_command_imports_little_and_no_extension(words: list[str]) -> None:
    extensions = {f"growfs.extensions.{extension}.command" for _, extension in ALL.values()}
    modules = COMMANDS if "--help" in words[:1] else COMMANDS | extensions
    assert imported(SMALL.format(words) + "except SystemExit: pass", modules) == []


def test_what_changes_a_remote_is_imported_where_it_is_opened() -> None:
    opened = {f"growfs.extensions.{name}" for name in ("manifests.manifest", "members.members", "producers.pool")}
    given = {"manifest": "/list.csv", "members": "tar"}
    script = f"import sys; from growfs.daemon.options import Options; Options.parse({given}).remote('s3://bucket')"
    assert imported(script, opened) == []


def test_completion_imports_little() -> None:
    line = {"_GROWFS_COMPLETE": "bash_complete", "COMP_WORDS": "growfs status ", "COMP_CWORD": "2"}
    assert imported(SMALL.format([]) + "except SystemExit: pass", COMMANDS, **line) == []


def test_the_daemon_starts_its_fork_server_before_it_imports() -> None:
    assert imported("import sys, growfs.workers.fork_server", {*COMMANDS, "growfs.remote", "dataclasses"}) == []
    assert imported("import sys, growfs.workers.worker", {"trio"}) == []


def test_a_folder_is_listed_and_fetched_without_fsspec(tmp_path: Path) -> None:
    (tmp_path / "remote").mkdir()
    (tmp_path / "remote/x").write_bytes(b"content")
    target = tmp_path / "target"
    assert imported(FETCH.format(url=str(tmp_path / "remote"), target=str(target)), {*S3, "botocore"}) == []
    assert target.read_bytes() == b"content"


def test_a_bucket_is_listed_and_fetched_without_s3fs(rclone_s3: S3Server, tmp_path: Path) -> None:
    rclone_s3.put("imports/x", b"content")
    target = tmp_path / "target"
    script = FETCH.format(url=f"s3://{rclone_s3.bucket}/imports", target=str(target))
    assert imported(script, S3, **rclone_s3.env) == []
    assert target.read_bytes() == b"content"
