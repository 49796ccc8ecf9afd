"""Which engine a mount selects and reports, and the error where passthrough is impossible."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from growfs import disk
from growfs.extensions.doctor.check import Level
from growfs.extensions.doctor.machine import check_engine
from growfs.fuse import engine_choice, protocol
from growfs.fuse.engine_choice import PACKAGES, EngineChoice
from growfs.fuse.probe import why_not_passthrough
from tests.cli.support import assert_refused, leftovers, mark_environment, needs_root
from tests.forkserver import SETUP_VARIABLE
from tests.harness import Growfs, make_tree, usable_engine

TOO_DEEP = "overlay file systems are stacked too deep"


@pytest.fixture
def passthrough(tmp_path: Path) -> None:
    if why_not := why_not_passthrough(tmp_path):
        pytest.skip(why_not)


def detach(folder: Path) -> None:
    subprocess.run(["umount", "-l", folder], check=True)


@contextmanager
def overlay(lower: Path, folder: Path, depth: int) -> Iterator[Path]:
    """A folder on a stack of `depth` overlay file systems; the root of a container is on one."""
    needs_root()
    with ExitStack() as stack:
        for number in range(depth):
            upper, work, merged = (folder / f"{name}{number}" for name in ("upper", "work", "merged"))
            for path in (upper, work, merged):
                path.mkdir(parents=True)
            options = f"lowerdir={lower},upperdir={upper},workdir={work}"
            subprocess.run(["mount", "-t", "overlay", "-o", options, "overlay", merged], check=True)
            stack.callback(detach, merged)
            lower = merged
        yield lower


@pytest.mark.promise(10)
def test_a_mount_reports_its_engine_which_is_passthrough_where_it_works(growfs: Growfs, tmp_path: Path) -> None:
    make_tree(tmp_path / "remote")
    output = growfs.mount(tmp_path / "remote", "--engine", "libfuse").stdout
    assert f"{growfs.mountpoint}: libfuse engine (requested by --engine)\n" in output
    assert growfs.status()["engine"] == "libfuse"
    growfs.umount()
    usable_engine("passthrough", tmp_path)
    output = growfs.mount(tmp_path / "remote").stdout
    assert f"{growfs.mountpoint}: passthrough engine (the kernel reads the cached files itself)\n" in output
    assert growfs.status()["engine"] == "passthrough"


@pytest.mark.usefixtures("passthrough")
def test_passthrough_works_on_an_overlay_file_system(growfs: Growfs, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "remote")
    (tmp_path / "lower").mkdir()
    with overlay(tmp_path / "lower", tmp_path / "overlays", depth=1) as growfs.cache_dir:
        growfs.mount(tmp_path / "remote", "--engine", "passthrough")
        growfs.run("wait", growfs.mountpoint, "--all")
        assert growfs.content() == tree
        assert growfs.status()["requests"].get("READ", 0) == 0
        growfs.umount()


@pytest.mark.usefixtures("passthrough")
def test_an_overlay_may_lie_on_top_of_a_mount(growfs: Growfs, tmp_path: Path) -> None:
    """As podman's `-v MOUNT:/data:O` makes it, for a container that writes beside its data."""
    tree = make_tree(tmp_path / "remote")
    growfs.mount(tmp_path / "remote", "--engine", "passthrough", "--wait-files", len(tree))
    with overlay(growfs.mountpoint, tmp_path / "overlays", depth=1) as merged:
        assert {path: (merged / path).read_bytes() for path in tree} == tree
        assert growfs.status()["requests"].get("READ", 0) == 0
        (merged / "class0/more").write_bytes(b"more")
        assert (merged / "class0/more").read_bytes() == b"more"
    assert not (growfs.mountpoint / "class0/more").exists()


@pytest.mark.promise(10)
@pytest.mark.usefixtures("passthrough")
def test_a_cache_directory_without_passthrough_support(growfs: Growfs, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "remote")
    (tmp_path / "lower").mkdir()
    with overlay(tmp_path / "lower", tmp_path / "overlays", depth=2) as growfs.cache_dir:
        refused = growfs.mount(tmp_path / "remote", "--engine", "passthrough", check=False)
        assert_refused(refused, "--engine passthrough: ", TOO_DEEP, "another --cache-dir", "--engine auto")
        assert leftovers(mark_environment(growfs)) == []
        growfs.mount(tmp_path / "remote")
        status = growfs.status()
        assert status["engine"] == "libfuse"
        assert TOO_DEEP in status["engine_reason"]
        assert growfs.content() == tree
        growfs.umount()


