"""`growfs doctor` on machines that lack something: it says what to do, each time in one line, and leaves nothing."""

from __future__ import annotations

import errno
import json
import os
import re
import select
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from growfs.daemon.options import Options
from growfs.extensions.doctor.cache_disk import BLOCK_BYTES, CacheDisk
from growfs.extensions.producers import sandbox
from tests.blocking_server import blocking_server
from tests.cli.support import (
    Done,
    fill_disk,
    fuse_device,
    mark_environment,
    namespace,
    needs_root,
    other_user,
    processes_of,
    run_inside,
    start_growfs,
    tmpfs,
)
from tests.forward_proxy import AWAY, forward_proxy
from tests.harness import Growfs, make_tree, until
from tests.layouts import LAYOUTS, make_samples
from tests.servers import QuietHandler, S3Server, serving

QUICK = ("--measure", "50ms")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    make_tree(tmp_path / "remote")
    return tmp_path / "remote"


@pytest.fixture
def s3(growfs: Growfs, rclone_s3: S3Server) -> S3Server:
    """A server, with its credentials in the environment, and no others anywhere."""
    home = growfs.mountpoint.parent
    growfs.env.update(rclone_s3.env, HOME=str(home), AWS_EC2_METADATA_DISABLED="true")
    return rclone_s3


def doctor(growfs: Growfs, *arguments: object, measure: str = "50ms") -> Done:
    return growfs.run("doctor", *arguments, "--cache-dir", growfs.cache_dir, "--measure", measure, check=False)


def line(done: Done, name: str) -> str:
    """The one line of a check, without its columns."""
    (found,) = [each for each in done.stdout.splitlines() if each[8:].startswith(f"{name} ")]
    return " ".join(found.split())


def assert_failed(done: Done, name: str, *expected: str) -> None:
    """Assert that exactly one check failed, with these texts on its line, and that mounting would fail."""
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr == ""
    failures = [each for each in done.stdout.splitlines() if each.startswith("failure")]
    assert failures == [each for each in failures if each[8:].startswith(f"{name} ")], done.stdout
    assert len(failures) == 1, done.stdout
    for text in expected:
        assert text in failures[0]


def test_a_good_machine(growfs: Growfs, tree: Path) -> None:
    before = sorted(tree.parent.rglob("*"))
    done = doctor(growfs, tree, growfs.mountpoint, "--cache-size", "50kB", "--min-free", "1MB", measure="1s")
    assert done.returncode == 0, done.stdout
    assert done.stderr == ""
    assert "failure" not in done.stdout
    assert "15 files, 150 KB" in line(done, "listing")
    assert "14 files, 140 KB in" in line(done, "download"), "one was downloaded before the measurement"
    assert "50 KB, 33.3% of the data" in line(done, "full cache")
    assert "growfs plan --data-size 150KB --files 15 --cache-size 50KB" in line(done, "coverage")
    assert sorted(tree.parent.rglob("*")) == before, "it left something behind"


