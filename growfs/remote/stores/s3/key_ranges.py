"""`KeyRanges`: the names that a listing has still to read, as ranges that several readers read in parallel.

Pure: no requests and no threads. Names are in the order of their UTF-8 bytes, which is the order of Python's strings.
The distribution of names is unknown, so a range is split at a guess, based on the names seen so far. A bad guess costs
one request and no names, and the number of bad guesses is limited to a share of the good ones.
"""

from __future__ import annotations

import operator
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

SERIAL_PAGES = 4  # read one after the other, so a small bucket costs no extra requests
WASTE_SHARE = 0.3  # of the useful pages: this many requests may return nothing
REST_PAGES_MIN = 3
LAST = "\U0010fffd"  # sorts after every character in names; XML can carry it, unlike the two after it
POINT_BYTES_MAX = 512  # for a guess; an S3 key has at most 1024, including the prefix
DIGITS = 8  # characters of a name that a guess is made from
DECIMALS = "0123456789"
NON_ASCII = [each for each in map(chr, range(0x80, 0x10000, 0x20)) if each.isprintable()]
"""Samples of all characters that are not ASCII: the few that are seen do not reveal which others there are."""
SAMPLE_EVERY = 50


class UnorderedListing(Exception):
    """The server does not list names in the order of their bytes, or does not start at the requested name."""


class KeyRange(NamedTuple):
    """The names after `after`, up to and including `until`; None for the end. token: the server's token for `after`."""

    after: str
    until: str | None
    token: str | None = None


class Cursor(NamedTuple):
    """The rest of a listing. serial: follow the server's own order, page by page.

    origin: the range that was read first, where a serial listing would start.
    """

    left: tuple[KeyRange, ...]
    origin: KeyRange
    serial: bool


@dataclass(slots=True, eq=False)
class ActiveRange:
    """A range that at most one reader is reading. first: the first name seen in it; pages: read since that name."""

    after: str
    until: str | None
    token: str | None = None
    is_assigned: bool = False
    first: str | None = None
    pages: int = 0
    was_split: bool = False
    lower_hint: str | None = None

    @property
    def range(self) -> KeyRange:
        return KeyRange(self.after, self.until, self.token)


