"""Numbers with units: what people may type, and what growfs prints."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from growfs.daemon.option_parsers import size_or_percentage
from growfs.errors import UsageError
from growfs.units import count, flag_size, format_size, format_timespan, fraction_of, rate, seconds, size

HOUR, DAY, WEEK = 3600, 86400, 7 * 86400

WRITTEN: list[tuple[Callable[[str], float], dict[str, float]]] = [
    (size, {"42": 42, "42B": 42, "13.9 bytes": 13, "5k": 5000, " 1.5 GB ": 1_500_000_000, "2 gigabytes": 2 * 10**9}),
    (size, {"7GBs": 7 * 10**9, "3mib": 3 << 20, "1 tebibyte": 1 << 40, "0.0001ZB": 10**17}),
    (size, {"9007199254740993": 2**53 + 1}),
    (seconds, {"90": 90, "0": 0, "1.5s": 1.5, "2 Minutes": 120, "5m": 300, "1h": HOUR, "1 day": DAY, "2w": 2 * WEEK}),
    (seconds, {"1y": 52 * WEEK, "250ms": 0.25}),
    (fraction_of, {"0.5": 0.5, "1": 1.0, "100%": 1.0}),
    (count, {"0": 0, "100k": 100_000, "1.5M": 1_500_000, "2G": 2_000_000_000}),
]
NO_SIZES = ["", "GB", "-1GB", "1.5.2GB", ".5GB", "5 x", "5 s", "5 GB 3", "1,5GB", "1e5", "5²"]
NO_TIMES = ["", "s", "-5m", "5 hs", "5 months", "1h 30m"]
NO_FRACTIONS = ["0", "1.1", "-0.5", "half", "nan", "nan%", "%", "101%", ""]


@pytest.mark.parametrize(("parse", "values"), WRITTEN)
def test_what_is_written_is_understood(parse: Callable[[str], float], values: dict[str, float]) -> None:
    assert {text: parse(text) for text in values} == values


@pytest.mark.parametrize(
    ("parse", "texts", "message"),
    [
        (size, NO_SIZES, "is not a size"),
        (seconds, NO_TIMES, "is not a time"),
        (fraction_of, NO_FRACTIONS, "is not a fraction"),
        *(
            (parse, [str(10**18), "9" * 400, "9" * 5000], "is too large; must be less than 10\\^18")
            for parse in (size, size_or_percentage, rate, seconds, count)
        ),
        (size, ["1EB", "1000000 TB", "9" * 400 + ".5GB"], "is too large"),
    ],
)
def test_what_is_none_is_refused(parse: Callable[[str], object], texts: list[str], message: str) -> None:
    for text in texts:
        with pytest.raises(UsageError, match=message):
            parse(text)


@pytest.mark.parametrize(
    ("bytes", "shown", "flag"),
    [
        (0, "0 bytes", "0B"),
        (1, "1 byte", "1B"),
        (999, "999 bytes", "999B"),
        (1000, "1 KB", "1KB"),
        (68_012_999_999, "68.01 GB", "68.012GB"),
        (999_999, "1000 KB", "999.999KB"),
        (2.5e12, "2.5 TB", "2.5TB"),
        (3 * 10**17, "300 PB", "300PB"),
    ],
)
def test_a_printed_size_is_for_people_or_can_be_given(bytes: float, shown: str, flag: str) -> None:
    assert (format_size(bytes), flag_size(bytes)) == (shown, flag)
    assert size(flag) <= bytes


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