def test_a_mountpoint_is_judged_as_by_mount(
    growfs: Growfs, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(growfs.mountpoint)
    assert line(doctor(growfs, tree, tmp_path / "link"), "mountpoint") == (
        f"ok mountpoint {growfs.mountpoint} is an empty folder"
    )
    missing = growfs.mountpoint / "new"
    assert line(doctor(growfs, tree, missing), "mountpoint").endswith(f"{missing}, to be created")
    assert not missing.exists()
    monkeypatch.chdir(tmp_path)
    with tmpfs(tmp_path / "other"):
        assert "something else is mounted there" in line(doctor(growfs, tree, "other"), "mountpoint")
    growfs.mount(tree)
    for place in ("mnt", "link"):
        assert "is already a growfs mount" in line(doctor(growfs, tree, place), "mountpoint")
    growfs.kill()
    assert line(doctor(growfs, tree, "mnt"), "mountpoint") == (
        f"ok mountpoint {growfs.mountpoint}; mounting removes the dead mount there"
    )
    growfs.mount(tree)


def test_without_a_url_only_the_machine_and_the_disk_are_checked(growfs: Growfs) -> None:
    done = doctor(growfs)
    assert done.returncode == 0, done.stdout
    assert "remote" not in done.stdout
    assert line(done, "speed").startswith("ok speed writes ")


def test_json(growfs: Growfs, tree: Path) -> None:
    report = json.loads(doctor(growfs, tree, "--json", measure="1s").stdout)
    assert report["ok"] is True
    assert report["listing"]["files"] == 15
    assert report["listing"]["whole"] is True
    assert report["download"]["bytes_per_s"] > 0
    assert report["disk"]["write"] > 0
    assert report["outlook"]["fill_bytes"] == 150_000
    assert {check["section"] for check in report["checks"]} == {"machine", "cache", "remote", "outlook"}
    assert {check["level"] for check in report["checks"]} <= {"ok", "warning"}


def test_a_machine_without_dev_fuse(growfs: Growfs) -> None:
    with namespace("mount --bind /dev/null /dev/fuse") as inside:
        done = doctor_inside(growfs, inside)
    assert_failed(done, "fuse", "/dev/fuse", "no FUSE behind it", "modprobe fuse", "--device /dev/fuse")
    assert "use growfs fill instead of growfs mount" in done.stdout


def doctor_inside(growfs: Growfs, inside: tuple[str, ...], before: str = "") -> Done:
    """Run the doctor in a namespace. before: what its process does first."""
    return run_inside(inside, ["doctor", "--cache-dir", growfs.cache_dir, *QUICK], growfs.env, before)


def test_a_machine_without_a_temporary_folder(growfs: Growfs) -> None:
    """As in a container whose root is read-only. Mounting needs no such folder."""
    growfs.cache_dir.mkdir()
    growfs.env = {name: value for name, value in growfs.env.items() if name not in ("TMPDIR", "TEMP", "TMP")}
    freeze = "mount --bind {0} {0}; mount -o remount,bind,ro {0}"
    thaw = f"mount --bind {growfs.cache_dir} {growfs.cache_dir}; mount -o remount,bind,rw {growfs.cache_dir}"
    with namespace("; ".join([freeze.format("/tmp"), freeze.format("/var/tmp"), thaw])) as inside:
        done = doctor_inside(growfs, inside, "os.chdir('/proc')")
    assert done.returncode == 0, done.stdout + done.stderr
    assert line(done, "mounting") == "ok mounting the kernel allows it"


def test_a_sandbox_that_forbids_mounting(growfs: Growfs) -> None:
    """Landlock does, like the AppArmor profile of many containers, whatever the capabilities are."""
    if not sandbox.version():
        pytest.skip("the kernel has no Landlock")
    with namespace("mount --make-rprivate /") as inside:
        confine = "from growfs.extensions.producers.sandbox import allow_writes; allow_writes(['/'], [])"
        done = doctor_inside(growfs, inside, confine)
    assert_failed(done, "mounting", "the kernel refuses the mount", "--security-opt apparmor=unconfined")


@pytest.fixture
def device_rules() -> Iterator[Path]:
    """A control group (of version 1, which has files for this) whose processes may not open /dev/fuse."""
    needs_root()
    if not Path("/sys/fs/cgroup/devices/devices.deny").exists():
        pytest.skip("no device rules that can be written")
    group = Path(f"/sys/fs/cgroup/devices/growfs-doctor-{uuid4().hex[:8]}")
    group.mkdir()
    (group / "devices.deny").write_text("c 10:229 rwm")
    yield group
    group.rmdir()


def test_device_rules_that_exclude_dev_fuse(growfs: Growfs, device_rules: Path) -> None:
    join = f"from pathlib import Path; Path('{device_rules}/cgroup.procs').write_text('0')"
    done = doctor_inside(growfs, (), join)
    assert_failed(done, "fuse", "the device rules of this container refuse it", "--device /dev/fuse")


def test_an_ordinary_user_who_may_not_mount() -> None:
    with other_user() as user, fuse_device("666") as inside:
        user.before = (*inside, "setpriv", "--no-new-privs")
        done = user.run("doctor", "--cache-dir", user.folder / "cache", *QUICK)
    assert_failed(done, "fusermount3", "no_new_privs")
    assert "without passthrough" in line(done, "capabilities")


def test_allow_other_that_fuse_conf_does_not_permit(tmp_path: Path) -> None:
    with other_user() as user, namespace("mount --bind /dev/null /etc/fuse.conf") as user.before:
        done = user.run("doctor", "--cache-dir", user.folder / "cache", "--allow-other", *QUICK)
    assert "failure other users --allow-other needs the line user_allow_other in /etc/fuse.conf; add it" in line(
        done, "other users"
    )


def test_a_full_disk_and_a_cache_that_takes_no_file(growfs: Growfs, tree: Path) -> None:
    with tmpfs(growfs.cache_dir, "size=1M"):
        fill_disk(growfs.cache_dir / "full")
        done = doctor(growfs, tree)
        assert [path.name for path in growfs.cache_dir.iterdir()] == ["full"]
    assert_failed(done, "space", "no room for a cache: 0 bytes free", "delete something there")
    assert "in memory" in line(done, "file system")
    done = doctor(growfs, tree, "--cache-size", "5kB")
    assert_failed(done, "cache", "not even one file fits", "10 KB", "--cache-size")


@pytest.mark.parametrize(
    ("cache_size", "code", "expected"),
    [
        ("1GB", errno.EDQUOT, ("warning", "not measured: Disk quota exceeded")),
        ("1GB", errno.ENOSPC, ("warning", "not measured: No space left on device")),
        ("1GB", errno.EIO, ("failure", "Input/output error")),
        (f"{2 * BLOCK_BYTES}", errno.EDQUOT, ("ok", "writes ")),
    ],
)
def test_the_speed_of_a_disk_is_measured_with_no_more_than_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache_size: str, code: int, expected: tuple[str, str]
) -> None:
    """The disk refuses the third block."""
    options = Options.parse({"cache_dir": str(tmp_path), "cache_size": cache_size, "min_free": "1MB"})
    write, written = os.write, list[int]()

    def write_two(fd: int, block: bytes) -> int:
        if len(written) == 2:
            raise OSError(code, os.strerror(code))
        written.append(write(fd, block))
        return written[-1]

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", write_two)
        *_, speed = CacheDisk(options, None).checks(seconds=60)
    assert (speed.name, speed.level.value) == ("speed", expected[0]), speed.text
    assert expected[1] in speed.text
    assert written == [BLOCK_BYTES] * 2


