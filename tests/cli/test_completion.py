"""Completion on the command line, in the real shells."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

import growfs as package
from growfs.cli import main
from growfs.client.completion import SHELLS
from growfs.daemon import spawn
from growfs.daemon.commands import COMPLETIONS_MAX
from growfs.daemon.options import all_rows, flag_name
from tests.cli.support import closed
from tests.harness import Growfs, make_tree
from tests.needs import need_programs

ROOT = Path(__file__).parents[2]
PROGRAM = f"""#!{sys.executable}
import sys
sys.path.insert(0, {str(ROOT)!r})
from growfs import main
main()
"""
SET_UP = {
    "bash": ("bash --norc --noprofile -i", 'eval "$(growfs completion bash)"'),
    "zsh": ("zsh -f -i", 'autoload -U compinit; compinit -u -D; eval "$(growfs completion zsh)"'),
    "fish": ("fish --no-config -i", "growfs completion fish | source"),
}


@pytest.fixture(scope="module")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Growfs]:
    """A mount of class0 with many files and of a/b/c.bin. The command `growfs` is in the folder of its mountpoint."""
    folder = tmp_path_factory.mktemp("completion")
    growfs = Growfs(folder)
    make_tree(folder / "remote", directories=1, files=COMPLETIONS_MAX + 20, size=10)
    (folder / "remote/a/b").mkdir(parents=True)
    (folder / "remote/a/b/c.bin").write_bytes(b"c")
    (folder / "growfs").write_text(PROGRAM)
    (folder / "growfs").chmod(0o755)
    with closed(growfs):
        growfs.mount(folder / "remote", "--wait-files", 1)
        yield growfs


def environment(growfs: Growfs) -> dict[str, str]:
    folder = growfs.mountpoint.parent
    return os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(folder), "TERM": "dumb"}


def offered(*words: str) -> list[str]:
    *before, incomplete = words
    completion = ShellComplete(main, {}, "growfs", "_GROWFS_COMPLETE")
    return [item.value for item in completion.get_completions(before, incomplete) if item.type == "plain"]


def test_mountpoints(mounted: Growfs, monkeypatch: pytest.MonkeyPatch) -> None:
    for command in ("status", "umount", "pin"):
        assert str(mounted.mountpoint) in offered(command, "")
    assert offered("status", f"{mounted.mountpoint.parent}/m") == [str(mounted.mountpoint)]
    assert offered("status", "/no/such") == []
    monkeypatch.chdir(mounted.mountpoint.parent)
    assert offered("status", "m") == ["mnt"]
    monkeypatch.chdir(mounted.mountpoint.parent.parent)
    folder = mounted.mountpoint.parent.name
    assert offered("status", f"{folder}/") == [f"{folder}/mnt"]


def test_paths_in_the_mount_are_named_without_listing_it(mounted: Growfs) -> None:
    """Of many, the last is among them: a shell adds what all that it is offered have in common."""
    mountpoint, before = str(mounted.mountpoint), mounted.status()
    assert offered("pin", mountpoint, "") == ["a/", "class0/"]
    assert offered("evict", mountpoint, "a") == ["a/b/c.bin"]
    assert offered("fetch", mountpoint, "no", "class0/000") == [f"class0/000{n}.bin" for n in range(10)]
    assert offered("fetch", mountpoint, "none/x") == []
    assert offered("fetch", "/no/mount", "x") == []
    names = offered("pin", mountpoint, "class0/")
    assert len(names) == COMPLETIONS_MAX
    assert names[-1] == f"class0/0{COMPLETIONS_MAX + 19}.bin"
    assert names[:2] == ["class0/0000.bin", "class0/0001.bin"]
    after = mounted.status()
    assert after["readers"] == [] == before["readers"]
    assert after["generation"] == before["generation"] == 0


def test_options_and_their_values() -> None:
    mountpoint = "/mnt"
    assert offered("mount", "--engine", "p") == ["passthrough"]
    names = [f"{flag_name(name)[2:]}=" for name, row in all_rows().items() if row.metadata["live"]]
    assert offered("set", mountpoint, "") == names
    assert offered("set", mountpoint, "ban") == ["bandwidth="]
    assert offered("set", mountpoint, "bandwidth=") == []
    assert offered("set", mountpoint, "bandwidth", "=") == []
    assert offered("set", mountpoint, "bandwidth", "=", "5") == []
    assert offered("set", mountpoint, "bandwidth", "=", "5MB/s", "ban") == ["bandwidth="]


@pytest.mark.parametrize("shell", SET_UP)
def test_a_real_shell_completes_mountpoints_paths_and_settings(mounted: Growfs, shell: str) -> None:
    """At a terminal, with Tab. Ctrl-A and `echo` then print the line in place of running it."""
    need_programs(shell)
    command, set_up = SET_UP[shell]
    mountpoint = str(mounted.mountpoint)
    terminal, theirs = pty.openpty()
    running = subprocess.Popen(
        ["setsid", "--ctty", *command.split()], stdin=theirs, stdout=theirs, stderr=theirs, env=environment(mounted)
    )
    os.close(theirs)
    try:
        os.write(terminal, f"{set_up}\necho rea''dy\n".encode())
        wait_for(terminal, "ready")
        os.write(terminal, f"growfs fetch {mountpoint[:-2]}\ta/\t\x01echo \n".encode())
        wait_for(terminal, f"growfs fetch {mountpoint} a/b/c.bin")
        os.write(terminal, f"growfs set {mountpoint} bandw\t5MB/s\x01echo \n".encode())
        wait_for(terminal, f"growfs set {mountpoint} bandwidth=5MB/s")
    finally:
        os.close(terminal)  # hangs up
        running.wait(30)


def wait_for(terminal: int, text: str) -> None:
    written = ""
    deadline = time.monotonic() + 30
    while text not in written:
        assert select.select([terminal], [], [], deadline - time.monotonic())[0], written
        written += os.read(terminal, 65536).decode(errors="replace")


@pytest.mark.parametrize(("shell", "change"), [("bash", "compopt -o nospace"), ("zsh", 'compadd -U -S ""')])
def test_no_space_follows_what_is_unfinished(shell: str, change: str) -> None:
    """The scripts of click are changed for that, if they have the lines that are changed."""
    script = SHELLS[shell](main, {}, "growfs", "_GROWFS_COMPLETE").source()
    assert change in script
    assert "2>/dev/null" in script


def test_completion_starts_no_daemon(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(spawn, "DaemonProcess", None)
    monkeypatch.setattr(sys, "argv", ["growfs"])
    for name, value in (("COMP_WORDS", "growfs mount s3://bucket/x --en"), ("COMP_CWORD", "3")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("_GROWFS_COMPLETE", "bash_complete")
    with pytest.raises(SystemExit) as end:
        package.main()
    assert (end.value.code, capfd.readouterr().out) == (0, "plain,--endpoint-url\nplain,--engine\n")
