"""Numbers with units: what people may type, and what growfs prints."""

from __future__ import annotations

import pytest

from growfs.errors import UsageError
from growfs.units import format_size, format_timespan, seconds, size

HOUR, DAY, WEEK = 3600, 86400, 7 * 86400


@pytest.mark.parametrize(
    ("text", "bytes"),
    [
        ("42", 42),
        ("42B", 42),
        ("13.9 bytes", 13),
        ("5k", 5000),
        (" 1.5 GB ", 1_500_000_000),
        ("2 gigabytes", 2 * 10**9),
        ("7GBs", 7 * 10**9),
        ("3mib", 3 << 20),
        ("1 tebibyte", 1 << 40),
        ("0.0001ZB", 10**17),
        ("9007199254740993", 2**53 + 1),
    ],
)
def test_size(text: str, bytes: int) -> None:
    assert size(text) == bytes


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "1.5.2GB", ".5GB", "5 x", "5 s", "5 GB 3", "1,5GB", "1e5", "5²"])
def test_no_size(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size"):
        size(text)


@pytest.mark.parametrize("text", ["1EB", "1000000 TB", "9" * 5000, "9" * 400 + ".5GB"])
def test_a_size_that_no_disk_has(text: str) -> None:
    with pytest.raises(UsageError, match="is too large"):
        size(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("90", 90),
        ("1.5s", 1.5),
        ("2 Minutes", 120),
        ("5m", 300),
        ("1h", HOUR),
        ("1 day", DAY),
        ("2w", 2 * WEEK),
        ("1y", 52 * WEEK),
        ("250ms", 0.25),
    ],
)
def test_seconds(text: str, value: float) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "s", "-5m", "5 hs", "5 months", "1h 30m"])
def test_no_seconds(text: str) -> None:
    with pytest.raises(UsageError, match="is not a time"):
        seconds(text)


@pytest.mark.parametrize(
    ("bytes", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (999, "999 bytes"),
        (1000, "1 KB"),
        (68_012_999_999, "68.01 GB"),
        (999_999, "1000 KB"),
        (2.5e12, "2.5 TB"),
        (3 * 10**18, "3 EB"),
    ],
)
def test_a_printed_size(bytes: float, text: str) -> None:
    assert format_size(bytes) == text


def test_a_printed_size_in_units_of_1024() -> None:
    assert format_size(3 << 29, binary=True) == "1.5 GiB"
    assert format_size(1023, binary=True) == "1023 bytes"


@pytest.mark.parametrize(
    ("value", "units", "text"),
    [
        (0, 3, "0 seconds"),
        (1, 3, "1 second"),
        (3.14159, 3, "3.14 seconds"),
        (90.5, 3, "1 minute and 30.5 seconds"),
        (HOUR, 3, "1 hour"),
        (2 * HOUR + 5, 3, "2 hours and 5 seconds"),
        (WEEK * 52 + DAY * 2 + HOUR * 3, 3, "1 year, 2 days and 3 hours"),
        (DAY + HOUR + 60 + 1, 3, "1 day, 1 hour and 1 minute"),
        (DAY + HOUR + 60 + 1, 1, "1 day"),
    ],
)
def test_a_printed_time(value: float, units: int, text: str) -> None:
    assert format_timespan(value, units) == text
