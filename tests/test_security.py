"""Each line of SECURITY.md's table names tests, and they exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
COLUMNS = 4


def test_each_threat_has_tests_that_exist() -> None:
    rows = [line.split(" | ") for line in (ROOT / "SECURITY.md").read_text().splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 10
    for row in rows:
        assert len(row) == COLUMNS, row
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row[-1])
        assert named, f"no test: {row}"
        for path, name in named:
            tree = ast.parse((ROOT / path).read_text())
            tests = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
            assert name in tests, f"{path} has no {name}"
