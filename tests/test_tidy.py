"""The rules that the code keeps: which room may use which, who touches the disk, and what no module has."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import growfs

ROOT = Path(growfs.__file__).parent
PATHS = sorted(ROOT.rglob("*.py"))
LINES_MAX = 350

RANKS = [
    # names: used by all, use nothing
    ["growfs", "growfs.errors", "growfs.fuse", "growfs.pulse"],
    # pure functions, files, and what a remote is
    ["growfs.functions", "growfs.producers", "growfs.producers.*"],
    ["growfs.digest", "growfs.pace", "growfs.level", "growfs.priority", "growfs.garbage", "growfs.landlock"],
    ["growfs.disk", "growfs.rotation", "growfs.sampling", "growfs.remote.protocol", "growfs.remote.names"],
    ["growfs.reader"],
    # a room of its own: what reaches the stores
    ["growfs.remote.*"],
    ["growfs.remote", "growfs.values"],
    ["growfs.config", "growfs.maker"],
    # what a reader holds; the rules in memory, and what they foretell
    ["growfs.reader"],
    ["growfs.simcache"],
    ["growfs.simulation"],
    ["growfs.plan"],
    ["growfs.plandraw"],
    # what exists, what is local
    ["growfs.schema"],
    ["growfs.database"],
    ["growfs.catalog", "growfs.cachefolder"],
    [
        "growfs.listing",
        "growfs.openfiles",
        "growfs.publish",
        "growfs.recovery",
        "growfs.budget",
        "growfs.turnover",
    ],
    ["growfs.victims", "growfs.attributes", "growfs.ledger", "growfs.wire"],
    ["growfs.store"],
    # what is listed, and who listed it
    ["growfs.generations", "growfs.groups"],
    ["growfs.readers"],
    # the worker processes, and the daemon's side of them
    ["growfs.porter", "growfs.workers"],
    ["growfs.worker"],
    # what is in flight, when the remote is listed
    ["growfs.flight", "growfs.order"],
    ["growfs.crew", "growfs.landing", "growfs.phase"],
    ["growfs.promise"],
    ["growfs.fetcher", "growfs.refresh"],
    # the plan
    ["growfs.populate"],
    ["growfs.renew", "growfs.start"],
    # what a reader sees
    ["growfs.vfs"],
    # what it is told
    ["growfs.advice"],
    ["growfs.text", "growfs.status"],
    ["growfs.virtual"],
    # the kernel's side
    ["growfs.fuse.*"],
    # the socket and its commands
    ["growfs.control"],
    ["growfs.verbs"],
    # the composition root; how it is started
    ["growfs.daemon", "growfs.launch"],
    # what a person sees
    ["growfs.cli"],
]
UPWARD = {("growfs", "growfs.launch"): "growfs.mount, imported when it is called"}
WORKERS_SIDE = "growfs.worker"
DAEMONS_OWN = {"growfs.store", "growfs.publish", "growfs.fetcher", "growfs.workers", "growfs.vfs", "trio.testing"}

TOUCHES_DISK = {
    "os": {
        "rename",
        "replace",
        "unlink",
        "remove",
        "rmdir",
        "removedirs",
        "truncate",
        "link",
        "symlink",
        "mkdir",
        "makedirs",
    },
    "shutil": {"rmtree", "move", "copy", "copyfile", "copytree"},
}
DISK_METHODS = {"rename", "unlink", "rmdir", "mkdir", "touch", "symlink_to", "hardlink_to", "write_text", "write_bytes"}
MAY_TOUCH_DISK = {
    ("growfs.porter", "unlink"): "a worker removes its own draft",
    ("growfs.remote.books", "mkdir"): "the folder of a worker's books",
    ("growfs.remote.books", "replace"): "a book is there whole or not at all, whoever writes it",
    ("growfs.remote.books", "unlink"): "drafts and books, which are of use to workers only",
    ("growfs.remote.makers", "rename"): "a worker takes what was made to its draft",
    ("growfs.remote.makers", "unlink"): "a worker clears its own scratch folder, below partial/",
    ("growfs.remote.makers", "rmtree"): "the same",
    ("growfs.priority", "mkdir"): "a control group, which is no file",
    ("growfs.priority", "rmdir"): "the same",
    ("growfs.priority", "write_text"): "the session's niceness, in /proc, and the group's",
    ("growfs.cachefolder", "mkdir"): "the cache's folders, before there is a cache",
    ("growfs.store", "mkdir"): "files/, at the first start",
    ("growfs.fuse.mounting", "write_text"): "the read-ahead of the mount, in /sys",
}


def name_of(path: Path) -> str:
    parts = ["growfs", *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): ast.parse(path.read_text()) for path in PATHS}
each_module = pytest.mark.parametrize("name", MODULES)


def imports(name: str) -> Iterator[str]:
    """The growfs modules that a module imports, wherever in it, but not those for the type checker alone."""
    tree = MODULES[name]
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "growfs")
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "growfs":
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES else node.module


def rank(name: str) -> int:
    for number, names in enumerate(RANKS):
        if name in names:
            return number
    for number, names in enumerate(RANKS):
        if f"{name.rpartition('.')[0]}.*" in names:
            return number
    raise AssertionError(f"{name} has no rank")


def room(name: str) -> str:
    """Modules of one folder are one room."""
    return name.rpartition(".")[0] if name.count(".") > 1 else name


@each_module
def test_a_module_uses_lower_ranks_or_its_own_room(name: str) -> None:
    for used in imports(name):
        if (name, used) in UPWARD or used == name or room(name) == room(used):
            continue
        assert rank(used) < rank(name), f"{name} uses {used}"


def test_every_name_in_the_table_exists() -> None:
    for names in RANKS:
        for name in names:
            assert name in MODULES or any(module.startswith(name.removesuffix("*")) for module in MODULES), name
    for user, used in UPWARD:
        assert used in set(imports(user)), f"{user} does not use {used}: take it out of the list"


def test_a_worker_imports_nothing_of_the_daemons() -> None:
    reached: set[str] = set()
    pending = [WORKERS_SIDE]
    while pending:
        for used in imports(pending.pop()):
            if used not in reached and used != "growfs":
                reached.add(used)
                pending.append(used)
    assert not reached & DAEMONS_OWN
    assert all(rank(used) <= rank(WORKERS_SIDE) for used in reached)


def test_a_worker_starts_without_trio() -> None:
    script = "import sys, growfs.worker; print('trio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_only_the_daemon_constructs_rooms() -> None:
    rooms = {"Database", "Catalog", "Store", "Workers", "Refresher", "Fetcher", "Population", "Readers", "Vfs"}
    for name, tree in MODULES.items():
        made = {call.func.id for call in calls(tree) if isinstance(call.func, ast.Name)} & rooms
        assert not made or name == "growfs.daemon", f"{name} constructs {made}"


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def disk_calls(name: str) -> Iterator[str]:
    """The operations of the disk that a module calls without a label."""
    for call in calls(MODULES[name]):
        if not isinstance(call.func, ast.Attribute):
            continue
        on, method = call.func.value, call.func.attr
        if isinstance(on, ast.Name) and on.id == "disk":
            continue
        if isinstance(on, ast.Name) and on.id in TOUCHES_DISK:
            if method in TOUCHES_DISK[on.id]:
                yield method
        elif method in DISK_METHODS:
            yield method


@each_module
def test_only_disk_touches_the_disk(name: str) -> None:
    if name != "growfs.disk":
        assert [call for call in disk_calls(name) if (name, call) not in MAY_TOUCH_DISK] == []


def test_no_exception_is_left_over() -> None:
    for name, method in MAY_TOUCH_DISK:
        assert method in set(disk_calls(name)), f"{name} does not call {method}: take it out of the list"


@each_module
def test_every_module_says_what_it_is_for(name: str) -> None:
    assert ast.get_docstring(MODULES[name])


@each_module
def test_no_bare_except(name: str) -> None:
    for node in ast.walk(MODULES[name]):
        assert not (isinstance(node, ast.ExceptHandler) and node.type is None), f"{name}:{node.lineno}"


@each_module
def test_no_print(name: str) -> None:
    for call in calls(MODULES[name]):
        assert not (isinstance(call.func, ast.Name) and call.func.id == "print"), f"{name}:{call.lineno}"


@pytest.mark.parametrize("path", PATHS, ids=name_of)
def test_no_file_wants_to_be_two(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LINES_MAX


@pytest.mark.parametrize("path", PATHS, ids=name_of)
def test_nothing_is_left_to_do(path: Path) -> None:
    assert not re.search("TO" + "DO|FIX" + "ME|XX" + "X", path.read_text())
