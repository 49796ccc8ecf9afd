"""A daemon is killed, or its disk returns an error, at each labelled step: the next daemon finds a consistent cache.

The labels are collected from the source. A label that no function here reaches fails the tests.
"""

from __future__ import annotations

import ast
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

import growfs as package
from growfs import disk
from growfs.cache.cache_folder import FORMAT
from growfs.daemon.launch import stop
from growfs.errors import GrowfsError
from growfs.rotation.pass_order import Candidate, Pass, draw_order
from tests.blocking_server import BlockingServer, blocking_server
from tests.cli.support import cache_folders
from tests.crash.scene import Scene, alive, kill_workers
from tests.forkserver import SETUP_VARIABLE
from tests.fuse.test_lifecycle import CACHE
from tests.harness import Growfs, files_below, make_tree, set_format, until

LABELLED = [name for name, value in vars(disk).items() if callable(value) and value.__module__ == disk.__name__]


def labels_in_source() -> set[str]:
    """The first argument of every call of growfs.disk that takes a label."""
    taking = {name for name in LABELLED if "label" in getattr(disk, name).__code__.co_varnames[:1]}
    labels = set()
    for path in Path(package.__file__).parent.rglob("*.py"):
        if path.name == "disk.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in taking:
                if not (isinstance(node.func.value, ast.Name) and node.func.value.id == "disk"):
                    continue
                label = node.args[0]
                assert isinstance(label, ast.Constant), f"{path}:{node.lineno}: a label must be a literal"
                labels.add(str(label.value))
    return labels


# How a daemon reaches a label. Each function yields the scene to check afterwards.


@contextmanager
def local(growfs: Growfs) -> Iterator[Scene]:
    folder = growfs.mountpoint.parent / "remote"
    yield Scene(growfs, str(folder), make_tree(folder, directories=2, files=3, size=5000))


@contextmanager
def filled(growfs: Growfs, fault: str = "") -> Iterator[Scene]:
    with local(growfs) as scene:
        scene.mount(fault)
        scene.complete()
        yield scene


@contextmanager
def gated(growfs: Growfs) -> Iterator[tuple[Scene, BlockingServer, list[str]]]:
    """A remote that stops in the middle of the file drawn first; the others wait for it. Yields the draw order, too."""
    folder = growfs.mountpoint.parent / "tree"
    tree = {path.replace("/", "-"): content for path, content in make_tree(folder, 1, 4, 5000).items()}
    drawn = draw_order((Candidate(n, 1, path, 5000, False, False) for n, path in enumerate(tree)), Pass(0, 1))
    order = [list(tree)[n] for n in (*drawn.seeds, *drawn.rest)]
    with blocking_server(dict(tree), order[0]) as remote:
        remote.halves = {order[0]}
        remote.versions = dict.fromkeys(tree, "v1")
        yield Scene(growfs, remote.manifest, tree), remote, order


@contextmanager
def in_mount(growfs: Growfs, fault: str) -> Iterator[Scene]:
    with local(growfs) as scene:
        refused = scene.mount(fault, check=False)
        assert refused.returncode == 1
        if not fault.endswith(":kill"):
            assert len(refused.stderr.splitlines()) == 1
            assert os.strerror(getattr(errno, fault.rpartition(":")[2])) in refused.stderr
            assert [path for path in growfs.cache_dir.iterdir() if path.is_dir()] == []
            assert os.listdir(growfs.mountpoint) == []
        yield scene


@contextmanager
def in_mount_after_crash(growfs: Growfs, fault: str) -> Iterator[Scene]:
    with filled(growfs) as scene:
        growfs.kill()
        stray = growfs.cache / "files" / "stray" / "file"
        stray.parent.mkdir()
        stray.write_bytes(b"no row")
        assert scene.mount(fault, check=False).returncode == 1
        yield scene


@contextmanager
def in_mount_of_another_format(growfs: Growfs, fault: str) -> Iterator[Scene]:
    with filled(growfs) as scene:
        growfs.umount()
        set_format(growfs.cache, FORMAT + 1)
        assert scene.mount(fault, check=False).returncode == 1
        yield scene


@contextmanager
def in_undo(growfs: Growfs, fault: str) -> Iterator[Scene]:
    with local(growfs) as scene:
        folder = Path(scene.url)
        folder.rename(folder.with_name("away"))
        refused = scene.mount(fault, check=False)
        assert refused.returncode == 1
        assert fault.endswith(":kill") or f"{folder}: no such" in refused.stderr  # the cause, not the injected error
        folder.with_name("away").rename(folder)
        yield scene


@contextmanager
def in_umount(growfs: Growfs, fault: str) -> Iterator[Scene]:
    with filled(growfs, fault) as scene:
        pid = growfs.pid
        growfs.umount()
        until(lambda: not alive(pid))
        if fault.startswith("SYNC_STOP:E"):
            assert {path.name for path in growfs.cache.iterdir()} == CACHE
        yield scene


