"""Files arrive one after the other, in the order in which they were drawn, and a miss before all others.

The bandwidth is limited, so that the link and not the machine is what files share. The tests check what was requested
or received before a file arrived, so a slow machine cannot fail them.
"""

from __future__ import annotations

import stat
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from growfs.fuse.mounting import mounted_at
from tests.harness import Growfs, until
from tools.benchmarks.noisy_s3 import Noise, serving

SIZE = 2 << 20
FILES = 20
BANDWIDTH = "12MB/s"


BEGUN_MAX = 5
"""One file at a time has parts that are still to be requested, or two: a thread may be late. Without an order, eight
would have."""
INCOMPLETE_MAX = 7
"""Two files are copied at a time, and the daemon of a busy machine learns late of a file's end. Without an order, all
20 would be under way."""


def test_the_link_goes_to_the_files_that_come_first(growfs: Growfs) -> None:
    """As the server sees it: whatever delays the end of a file, its parts were requested before those of later ones."""
    growfs.env.update(AWS_ACCESS_KEY_ID="access", AWS_SECRET_ACCESS_KEY="secret")
    with serving(Noise(keys=FILES, size=SIZE, connection_bytes_per_s=SIZE)) as (server, url):
        growfs.mount("s3://noise", "--endpoint-url", url, "--wait-files", FILES)
        growfs.umount()
    left, begun = Counter(server.gets), set[int]()
    assert len(left) == FILES
    assert min(left.values()) > 1, "else they are not split, and none waits for the parts of another"
    for number in server.gets:
        begun.add(number)
        left[number] -= 1
        assert sum(left[file] > 0 for file in begun) <= BEGUN_MAX


def whole_files(growfs: Growfs) -> int:
    """How many files are whole: read-only, or in their place. A busy disk delays the commit that admits them."""
    whole = set()
    for folder in (growfs.cache / "partial", growfs.cache / "files"):
        for path in folder.iterdir():
            with suppress(FileNotFoundError):  # it was moved from the first folder to the second
                if stat.S_IMODE((found := path.stat()).st_mode) == 0o444:
                    whole.add(found.st_ino)
    return len(whole)


def test_large_local_files_arrive_one_after_the_other(growfs: Growfs, tmp_path: Path) -> None:
    """They are not split, and copied two at a time: until all are there, a whole one for all bytes but theirs."""
    (tmp_path / "large").mkdir()
    for number in range(FILES):
        (tmp_path / "large" / f"{number}.bin").write_bytes(bytes(SIZE))
    growfs.mount(tmp_path / "large", "--bandwidth", BANDWIDTH, "--no-wait")
    received, whole = 0, 0
    while whole < FILES:
        whole = whole_files(growfs)
        assert whole >= received / SIZE - INCOMPLETE_MAX
        received = growfs.status()["fetch"]["bytes_total"]


@pytest.mark.promise(7)
@pytest.mark.parametrize("files", [0, 20])
def test_who_looks_while_a_mount_is_not_ready_does_not_decide_what_others_are_shown(growfs: Growfs, files: int) -> None:
    """A generation that began before, with no file or with few, ends when `mount` returns."""
    noise = Noise(keys=300, size=20_000, connection_bytes_per_s=40_000)
    growfs.env.update(AWS_ACCESS_KEY_ID="access", AWS_SECRET_ACCESS_KEY="secret")
    with serving(noise) as (store, url), ThreadPoolExecutor(1) as threads:
        flags = ("--endpoint-url", url, "--wait-files", 150)
        mounting = threads.submit(growfs.mount, "s3://noise", *flags)
        until(lambda: mounted_at(growfs.mountpoint) and growfs.status()["cache"]["files"] >= files)
        store.away = "late"
        early = subprocess.run(["ls", "-R", growfs.mountpoint], capture_output=True, text=True, check=True, timeout=60)
        assert not mounting.done(), "else it was not early"
        store.away = None
        mounting.result(60)
        assert early.stdout.count(".bin") < 150 <= len(growfs.names())
        growfs.umount()
