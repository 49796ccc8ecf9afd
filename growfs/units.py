"""Parsers of numbers with units: sizes, rates, times, counts and fractions. Invalid text raises UsageError.

The command line, the configuration file and `growfs plan` use them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import humanfriendly

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

UNITS = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("KB", 10**3))
MOST = 10**18
"""Numbers are less than this: no disk has 1 EB, and sums of a few fit 64 bits."""
MULTIPLES = {"k": 1_000, "K": 1_000, "M": 1_000_000, "G": 1_000_000_000}


def parsed(flag: str, parse: Callable[[str], T], text: str) -> T:
    """The value of a flag from text. Raises UsageError that begins with the flag."""
    try:
        return parse(text)
    except UsageError as error:
        raise UsageError(f"{flag}: {error}") from None


def size(text: str) -> int:
    """Bytes: 500GB is 500 * 1000^3, 20GiB is 20 * 1024^3."""
    try:
        return int(_number(text, humanfriendly.parse_size))
    except humanfriendly.InvalidSize:
        raise UsageError(f"{text!r} is not a size; examples: 500GB, 20GiB") from None


def _number(text: str, parse: Callable[[str], float]) -> float:
    """The number from text, less than MOST. Raises UsageError, and what parse raises for text that is none."""
    try:
        if (value := parse(text)) < MOST:
            return value
    except (OverflowError, ValueError):  # it has too many digits for Python
        pass
    raise UsageError(f"{text[:40]!r} is too large; must be less than 10^18")


def flag_size(bytes: float) -> str:
    """A size in command-line form, such as 68.01GB: never larger, and smaller by less than a thousandth."""
    unit, factor = next((row for row in UNITS if bytes >= row[1]), ("B", 1))
    return f"{math.floor(1000 * bytes / factor) / 1000:g}{unit}"


def rate(text: str) -> int:
    """Bytes per second: 200MB/s, or 200MB; 0 for no limit."""
    amount = text.strip().removesuffix("/s")
    try:
        if not re.search("bit|bps", amount, re.IGNORECASE):  # parse_size would interpret them as bytes
            return int(_number(amount, humanfriendly.parse_size))
        raise humanfriendly.InvalidSize
    except humanfriendly.InvalidSize:
        raise UsageError(f"{text!r} is not a rate in bytes per second; use 200MB/s, or 0 for no limit") from None


def seconds(text: str) -> float:
    """Seconds: 90, 90s, 5m, 1h."""
    try:
        value = float(_number(text, humanfriendly.parse_timespan))
    except humanfriendly.InvalidTimespan:
        value = -1
    if value < 0:
        raise UsageError(f"{text!r} is not a time; examples: 90s, 5m, 1h")
    return value


def count(text: str) -> int:
    """A whole number from 0: 50000, 100k, 1.5M, 2G."""
    match = re.fullmatch(r"(\d+)|(\d+(?:\.\d+)?)([kKMG])", text, re.ASCII)
    if match is None:
        raise UsageError(f"{text!r} is not a whole number; examples: 50000, 100k, 1.5M")
    number, unit = (match[1], None) if match[1] else (match[2], match[3])
    return int(_number(number, lambda text: round(float(text) * MULTIPLES[unit]) if unit else int(text)))


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
