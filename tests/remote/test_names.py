"""Which paths are accepted, which are filtered, and how URLs and timestamps are parsed."""

from __future__ import annotations

from typing import Any

import pytest

from growfs.errors import UsageError
from growfs.remote.filter import PathFilter
from growfs.remote.metadata import file_from_info, to_ns
from growfs.remote.names import reason_to_skip, redact


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("", "empty path component"),
        ("/a", "empty path component"),
        ("a//b", "empty path component"),
        ("a/", "empty path component"),
        ("a/../b", "'.' or '..' in path"),
        ("./b", "'.' or '..' in path"),
        ("a\0b", "NUL in path"),
        ("é" * 128, "path component over 255 bytes"),
        ("/".join(["x" * 200] * 20), "path over 4000 bytes"),
        ("d/" * 501 + "x", "more than 500 folders deep"),
        ("d/" * 500 + "x", None),
        ("a\udcff", "name is not UTF-8"),
        (".growfs/status", ".growfs is reserved"),
        ("a/.growfs", None),
        ("...", None),
        ("é" * 127, None),
    ],
)
def test_each_invalid_path_has_its_reason(path: str, reason: str | None) -> None:
    assert reason_to_skip(path) == reason


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://me:pass@host/a", "https://host/a"),
        ("https://me:p@ss@host/a@b", "https://host/a@b"),
        ("get https://token@host failed", "get https://host failed"),
        ("https://h/a?X-Amz-Signature=abc&part=1&X-Amz-Credential=k%2F", None),
        ("https://h/a?sv=2024&sig=abc%3D", "https://h/a?sv=2024&sig=***"),
        ("abfs://container@account.dfs.core.windows.net/a", "abfs://container@account.dfs.core.windows.net/a"),
        ("s3://bucket/a@b", "s3://bucket/a@b"),
    ],
)
def test_secrets_are_removed_from_urls(url: str, shown: str | None) -> None:
    assert redact(url) == (shown or "https://h/a?X-Amz-Signature=***&part=1&X-Amz-Credential=***")


@pytest.mark.parametrize(
    ("when", "ns"),
    [
        *((when, 0) for when in ("2024-01-02T03:04:05Z", "2024-01-02 03:04:05+00:00", "Tue, 02 Jan 2024 03:04:05 GMT")),
        *((when, 0) for when in (1704164645, "1704164645.0")),
        *((when, 100_000_000) for when in ("2024-01-02T03:04:05.1Z", 1704164645.1)),
        ("2024-01-02T03:04:05.123456789Z", 123_456_000),
    ],
)
def test_timestamps_of_each_format_are_parsed(when: str | float, ns: int) -> None:
    assert to_ns(when) == 1704164645 * 10**9 + ns


@pytest.mark.parametrize("when", ["yesterday", None, "", "nan"])
def test_other_timestamps_are_unknown(when: str | None) -> None:
    assert to_ns(when) is None


def test_times_are_read_as_stores_write_them() -> None:
    day = 19_783 * 86_400 * 10**9  # 2024-03-01
    infos: list[tuple[str, Any, int | None]] = [
        ("modify", "20240301000000", day),
        ("modify", "20240301000000.5", day),
        ("modificationTime", day // 1_000_000, day),
        ("Last-Modified", "Fri, 01 Mar 2024 00:00:00 -0000", day),
        ("Last-Modified", "Fri, 01 Mar 2024 00:00:00", day),
        ("Last-Modified", "Fri, 01 Mar 2024 00:00:00 +99999999999999", None),
    ]
    for name, when, ns in infos:
        assert file_from_info("x", {name: when, "size": 1}).mtime_ns == ns, when


def test_the_path_filter_includes_and_excludes() -> None:
    paths = PathFilter(["*.jpg", "/top/"], ["**/bad/**", "!bad/good.jpg"])
    assert paths.matches("a/b.jpg")
    assert paths.matches("top/x.txt")
    assert not paths.matches("a/top/x.txt")
    assert not paths.matches("a/bad/b.jpg")
    assert not paths.matches("a.png")
    assert PathFilter().matches("anything/at all")
    assert not PathFilter(exclude=["*.tmp"]).matches("a/b.tmp")
    with pytest.raises(UsageError, match=r"is not a \.gitignore pattern"):
        PathFilter(["!"])
