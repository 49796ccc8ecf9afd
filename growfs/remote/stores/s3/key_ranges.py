"""`KeyRanges`: the names that a listing has still to read, as ranges that several readers read in parallel.

Pure: no requests and no threads. Names are in the order of their UTF-8 bytes, which is the order of Python's strings.
The distribution of names is unknown, so a range is split at a guess, based on the names seen so far. A bad guess costs
one request and no names, and their number is limited.
"""

from __future__ import annotations

import operator
import string
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

BAD_GUESSES_MAX = 12
LAST = "\U0010fffd"  # sorts after every character in names; XML can carry it, unlike the two after it
DIGITS = 16  # characters of a name that a guess is made from
CHARACTER_CLASSES = (
    set(string.digits),
    set("0123456789abcdef"),
    set("0123456789ABCDEF"),
    set(string.digits + string.ascii_lowercase),
    set(string.digits + string.ascii_uppercase),
    set(string.digits + string.ascii_letters),
)
NON_ASCII = {each for each in map(chr, range(0x80, 0x10000, 0x20)) if each.isprintable()}
"""Samples of all characters that are not ASCII: the few that are seen do not reveal which others there are."""


class UnorderedListing(Exception):
    """The server does not list names in the order of their bytes, or does not start at the requested name."""


class RepeatedPage(Exception):
    """The server gives a token for the next page that it has given before, so its listing has no end."""


class KeyRange(NamedTuple):
    """The names after `after`, up to and including `until`; None for the end. token: the server's token for `after`."""

    after: str
    until: str | None
    token: str | None = None


class Cursor(NamedTuple):
    """The rest of a listing. serial: follow the server's own order, page by page.

    left: in any order. origin: the range that was read first, or its last position.
    """

    left: tuple[KeyRange, ...]
    origin: KeyRange
    serial: bool

    def ranges(self) -> list[KeyRange]:
        """The ranges to read, in order. Computed only when needed, as there is a cursor for each page."""
        joined: list[KeyRange] = []
        for key_range in sorted(self.left, key=_position):
            if joined and joined[-1].until == key_range.after:
                joined[-1] = joined[-1]._replace(until=key_range.until)
            else:
                joined.append(key_range)
        return joined

    def start(self) -> KeyRange:
        """The first range that was read, or is to be read: where a serial listing starts."""
        return self.origin if self.serial else min([self.origin, *self.left], key=_position)


@dataclass(slots=True, eq=False)
class ActiveRange:
    """A range that at most one reader is reading. start: where its first page began; pages: read since then.

    sample: a name from the middle of that page, as the first may be a README. name_before: a name before the range.
    guess: of `KeyRanges._guess`, until the range changes.
    """

    after: str
    until: str | None
    token: str | None = None
    is_assigned: bool = False
    start: str = ""
    sample: str = ""
    pages: int = 0
    name_before: str | None = None
    guess: tuple[float, str | None] | None = None

    @property
    def range(self) -> KeyRange:
        return KeyRange(self.after, self.until, self.token)


