"""`Keyspace`: the names that a listing has still to read, as intervals that several readers walk side by side.

Pure: it asks nobody and knows no thread. The names come in the order of their UTF-8 bytes, which is that of Python's
texts. How they are spread nobody knows, so where to split is guessed from those seen so far; a bad guess costs one
request and no name, and how many may go wrong is limited to a share of the good ones.
"""

from __future__ import annotations

import operator
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

PAGES_ALONE = 4  # are read one after the other: a small bucket costs no request more
WASTE_SHARE = 0.3  # of the pages that were of use: how many requests may bring nothing
REST_PAGES_MIN = 3
LAST = "\U0010fffd"  # after every character that names have; XML can carry it, unlike the two after it
POINT_BYTES_MAX = 512  # of a guess; S3's keys end at 1024, prefix included
DIGITS = 8  # characters of a name that a guess reckons with
DECIMALS = "0123456789"
FOREIGN = [each for each in map(chr, range(0x80, 0x10000, 0x20)) if each.isprintable()]
"""What stands for all characters that are not ASCII: names hold too few of them to know from some which others."""
SAMPLE_EVERY = 50


class UnorderedListing(Exception):
    """The server gives names in another order than that of their bytes, or from another one on than was asked for."""


class KeyRange(NamedTuple):
    """The names after `after` up to `until`, included; None: to the end. token: the server's own word for `after`."""

    after: str
    until: str | None
    token: str | None = None


class Cursor(NamedTuple):
    """What a listing has still to read. serial: where the server's own order is followed from."""

    left: tuple[KeyRange, ...]
    origin: KeyRange
    serial: bool


@dataclass(slots=True, eq=False)
class ActiveRange:
    """A Span that is walked by at most one reader. first: a name seen before `after`; pages: how many since."""

    after: str
    until: str | None
    token: str | None = None
    taken: bool = False
    first: str | None = None
    pages: int = 0
    halved: bool = False
    below: str | None = None

    @property
    def span(self) -> KeyRange:
        return KeyRange(self.after, self.until, self.token)


