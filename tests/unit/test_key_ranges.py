"""Key ranges: each name is listed once, however ranges are split, refused, or resumed from a cursor."""

from __future__ import annotations

import random
import string
from bisect import bisect_right
from collections import deque
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from growfs.remote.stores.s3.key_ranges import (
    BAD_GUESSES_MAX,
    ActiveRange,
    Cursor,
    KeyRange,
    KeyRanges,
    UnorderedListing,
)

PAGE = 4


class Listing:
    """A server with `names`, and its listing by key ranges. page: names in one response. listed: the names so far."""

    def __init__(self, names: set[str], page: int = PAGE) -> None:
        self.names = sorted(names, key=str.encode)
        self.page = page
        self.ranges = KeyRanges()
        self.listed: list[str] = []
        self.ready: deque[tuple[KeyRange, list[str]]] = deque()
        self.cursor: Cursor | None = None
        self.requests = 0

    def request(self, key_range: KeyRange) -> tuple[list[str], bool]:
        self.requests += 1
        after = key_range.token.removeprefix("after ") if key_range.token else key_range.after or None
        start = 0 if after is None else bisect_right(self.names, after.encode(), key=str.encode)
        return self.names[start : start + self.page], start + self.page < len(self.names)

    def receive_page(self, interval: ActiveRange, requested: KeyRange) -> None:
        """Receive the first page of the names of a range."""
        names, more = self.request(requested)
        span = self.ranges.record_page(interval, names, f"after {names[-1]}" if more else None, more)
        if span is not None:
            self.ready.append((span, [name for name in names if span.until is None or name <= span.until]))

    def consume_page(self) -> None:
        _, names = self.ready.popleft()
        self.listed += names
        self.cursor = self.ranges.cursor(span for span, _ in self.ready)

    def resume(self) -> None:
        """As after an error: pages not consumed are lost, and only the cursor of the last page is left."""
        self.ready.clear()
        self.ranges = KeyRanges(self.cursor)


def list_all(listing: Listing, readers: int) -> int:
    """List all with `readers` requests at a time; returns the number of rounds of requests."""
    rounds = 0
    while not listing.ranges.done:
        under_way: list[ActiveRange] = []
        while len(under_way) < readers and (interval := listing.ranges.assign()):
            under_way.append(interval)
        for interval in under_way:
            listing.receive_page(interval, interval.range)
        rounds += 1
    while listing.ready:
        listing.consume_page()
    return rounds


STEPS = 60
"""Drawn at random. What is left of a listing then takes its usual course."""
texts = st.text(st.sampled_from("ab01/.é日\U0010ffff\x01 %"), max_size=6)


@settings(max_examples=30)
@given(st.sets(texts, max_size=150), st.data())
def test_each_name_is_listed_once(names: set[str], data: st.DataObject) -> None:
    listing = Listing(names, page=data.draw(st.integers(1, 5)))
    under_way: list[tuple[ActiveRange, KeyRange]] = []
    steps = 0
    while not listing.ranges.done or under_way or listing.ready:
        steps += 1
        step = data.draw(
            st.sampled_from(["assign", "receive", "consume", "refuse", "resume"] if steps < STEPS else ["finish"])
        )
        if step in ("assign", "finish") and (interval := listing.ranges.assign()):
            under_way.append((interval, interval.range))
        if step in ("receive", "finish") and under_way:
            listing.receive_page(*under_way.pop(data.draw(st.integers(0, len(under_way) - 1))))
        if step == "refuse" and under_way:
            listing.ranges.release(under_way.pop()[0])
        if step in ("consume", "finish") and listing.ready:
            listing.consume_page()
        if step == "resume":
            under_way.clear()
            listing.resume()
    assert sorted(listing.listed, key=str.encode) == listing.names


def random_name(seed: int, *alphabets: str) -> str:
    return "".join(random.Random(seed).choices(alphabets[seed % len(alphabets)], k=12))


