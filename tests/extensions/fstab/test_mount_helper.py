"""mount(8) with the type fuse.growfs: through /sbin/mount.fuse.growfs, through mount.fuse3(8), and from an fstab."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from growfs import cli, is_mount_helper
from growfs.daemon import launch
from growfs.daemon.options import Options
from growfs.errors import GrowfsError, UsageError
from growfs.extensions.fstab import mount_helper
from growfs.extensions.fstab.mount_helper import command_line
from tests.cli.support import assert_refused, namespace, processes_of
from tests.harness import Growfs, make_tree, until

ROOT = Path(__file__).parents[3]
PROGRAM = f"""#!{sys.executable}
import os, sys
sys.path.insert(0, {str(ROOT)!r})
os.environ["PYTHONPATH"] = {str(ROOT)!r}  # of the daemon
from growfs import main
main()
"""
SYSTEM = "defaults,rw,user,noauto,_netdev,nofail,nosuid,x-systemd.mount-timeout=5min,X-mount.mkdir"


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        (SYSTEM, []),
        (f"{SYSTEM},cache-size=5G,no-wait", ["--cache-size=5G", "--no-wait"]),
        ("allow_other,cache_dir=/x", ["--allow-other", "--cache-dir=/x"]),
        ("include=a,include=b", ["--include=a", "--include=b"]),
        ('exclude="a,b",seed=1', ["--exclude=a,b", "--seed=1"]),
        ('storage-option=x={"a": "b,c"}', ['--storage-option=x={"a": "b,c"}']),
        ("config=/etc/growfs.toml", ["--config=/etc/growfs.toml"]),
        ("dev,suid", []),
        ("", []),
    ],
)
def test_options_become_flags(text: str, flags: list[str]) -> None:
    assert command_line(["s3://b", "/mnt", "-v", "-o", text]) == ["mount", *flags, "--", "s3://b", "/mnt"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["/data"],
        ["/data", "/mnt", "-x"],
        ["/data", "/mnt", "-N", "/proc/1/ns/mnt"],
        ["/data", "/mnt", "-o", "cache-sise=5G"],
        ["/data", "/mnt", "-o", "include=a,b"],
        ["/data", "/mnt", "-o", "cache-size"],
        ["/data", "/mnt", "-o", "anon=yes"],
        ["/data", "/mnt", "-o", "config"],
        ["/data", "/mnt", "-o", "remount,cache-size=5G"],
        ["/data", "/mnt", "-o", "foreground"],
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_1(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        mount_helper.main(arguments, cli.main)
    assert end.value.code == 1
    assert re.fullmatch(r"growfs: mount: .+\n", capfd.readouterr().err)


def test_a_sloppy_mount_leaves_out_unknown_options_and_a_fake_one_mounts_nothing() -> None:
    assert command_line(["/data", "/mnt", "-s", "-o", "nosuch,seed=1"]) == ["mount", "--seed=1", "--", "/data", "/mnt"]
    assert command_line(["/data", "/mnt", "-f", "-o", "rw"]) == []
    mount_helper.main(["/data", "/mnt", "-f", "-o", "rw"], cli.main)


@pytest.mark.parametrize(("error", "code"), [(GrowfsError("no"), 32), (UsageError("no"), 1)])
def test_exit_codes_are_those_of_mount_and_secrets_in_options_are_hidden(
    error: GrowfsError, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[list[str]] = []

    def start(url: str, mountpoint: Path, options: Options, *_: object) -> None:
        assert (url, mountpoint, options.storage_option) == ("/data", Path("/mnt"), (("secret", "x"),))
        raise error

    monkeypatch.setattr(launch, "start", start)
    monkeypatch.setattr(launch, "hide_secrets", lambda: shown.append(sys.argv[1:]))
    monkeypatch.setattr(sys, "argv", ["mount.fuse.growfs"])
    with pytest.raises(SystemExit) as end:
        mount_helper.main(["/data", "/mnt", "-o", "storage-option=secret=x"], cli.main)
    assert end.value.code == code
    assert shown == [["mount", "--storage-option=secret=x", "--", "/data", "/mnt"]]


@pytest.mark.parametrize(
    ("command", "is_helper"),
    [
        (["/sbin/mount.fuse.growfs", "s3://b", "/mnt"], True),
        (["growfs", "s3://b", "/mnt", "-o", "rw,dev,suid"], True),
        (["growfs", "/data", "/mnt", "-o", "rw,dev,suid"], True),
        (["growfs", "report", "/mnt", "-o", "report.html"], False),
        (["growfs", "--debug", "report", "-o", "report.html"], False),
        (["growfs", "mount", "s3://b", "/mnt"], False),
        (["growfs"], False),
    ],
)
def test_calls_by_mount_are_recognized(command: list[str], is_helper: bool) -> None:
    assert is_mount_helper(command) == is_helper


class System:
    """A mount namespace in which mount(8) finds growfs. run: a shell command in it, with an empty environment."""

    def __init__(self, growfs: Growfs, prefix: tuple[str, ...]) -> None:
        self.growfs = growfs
        self.prefix = prefix

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        command = ["env", "-i", *self.prefix, "/bin/sh", "-c", script]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def system(request: pytest.FixtureRequest, growfs: Growfs, tmp_path: Path) -> Iterator[System]:
    """With the helper or, as the parameter says, with the command alone, which mount.fuse3(8) runs."""
    sbin, program = Path("/sbin").resolve(), getattr(request, "param", "mount.fuse.growfs")
    if program == "growfs" and not (sbin / "mount.fuse3").exists():
        pytest.skip("mount.fuse3 is not installed; apt-get install fuse3")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (tmp_path / "program").write_text(PROGRAM)
    (tmp_path / "program").chmod(0o755)
    script = f"""
        mount -t tmpfs scratch {scratch}
        mkdir {scratch}/upper {scratch}/work
        mount -t overlay -o lowerdir={sbin},upperdir={scratch}/upper,workdir={scratch}/work overlay {sbin}
        cp {tmp_path}/program {sbin}/{program}
    """
    with namespace(script) as prefix:
        yield System(growfs, prefix)
        subprocess.run([*prefix, "umount", "-l", growfs.mountpoint], capture_output=True, check=False)


def test_an_fstab_line_mounts_and_umount_ends_the_daemon(system: System, tmp_path: Path) -> None:
    growfs, tree = system.growfs, make_tree(tmp_path / "remote", directories=1, files=2)
    options = f'cache-dir={growfs.cache_dir},cache-size=1GB,wait-files=2,include="/class0/*",_netdev,nofail'
    (tmp_path / "fstab").write_text(f"{tmp_path}/remote {growfs.mountpoint} fuse.growfs {options} 0 0\n")
    mount = f"mount -a -T {tmp_path}/fstab"
    done = system.run(mount)
    assert done.returncode == 0, done.stderr
    again = system.run(mount)
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    other = system.run(f"mount -t fuse.growfs {tmp_path}/scratch {growfs.mountpoint} -o {options}")
    assert_refused(other, "is already a growfs mount", exit_code=32)
    done = system.run(f"umount {growfs.mountpoint} && {mount} && sha256sum {growfs.mountpoint}/class0/*")
    assert done.returncode == 0, "a mount right after umount waits for the daemon that ends: " + done.stderr
    found = [line.split()[0] for line in done.stdout.splitlines()[-2:]]
    assert found == [hashlib.sha256(tree[path]).hexdigest() for path in sorted(tree)]
    assert system.run(f"umount {growfs.mountpoint}").returncode == 0
    until(lambda: not processes_of(growfs.cache_dir))


@pytest.mark.parametrize("system", ["growfs"], indirect=True)
def test_the_command_alone_mounts_through_mount_fuse3(system: System, tmp_path: Path) -> None:
    growfs, tree = system.growfs, make_tree(tmp_path / "remote", directories=1, files=2)
    options = f"cache-dir={growfs.cache_dir},cache-size=1GB,nofail"
    mount = f"mount -t fuse.growfs {tmp_path}/remote {growfs.mountpoint} -o {options}"
    done = system.run(f"{mount} && ls {growfs.mountpoint}/class0 && umount {growfs.mountpoint}")
    assert (done.returncode, done.stdout.splitlines()[-2:]) == (0, sorted(Path(path).name for path in tree)), (
        done.stderr
    )
    until(lambda: not processes_of(growfs.cache_dir))


AUTOMOUNTER = """
import ctypes, fcntl, os, struct, subprocess, sys
mountpoint, *command = sys.argv[1:]
os.setpgid(0, 0)
reading, writing = os.pipe()
options = f"fd={writing},pgrp={os.getpgid(0)},minproto=5,maxproto=5,direct"
if ctypes.CDLL(None).mount(b"automount", mountpoint.encode(), b"autofs", 0, options.encode()):
    sys.exit()
