"""The daemon at its limits: too few file descriptors, and a disk that is completely full."""

from __future__ import annotations

import errno
import itertools
import os
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.forkserver import SETUP_VARIABLE
from tests.harness import GROWFS, Growfs, make_tree


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
