"""Which tests check which promise of SEMANTICS.md, by the marks in the tests; docs/promises.md is made from them.

A test of promise 6 is marked `@pytest.mark.promise(6)`. The marks are read from the source, so no test has to be run
or imported. `python -m tests.promises` writes docs/promises.md; tests/test_promises.py fails if it is out of date.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeGuard

from tests.promise_faults import FAULTS

TESTS = Path(__file__).parent
SEMANTICS = TESTS.parent / "SEMANTICS.md"
TABLE = TESTS.parent / "docs" / "promises.md"
HEAD = """# Promises and their tests

Each numbered promise of [SEMANTICS.md](../SEMANTICS.md), and the tests that check it. `python -m tests.promises` writes
this file from the marks in the tests (`@pytest.mark.promise(6)`), and `tests/test_promises.py` fails if the two
differ, if a promise has no test, or if a mark names a promise that does not exist.

| promise | file | tests |
|---|---|---|
"""
FAULTS_HEAD = """
## The faults that threaten them

The fault that threatens each promise most, and the test that injects it (`tests/promise_faults.py`). `tools/soak`
injects many of them at once, for an hour.

| promise | fault | injected by |
|---|---|---|
"""
WHOLE_MODULE = "(all)"


class Mark(NamedTuple):
    """The mark of a test that checks a promise. test: its name, or WHOLE_MODULE."""

    promise: int
    path: str
    test: str


def promises() -> dict[int, str]:
    """The titles of the numbered promises of SEMANTICS.md, which are in bold."""
    titles = re.findall(r"^(\d+)\. \*\*(.+?)\*\*", SEMANTICS.read_text(), re.MULTILINE | re.DOTALL)
    return {int(number): " ".join(title.split()).rstrip(".:") for number, title in titles}


@cache
def marks() -> list[Mark]:
    """All marks. Raises ValueError for a mark that is on no test, which pytest would ignore."""
    all_marks = []
    for path in sorted(TESTS.rglob("*.py")):
        text = path.read_text()
        if "mark.promise" not in text:
            continue
        tree = ast.parse(text)
        name = str(path.relative_to(TESTS.parent))
        used: set[ast.expr] = set()
        for test, call in _marked(tree, path):
            used.add(call.func)
            for argument in call.args:
                if not (isinstance(argument, ast.Constant) and isinstance(argument.value, int)):
                    raise ValueError(f"{name}:{call.lineno}: a promise is a number")
                all_marks.append(Mark(argument.value, name, test))
        for node in ast.walk(tree):
            if _is_mark(node) and node not in used:
                raise ValueError(f"{name}:{node.lineno}: this mark is on no test")
    return all_marks


def _marked(tree: ast.Module, path: Path) -> Iterator[tuple[str, ast.Call]]:
    if not path.name.startswith("test_"):
        return
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(getattr(target, "id", "") == "pytestmark" for target in node.targets):
            marks = node.value.elts if isinstance(node.value, ast.List | ast.Tuple) else [node.value]
            yield from ((WHOLE_MODULE, mark) for mark in marks if _is_promise(mark))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield from ((node.name, mark) for mark in node.decorator_list if _is_promise(mark))


def _is_promise(node: ast.AST) -> TypeGuard[ast.Call]:
    """Whether this is pytest.mark.promise(...)."""
    return isinstance(node, ast.Call) and _is_mark(node.func)


def _is_mark(node: ast.AST) -> TypeGuard[ast.Attribute]:
    """Whether this is pytest.mark.promise."""
    return isinstance(node, ast.Attribute) and node.attr == "promise" and ast.unparse(node) == "pytest.mark.promise"


def table() -> str:
    """The text of docs/promises.md."""
    titles = promises()
    files: dict[int, dict[str, list[str]]] = {number: {} for number in titles}
    for mark in marks():
        files[mark.promise].setdefault(mark.path, []).append(mark.test)
    rows = []
    for number, title in titles.items():
        promise = f"{number}. {title}"
        for path, tests in files[number].items():
            rows.append(f"| {promise} | {path} | {', '.join(tests)} |\n")
            promise = ""
    faults = [
        f"| {number}. {title} | {FAULTS[number][0]} | {FAULTS[number][1]}: {FAULTS[number][2]} |\n"
        for number, title in titles.items()
        if number in FAULTS
    ]
    return HEAD + "".join(rows) + FAULTS_HEAD + "".join(faults)


if __name__ == "__main__":
    TABLE.write_text(table())
