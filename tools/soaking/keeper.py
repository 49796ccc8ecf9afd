"""A program that has all listed files open until its input ends, and prints those that have changed meanwhile."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, suppress
from pathlib import Path


def main() -> None:
    with ExitStack() as stack:
        found = []
        for folder, _, names in os.walk(sys.argv[1]):
            for path in (Path(folder, name) for name in names):
                with suppress(OSError):  # it was deleted, or there is no mount
                    file = stack.enter_context(path.open("rb"))
                    found.append((path, file, file.read()))
        sys.stdin.read()
        for path, file, content in found:
            file.seek(0)
            if file.read() != content:
                print(f"{path} has changed while it was open")


if __name__ == "__main__":
    main()