class KeyRanges:
    """Owns the intervals, which are disjoint; what they do not cover was handed out by `found`.

    In serial order there is one interval without an end, its reader goes from token to token, and no order is checked.
    pages: read so far; wasted: requests that brought nothing.
    """

    def __init__(self, cursor: Cursor | None = None, serial: bool = False) -> None:
        whole = KeyRange("", None)
        left, origin, serial = cursor or Cursor((whole,), whole, serial)
        self._intervals = [ActiveRange(*span) for span in left]
        at_origin = (each for each in self._intervals if each.after == origin.after)
        self._begins = next(at_origin, ActiveRange(*origin))  # stays as it was last asked for when it is read
        self._alphabet: list[str] = []  # what guesses are made of
        self._foreign = False
        self._no_split = False  # before the next page
        self.serial = serial
        self.pages = 0
        self.wasted = 0

    @property
    def done(self) -> bool:
        return not self._intervals

    def cursor(self, undelivered: Iterable[KeyRange] = ()) -> Cursor:
        """What is left, and with it the spans that were found and that nobody has been told of yet."""
        left: list[KeyRange] = []
        if self.serial:
            left = [*undelivered, *(each.span for each in self._intervals)][:1]
            return Cursor(tuple(left), self._begins.span, True)
        for span in sorted([*undelivered, *(each.span for each in self._intervals)], key=lambda span: span.after):
            if left and left[-1].until == span.after:
                left[-1] = left[-1]._replace(until=span.until)
            else:
                left.append(span)
        origin = min([self._begins.span, *left[:1]], key=lambda span: span.after)
        return Cursor(tuple(left), origin, False)

    def take(self) -> ActiveRange | None:
        """The next interval to ask about: one that waits, else half of the largest; None if there is none now."""
        for each in self._intervals:
            if not each.taken:
                each.taken = True
                return each
        return self._split()

    def release(self, interval: ActiveRange) -> None:
        """Nobody walks it any more."""
        interval.taken = False

    def found(self, interval: ActiveRange, names: Sequence[str], token: str | None, more: bool) -> KeyRange | None:
        """Take in a page of names that was asked for with interval's span.

        Returns which of them to hand out (those that lie in the span), None for none; the interval then begins after
        them, or is gone. more: whether the server has names after these. Raises Unordered.
        """
        if interval not in self._intervals:  # the order is another one now
            return None
        asked = interval.span
        any_order = self.serial or (asked == KeyRange("", None) and not more)  # in one page is all there is
        if names and not any_order and not self._follow(asked.after, names):
            raise UnorderedListing
        self._learn(interval, names)
        interval.halved = False
        inside = len(names) if asked.until is None else bisect_right(names, asked.until)
        beyond = inside < len(names) or (inside and names[-1] == asked.until)
        self.pages += bool(inside)
        self.wasted += not inside
        self._go_on(interval, names[inside - 1] if inside else asked.after, token, more and not beyond)
        if not inside:
            return None
        interval.pages += 1
        return asked if self.serial or interval not in self._intervals else asked._replace(until=interval.after)

    def switch_to_serial(self, undelivered: Iterable[KeyRange] = ()) -> None:
        """Go on page by page in the server's own order, from where the reader is that began at the beginning.

        The spans in unsaid are found again. What was told of later intervals is told twice; where a server begins
        elsewhere than asked, that is none.
        """
        origin = self.cursor(undelivered).origin
        self.serial = True
        self._begins = ActiveRange(origin.after, None, origin.token)
        self._intervals = [self._begins]

    def _go_on(self, interval: ActiveRange, after: str, token: str | None, more: bool) -> None:
        if more:
            interval.after, interval.token = after, token
            interval.taken = False
        else:
            self._intervals.remove(interval)

    @staticmethod
    def _follow(after: str, names: Sequence[str]) -> bool:
        return (not after or after < names[0]) and all(map(operator.lt, names, names[1:]))

    def _learn(self, interval: ActiveRange, names: Sequence[str]) -> None:
        self._no_split = False
        if not names or self.serial:
            return
        interval.first = interval.first or names[0]
        seen = set().union(*names[::SAMPLE_EVERY], names[-1]).difference(self._alphabet)
        added = [each for each in seen if each.isascii() and each.isprintable()]
        if not self._foreign and not all(map(str.isascii, seen)):
            added += FOREIGN
            self._foreign = True
        if added:
            self._alphabet = sorted([*self._alphabet, *added])

    def _split(self) -> ActiveRange | None:
        if self.serial or self._no_split or self.pages < PAGES_ALONE or self.wasted > WASTE_SHARE * self.pages:
            return None
        best, size, point = None, float(REST_PAGES_MIN), ""
        for each in self._intervals:
            rest, guess = self._guess(each) if each.pages and not each.halved else (0.0, None)
            if guess is not None and rest >= size:
                best, size, point = each, rest, guess
        if best is None:
            self._no_split = True
            return None
        below = (best.below or best.first) if best.until is None else best.after
        upper = ActiveRange(point, best.until, taken=True, below=below)
        best.until, best.halved = point, True
        self._intervals.append(upper)
        return upper

    def _guess(self, interval: ActiveRange) -> tuple[float, str | None]:
        """(pages that may be left in the interval, where to split it); None where there is no name in between.

        As long as all names that were seen have a beginning in common that is longer than what those to come are
        known to have, its length is searched for by halves. After that, names are numbers between two others.
        """
        after, until = interval.after, interval.until
        first = interval.first or after
        shared = 0 if until is None else _agreed(after, until)
        seen = _agreed(interval.below or first, after)
        if seen > shared and (until is None or until[shared:] == LAST):
            rest = float("inf") if until is None else float(interval.pages)  # as many to come as were seen
            point = after[: (shared + seen + 1) // 2] + LAST
        else:
            low = self._number(after[shared:])
            high = self._number(LAST if until is None else until[shared:])
            step = max((low - self._number(first[shared:])) // interval.pages, 1)
            if (until is None or until[shared:] == LAST) and after[shared : shared + 1] in DECIMALS:
                nine = self._number(DECIMALS[-1] + LAST)  # beside a digit, another is likelier than a letter
                high = nine if nine - low >= step * REST_PAGES_MIN else high
            rest = float("inf") if until is None else (high - low) / step
            point = after[:shared] + self._text((low + min(step, high - low) + high) // 2, after[shared:])
        fits = after < point and (until is None or point < until) and len(point.encode()) <= POINT_BYTES_MAX
        return rest, point if fits else None

    def _number(self, text: str) -> int:
        """The first characters of text as the digits of a number: 0 for none, the base's last for LAST."""
        number, base = 0, len(self._alphabet) + 2
        for each in text[:DIGITS]:
            number = number * base + bisect_left(self._alphabet, each) + 1
        return number * int(base ** max(DIGITS - len(text), 0))

    def _text(self, number: int, after: str) -> str:
        """A short text of about that number, after `after`."""
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


def _agreed(one: str, other: str) -> int:
    """How many characters both begin with."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
