"""The remote of the model: a dictionary of versions, whose contents can be told from the path and the version."""

from __future__ import annotations

from growfs.disk import BLOCK
from growfs.remote.interface import RemoteFile

EPOCH_NS = 1_700_000_000 * 10**9


def content_of(path: str, version: int, blocks: int) -> bytes:
    """The content of a version of a file, which differs from every other one from the first byte on."""
    unit = f"{version} {path};".encode()
    size = blocks * BLOCK - version % 7
    return (unit * (size // len(unit) + 1))[:size]


class Remote:
    """files: (version, size in blocks) by path. A name that ends in .u has no size there.

    hangs: a listing waits. pages: a listing fails after so many pages, unless it is None.
    """

    def __init__(self) -> None:
        self.files: dict[str, tuple[int, int]] = {}
        self.versions: dict[str, dict[int, int]] = {}
        self.version = 0
        self.hangs = False
        self.pages: int | None = None

    def put(self, path: str, blocks: int) -> None:
        self.version += 1
        self.files[path] = (self.version, blocks)
        self.versions.setdefault(path, {})[self.version] = blocks

    def delete(self, path: str) -> None:
        del self.files[path]

    def content(self, path: str) -> bytes:
        return content_of(path, *self.files[path])

    def version_of(self, path: str, content: bytes) -> int | None:
        """Which version of a file has this content, whole; None if none has."""
        number = content.split(b" ", 1)[0]
        version = int(number) if number.isdigit() else 0
        blocks = self.versions.get(path, {}).get(version)
        return version if blocks is not None and content_of(path, version, blocks) == content else None

    def file(self, path: str) -> RemoteFile | None:
        if path not in self.files:
            return None
        version, _ = self.files[path]
        size = None if path.endswith(".u") else len(self.content(path))
        return RemoteFile(path, size, EPOCH_NS + version * 10**9, f"v{version}")

    def listing(self) -> list[RemoteFile]:
        return [file for path in sorted(self.files) if (file := self.file(path))]