NAMINGS: dict[str, Callable[[int], str]] = {
    "directories": lambda n: f"d{n // 700:04}/f{n % 700:04}.bin",
    "flat": lambda n: f"{n:08}.jpg",
    "not padded": lambda n: f"train/img_{n}.png",
    "hexadecimal": lambda n: f"{random.Random(n).getrandbits(128):032x}.tar",
    "deep": lambda n: f"sets/v2/raw/2024/{n // 9000:02}/{n // 300 % 30:02}/part-{n % 300:05}.parquet",
    "letters": lambda n: random_name(n, string.ascii_letters + string.digits),
    "not ASCII": lambda n: f"写真/{chr(0x4E00 + n * 7919 % 3000)}{n}.jpg",
    "a README comes first": lambda n: f"img_{n:07}.jpg" if n else "README.md",
    "two folders": lambda n: f"{'train' if n % 4 else 'val'}/of-a-data-set-with-a-long-name/{n:08}.jpg",
    "one folder holds most": lambda n: f"a/{n:08}" if n % 50 else f"{chr(98 + n % 24)}/x{n}",
}


@pytest.mark.parametrize("naming", NAMINGS)
def test_names_of_any_form_are_listed_in_parallel(naming: str) -> None:
    for count, page, rounds_max, requests_max in (
        (30_000, 100, 300 / 4, 300 * 1.5),
        (2000, 100, 12, 20 * 1.5 + BAD_GUESSES_MAX),
        *((few, PAGE, 1, 1) for few in (0, 1, PAGE)),
    ):
        listing = Listing({NAMINGS[naming](n) for n in range(count)}, page)
        assert list_all(listing, 16) <= rounds_max, "hardly any requests ran in parallel"
        assert listing.requests <= requests_max
        assert sorted(listing.listed) == listing.names


def test_a_digit_that_stays_the_same_while_earlier_ones_change_is_not_guessed() -> None:
    """Each directory has a page of names, so the rest of a directory that has been read would be empty."""
    listing = Listing({f"d{n // 100:04}/f{n % 100:04}.bin" for n in range(2000)}, page=100)
    list_all(listing, 16)
    assert sorted(listing.listed) == listing.names
    assert listing.requests <= 2 * 20


@pytest.mark.parametrize("names", [["b", "a"], ["a", "a"], ["B", "a", "C"]])
def test_an_unordered_listing_is_detected_and_listed_serially(names: list[str]) -> None:
    ranges = KeyRanges()
    interval = ranges.assign()
    assert interval
    with pytest.raises(UnorderedListing):
        ranges.record_page(interval, names, "token", True)
    ranges.switch_to_serial()
    again = ranges.assign()
    assert again
    assert again.range == KeyRange("", None)
    assert ranges.record_page(again, names, "token", True)
    assert ranges.assign() is again
    assert ranges.assign() is None
    assert ranges.record_page(again, ["0"], None, False)
    assert ranges.done


def test_a_cursor_resumes_in_the_order_of_the_server() -> None:
    ranges = KeyRanges(serial=True)
    interval = ranges.assign()
    assert interval
    ranges.record_page(interval, ["b", "a"], "token", True)
    again = KeyRanges(ranges.cursor()).assign()
    assert again
    assert again.range == KeyRange("a", None, "token")
    assert ranges.cursor([KeyRange("", None)]).left == (KeyRange("", None),)


def test_pages_not_consumed_are_listed_again_serially() -> None:
    listing = Listing({f"{n:03}" for n in range(100)})
    while len(listing.ready) < 6:
        listing.consume_page() if len(listing.ready) == 5 else None
        for interval in list(iter(listing.ranges.assign, None)):
            listing.receive_page(interval, interval.range)
    listed = listing.listed
    listing.ranges.switch_to_serial(span for span, _ in listing.ready)
    listing.ready.clear()
    list_all(listing, 4)
    assert set(listed) == set(listing.names)