class KeyRanges:
    """Owns the ranges, which are disjoint. `record_page` has returned all names that they do not cover.

    In serial order there is a single range without an end: its reader goes from token to token, and the order is not
    checked. pages: read so far. requests_wasted: requests that returned no names.
    """

    def __init__(self, cursor: Cursor | None = None, serial: bool = False) -> None:
        whole = KeyRange("", None)
        left, origin, serial = cursor or Cursor((whole,), whole, serial)
        self._active = [ActiveRange(*key_range) for key_range in left]
        at_origin = (each for each in self._active if each.after == origin.after)
        self._origin = next(at_origin, ActiveRange(*origin))  # keeps its last position after it is read to its end
        self._alphabet: list[str] = []  # the characters that guesses consist of
        self._has_non_ascii = False
        self._no_split = False  # until the next page arrives
        self.serial = serial
        self.pages = 0
        self.requests_wasted = 0

    @property
    def done(self) -> bool:
        return not self._active

    def cursor(self, undelivered: Iterable[KeyRange] = ()) -> Cursor:
        """The rest to read, including the `undelivered` ranges: those that were read but not returned yet."""
        left: list[KeyRange] = []
        if self.serial:
            left = [*undelivered, *(each.range for each in self._active)][:1]
            return Cursor(tuple(left), self._origin.range, True)
        for key_range in sorted(
            [*undelivered, *(each.range for each in self._active)], key=lambda key_range: key_range.after
        ):
            if left and left[-1].until == key_range.after:
                left[-1] = left[-1]._replace(until=key_range.until)
            else:
                left.append(key_range)
        origin = min([self._origin.range, *left[:1]], key=lambda key_range: key_range.after)
        return Cursor(tuple(left), origin, False)

    def assign(self) -> ActiveRange | None:
        """The next range to read: one without a reader, otherwise half of the largest; None if there is none now."""
        for each in self._active:
            if not each.is_assigned:
                each.is_assigned = True
                return each
        return self._split()

    def release(self, active: ActiveRange) -> None:
        """Note that the range no longer has a reader."""
        active.is_assigned = False

    def has(self, active: ActiveRange) -> bool:
        """Whether the range is still to be read: not if the listing has become serial meanwhile."""
        return active in self._active

    def record_page(self, active: ActiveRange, names: Sequence[str], token: str | None, more: bool) -> KeyRange | None:
        """Record a page of names, the response to a request for the range.

        Returns the part of the range whose names are to be returned; None if there are none. The range then begins
        after them, or is done. more: whether the server has names after these. Raises UnorderedListing.
        """
        if not self.has(active):
            return None
        requested = active.range
        any_order = self.serial or (requested == KeyRange("", None) and not more)  # a single page has all names
        if names and not any_order and not self._are_in_order(requested.after, names):
            raise UnorderedListing
        self._learn(active, names)
        active.was_split = False
        inside = len(names) if requested.until is None else bisect_right(names, requested.until)
        beyond = inside < len(names) or (inside and names[-1] == requested.until)
        self.pages += bool(inside)
        self.requests_wasted += not inside
        self._advance(active, names[inside - 1] if inside else requested.after, token, more and not beyond)
        if not inside:
            return None
        active.pages += 1
        return requested if self.serial or active not in self._active else requested._replace(until=active.after)

    def switch_to_serial(self, undelivered: Iterable[KeyRange] = ()) -> None:
        """Continue page by page in the server's own order, from the position of the first reader.

        The `undelivered` ranges are read again. Names of later ranges are returned twice; there are none if the server
        did not start at the requested name.
        """
        origin = self.cursor(undelivered).origin
        self.serial = True
        self._origin = ActiveRange(origin.after, None, origin.token)
        self._active = [self._origin]

    def _advance(self, active: ActiveRange, after: str, token: str | None, more: bool) -> None:
        if more:
            active.after, active.token = after, token
            active.is_assigned = False
        else:
            self._active.remove(active)

    @staticmethod
    def _are_in_order(after: str, names: Sequence[str]) -> bool:
        return (not after or after < names[0]) and all(map(operator.lt, names, names[1:]))

    def _learn(self, active: ActiveRange, names: Sequence[str]) -> None:
        self._no_split = False
        if not names or self.serial:
            return
        active.first = active.first or names[0]
        seen = set().union(*names[::SAMPLE_EVERY], names[-1]).difference(self._alphabet)
        added = [each for each in seen if each.isascii() and each.isprintable()]
        if not self._has_non_ascii and not all(map(str.isascii, seen)):
            added += NON_ASCII
            self._has_non_ascii = True
        if added:
            self._alphabet = sorted([*self._alphabet, *added])

    def _split(self) -> ActiveRange | None:
        if (
            self.serial
            or self._no_split
            or self.pages < SERIAL_PAGES
            or self.requests_wasted > WASTE_SHARE * self.pages
        ):
            return None
        best, size, point = None, float(REST_PAGES_MIN), ""
        for each in self._active:
            rest, guess = self._guess(each) if each.pages and not each.was_split else (0.0, None)
            if guess is not None and rest >= size:
                best, size, point = each, rest, guess
        if best is None:
            self._no_split = True
            return None
        lower_hint = (best.lower_hint or best.first) if best.until is None else best.after
        upper = ActiveRange(point, best.until, is_assigned=True, lower_hint=lower_hint)
        best.until, best.was_split = point, True
        self._active.append(upper)
        return upper

    def _guess(self, active: ActiveRange) -> tuple[float, str | None]:
        """(pages that may be left in the range, where to split it); None if there is no name in between.

        The names seen so far may share a longer prefix than all names of the range are known to share. In that case,
        the length of the shared prefix is found by bisection. After that, names are treated as numbers between two
        others.
        """
        after, until = active.after, active.until
        first = active.first or after
        shared = 0 if until is None else _common_prefix_length(after, until)
        seen = _common_prefix_length(active.lower_hint or first, after)
        if seen > shared and (until is None or until[shared:] == LAST):
            rest = float("inf") if until is None else float(active.pages)  # assume as many as were read so far
            point = after[: (shared + seen + 1) // 2] + LAST
        else:
            low = self._number(after[shared:])
            high = self._number(LAST if until is None else until[shared:])
            step = max((low - self._number(first[shared:])) // active.pages, 1)
            if (until is None or until[shared:] == LAST) and after[shared : shared + 1] in DECIMALS:
                nine = self._number(DECIMALS[-1] + LAST)  # after a digit, another digit is more likely than a letter
                high = nine if nine - low >= step * REST_PAGES_MIN else high
            rest = float("inf") if until is None else (high - low) / step
            point = after[:shared] + self._text((low + min(step, high - low) + high) // 2, after[shared:])
        fits = after < point and (until is None or point < until) and len(point.encode()) <= POINT_BYTES_MAX
        return rest, point if fits else None

    def _number(self, text: str) -> int:
        """The first characters of text as the digits of a number: 0 for none, the highest digit for LAST."""
        number, base = 0, len(self._alphabet) + 2
        for each in text[:DIGITS]:
            number = number * base + bisect_left(self._alphabet, each) + 1
        return number * int(base ** max(DIGITS - len(text), 0))

    def _text(self, number: int, after: str) -> str:
        """A short text with about that number, after `after`."""
        base = len(self._alphabet) + 2
        text = ""
        for power in reversed(range(DIGITS)):
            digit, number = divmod(number, base**power)
            if not digit:
                return text
            more = text > after[: len(text)]
            text += LAST if digit > len(self._alphabet) else self._alphabet[digit - 1]
            if more:
                return text
        return text


def _common_prefix_length(one: str, other: str) -> int:
    """The length of the common prefix."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
