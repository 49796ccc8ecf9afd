"""The daemon at its limits: too few file descriptors, and a disk that is completely full."""

from __future__ import annotations

import errno
import itertools
import os
import subprocess
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.cli.support import tmpfs
from tests.forkserver import SETUP_VARIABLE
from tests.fuse.reader import Reader
from tests.fuse.rotation_helpers import SIZE, mount_status
from tests.harness import GROWFS, Growfs, make_tree, until


def mount_with_descriptors(growfs: Growfs, descriptors: int, url: Path) -> subprocess.CompletedProcess[str]:
    """Mount with a limit on the file descriptors of every process."""
    limits = f"({descriptors}, {descriptors})"
    growfs.env[SETUP_VARIABLE] = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, {limits})"
    return growfs.mount(url, check=False)


@pytest.mark.promise(3)
def test_opens_beyond_the_descriptor_limit_give_enfile(growfs: Growfs, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "remote", directories=1, files=400, size=100)
    assert mount_with_descriptors(growfs, 300, tmp_path / "remote").returncode == 0
    growfs.run("wait", growfs.mountpoint, "--all")
    with ExitStack() as stack:
        files = {}
        refused = set()
        for path in tree:
            try:
                files[path] = stack.enter_context((growfs.mountpoint / path).open("rb"))
            except OSError as error:
                refused.add(error.errno)
        assert refused == {errno.ENFILE}
        assert len(files) > 100
        assert {path: file.read() for path, file in files.items()} == {path: tree[path] for path in files}
    assert {path: (growfs.mountpoint / path).read_bytes() for path in tree} == tree
    assert growfs.status()["miss"]["files_total"] == growfs.status()["evict"]["files_total"] == 0


@pytest.mark.promise(3, 8)
def test_a_large_virtual_file_is_shared_by_those_that_open_it_and_too_many_small_ones_give_enfile(
    growfs: Growfs, tmp_path: Path
) -> None:
    make_tree(tmp_path / "remote", directories=1, files=3)
    growfs.mount(tmp_path / "remote")
    control = growfs.mountpoint / ".growfs"
    with ExitStack() as stack:
        files = [stack.enter_context((control / "index.csv").open()) for _ in range(200)]
        texts = [file.read() for file in files]
        assert len(set(texts)) == 1
        assert texts[0].count("class0/") == 3
        with pytest.raises(OSError, match=os.strerror(errno.ENFILE)):
            files.extend(stack.enter_context((control / "log").open()) for _ in itertools.count())
    assert (control / "status").read_text()


def test_a_descriptor_limit_too_low_for_the_daemon_is_refused(growfs: Growfs, tmp_path: Path) -> None:
    make_tree(tmp_path / "remote", directories=1, files=1)
    refused = mount_with_descriptors(growfs, 100, tmp_path / "remote")
    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1
    assert "may open only 100 files" in refused.stderr
    assert "ulimit -n" in refused.stderr


def test_a_completely_full_disk_does_not_end_the_mount(growfs: Growfs, tmp_path: Path) -> None:
    make_tree(tmp_path / "remote", directories=2, files=100, size=SIZE)
    with tmpfs(growfs.cache_dir, "size=8m"):
        growfs.mount(tmp_path / "remote", "--cache-size", 50 * SIZE, "--min-free", "0", "--settle", "0")
        growfs.until_cached(50)
        filler = growfs.cache_dir / "filler"
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(4096)):
                pass
        with Reader(growfs.mountpoint) as reader:
            for _ in range(4):  # the catalog cannot record these reads
                for path in sorted(growfs.names())[:5]:
                    with suppress(OSError):
                        reader.read(path)
        filler.unlink()
        generation = mount_status(growfs)["generation"]
        until(lambda: growfs.names() and mount_status(growfs)["generation"] > generation + 1)
        growfs.umount()


def test_limits_that_would_end_the_daemon_or_its_downloads_are_raised_or_named(growfs: Growfs, tmp_path: Path) -> None:
    make_tree(tmp_path / "remote", directories=1, files=2, size=3_000_000)
    limited = ["prlimit", "--fsize=1000000:", "--cpu=5000:6000", *GROWFS]

    def run(*words: object) -> str:
        command = [*limited, *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, env=growfs.env, check=False).stdout

    doctor = run("doctor", tmp_path / "remote", "--cache-dir", growfs.cache_dir, "--measure", "50ms")
    assert "ulimit -t 6000; may end the daemon" in " ".join(doctor.split())
    mounted = run(*growfs.mount_words(tmp_path / "remote"))
    assert "its downloads: ulimit -t 6000; raise the hard limit" in mounted
    growfs.run("wait", growfs.mountpoint, "--all")
    assert growfs.status()["fetch"]["failed"] == 0