@pytest.mark.parametrize(
    ("layout", "flags", "expected"),
    [
        ("zarr", ("--cache-size", "500kB"), "--group zarr lists"),
        ("zarr", ("--cache-size", "500kB", "--group", "{dir:2}"), None),
        ("zarr", ("--cache-size", "1GB"), None),
    ],
)
def test_files_that_seem_to_belong_together(
    growfs: Growfs, tmp_path: Path, layout: str, flags: tuple[str, ...], expected: str | None
) -> None:
    make_samples(tmp_path / "remote/\x1b[31m", LAYOUTS[layout], 40, 10_000)
    done = doctor(growfs, tmp_path / "remote", *flags, "--min-free", "1MB")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    if expected:
        assert f"seem to belong together; {expected}" in line(done, "groups")
    else:
        assert "together" not in done.stdout


def test_a_cache_directory_that_cannot_be_written(growfs: Growfs) -> None:
    with tmpfs(growfs.cache_dir, "ro"):
        done = doctor(growfs)
    assert_failed(done, "folder", str(growfs.cache_dir), "Read-only file system", "--cache-dir")


def test_a_cache_in_use(growfs: Growfs, tree: Path) -> None:
    growfs.mount(tree)
    done = doctor(growfs, tree)
    text = f"in use by growfs (pid {growfs.pid}), mounted on {growfs.mountpoint}; any number of programs"
    assert_failed(done, "folder", text, f"mount --bind {growfs.mountpoint} ", "unmount that first")
    growfs.run("wait", growfs.mountpoint, "--all")
    growfs.umount()
    before = sorted(growfs.cache_dir.rglob("*"))
    done = growfs.run("doctor", tree, "--cache-dir", growfs.cache_dir, "--measure", "0")
    assert "184.32 KB cached already" in line(done, "space")
    assert "15 files, 150 KB" in line(done, "listing")
    assert sorted(growfs.cache_dir.rglob("*")) == before


def test_a_mountpoint_in_the_remote(growfs: Growfs, tree: Path) -> None:
    done = doctor(growfs, tree, tree)
    failures = [each for each in done.stdout.splitlines() if each.startswith("failure")]
    assert ["is not empty" in failures[0], "is inside the remote" in failures[1]] == [True, True]
    assert done.returncode == 1


def test_a_bucket(growfs: Growfs, s3: S3Server) -> None:
    prefix = f"doctor-{uuid4().hex[:8]}"
    for number in range(3):
        s3.put(f"{prefix}/{number}", b"x" * 100_000)
    done = doctor(growfs, f"s3://{s3.bucket}/{prefix}")
    assert done.returncode == 0, done.stdout
    assert line(done, "client") == "ok client growfs (faster than s3fs)"
    assert line(done, "credentials") == "ok credentials AWS_ACCESS_KEY_ID in the environment"
    assert line(done, "region") == "ok region us-east-1"
    assert "within a minute" in line(done, "clock")
    assert "3 files, 300 KB" in line(done, "listing")
    assert s3.secret_key not in done.stdout