@contextmanager
def in_removal(growfs: Growfs, fault: str) -> Iterator[Scene]:
    with filled(growfs) as scene:
        (cache,) = cache_folders(growfs.cache_dir)
        growfs.umount()
        growfs.env["GROWFS_FAULT"] = fault
        assert growfs.run("cache", "remove", cache, check=False).returncode != 0
        del growfs.env["GROWFS_FAULT"]
        yield scene


HURRY = """
import trio
real_sleep = trio.sleep
async def sleep(seconds): await real_sleep(min(seconds, 0.05))
trio.sleep = sleep
"""


@contextmanager
def in_sync(growfs: Growfs, fault: str) -> Iterator[Scene]:
    growfs.env[SETUP_VARIABLE] = HURRY
    with local(growfs) as scene:
        scene.mount(fault, "--no-wait", check=False)
        yield scene


@contextmanager
def in_evict(growfs: Growfs, fault: str) -> Iterator[Scene]:
    with filled(growfs, fault) as scene:
        scene.try_command("evict", globs=["*.bin"])
        scene.evicted = True
        yield scene


@contextmanager
def in_discard(growfs: Growfs, fault: str) -> Iterator[Scene]:
    with filled(growfs, fault) as scene:
        shutil.rmtree(Path(scene.url) / "class1")
        scene.tree = {path: content for path, content in scene.tree.items() if not path.startswith("class1/")}
        scene.refresh()
        yield scene


@contextmanager
def in_lost_worker(growfs: Growfs, fault: str) -> Iterator[Scene]:
    with gated(growfs) as (scene, remote, order):
        scene.mount(fault, "--no-wait")
        until(lambda: order[0] in remote.requested)
        assert kill_workers(growfs.pid)
        remote.unblock()
        yield scene


@contextmanager
def with_waiting_staged_files(growfs: Growfs, fault: str) -> Iterator[tuple[Scene, BlockingServer, list[str]]]:
    with gated(growfs) as (scene, remote, order):
        scene.mount(fault, "--no-wait")
        until(lambda: order[0] in remote.requested)
        until(lambda: len(complete_staged_files(growfs)) == len(order) - 1)
        yield scene, remote, order


def complete_staged_files(growfs: Growfs) -> list[Path]:
    """The complete staged files: a worker makes them read-only at the end."""
    return [path for path, stat in disk.walk_files(growfs.cache / "partial") if stat.st_mode & 0o777 == 0o444]


@contextmanager
def in_stale_staged_file(growfs: Growfs, fault: str) -> Iterator[Scene]:
    with with_waiting_staged_files(growfs, fault) as (scene, remote, order):
        scene.tree[order[2]] = remote.files[order[2]] = scene.tree[order[2]][::-1]
        remote.versions[order[2]] = "v2"
        scene.refresh()
        until(lambda: "1 of them new, changed or gone" in growfs.log())
        remote.unblock()
        yield scene


@contextmanager
def in_publish_undo(growfs: Growfs, fault: str) -> Iterator[Scene]:
    with with_waiting_staged_files(growfs, fault) as (scene, remote, _):
        max(complete_staged_files(growfs)).unlink()  # so the commit of the files before it fails
        remote.unblock()
        yield scene


@contextmanager
def in_fill(growfs: Growfs, fault: str) -> Iterator[Scene]:
    """The check mounts the cache that the folder was filled from."""
    with local(growfs) as scene:
        folder = growfs.mountpoint.with_name("folder")
        growfs.env["GROWFS_FAULT"] = fault
        growfs.run("fill", scene.url, folder, "--cache-dir", growfs.cache_dir, "--cache-size", "1GB", check=False)
        try:
            yield scene
        finally:
            with suppress(GrowfsError):
                stop(folder)


Drive = Callable[[Growfs, str], AbstractContextManager[Scene]]


@dataclass(frozen=True)
class FaultPoint:
    """How a daemon reaches a label, the errors to inject there, and whether it survives them or ends with a message."""

    drive: Drive
    errors: tuple[str, ...]
    survives: bool


FAULT_POINTS = {
    "TAG": FaultPoint(in_mount, ("ENOSPC", "EIO"), False),
    "ANNOUNCE": FaultPoint(in_mount, ("ENOSPC", "EIO"), False),
    "SOCKET": FaultPoint(in_mount, ("EIO",), False),
    "EMPTY": FaultPoint(in_mount_of_another_format, ("EIO",), False),
    "SWEEP_PARTIAL": FaultPoint(in_mount, ("EIO",), False),
    "ORDER_MAPPED": FaultPoint(in_mount, ("EIO",), False),
    "PUBLISH": FaultPoint(in_mount, ("ENOSPC", "EIO"), False),
    "PUBLISH_COMMIT": FaultPoint(in_mount, ("ENOSPC", "EIO"), False),
    "SWEEP_STRAY": FaultPoint(in_mount_after_crash, ("EIO",), False),
    "SWEEP_FOLDER": FaultPoint(in_mount_after_crash, ("EIO",), False),
    "UNDO": FaultPoint(in_undo, ("EIO",), False),
    "REMOVE": FaultPoint(in_removal, ("EIO",), False),
    "WITHDRAW": FaultPoint(in_umount, ("EIO",), False),
    "SYNC_STOP": FaultPoint(in_umount, ("ENOSPC", "EIO"), False),
    "FOLDER": FaultPoint(in_fill, ("ENOSPC", "EIO"), False),
    "GENERATION": FaultPoint(in_fill, ("ENOSPC",), False),
    "CURRENT": FaultPoint(in_fill, ("ENOSPC",), False),
    "SYNC": FaultPoint(in_sync, ("ENOSPC", "EIO"), True),
    "EVICT": FaultPoint(in_evict, ("EIO",), True),
    "DISCARD": FaultPoint(in_discard, ("EIO",), True),
    "DISCARD_FOLDER": FaultPoint(in_discard, ("EIO",), True),
    "DRAFT_LOST": FaultPoint(in_lost_worker, ("EIO",), True),
    "DRAFT_STALE": FaultPoint(in_stale_staged_file, ("EIO",), True),
    "DRAFT_FAILED": FaultPoint(in_publish_undo, ("EIO",), True),
    "PUBLISH_UNDO": FaultPoint(in_publish_undo, ("EIO",), True),
}


