"""Files arrive one after the other, in the order in which they were drawn, and a miss before all others.

The bandwidth is limited, so that the link and not the machine is what files share. What is checked is how many bytes
came until a file arrived, so a slow machine cannot fail the tests.
"""

from __future__ import annotations

import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from growfs.fuse.mounting import mounted_at
from tests.harness import Growfs, until
from tests.servers import S3Server
from tools.benchmarks.noisy_s3 import Noise, serving

SIZE = 2 << 20
FILES = 20
BANDWIDTH = "12MB/s"


def names(files: int = FILES) -> list[str]:
    return [f"{number:02}.bin" for number in range(files)]


@pytest.fixture(scope="module")
def bucket(rclone_s3: S3Server) -> str:
    for name in names():
        rclone_s3.put(f"arrival/{name}", name.encode() + bytes(SIZE - len(name)))
    return f"s3://{rclone_s3.bucket}/arrival"


INCOMPLETE_MAX = 7
"""Two files are under way at a time, and the parts of the next ones have begun when their last ones come: of up to
three, and of more on a machine that is so busy that the daemon learns late of a file's end. Without an order, all 20
would be."""


def whole_files(growfs: Growfs) -> int:
    """How many files are whole: read-only, or in their place. A busy disk delays the commit that admits them."""
    whole = set()
    for folder in (growfs.cache / "partial", growfs.cache / "files"):
        for path in folder.iterdir():
            with suppress(FileNotFoundError):  # it was moved from the first folder to the second
                if stat.S_IMODE((found := path.stat()).st_mode) == 0o444:
                    whole.add(found.st_ino)
    return len(whole)


def watch_arrivals(growfs: Growfs) -> None:
    """Until all are there, compare the files that are whole with the bytes that came before."""
    received, whole = 0, 0
    while whole < FILES:
        whole = whole_files(growfs)
        assert whole >= received / SIZE - INCOMPLETE_MAX
        received = growfs.status()["fetch"]["bytes_total"]


def test_the_link_goes_to_the_files_that_come_first(growfs: Growfs, rclone_s3: S3Server, bucket: str) -> None:
    growfs.env.update(rclone_s3.env)
    growfs.mount(bucket, "--bandwidth", BANDWIDTH, "--no-wait")
    watch_arrivals(growfs)


def test_large_local_files_arrive_one_after_the_other(growfs: Growfs, tmp_path: Path) -> None:
    """They are not split, and copied two at a time."""
    for name in names():
        (tmp_path / "large").mkdir(exist_ok=True)
        (tmp_path / "large" / name).write_bytes(bytes(SIZE))
    growfs.mount(tmp_path / "large", "--bandwidth", BANDWIDTH, "--no-wait")
    watch_arrivals(growfs)


def test_a_miss_overtakes_files_that_have_begun(growfs: Growfs, rclone_s3: S3Server, bucket: str) -> None:
    """The parts that are under way may end, and no other file's part begins.

    As one file of 17 it would take 17 times its bytes. Until it is admitted, others are fetched.
    """
    growfs.env.update(rclone_s3.env)
    growfs.mount(bucket, "--bandwidth", BANDWIDTH, "--wait-files", "1")
    before = growfs.status()["fetch"]["bytes_total"]
    missing = max(set(names()) - {path.name for path in (growfs.cache / "files").iterdir()})
    assert (growfs.mountpoint / missing).read_bytes().startswith(missing.encode())
    assert growfs.status()["fetch"]["bytes_total"] - before < 12 * SIZE


@pytest.mark.promise(7)
@pytest.mark.parametrize("files", [0, 20])
def test_who_looks_while_a_mount_is_not_ready_does_not_decide_what_others_are_shown(growfs: Growfs, files: int) -> None:
    """A generation that began before, with no file or with few, ends when `mount` returns."""
    noise = Noise(keys=300, size=20_000, connection_bytes_per_s=40_000)
    growfs.env.update(AWS_ACCESS_KEY_ID="access", AWS_SECRET_ACCESS_KEY="secret")
    with serving(noise) as (_, url), ThreadPoolExecutor(1) as threads:
        flags = ("--endpoint-url", url, "--wait-files", 150)
        mounting = threads.submit(growfs.mount, "s3://noise", *flags)
        until(lambda: mounted_at(growfs.mountpoint) and growfs.status()["cache"]["files"] >= files)
        early = subprocess.run(["ls", "-R", growfs.mountpoint], capture_output=True, text=True, check=True, timeout=60)
        assert not mounting.done(), "else it was not early"
        mounting.result(60)
        assert early.stdout.count(".bin") < 150 <= len(growfs.names())
        growfs.umount()
