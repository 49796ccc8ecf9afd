"""Numbers with units, as people write them: sizes, rates, times, counts and fractions. Invalid text raises UsageError.

The command line, the configuration file and `growfs plan` parse them; everything that people read formats them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from growfs.errors import UsageError


@dataclass(frozen=True, slots=True)
class CacheSize:
    """The limit of the cache: bytes, or a share of the disk space that is free or already used by the cache."""

    bytes: int | None = None
    share: float | None = None

    def of(self, available: int) -> int:
        """The limit in bytes. available: the bytes of which it may be a share."""
        if self.bytes is not None:
            return self.bytes
        assert self.share is not None
        return int(available * self.share)


T = TypeVar("T")

PREFIXES = "KMGTPEZY"
TIMES = (
    (52 * 7 * 86400, "year", "y"),
    (7 * 86400, "week", "w"),
    (86400, "day", "d"),
    (3600, "hour", "h"),
    (60, "minute", "m min mins"),
    (1, "second", "s sec secs"),
    (1e-3, "millisecond", "ms"),
    (1e-6, "microsecond", "us"),
    (1e-9, "nanosecond", "ns"),
)
"""Seconds, the name of the unit, and how it may be abbreviated."""


class InvalidUnit(Exception):
    """The text is not a number that a unit may follow."""


def parsed(flag: str, parse: Callable[[str], T], text: str) -> T:
    """The value of a flag from text. Raises UsageError that begins with the flag."""
    try:
        return parse(text)
    except UsageError as error:
        raise UsageError(f"{flag}: {error}") from None


def size(text: str) -> int:
    """Bytes: 500GB is 500 * 1000^3, 20GiB is 20 * 1024^3."""
    try:
        return int(_number(text, _bytes))
    except InvalidUnit:
        raise UsageError(f"{text!r} is not a size; examples: 500GB, 20GiB") from None


def _split(text: str) -> tuple[float, str]:
    """The number that text begins with, and the unit after it, in lowercase."""
    if not (match := re.fullmatch(r"\s*(\d+(?:\.\d+)?)(\D*)", text)):
        raise InvalidUnit
    return float(match[1]) if "." in match[1] else int(match[1]), match[2].strip().lower()


def _bytes(text: str) -> int:
    """Bytes. The first letter decides: 5G, 5GB and 5 gigabytes are the same. GiB and gibibytes are powers of 1024."""
    number, unit = _split(text)
    if unit[:1] in ("", "b"):
        return int(number)
    if (power := PREFIXES.find(unit[0].upper()) + 1) == 0:
        raise InvalidUnit
    return int(number * (1024 if re.fullmatch(".(ib|.bibyte)s*", unit) else 1000) ** power)


def _number(text: str, parse: Callable[[str], float]) -> float:
    """The number from text. Raises UsageError if it is too large, and what parse raises for text that is none."""
    try:
        if (value := parse(text)) < 10**18:  # no disk has 1 EB, and sums of a few fit 64 bits
            return value
    except (OverflowError, ValueError):  # it has too many digits for Python
        pass
    raise UsageError(f"{text[:40]!r} is too large; must be less than 10^18")


def flag_size(bytes: float) -> str:
    """A size in command-line form, such as 68.01GB: never larger, and smaller by less than a thousandth."""
    factor, prefix = _unit(bytes, 1000)
    return f"{math.floor(1000 * bytes / factor) / 1000:g}{prefix}B"


def rate(text: str) -> int:
    """Bytes per second: 200MB/s, or 200MB; 0 for no limit."""
    amount = text.strip().removesuffix("/s")
    try:
        if not re.search("bit|bps", amount, re.IGNORECASE):  # _bytes would interpret them as bytes
            return int(_number(amount, _bytes))
        raise InvalidUnit
    except InvalidUnit:
        raise UsageError(f"{text!r} is not a rate in bytes per second; use 200MB/s, or 0 for no limit") from None


def seconds(text: str) -> float:
    """Seconds: 90, 90s, 5m, 1h."""
    try:
        return float(_number(text, _seconds))
    except InvalidUnit:
        raise UsageError(f"{text!r} is not a time; examples: 90s, 5m, 1h") from None


def _seconds(text: str) -> float:
    number, unit = _split(text)
    for factor, name, abbreviations in TIMES:
        if (unit or "s") in (name, f"{name}s", *abbreviations.split()):
            return number * factor
    raise InvalidUnit


def format_size(bytes: float, binary: bool = False) -> str:
    """A size for people, such as 68.01 GB. binary: in units of 1024."""
    factor, prefix = _unit(bytes, 1024 if binary else 1000)
    return f"{_rounded(bytes / factor)} {prefix}{'i' * binary}B" if prefix else _amount(bytes, "byte")


def _unit(bytes: float, base: int) -> tuple[int, str]:
    """The largest unit that is not larger: its bytes, and its prefix."""
    units = [(base**power, prefix) for power, prefix in enumerate(PREFIXES, 1) if bytes >= base**power]
    return units[-1] if units else (1, "")


def format_timespan(seconds: float, max_units: int = 3) -> str:
    """A time for people, such as 1 hour, 2 minutes and 3.5 seconds, in the largest units that it has."""
    if seconds < 60:
        return _amount(seconds, "second")
    amounts = []
    for factor, name, _ in TIMES[:5]:
        count, seconds = divmod(seconds, factor)
        amounts.append((count, name))
    texts = [_amount(count, name) for count, name in (*amounts, (seconds, "second")) if _rounded(count) != "0"]
    *first, last = texts[:max_units]
    return f"{', '.join(first)} and {last}" if first else last


def _amount(count: float, unit: str) -> str:
    text = _rounded(count)
    return f"{text} {unit}{'' if text == '1' else 's'}"


def _rounded(number: float) -> str:
    """With two decimals at most."""
    return f"{number:.2f}".rstrip("0").rstrip(".")


def count(text: str) -> int:
    """A whole number from 0: 50000, 100k, 1.5M, 2G."""
    match = re.fullmatch(r"(\d+)|(\d+(?:\.\d+)?)([kKMG])", text, re.ASCII)
    if match is None:
        raise UsageError(f"{text!r} is not a whole number; examples: 50000, 100k, 1.5M")
    if match[1]:
        return int(_number(text, int))
    factor = 1000 ** (PREFIXES.index(match[3].upper()) + 1)
    return int(_number(match[2], lambda number: round(float(number) * factor)))


def positive(text: str) -> int:
    """A whole number from 1."""
    if not (value := count(text)):
        raise UsageError("must be 1 or more")
    return value


def fraction_of(text: str) -> float:
    """A number above 0, up to 1: 0.5 or 50%."""
    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= 1:
        raise UsageError(f"{text!r} is not a fraction; examples: 0.5, 50%")
    return value