def test_a_large_bucket_is_listed_for_a_moment_only(growfs: Growfs, s3: S3Server) -> None:
    prefix = f"doctor-{uuid4().hex[:8]}"
    for number in range(2100):
        s3.put(f"{prefix}/{number}", b"")
    done = growfs.run("doctor", f"s3://{s3.bucket}/{prefix}", "--cache-dir", growfs.cache_dir, "--measure", "1ms")
    found = re.search(r"([\d,]+) files and more", line(done, "listing"))
    assert found
    assert int(found[1].replace(",", "")) < 2100


def test_credentials_by_options_and_in_a_file(growfs: Growfs, s3: S3Server, tmp_path: Path) -> None:
    s3.put("doctor/x", b"x")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL"):
        del growfs.env[name]
    options = ["--storage-option", f"key={s3.access_key}", "--storage-option", f"secret={s3.secret_key}"]
    server = ["--endpoint-url", s3.endpoint_url]
    done = doctor(growfs, f"s3://{s3.bucket}/doctor", *options, *server)
    assert line(done, "credentials") == "ok credentials by --storage-option"
    assert done.returncode == 0, done.stdout
    (tmp_path / "keys").write_text(
        f"[team]\naws_access_key_id = {s3.access_key}\naws_secret_access_key = {s3.secret_key}\n"
    )
    growfs.env.update(AWS_SHARED_CREDENTIALS_FILE=str(tmp_path / "keys"), AWS_PROFILE="team")
    growfs.starts_python = True  # what is forked here has read the files already
    done = doctor(growfs, f"s3://{s3.bucket}/doctor", *server)
    assert line(done, "credentials") == f"ok credentials {tmp_path}/keys, profile team"
    assert done.returncode == 0, done.stdout


def test_credentials_that_are_missing_or_wrong(growfs: Growfs, s3: S3Server) -> None:
    growfs.env["AWS_SECRET_ACCESS_KEY"] = "growfs-wrong-0123456789"
    done = doctor(growfs, f"s3://{s3.bucket}")
    assert_failed(done, "listing", "the credentials are wrong or have expired", "set AWS_ACCESS_KEY_ID")
    assert "growfs-wrong" not in done.stdout
    del growfs.env["AWS_ACCESS_KEY_ID"], growfs.env["AWS_SECRET_ACCESS_KEY"]
    done = doctor(growfs, f"s3://{s3.bucket}")
    assert_failed(done, "credentials", "none found; set AWS_ACCESS_KEY_ID", "aws configure", "--anon")
    growfs.env["AWS_PROFILE"] = "nobodys"
    growfs.starts_python = True
    assert_failed(doctor(growfs, f"s3://{s3.bucket}"), "remote", "(nobodys) could not be found", "aws configure")


def test_a_server_behind_a_proxy(growfs: Growfs, s3: S3Server) -> None:
    s3.put("doctor/x", b"x")
    with forward_proxy(s3.endpoint_url, "me:p4ss") as proxy:
        growfs.env |= proxy.env()
        done = doctor(growfs, f"s3://{s3.bucket}/doctor", "--endpoint-url", f"http://{AWAY}")
        assert line(done, "server") == f"ok server 127.0.0.1, through the proxy {proxy.url}"
        assert line(done, "clock") == "ok clock agrees with the server's within a minute"
        assert done.returncode == 0, done.stdout
        proxy.password = "me:another"
        done = doctor(growfs, f"s3://{s3.bucket}/doctor", "--endpoint-url", f"http://{AWAY}")
    assert_failed(done, "remote", "through the proxy", "407 Proxy Authentication Required", "check HTTPS_PROXY")
    assert "another" not in done.stdout


def test_an_unknown_host(growfs: Growfs, s3: S3Server) -> None:
    done = doctor(growfs, f"s3://{s3.bucket}", "--endpoint-url", "http://no-such-host.invalid")
    assert_failed(done, "server", "no-such-host.invalid: no address", "check the URL, --endpoint-url")