@pytest.mark.promise(10)
@pytest.mark.usefixtures("passthrough")
def test_a_file_without_passthrough_is_read_through_the_daemon(growfs: Growfs, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "remote", directories=2, files=3)
    growfs.mount(tmp_path / "remote")
    growfs.run("wait", growfs.mountpoint, "--all")
    growfs.umount()
    with ExitStack() as stack:
        folder = growfs.cache / "files/class1"
        deep = stack.enter_context(overlay(folder, tmp_path / "overlays", depth=2))
        subprocess.run(["mount", "--bind", deep, folder], check=True)
        stack.callback(detach, folder)
        growfs.mount(tmp_path / "remote", "--engine", "passthrough")
        stack.callback(growfs.umount)
        reads: list[int] = []
        for directory in ("class0", "class1"):
            for path in (path for path in tree if path.startswith(directory)):
                with (growfs.mountpoint / path).open("rb") as first, (growfs.mountpoint / path).open("rb") as second:
                    assert first.read() == second.read() == tree[path]
            reads.append(growfs.status()["requests"].get("READ", 0))
        assert growfs.status()["miss"]["files_total"] == 0
    assert reads[0] == 0
    assert reads[1] > 0
    assert "the kernel refuses passthrough" in growfs.log()


@pytest.mark.promise(10)
def test_a_kernel_that_is_too_old_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without such a kernel at hand, the required protocol version is raised above that of this kernel."""
    needs_root()
    monkeypatch.setattr(protocol, "MINOR_MIN", 99)
    why_not = why_not_passthrough(tmp_path)
    assert why_not
    assert os.uname().release in why_not
    assert "it needs Linux 6.9" in why_not


@pytest.mark.promise(10)
@pytest.mark.parametrize(
    ("uid", "has_pyfuse3", "allow_other", "name"),
    [
        *[(1000, True, False, "links"), (1000, False, False, "links"), (1000, True, True, "libfuse")],
        *[(0, True, False, "libfuse"), (0, False, False, "links"), (0, True, True, "libfuse")],
    ],
)
def test_auto_without_passthrough_shows_links_to_the_user_who_mounts(
    uid: int, has_pyfuse3: bool, allow_other: bool, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Others cannot follow them, and may read the mount of root."""
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    monkeypatch.setattr(engine_choice, "why_not_passthrough", lambda *_: "a reason")
    monkeypatch.setattr(engine_choice, "has_pyfuse3", lambda: has_pyfuse3)
    choice = EngineChoice("auto", tmp_path, allow_other)
    assert choice.name == name
    assert choice.reason.startswith("no passthrough: a reason")


def test_the_doctor_refuses_links_for_other_users_as_a_mount_does(tmp_path: Path) -> None:
    check, name = check_engine("links", tmp_path, allow_other=True)
    assert (check.level, name) == (Level.FAILURE, "")
    assert "other users cannot follow links" in check.text


def break_pyfuse3(growfs: Growfs, folder: Path, error: str) -> None:
    """Have importing pyfuse3 raise an error."""
    (folder / "shim").mkdir()
    (folder / "shim/pyfuse3.py").write_text(f"raise {error}\n")
    growfs.env[SETUP_VARIABLE] = f"""
import sys
for name in [name for name in sys.modules if name.startswith(("pyfuse3", "growfs.fuse.libfuse"))]:
    del sys.modules[name]
sys.path.insert(1, {str(folder / "shim")!r})
"""


def test_libfuse_without_pyfuse3_says_what_to_install_and_passthrough_needs_none(
    growfs: Growfs, tmp_path: Path
) -> None:
    tree = make_tree(tmp_path / "remote", directories=1, files=2)
    break_pyfuse3(mark_environment(growfs), tmp_path, "OSError('undefined symbol: fuse_session_new_versioned')")
    refused = growfs.mount(tmp_path / "remote", "--engine", "libfuse", check=False)
    why = "the libfuse engine (requested by --engine) needs pyfuse3, which cannot"
    assert_refused(refused, why, PACKAGES, "pip install --force")
    assert leftovers(growfs) == []
    usable_engine("passthrough", tmp_path)
    growfs.mount(tmp_path / "remote", "--wait-files", len(tree))
    assert growfs.status()["engine"] == "passthrough"
    assert growfs.content() == tree


@pytest.mark.promise(29)
def test_a_mount_that_is_refused_leaves_the_cache_as_it_was(growfs: Growfs, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "remote", directories=1, files=2)
    break_pyfuse3(growfs, tmp_path, "ImportError('libfuse3.so.3: cannot open shared object file')")
    growfs.mount(tmp_path / "remote", "--wait-files", len(tree), "--engine", "links")
    growfs.umount()
    (tmp_path / "token").write_text("a secret\n")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        host, port = listening.getsockname()
        address = f"{host}:{port}"
        peers = ["--peers", address, "--peer-addr", address]
        for flags, why in (
            (["--engine", "links", "--allow-other"], "other users cannot follow links"),
            (["--engine", "libfuse"], "needs pyfuse3"),
            ([*peers, "--peer-token-file", tmp_path / "token"], "--peer-addr: cannot listen"),
            (["--metrics-addr", address], f"--metrics-addr: cannot listen on {host} port {port}: Address already in"),
        ):
            assert why in growfs.mount(tmp_path / "remote", "--exclude", "*", *flags, check=False).stderr
            assert len([*disk.walk_files(growfs.cache / "files")]) == len(tree)
    growfs.mount(tmp_path / "remote", "--engine", "links")
    growfs.umount()
    assert "did not stop cleanly" not in growfs.log()
