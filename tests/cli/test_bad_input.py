"""Errors of the user and the machine: one line names the cause and the remedy, and nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.support import (
    Done,
    OtherUser,
    assert_refused,
    cache_folders,
    fill_disk,
    fuse_device,
    leftovers,
    mark_environment,
    namespace,
    needs_root,
    other_user,
    processes_of,
    run_inside,
    tmpfs,
)
from tests.forkserver import SETUP_VARIABLE
from tests.harness import GROWFS, Growfs, make_tree, until
from tests.s3.credentials import without_credentials
from tests.servers import S3Server, WebFolder, free_port

QUICK_RETRIES = "from growfs.remote import retries; retries.DELAY_S_MIN = 0.01"


@pytest.fixture(autouse=True)
def no_credentials(growfs: Growfs) -> None:
    env = without_credentials(growfs.env)
    growfs.env = {name: value for name, value in env.items() if not name.startswith("GROWFS_")}
    mark_environment(growfs)


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    make_tree(tmp_path / "remote", directories=2, files=2)
    return tmp_path / "remote"


def assert_mount_refused(
    growfs: Growfs, url: object, *flags: object, expected: tuple[str, ...], exit_code: int = 1
) -> None:
    assert_refused(growfs.mount(url, *flags, check=False), *expected, exit_code=exit_code)
    assert leftovers(growfs) == []


IMPATIENT = "from growfs.workers import messages, pool; pool.STALL_S, messages.COMPUTE_S_MAX = 3, 3.5"


@pytest.mark.parametrize("flags", [(), ("--exact",)], ids=["rotation", "exact"])
def test_an_expression_that_takes_hours(growfs: Growfs, tmp_path: Path, flags: tuple[str, ...]) -> None:
    """No thread of the worker can run meanwhile, so the worker does not notice that the daemon is gone."""
    (tmp_path / "remote").mkdir()
    (tmp_path / "remote" / ("a" * 200)).touch()
    growfs.env[SETUP_VARIABLE] = IMPATIENT
    done = growfs.mount(tmp_path / "remote", "--group", f"^{'(.*)' * 12}x$", *flags, check=False)
    assert done.returncode == 1
    assert "took too long to match the remote's file names; if it is a regular expression, simplify it" in done.stderr
    until(lambda: leftovers(growfs) == [])


# The URL.


def test_a_remote_that_is_not_there(
    growfs: Growfs, tmp_path: Path, remote: Path, rclone_s3: S3Server, http_folder: WebFolder
) -> None:
    growfs.env |= {**rclone_s3.env, SETUP_VARIABLE: QUICK_RETRIES}
    away, file = f"http://127.0.0.1:{free_port()}", remote / "class0/0000.bin"
    for url, flags, *expected in (
        ("s3://no-such-bucket-here/train", (), "no such bucket", "check the name and --endpoint-url"),
        ("s3://bucket/train", ("--endpoint-url", away), "cannot reach the server", "check the network"),
        (f"{away}/train/", (), "cannot reach the server", "check the network"),
        (f"{http_folder.url}gone/", (), "no such file or folder", "check the URL"),
        (tmp_path / "gone", (), "no such file or folder", "check"),
        (file, (), "is a file", "folder"),
    ):
        assert_mount_refused(growfs, url, *flags, expected=(f"{url}: {expected[0]}", expected[1]))
    manifest = tmp_path / "gone.txt"
    assert_mount_refused(growfs, remote, "--manifest", manifest, expected=(f"{manifest}: no such file",))


def test_no_files(growfs: Growfs, tmp_path: Path, rclone_s3: S3Server, remote: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert_mount_refused(growfs, tmp_path / "empty", expected=(f"{tmp_path / 'empty'}: there are no files", "check"))
    expected = (f"{remote}: there are no files", "check the URL, --include and --exclude")
    assert_mount_refused(growfs, remote, "--include", "*.jpg", expected=expected)
    growfs.env |= rclone_s3.env
    rclone_s3.put("train-set/0001.tar", b"x")
    for name, hint in (
        ("nothing/below", "check the prefix"),
        ("train-set/0001.tar", "it is an object; give the URL of its folder"),
        ("train-se", "check the prefix; there is train-set/0001.tar"),
        ("train-set/*.tar", "a pattern belongs in --include"),
    ):
        url = f"s3://{rclone_s3.bucket}/{name}"
        assert_mount_refused(growfs, url, expected=(f"{url}: nothing is stored below it; {hint}",))


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("nope://bucket", "nope:// is not a store"),
        ("", "the URL is empty"),
        ("s3://", "s3://: names no bucket; use s3://bucket/prefix"),
        ("bucket/train", "bucket/train: no such folder; if this is not a local path, use s3://bucket/train"),
        ("gs:/bucket", "gs:/bucket: no such folder; if this is not a local path, use gs://bucket"),
        ("s3:///train", "s3:///train: names no bucket"),
        ("s3://my bucket/train", "s3://my bucket/train: names no bucket"),
        ("s3://localhost:9000/train", "s3://localhost:9000/train: names no bucket"),
    ],
)
def test_a_malformed_url(growfs: Growfs, url: str, expected: str) -> None:
    assert_mount_refused(growfs, url, expected=(expected,), exit_code=2)


@pytest.mark.parametrize("name", ["mountpoint", "cache_dir"])
def test_a_mount_or_a_cache_within_the_remote(growfs: Growfs, remote: Path, name: str) -> None:
    """Such a mount would list its own cached files, and cache them again."""
    inside = remote / "inside"
    setattr(growfs, name, inside)
    assert_mount_refused(growfs, remote, expected=(f"{inside}: is inside the remote, {remote}", "outside"))
    assert not inside.exists()


@pytest.mark.parametrize("way", ["directly", "by a link", "by a bind mount", "TMPDIR"])
def test_a_cache_or_a_temporary_folder_below_the_mountpoint(
    growfs: Growfs, remote: Path, tmp_path: Path, way: str
) -> None:
    """The daemon would wait for itself, and no signal would end it."""
    folder = growfs.mountpoint / "folder"
    with contextlib.ExitStack() as stack:
        if way == "by a link":
            (tmp_path / "link").symlink_to(folder)
            folder = tmp_path / "link"
        if way == "by a bind mount":
            needs_root()
            (tmp_path / "bound").mkdir()
            subprocess.run(["mount", "--bind", growfs.mountpoint, tmp_path / "bound"], check=True)
            stack.callback(lambda: subprocess.run(["umount", "-l", tmp_path / "bound"], check=True))
            folder = tmp_path / "bound" / "folder"
        if way == "TMPDIR":
            growfs.env["TMPDIR"] = str(folder)
        else:
            growfs.cache_dir = folder
        name = "TMPDIR" if way == "TMPDIR" else "--cache-dir"
        expected = (f"{name} {folder}: is inside the mountpoint, {growfs.mountpoint}",)
        assert_mount_refused(growfs, remote, expected=expected)


# The mountpoint.


@pytest.mark.parametrize("usage", ["mount URL MOUNTPOINT", "fill URL FOLDER"])
def test_swapped_arguments_are_noticed(
    growfs: Growfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, usage: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = growfs.run(usage.split()[0], growfs.mountpoint, "s3://bucket/train", check=False)
    assert_refused(done, f"is a URL, not a folder; the URL comes first: growfs {usage}", exit_code=2)
    assert not (tmp_path / "s3:").exists()


def test_a_mountpoint_or_a_cache_directory_that_is_something_else(growfs: Growfs, remote: Path, tmp_path: Path) -> None:
    file = growfs.mountpoint / "precious"
    file.write_text("")
    assert_mount_refused(growfs, remote, expected=(f"{growfs.mountpoint}: is not empty", "empty folder"))
    growfs.mountpoint = file
    assert_mount_refused(growfs, remote, expected=(f"{file}: is not a folder",))
    growfs.mountpoint = Path("/proc/no/such")
    assert_mount_refused(growfs, remote, expected=("/proc/no/such: cannot be created: No such file or directory",))
    growfs.mountpoint, growfs.cache_dir = tmp_path / "mnt" / "new", file
    assert_mount_refused(growfs, remote, expected=(f"{file}: is not a folder", "--cache-dir"))
    assert file.exists()


def test_a_mountpoint_is_created_if_it_is_missing_and_refused_if_it_is_mounted_already(
    growfs: Growfs, remote: Path, tmp_path: Path
) -> None:
    growfs.mountpoint = growfs.mountpoint / "new" / "folder"
    growfs.mount(remote)
    done = growfs.run("mount", remote, growfs.mountpoint, "--cache-dir", tmp_path / "other", check=False)
    assert_refused(done, f"{growfs.mountpoint}: is already a growfs mount", f"growfs umount {growfs.mountpoint}")
    assert cache_folders(tmp_path / "other") == []
    assert len(growfs.names()) == 4, "the first mount lost files"


def test_a_mountpoint_where_something_else_is_mounted(growfs: Growfs, remote: Path) -> None:
    with tmpfs(growfs.mountpoint):
        done = growfs.mount(remote, check=False)
    assert_refused(done, f"{growfs.mountpoint}: something else is mounted there")
    assert leftovers(growfs) == []


# The machine.


def test_no_fuse_device(growfs: Growfs, remote: Path, tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    script = "mount -t tmpfs tmpfs {0}; cp -a /dev/null /dev/zero /dev/random /dev/urandom {0}; mount --bind {0} /dev"
    with namespace(script.format(tmp_path / "dev")) as inside:
        done = run_inside(inside, growfs.mount_words(remote), growfs.env)
    assert_refused(done, "/dev/fuse is missing", "modprobe fuse", "--device /dev/fuse", "growfs fill")
    assert leftovers(growfs) == []


def test_no_permission_to_mount(growfs: Growfs, remote: Path) -> None:
    needs_root()
    without = ("setpriv", "--bounding-set=-sys_admin", "--")
    command = [*without, *GROWFS, *map(str, growfs.mount_words(remote))]
    done = subprocess.run(command, capture_output=True, text=True, env=growfs.env, timeout=60, check=False)
    assert_refused(done, "may not mount", "--cap-add SYS_ADMIN")
    assert leftovers(growfs) == []


@pytest.fixture
def user() -> Iterator[OtherUser]:
    with other_user() as user:
        (user.folder / "mnt").mkdir()
        yield user


def mount_as(user: OtherUser, cache_dir: Path | None = None, device: str = "666") -> Done:
    with fuse_device(device) as user.before:
        return user.run("mount", "/etc", user.folder / "mnt", "--cache-dir", cache_dir or user.folder / "cache")


@pytest.mark.parametrize("version", ["fusermount3 version: 3.14.0", "fusermount3-shim version: 0.1.0"])
def test_only_another_fusermount_may_mount_without_the_device(user: OtherUser, version: str) -> None:
    """As in the pods of SkyPilot: the program asks another pod, which opens the device."""
    program = user.folder / "bin/fusermount3"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\ntest "$1" = --version && echo "{version}" && exit\necho "no pod" >&2\nexit 1\n')
    program.chmod(0o755)
    user.env["PATH"] = f"{program.parent}:{user.env['PATH']}"
    done = mount_as(user, device="600")
    if "shim" in version:
        assert_refused(done, f"{user.folder / 'mnt'}: no pod")
    else:
        assert_refused(done, "/dev/fuse: permission denied", "mount as root")
        assert not (user.folder / "cache").exists()


def test_no_fusermount(user: OtherUser) -> None:
    user.env["PATH"] = "/usr/sbin"
    assert_refused(mount_as(user), "fusermount3 is missing", "apt install fuse3")
    assert not (user.folder / "cache").exists()


# The cache directory.


def test_a_cache_directory_that_is_read_only(growfs: Growfs, remote: Path) -> None:
    with tmpfs(growfs.cache_dir, "ro"):
        done = growfs.mount(remote, check=False)
        assert_refused(done, f"{growfs.cache_dir}", "Read-only file system", "--cache-dir")
        assert leftovers(growfs) == []


def test_a_cache_directory_on_a_full_disk(growfs: Growfs, remote: Path) -> None:
    with tmpfs(growfs.cache_dir, "size=1m"):
        fill_disk(growfs.cache_dir / "others")
        for flags in ((), ("--min-free", "0"), ("--min-free", "0", "--wait-files", "1")):
            assert_mount_refused(growfs, remote, *flags, expected=(str(growfs.cache_dir), "--cache-dir"))


@pytest.mark.promise(28)
def test_a_disk_with_less_free_space_than_min_free(growfs: Growfs, remote: Path) -> None:
    with tmpfs(growfs.cache_dir, "size=8m"):
        expected = (str(growfs.cache_dir), "--min-free keeps 1.07 GB", "--cache-dir")
        for flags in ((), ("--wait-files", "1")):
            assert_mount_refused(growfs, remote, *flags, expected=expected)


@pytest.mark.promise(18, 28)
def test_a_disk_that_fills_up_holds_what_fits(growfs: Growfs, tmp_path: Path) -> None:
    make_tree(tmp_path / "remote", directories=1, files=20, size=500_000)
    with tmpfs(growfs.cache_dir, "size=8m"):
        growfs.mount(tmp_path / "remote", "--min-free", "2MB")
        until(lambda: growfs.status()["state"] == "held")
        files = growfs.status()["cache"]["files"]
        assert 5 < files < 13
        assert os.statvfs(growfs.cache_dir).f_bavail * 4096 >= 2_000_000
        assert files - 2 <= len(growfs.names()) < files  # a fifth of what fits is reserved for replacements
        growfs.umount()


def test_a_cache_directory_of_another_user(growfs: Growfs, user: OtherUser) -> None:
    growfs.cache_dir.mkdir(mode=0o700)
    assert_refused(mount_as(user, growfs.cache_dir), str(growfs.cache_dir), "Permission denied", "--cache-dir")
    assert list((user.folder / "mnt").iterdir()) == []
    assert processes_of(user.folder) == []


# The options.


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--cache-size", "lots"), "--cache-size: 'lots' is not a size"),
        (("--no-wait", "--wait-files", "3"), "--no-wait cannot be used"),
        (("--anon",), "--anon does not apply to file://"),
        (("--endpoint-url", "127.0.0.1:9000"), "is not the URL of a server; it must begin with http://"),
        (("--endpoint-url", "http://localhost"), "--endpoint-url does not apply to file://"),
        (("--members", "no_such_module:find"), "there is no module no_such_module; growfs looks in"),
        (("--members", "tarr"), "has no function tarr; check the name"),
        (("--config", "/no/such.toml"), "/no/such.toml: No such file or directory"),
    ],
)
def test_an_invalid_option_value(growfs: Growfs, remote: Path, flags: tuple[str, ...], expected: str) -> None:
    assert_mount_refused(growfs, remote, *flags, expected=(expected,), exit_code=2)


@pytest.mark.promise(31)
def test_names_that_cannot_be_files_are_skipped_and_reported(growfs: Growfs, moto_s3: S3Server) -> None:
    growfs.env |= moto_s3.env
    good = {"ok/a.bin": b"a", "ok/zero.bin": b"", "both/deeper": b"d"}
    bad = [
        "../escape",
        "ok/../../escape",
        "/lead",
        "ok//double",
        "a\0b",
        f"ok/{300 * 'n'}",
        "both",
        ".growfs/status",
        "./dot",
    ]
    for path, content in [*good.items(), *((path, b"bad") for path in bad)]:
        moto_s3.put(f"names/{path}", content)
    growfs.mount(f"s3://{moto_s3.bucket}/names", "--wait-files", "3")
    assert growfs.content() == good
    skipped = {skip["reason"]: skip["files"] for skip in growfs.status()["skipped"]}
    assert sum(skipped.values()) == len(bad)
    text = growfs.run("status", growfs.mountpoint).stdout
    for expected in ("'..'", "empty path component", "NUL", "over 255 bytes", "both", ".growfs is reserved"):
        assert expected in text
    written = {str(path.relative_to(growfs.cache)) for path in growfs.cache.rglob("*") if path.is_file()}
    assert {path for path in written if path.startswith("files/")} == {f"files/{path}" for path in good}
    assert not [path for path in growfs.mountpoint.parent.rglob("*") if path.name in ("escape", "lead", "double")]


@pytest.mark.promise(31)
def test_a_manifest_that_points_outside(growfs: Growfs, remote: Path, tmp_path: Path) -> None:
    lines = ["../../escape", "a//b", "n" * 300, "x/../../../escape"]
    (tmp_path / "escape").write_text("not of the remote")
    (tmp_path / "list.txt").write_text("\n".join([*lines, "class0/0000.bin"]))
    growfs.mount(remote, "--manifest", tmp_path / "list.txt")
    assert growfs.names() == {"class0/0000.bin"}
    skipped = growfs.status()["skipped"]
    assert sum(skip["files"] for skip in skipped) == len(lines)
    assert {skip["example"] for skip in skipped} <= set(lines)


@pytest.mark.promise(31)
def test_links_that_lead_outside_the_remote(growfs: Growfs, remote: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("not of the remote")
    (remote / "class0/out").symlink_to(tmp_path / "secret")
    (remote / "class0/in").symlink_to(remote / "class0/0000.bin")
    (remote / "up").symlink_to(tmp_path)
    (remote / "class0/nowhere").symlink_to("gone")
    growfs.mount(remote)
    assert growfs.names() == {f"class{c}/000{n}.bin" for c in (0, 1) for n in (0, 1)} | {"class0/in"}
    skipped = {skip["reason"]: skip for skip in growfs.status()["skipped"]}
    assert skipped["link that leads outside"]["files"] == 2
    assert skipped["dangling link"]["files"] + skipped["link that leads outside"]["files"] == 3
    assert not list(growfs.cache.rglob("out"))


def test_a_remote_whose_files_are_all_larger_than_the_cache(growfs: Growfs, tmp_path: Path) -> None:
    make_tree(tmp_path / "remote", directories=1, files=2, size=300_000)
    (tmp_path / "remote/class0/small").write_bytes(bytes(250_000))
    done = growfs.mount(tmp_path / "remote", "--cache-size", "200kB", check=False)
    expected = "not even one file fits: class0/small, the smallest, is 250 KB, and the cache may take 200 KB"
    assert_refused(done, str(growfs.cache_dir), expected)
    assert "its log is" not in done.stderr, "there is nothing more in it"
    assert leftovers(growfs) == []
