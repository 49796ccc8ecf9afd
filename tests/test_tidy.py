"""Rules for the code: which modules construct components or change the disk, and what no module may have.

Which package may import which is in pyproject.toml, for import-linter.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import growfs

ROOT = Path(growfs.__file__).parent
PATHS = sorted(path for path in ROOT.rglob("*.py") if path.parent != ROOT / "extensions/csi/generated")

TOUCHES_DISK = {
    "os": {
        *("rename", "replace", "unlink", "remove", "rmdir", "removedirs"),
        *("truncate", "link", "symlink", "mkdir", "makedirs"),
    },
    "shutil": {"rmtree", "move", "copy", "copyfile", "copytree"},
}
DISK_METHODS = {"rename", "unlink", "rmdir", "mkdir", "touch", "symlink_to", "hardlink_to", "write_text", "write_bytes"}
MAY_TOUCH_DISK = {
    ("growfs.workers.downloader", "unlink"): "a worker removes its own staged file",
    ("growfs.workers.worker", "unlink"): "a worker removes the byte that a probe wrote",
    ("growfs.extensions.members.member_index", "mkdir"): "the folder of the indexes, which only workers use",
    ("growfs.extensions.members.member_index", "replace"): "an index is whole or absent, whichever worker writes it",
    ("growfs.extensions.members.member_index", "unlink"): "indexes and their temporary files, which only workers use",
    ("growfs.extensions.producers.pool", "rename"): "a worker moves a produced file to its staging path",
    ("growfs.extensions.producers.pool", "unlink"): "a worker clears a scratch folder of its own, below partial/",
    ("growfs.extensions.producers.pool", "rmtree"): "the same",
    ("growfs.trust", "mkdir"): "a folder on the way to one that is about to be used, by its descriptor",
    ("growfs.workers.process", "mkdir"): "a control group, which is no file",
    ("growfs.workers.process", "rmdir"): "the same",
    ("growfs.workers.process", "write_text"): "the session's niceness, in /proc, and the group's",
    ("growfs.cache.full_disk", "unlink"): "room that is taken and given back, without any content",
    ("growfs.cache.store", "mkdir"): "files/, at the first start",
    ("growfs.extensions.report.page", "write_text"): "the page, outside of the cache",
    ("growfs.extensions.verify.digests", "link"): "another name of a cached file, in partial/",
    ("growfs.extensions.verify.digests", "unlink"): "the same; the next mount removes one that is left over",
    ("growfs.client.mount", "rmdir"): "a temporary mountpoint, outside of the cache",
    ("growfs.daemon.server", "rmdir"): "a mountpoint that was made for nothing",
    ("growfs.client.node_mount", "mkdir"): "the mountpoint, outside of the cache",
    ("growfs.client.node_mount", "write_text"): "files for the command that mounts, in a temporary folder",
    ("growfs.extensions.doctor.cache_disk", "link"): "tries a link, in a temporary folder",
    ("growfs.extensions.csi.cgroups", "mkdir"): "a control group, which is no file",
    ("growfs.extensions.csi.cgroups", "rmdir"): "the same",
    ("growfs.extensions.csi.node", "rmdir"): "the mountpoints, in that folder and of pods",
    ("growfs.extensions.csi.node", "write_bytes"): "the secret of the node",
    ("growfs.ray", "write_text"): "what the kernel ends first, in /proc",
    ("growfs.fuse.mounting", "write_text"): "the read-ahead of the mount, in /sys",
}


def name_of(path: Path) -> str:
    parts = ["growfs", *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, ast.Module]:
    return {name_of(path): ast.parse(path.read_text()) for path in PATHS}


COMPONENTS = {
    *("Catalog", "CatalogSync", "Database", "Dispatcher", "Space", "Fetcher", "Generations", "Prefetcher", "Readers"),
    *("StartGate", "StatusSource", "Store", "UsageCounters", "VersionUpdater", "Vfs"),
}


def test_no_placeholder_of_sql_has_a_number() -> None:
    """Python 3.14 takes it as a name, and refuses a sequence of values."""
    assert [path for path in PATHS if re.search(r"\?[0-9]", path.read_text())] == []


def test_only_wiring_constructs_components() -> None:
    constructed = {
        name: {func.id for call in calls(tree) for func in called(call) if isinstance(func, ast.Name)} & COMPONENTS
        for name, tree in modules().items()
    }
    by_name = COMPONENTS - {"Vfs"}  # the engine names its class
    assert constructed.pop("growfs.daemon.wiring") == by_name, "a component was renamed: correct the set"
    assert not {name: components for name, components in constructed.items() if components}


def test_no_component_is_changed_by_the_name_of_an_attribute() -> None:
    setattr_calls = {
        name
        for name, tree in modules().items()
        for call in calls(tree)
        if isinstance(call.func, ast.Name) and call.func.id == "setattr"
    }
    assert not {name for name in setattr_calls if name.startswith("growfs.daemon")}


CONNECT_SOCKETS = {"growfs.daemon.control_client", "growfs.remote.http.connection"}


def test_only_wiring_connects_components() -> None:
    connect = {
        name
        for name, tree in modules().items()
        for call in calls(tree)
        if isinstance(call.func, ast.Attribute)
        and call.func.attr == "connect"
        and not (isinstance(call.func.value, ast.Name) and call.func.value.id == "sqlite3")
    }
    of_features = {name for name in connect if re.fullmatch(r"growfs\.extensions\.\w+\.mount", name)}
    of_engines = {"growfs.fuse.links.view"}
    assert connect - CONNECT_SOCKETS - of_features - of_engines == {"growfs.daemon.wiring"}


def test_a_class_has_a_name_of_its_own() -> None:
    trees = modules().values()
    names = Counter(node.name for tree in trees for node in nodes(tree) if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1] == []


@cache
def nodes(tree: ast.Module) -> list[ast.AST]:
    return list(ast.walk(tree))


def calls(tree: ast.Module) -> Iterator[ast.Call]:
    return (node for node in nodes(tree) if isinstance(node, ast.Call))


def called(call: ast.Call) -> list[ast.expr]:
    """What a call may call: one of two in `(A if b else C)()`."""
    return [call.func.body, call.func.orelse] if isinstance(call.func, ast.IfExp) else [call.func]


def disk_calls(name: str) -> Iterator[str]:
    """The disk operations that a module calls without a label."""
    for call in calls(modules()[name]):
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


def test_only_disk_touches_the_disk() -> None:
    operations = {(name, call) for name in modules() if name != "growfs.disk" for call in disk_calls(name)}
    assert operations <= MAY_TOUCH_DISK.keys()


def test_every_exception_for_the_disk_is_used() -> None:
    for name, method in MAY_TOUCH_DISK:
        assert method in set(disk_calls(name)), f"{name} does not call {method}: remove it from MAY_TOUCH_DISK"


def test_every_module_has_a_docstring() -> None:
    assert [name for name, tree in modules().items() if not ast.get_docstring(tree)] == []


def test_no_module_has_a_marker_of_unfinished_work() -> None:
    assert [path for path in PATHS if re.search("TO" + "DO|FIX" + "ME|XX" + "X", path.read_text())] == []
