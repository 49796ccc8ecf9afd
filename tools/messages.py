"""Writes whole messages into docs/messages.md: python -m tools.messages.

The page says what to do about each message, and people search it for what they see. Its first column therefore quotes
messages as they are in the code, with … for each value. This program replaces a part of one message by the whole, and
a message that has changed by the one that resembles it most. Parts that several messages contain stay as they are.
"""

from __future__ import annotations

import ast
import difflib
import re
import sys
from collections.abc import Iterator

from tools.benchmarks.measure import ROOT

PAGE = ROOT / "docs/messages.md"
VALUE = "…"
CELL = re.compile(r"(?<=^\| )`[^|]*`(?= \|)", re.MULTILINE)
UNQUOTABLE = re.compile(r"[`|\n]")
"""What a cell of a table cannot quote."""


def texts(node: ast.AST) -> Iterator[str]:
    """The strings in the code, except docstrings. Adjacent ones are joined; VALUE stands for each value."""
    inner = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else VALUE for part in node.values)
        inner = [part for part in inner if not isinstance(part, ast.Constant)]
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield re.sub(r"%[-+ #0-9.,]*[a-z]", VALUE, node.value)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    for part in inner:
        yield from texts(part)


def messages() -> set[str]:
    found = (text for path in (ROOT / "growfs").rglob("*.py") for text in texts(ast.parse(path.read_text())))
    return {re.sub(f"{VALUE}+", VALUE, text.strip("\n")) for text in found}


def whole(part: str, known: set[str]) -> str:
    """What the page quotes for a message or a part of it. Raises LookupError if no message is like it."""
    containing = [text for text in known if part in text]
    if not containing:
        containing = difflib.get_close_matches(part, known, 1, 0.6)
    if not containing:
        raise LookupError(part)
    return part if len(containing) > 1 or UNQUOTABLE.search(containing[0]) else containing[0]


def quoted(page: str) -> list[str]:
    """The messages and parts of messages that the page quotes."""
    return [message for cell in CELL.findall(page) for message in re.findall("`([^`]+)`", cell)]


def rewritten(page: str) -> str:
    """The page with whole messages. Raises LookupError."""
    known = messages()

    def of_cell(cell: re.Match[str]) -> str:
        return "<br>".join(dict.fromkeys(f"`{whole(each, known)}`" for each in re.findall("`([^`]+)`", cell[0])))

    return CELL.sub(of_cell, page)


def main() -> int:
    try:
        PAGE.write_text(rewritten(PAGE.read_text()))
    except LookupError as error:
        print(f"messages: no message in the code is like {error}; remove it from {PAGE}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