class KeyRanges:
    """Owns the ranges, which are disjoint. `record_page` has returned all names that they do not cover.

    In serial order there is a single range without an end: its reader goes from token to token, and the order is not
    checked. pages: read so far.
    """

    def __init__(self, cursor: Cursor | None = None, serial: bool = False) -> None:
        whole = KeyRange("", None)
        cursor = cursor or Cursor((whole,), whole, serial)
        self._active, origin = [ActiveRange(*key_range) for key_range in cursor.ranges()], cursor.start()
        at_origin = (each for each in self._active if each.after == origin.after)
        self._origin = next(at_origin, ActiveRange(*origin))  # keeps its last position after it is read to its end
        self._seen: list[set[str]] = []  # at each position of the names so far
        self._alphabets: dict[int, list[str]] = {}
        self._carry = sys.maxsize
        """The first position at which a name differed from one before it. Later positions have started over since."""
        self._tokens: set[int] = set()  # hashes of those that were received, since the listing became serial
        self._no_split = False  # until the next page arrives
        self.serial = cursor.serial
        self.pages = 0
        self._bad_guesses = 0

    @property
    def done(self) -> bool:
        return not self._active

    def cursor(self, undelivered: Iterable[KeyRange] = ()) -> Cursor:
        """The rest to read, including the `undelivered` ranges: those that were read but not returned yet."""
        left = [*undelivered, *(each.range for each in self._active)]
        return Cursor(tuple(left[:1] if self.serial else left), self._origin.range, self.serial)

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
        after them, or is done. more: whether the server has names after these. Raises UnorderedListing, RepeatedPage.
        """
        if not self.has(active):
            return None
        requested = active.range
        any_order = self.serial or (requested == KeyRange("", None) and not more)  # a single page has all names
        begins_after = not (requested.after and names and names[0] <= requested.after)
        if not any_order and not (begins_after and all(map(operator.lt, names, names[1:]))):
            raise UnorderedListing
        self._learn(active, names)
        active.guess = None
        inside = len(names) if requested.until is None else bisect_right(names, requested.until)
        beyond = inside < len(names) or (inside and names[-1] == requested.until)
        self.pages += bool(inside)
        self._bad_guesses += not inside and not active.pages
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
        origin = self.cursor(undelivered).start()
        self.serial = True
        self._tokens.clear()
        self._origin = ActiveRange(origin.after, None, origin.token)
        self._active = [self._origin]

    def _advance(self, active: ActiveRange, after: str, token: str | None, more: bool) -> None:
        if more:
            if hash(token) in self._tokens:
                raise RepeatedPage
            self._tokens.update([hash(token)] if token else [])
            active.after, active.token = after, token
            active.is_assigned = False
        else:
            self._active.remove(active)

    def _learn(self, active: ActiveRange, names: Sequence[str]) -> None:
        self._no_split = False
        if not names or self.serial:
            return
        carry = _common_prefix_length(active.after if active.pages else names[0], names[-1])
        if carry < self._carry:
            self._carry = carry
            self._alphabets.clear()
        if not active.pages:
            active.sample = names[len(names) // 2]
            active.start = active.after or active.sample
        for position, characters in enumerate(zip_longest(*names[::50], names[-1], fillvalue="")):
            if position == len(self._seen):
                self._seen.append({""})
            if not self._seen[position].issuperset(characters):
                self._seen[position].update(characters)
                self._alphabets.pop(position, None)

    def _alphabet(self, position: int) -> list[str]:
        """The characters that names may have at a position, in order.

        These are the ones seen there, and all that are like them: after 0, 1, and 2 there may be a 9. A single one is
        part of all names if it is not a digit, as in "part-00017.parquet", or if it stayed while one before it changed.
        """
        if position not in self._alphabets:
            seen = self._seen[position] - {""} if position < len(self._seen) else set()
            alphabet = {each for each in seen if each.isascii() and each.isprintable()}
            alphanumeric = set(filter(str.isalnum, alphabet))
            may_change = alphanumeric <= CHARACTER_CLASSES[0] and position <= self._carry
            if alphanumeric and (len(seen) > 1 or may_change):
                alphabet |= next(each for each in CHARACTER_CLASSES if alphanumeric <= each)
            if not all(map(str.isascii, seen)):
                alphabet |= NON_ASCII
            self._alphabets[position] = sorted(alphabet)
        return self._alphabets[position]

    def _split(self) -> ActiveRange | None:
        if self.serial or self._no_split or not self.pages:
            return None
        untested = sum(not each.pages for each in self._active)
        if self._bad_guesses + untested >= max(BAD_GUESSES_MAX, 0.3 * self.pages):  # or that share of the pages read
            return None
        best, size, point = None, 2.0, ""  # fewer pages are not worth it
        for each in self._active:
            if each.pages:
                each.guess = each.guess or self._guess(each)
                rest, guess = each.guess
                if guess is not None and rest >= size:
                    best, size, point = each, rest, guess
        if best is None:
            self._no_split = True
            return None
        name_before = (best.name_before or best.start) if best.until is None else best.after
        upper = ActiveRange(point, best.until, is_assigned=True, name_before=name_before)
        best.until, best.guess = point, None
        self._active.append(upper)
        return upper

    def _guess(self, active: ActiveRange) -> tuple[float, str | None]:
        """(pages that may be left in the range, where to split it); None if there is no name in between.

        The names seen so far may share a longer prefix than all names of the range are known to share. In that case,
        the length of the shared prefix is found by bisection. After that, names are treated as numbers between two
        others.
        """
        after, until, start = active.after, active.until, active.start
        shared = 0 if until is None else _common_prefix_length(after, until)
        seen = _common_prefix_length(active.name_before or start, after)
        own = _common_prefix_length(active.sample, after)
        if own - shared >= DIGITS:  # numbers would not reach the characters that differ
            seen = own
        if seen > shared and (until is None or until[shared:] == LAST):
            rest = float("inf") if until is None else float(active.pages)  # assume as many as were read so far
            point = after[: (shared + seen + 1) // 2] + LAST
        else:
            if _common_prefix_length(start, after) < shared:  # it was guessed before the prefix was known
                start = active.sample
            shared = min(shared, _common_prefix_length(start, after))
            low = self._number(after, shared)
            high = self._number(LAST if until is None else until, shared)
            step = max((low - self._number(start, shared)) // active.pages, 1)
            rest = float("inf") if until is None else (high - low) / step
            point = after[:shared] + self._text((low + min(step, high - low) + high) // 2, after, shared)
        # An S3 key has at most 1024 bytes, with the prefix.
        fits = after < point and (until is None or point < until) and len(point.encode()) <= 512
        return rest, point if fits else None

    def _number(self, text: str, shared: int) -> int:
        """The characters of text after the shared prefix, as the digits of a number. LAST carries over.

        The base of each digit is the number of characters that names may have there. So a position with the same
        character in all names does not count.
        """
        number = 0
        for position in range(shared, shared + DIGITS):
            alphabet = self._alphabet(position)
            number *= max(len(alphabet), 1)
            if position < len(text):
                number += bisect_left(alphabet, text[position])
        return number

    def _text(self, number: int, after: str, shared: int) -> str:
        """A short text with about that number, after that of `after`: what follows the shared prefix."""
        digits: list[int] = []
        for position in reversed(range(shared, shared + DIGITS)):
            number, digit = divmod(number, max(len(self._alphabet(position)), 1))
            digits.append(digit)
        text = ""
        for position, digit in enumerate(reversed(digits), shared):
            alphabet = self._alphabet(position)
            if number or not alphabet:
                return text + LAST
            text += alphabet[digit]
            if text > after[shared : position + 1]:
                return text
        return text


def _position(key_range: KeyRange) -> str:
    return key_range.after


def _common_prefix_length(one: str, other: str) -> int:
    """The length of the common prefix."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