os.close(writing)
folder = os.open(mountpoint, os.O_RDONLY)
print("ready", flush=True)
token = struct.unpack_from("iiI", os.read(reading, 4096))[2]
done = subprocess.run(command, capture_output=True, text=True, timeout=30)
fcntl.ioctl(folder, 0x9361 if done.returncode else 0x9360, token)
print(done.returncode, done.stdout, done.stderr, flush=True)
"""
"""As systemd for x-systemd.automount: mounts at the first access (linux/auto_fs.h; direct, and version 5)."""


def test_an_automount_does_not_wait_for_itself(system: System, tmp_path: Path) -> None:
    growfs, tree = system.growfs, make_tree(tmp_path / "remote", directories=1, files=2)
    options = f"cache-dir={growfs.cache_dir},cache-size=1GB"
    mount = ["mount", "-t", "fuse.growfs", f"{tmp_path}/remote", str(growfs.mountpoint), "-o", options]
    command = [*system.prefix, sys.executable, "-c", AUTOMOUNTER, str(growfs.mountpoint), *mount]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as automounter:
        assert automounter.stdout
        if automounter.stdout.readline() != "ready\n":
            pytest.skip("the kernel has no autofs")
        found = system.run(f"ls {growfs.mountpoint}/class0")
        assert automounter.stdout.read().startswith("0 ")
    assert found.stdout.split() == sorted(Path(path).name for path in tree)
    assert system.run(f"umount {growfs.mountpoint}").returncode == 0
    until(lambda: not processes_of(growfs.cache_dir))


def test_a_daemon_without_its_mount_counts_as_none(growfs: Growfs, tmp_path: Path) -> None:
    (path, *_) = make_tree(tmp_path / "remote", directories=1, files=2)
    growfs.mount(tmp_path / "remote")
    assert mount_helper.is_mounted(str(tmp_path / "remote"), str(growfs.mountpoint))
    with (growfs.mountpoint / path).open("rb"):
        growfs.umount(lazy=True)
        assert processes_of(growfs.cache_dir)
        assert not mount_helper.is_mounted(str(tmp_path / "remote"), str(growfs.mountpoint))
    until(lambda: not processes_of(growfs.cache_dir))