@contextmanager
def silent_server() -> Iterator[tuple[str, socket.socket]]:
    """The URL of a server that never answers, and its socket, which is readable once a client has connected."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}", server


def test_a_server_that_does_not_answer(growfs: Growfs, s3: S3Server) -> None:
    with silent_server() as (url, _):
        done = doctor(mark_environment(growfs), f"s3://{s3.bucket}", "--endpoint-url", url, "--timeout", "2s")
    assert_failed(done, "server", "no answer for 2 seconds (waiting for 127.0.0.1)", "check the network")
    until(lambda: processes_of(growfs.mountpoint.parent) == [])


def test_it_leaves_nothing_behind_when_it_is_interrupted(growfs: Growfs, s3: S3Server) -> None:
    growfs.cache_dir.mkdir()
    arguments = ("doctor", f"s3://{s3.bucket}", "--cache-dir", growfs.cache_dir, *QUICK)
    with (
        silent_server() as (url, server),
        start_growfs(mark_environment(growfs), *arguments, "--endpoint-url", url) as process,
    ):
        until(lambda: list(growfs.cache_dir.glob(".growfs-doctor-*")))
        until(lambda: select.select([server], [], [], 0)[0])  # not while it forks: a handler of logging's runs then
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr
        assert process.stderr.read() == "growfs: interrupted\n"
    assert list(growfs.cache_dir.iterdir()) == []
    until(lambda: processes_of(growfs.mountpoint.parent) == [])


def test_a_bucket_in_another_region(growfs: Growfs, s3: S3Server) -> None:
    class Handler(QuietHandler):
        def do_GET(self) -> None:
            self.reply("", 403, {"x-amz-bucket-region": "eu-west-1"})  # as AWS answers without credentials

        do_HEAD = do_GET  # noqa: N815

    with serving(Handler) as url:
        done = doctor(growfs, f"s3://{s3.bucket}", "--endpoint-url", url)
    assert line(done, "region").startswith("warning region the bucket is in eu-west-1, but requests are signed for us-")
    assert line(done, "region").endswith("; set AWS_DEFAULT_REGION=eu-west-1")
    assert "access denied" in line(done, "listing")


def test_a_server_that_is_busy(growfs: Growfs) -> None:
    with blocking_server({}) as server:
        server.statuses[""] = 503
        done = doctor(growfs, server.url, "--timeout", "2s", "--json")
    report = json.loads(done.stdout)
    (failure,) = [check for check in report["checks"] if check["level"] == "failure"]
    assert (done.returncode, report["ok"], failure["section"]) == (1, False, "remote")
    assert "the server is busy or failing (503" in failure["text"]
    assert failure["remedy"] == "try again later"


def test_a_clock_that_is_wrong(growfs: Growfs) -> None:
    class Handler(QuietHandler):
        def date_time_string(self, timestamp: float | None = None) -> str:
            return "Mon, 01 Jan 2001 00:00:00 GMT"

        def do_GET(self) -> None:
            self.reply("x" if self.path == "/x" else '<a href="x">x</a>')

        do_HEAD = do_GET  # noqa: N815

    with serving(Handler) as url:
        done = doctor(growfs, url)
    assert line(done, "clock").startswith("warning clock ")
    assert "years and" in line(done, "clock")
    assert "ahead of the server's" in line(done, "clock")
    assert "timedatectl" in line(done, "clock")


def test_functions_that_make_files_or_find_members(growfs: Growfs, tmp_path: Path) -> None:
    (tmp_path / "made.py").write_text("def make(index, rng, out):\n    out.write(bytes(1000))\n")
    done = doctor(growfs, f"py:{tmp_path}/made.py:make", "--count", "5", measure="500ms")
    assert done.returncode == 0, done.stdout
    assert "can be imported" in line(done, "producer")
    assert "the whole dataset, 5 KB" in line(done, "full cache")
    done = doctor(growfs, f"py:{tmp_path}/made.py:other")
    assert_failed(done, "producer", "has no function other; check the name")
    make_tree(tmp_path / "remote", 1, 1)
    done = doctor(growfs, tmp_path / "remote", "--members", "tarr")
    assert_failed(done, "remote", "has no function tarr; check the name")
    assert processes_of(tmp_path) == []


def test_wrong_options_are_wrong_usage(growfs: Growfs) -> None:
    done = doctor(growfs, "s3://bucket", "--cache-size", "much")
    assert done.returncode == 2
    assert done.stderr.startswith("growfs: --cache-size: 'much' is not a size")
    done = growfs.run("doctor", "--timeout", "long", check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("growfs: doctor: --timeout: 'long' is not a time")