def cases_of_errors(survives: bool) -> list[object]:
    """Each label with its errors, if the daemon survives them, or if not. CI injects the first of each label."""
    return [
        (label, kind) if kind == point.errors[0] else pytest.param(label, kind, marks=pytest.mark.long)
        for label, point in FAULT_POINTS.items()
        for kind in point.errors
        if point.survives is survives
    ]


def test_every_label_is_reached() -> None:
    assert labels_in_source() == set(FAULT_POINTS)


@pytest.mark.promise(1, 29)
@pytest.mark.parametrize("label", FAULT_POINTS)
def test_after_a_kill_the_next_mount_is_consistent(growfs: Growfs, label: str) -> None:
    with FAULT_POINTS[label].drive(growfs, f"{label}:kill") as scene:
        announced = list(growfs.cache_dir.glob("*/daemon.json"))
        # A daemon that stops by itself removes this file.
        assert bool(announced) == (label not in ("TAG", "EMPTY", "ANNOUNCE", "FOLDER", "REMOVE"))
        if announced:
            scene.wait_for_death()
        scene.check()


@pytest.mark.promise(29)
@pytest.mark.parametrize(("label", "kind"), cases_of_errors(survives=False))
def test_after_a_disk_error_the_next_mount_is_consistent(growfs: Growfs, label: str, kind: str) -> None:
    growfs.tolerate_log = label == "SYNC_STOP"  # no command waits for the daemon any more, so the log has a traceback
    with FAULT_POINTS[label].drive(growfs, f"{label}:{kind}") as scene:
        scene.check()


@pytest.mark.promise(1, 29)
@pytest.mark.parametrize(("label", "kind"), cases_of_errors(survives=True))
def test_a_mount_continues_after_a_disk_error(growfs: Growfs, label: str, kind: str) -> None:
    with FAULT_POINTS[label].drive(growfs, f"{label}:{kind}") as scene:
        pid = growfs.pid
        until(lambda: refusal_logged(growfs) or not alive(pid))
        assert alive(pid)
        assert growfs.content().items() <= scene.tree.items()
        growfs.umount()
        scene.check()


def refusal_logged(growfs: Growfs) -> bool:
    """Whether the log has a message on an operation that the disk refused."""
    texts = ("injected by GROWFS_FAULT", "others take over", "the cache directory cannot be written")
    return any(text in growfs.log() for text in texts)


@pytest.mark.promise(3, 28)
def test_a_file_that_fails_on_a_full_disk_reserves_nothing(growfs: Growfs) -> None:
    with gated(growfs) as (scene, remote, order):
        scene.mount("PUBLISH:ENOSPC", "--no-wait", "--miss-timeout", "1s")
        remote.unblock()
        until(lambda: growfs.status()["fetch"]["failed"] >= len(order))
        with pytest.raises(OSError) as raised:  # noqa: PT011 - the errno is checked below
            (growfs.mountpoint / order[0]).read_bytes()
        assert raised.value.errno == errno.ENOSPC
        until(lambda: growfs.status()["cache"]["in_flight_bytes"] == 0)  # a try may be under way
        assert files_below(growfs.cache / "partial") == set()
        assert files_below(growfs.cache / "files") == set()


@pytest.mark.promise(3)
def test_a_file_that_a_reader_waits_for_survives_its_worker(growfs: Growfs) -> None:
    with gated(growfs) as (scene, remote, order):
        scene.mount("", "--no-wait")
        until(lambda: order[0] in remote.requested)
        with disk_reader(growfs.mountpoint / order[0]) as read:
            until(lambda: growfs.status()["miss"]["files_total"] == 1)
            assert kill_workers(growfs.pid)
            remote.unblock()
            assert read() == scene.tree[order[0]]
        scene.complete()
        scene.check_whole()
        assert "others take over" in growfs.log()
        assert remote.requests[order[0]] >= 2


@contextmanager
def disk_reader(path: Path) -> Iterator[Callable[[], bytes]]:
    """Read a file on a thread. Yields a function that waits for the content."""
    with ThreadPoolExecutor(1) as pool:
        content = pool.submit(path.read_bytes)
        yield lambda: content.result(30)
