"""--include and --exclude: which paths are listed, by the rules of .gitignore files."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from growfs.errors import UsageError
from growfs.remote.interface import Page, Remote, RemoteFile, RemoteWrapper


class PathFilter:
    """A path matches if it matches any pattern of include (or include is empty) and none of exclude."""

    def __init__(self, include: Collection[str] = (), exclude: Collection[str] = ()) -> None:
        """Raises UsageError for an invalid pattern."""
        self._include = _spec(include)
        self._exclude = _spec(exclude)

    def matches(self, path: str) -> bool:
        """path: relative to the root, '/' between components."""
        if self._include is not None and not self._include.match_file(path):
            return False
        return self._exclude is None or not self._exclude.match_file(path)


class FilteredRemote(RemoteWrapper):
    """A remote that lists only the matching files of another one."""

    def __init__(self, remote: Remote, paths: PathFilter) -> None:
        super().__init__(remote)
        self._paths = paths

    def pages(self, cursor: Any = None) -> Iterator[Page]:
        matches = self._paths.matches
        for page in self._remote.pages(cursor):
            files = [file for file in page.files if matches(file.path)]
            yield Page(files, [name for name in page.skipped if name.unread or matches(name.path)], page.cursor)

    def still_has(self, file: RemoteFile) -> bool:
        return self._paths.matches(file.path) and super().still_has(file)


def _spec(patterns: Collection[str]) -> Any:
    if not patterns:
        return None
    from pathspec import GitIgnoreSpec

    try:
        return GitIgnoreSpec.from_lines(patterns)
    except ValueError as error:
        raise UsageError(f"{' '.join(patterns)!r} is not a .gitignore pattern: {error}") from None
