"""Which engine serves a mount; with passthrough the daemon receives no read of a local file."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from growfs.fuse.mounting import file_system
from tests.fuse.conftest import Library, only, opened
from tests.harness import Growfs, make_tree, may_use_real_time, scheduling_policy, until
from tests.servers import S3Server
from tools.benchmarks.measure import cached_bytes, drop_pages

READERS = {
    "cat": 'cat "$1"',
    "dd": 'dd if="$1" bs=128K status=none',
    "dd of blocks": 'dd if="$1" bs=4K skip=100 count=50 status=none',
    "cp": 'cp "$1" "$2/copy"',
    "tail": 'tail -c 5000 "$1"',
    "md5sum": 'md5sum "$1"',
    "tar": 'tar -cf "$2/copy.tar" "$1" 2>/dev/null',
    "cmp": 'cmp "$1" "$1"; cat "$1"',
    "direct": 'dd if="$1" iflag=direct bs=64K status=none || cat "$1"',
}
CALLS = {
    "mmap": "sum(mmap.mmap(fd, 0, prot=mmap.PROT_READ)[::4096])",
    "private mmap": "sum(mmap.mmap(fd, 0, access=mmap.ACCESS_COPY)[::4096])",
    "sendfile": "os.sendfile(os.open(sys.argv[2] + '/sent', os.O_CREAT | os.O_WRONLY), fd, 0, 1 << 20)",
    "splice": "os.splice(fd, os.pipe()[1], 1 << 15)",
    "preadv": "os.preadv(fd, [bytearray(1000), bytearray(100_000)], 12_345)",
    "pread": "[os.pread(fd, 10_000, offset) for offset in range(0, 3_000_000, 100_003)]",
    "sequential": "os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL); os.read(fd, 1 << 20)",
    "after dropping": "os.read(fd, 1 << 20); os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED); os.pread(fd, 9999, 0)",
}
WITHOUT_WRAPPERS = """
import os
for name in ("pidfd_open", "memfd_create", "MFD_CLOEXEC", "RWF_NOWAIT"):
    vars(os).pop(name, None)
"""
PROGRAM = "import mmap, os, sys; fd = os.open(sys.argv[1], os.O_RDONLY); {}"
COMMANDS = {name: ["sh", "-c", script, "sh"] for name, script in READERS.items()} | {
    name: [sys.executable, "-S", "-c", PROGRAM.format(call)] for name, call in CALLS.items()
}


def requests(growfs: Growfs, kind: str) -> int:
    """How many requests of a kind the daemon has received; the query by its socket causes none."""
    return int(growfs.status()["requests"].get(kind, 0))


@pytest.mark.promise(10)
def test_the_requested_engine_serves_the_mount(library: Library, engine: str) -> None:
    status = library.growfs.status()
    assert status["engine"] == engine
    assert status["engine_reason"]


@only("passthrough")
@pytest.mark.skipif(not may_use_real_time(), reason="real-time scheduling is not allowed here")
def test_only_the_request_thread_has_real_time_priority(library: Library) -> None:
    daemon = library.growfs.pid
    until(lambda: scheduling_policy(daemon) == os.SCHED_FIFO)
    threads = list(Path(f"/proc/{daemon}/task").iterdir())
    workers = [pid for thread in threads for pid in (thread / "children").read_text().split()]
    assert workers
    everyone = threads + [thread for pid in workers for thread in Path(f"/proc/{pid}/task").iterdir()]
    assert {scheduling_policy(int(thread.name)) for thread in everyone if thread.name != str(daemon)} == {
        os.SCHED_OTHER
    }


@pytest.mark.promise(10)
@only("passthrough")
@pytest.mark.parametrize("name", COMMANDS)
def test_local_files_are_read_without_the_daemon(library: Library, tmp_path: Path, name: str) -> None:
    file = library.path / "sizes/large.bin"
    with opened(file) as fd:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)  # else a page cached for the mount could save a READ
    reads, opens = (requests(library.growfs, kind) for kind in ("READ", "OPEN"))
    subprocess.run([*COMMANDS[name], file, tmp_path], stdout=subprocess.DEVNULL, check=True, timeout=60)
    assert requests(library.growfs, "READ") == reads
    assert requests(library.growfs, "OPEN") > opens


@pytest.mark.promise(10)
@only("passthrough")
def test_a_file_fetched_by_a_miss_is_read_without_the_daemon(growfs: Growfs, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "remote", directories=1, files=3)
    growfs.mount(tmp_path / "remote")
    growfs.run("pause", growfs.mountpoint)
    growfs.run("evict", growfs.mountpoint, "*")
    reads = requests(growfs, "READ")
    assert {path: (growfs.mountpoint / path).read_bytes() for path in tree} == tree
    assert growfs.status()["miss"]["files_total"] == 2
    assert requests(growfs, "READ") == reads


@pytest.mark.promise(10)
def test_readahead_advice_reaches_the_cached_file(library: Library) -> None:
    path = "sizes/large.bin"
    with opened(library.growfs.cache / "files" / path) as cached, opened(library.path / path) as fd:

        def is_in_memory() -> bool:
            try:
                return os.preadv(cached, [bytearray(100_000)], 1_000_000, os.RWF_NOWAIT) == 100_000
            except BlockingIOError:
                return False

        def is_dropped() -> bool:
            drop_pages(library.path / path, library.growfs.cache / "files" / path)  # but not pages that somebody uses
            return not is_in_memory()

        if file_system(library.growfs.cache)[0] == "tmpfs":
            pytest.skip("the cache's file system is in memory")
        until(is_dropped)
        os.posix_fadvise(fd, 1_000_000, 200_000, os.POSIX_FADV_WILLNEED)
        until(is_in_memory)
        assert os.pread(fd, 200_000, 1_000_000) == library.tree[path][1_000_000:1_200_000]


@pytest.mark.promise(10)
@only("passthrough")
def test_readahead_advice_leaves_one_copy_in_memory(library: Library) -> None:
    with opened(library.path / "sizes/large.bin") as fd:
        reads = requests(library.growfs, "READ")
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_WILLNEED)
        until(lambda: requests(library.growfs, "READ") > reads)
        until(lambda: cached_bytes(fd) == 0)  # of the mount's file, beside those of the cached one


@pytest.mark.promise(13)
@only("passthrough")
def test_there_are_no_file_handles_for_an_nfs_server(library: Library) -> None:
    libc, size = ctypes.CDLL(None, use_errno=True), 128  # MAX_HANDLE_SZ (fcntl.h)
    handle = ctypes.create_string_buffer(struct.pack("Ii", size, 0), 8 + size)
    result = libc.name_to_handle_at(-1, bytes(library.path / "sizes"), handle, ctypes.byref(ctypes.c_int()), 0)
    assert (result, ctypes.get_errno()) == (-1, errno.EOPNOTSUPP)


@only("libfuse")
def test_a_python_without_wrappers_of_newer_system_calls_mounts_a_bucket(
    growfs: Growfs, rclone_s3: S3Server, tmp_path: Path
) -> None:
    """As uv and conda build it. Listings need pidfd_open, and reads RWF_NOWAIT."""
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_WRAPPERS)  # for each process, also those started later
    prefix = uuid4().hex
    tree = {"a/one.bin": b"1", "two.bin": b"22"}
    for path, data in tree.items():
        rclone_s3.put(f"{prefix}/{path}", data)
    growfs.env |= {**rclone_s3.env, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    growfs.mount(f"s3://{rclone_s3.bucket}/{prefix}")
    assert {path: (growfs.mountpoint / path).read_bytes() for path in growfs.names()} == tree
