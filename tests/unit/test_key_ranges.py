"""Intervals of names: whatever is split where, refused, and begun anew from a cursor, each name comes once."""

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
    LAST,
    SERIAL_PAGES,
    ActiveRange,
    Cursor,
    KeyRange,
    KeyRanges,
    UnorderedListing,
)

PAGE = 4


class Listing:
    """A server with `names`, and what a reader of it was given. page: names in an answer."""

    def __init__(self, names: set[str], page: int = PAGE) -> None:
        self.names = sorted(names, key=str.encode)
        self.page = page
        self.ranges = KeyRanges()
        self.told: list[str] = []
        self.ready: deque[tuple[KeyRange, list[str]]] = deque()
        self.cursor: Cursor | None = None
        self.requests = 0

    def ask(self, after: str) -> tuple[list[str], bool]:
        self.requests += 1
        start = bisect_right(self.names, after.encode(), key=str.encode) if after else 0
        return self.names[start : start + self.page], start + self.page < len(self.names)

    def answer(self, interval: ActiveRange, after: str) -> None:
        """What was asked for with `after` arrives."""
        names, more = self.ask(after)
        span = self.ranges.record_page(interval, names, f"after {names[-1]}" if more else None, more)
        if span is not None:
            self.ready.append((span, [name for name in names if span.until is None or name <= span.until]))

    def tell(self) -> None:
        _, names = self.ready.popleft()
        self.told += names
        self.cursor = self.ranges.cursor(span for span, _ in self.ready)

    def begin_anew(self) -> None:
        """As after an error: what was not told is lost, and the cursor of the last page is all there is."""
        self.ready.clear()
        self.ranges = KeyRanges(self.cursor)


def read(listing: Listing, readers: int) -> int:
    """Read it with so many requests at once; returns how often one had to wait for answers."""
    rounds = 0
    while not listing.ranges.done:
        under_way: list[ActiveRange] = []
        while len(under_way) < readers and (interval := listing.ranges.assign()):
            under_way.append(interval)
        for interval in under_way:
            listing.answer(interval, interval.after)
        rounds += 1
    while listing.ready:
        listing.tell()
    return rounds


texts = st.text(st.sampled_from("ab01/.é日\U0010ffff\x01 %"), max_size=6)


@settings(max_examples=50)
@given(st.sets(texts, max_size=150), st.data())
def test_each_name_comes_once(names: set[str], data: st.DataObject) -> None:
    listing = Listing(names, page=data.draw(st.integers(1, 5)))
    under_way: list[tuple[ActiveRange, str]] = []
    steps = 0
    while not listing.ranges.done or under_way or listing.ready:
        steps += 1
        todo = data.draw(st.sampled_from(["take", "answer", "tell", "refuse", "anew"] if steps < 200 else ["finish"]))
        if todo in ("take", "finish") and (interval := listing.ranges.assign()):
            under_way.append((interval, interval.after))
        if todo in ("answer", "finish") and under_way:
            listing.answer(*under_way.pop(data.draw(st.integers(0, len(under_way) - 1))))
        if todo == "refuse" and under_way:
            listing.ranges.release(under_way.pop()[0])
        if todo in ("tell", "finish") and listing.ready:
            listing.tell()
        if todo == "anew":
            under_way.clear()
            listing.begin_anew()
    assert sorted(listing.told, key=str.encode) == listing.names


def mixed(seed: int, *alphabets: str) -> str:
    return "".join(random.Random(seed).choices(alphabets[seed % len(alphabets)], k=12))


NAMINGS: dict[str, Callable[[int], str]] = {
    "directories": lambda n: f"d{n // 700:04}/f{n % 700:04}.bin",
    "flat": lambda n: f"{n:08}.jpg",
    "not padded": lambda n: f"train/img_{n}.png",
    "hexadecimal": lambda n: f"{random.Random(n).getrandbits(128):032x}.tar",
    "deep": lambda n: f"sets/v2/raw/2024/{n // 9000:02}/{n // 300 % 30:02}/part-{n % 300:05}.parquet",
    "letters": lambda n: mixed(n, string.ascii_letters + string.digits),
    "not ASCII": lambda n: f"写真/{chr(0x4E00 + n * 7919 % 3000)}{n}.jpg",
    "one folder holds most": lambda n: f"a/{n:08}" if n % 50 else f"{chr(98 + n % 24)}/x{n}",
}


@pytest.mark.parametrize("naming", NAMINGS)
def test_any_naming_is_split_well(naming: str) -> None:
    listing = Listing({NAMINGS[naming](n) for n in range(30_000)}, page=100)
    rounds = read(listing, 16)
    pages = len(listing.names) / 100
    assert sorted(listing.told) == listing.names
    assert rounds < pages / 4, "it was hardly read side by side"
    assert listing.requests < pages * 1.5


@pytest.mark.parametrize("naming", NAMINGS)
def test_a_small_bucket_costs_its_pages(naming: str) -> None:
    for count in (0, 1, PAGE, PAGE + 1, PAGE * SERIAL_PAGES):
        listing = Listing({NAMINGS[naming](n) for n in range(count)})
        read(listing, 16)
        assert (len(listing.told), listing.requests) == (count, max(1, -(-count // PAGE)))


def test_a_bucket_of_a_few_pages_costs_few_more() -> None:
    for naming in NAMINGS.values():
        listing = Listing({naming(n) for n in range(1000)}, page=100)
        read(listing, 16)
        assert listing.requests <= 10 * 1.7


def test_points_are_fit_for_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for what names themselves begin with, they have no character that XML cannot carry."""
    names = {f"a\x01b\x7f{n}/\ufffe{n}" for n in range(2000)}
    points: list[str] = []
    split = KeyRanges._split

    def noted(self: KeyRanges) -> ActiveRange | None:
        if (upper := split(self)) is not None:
            points.append(upper.after)
        return upper

    monkeypatch.setattr(KeyRanges, "_split", noted)
    read(Listing(names), 8)
    assert len(points) > 20
    for point in points:
        assert point.encode()
        own = next(at for at in range(len(point), -1, -1) if any(name.startswith(point[:at]) for name in names))
        assert all(each.isprintable() or each == LAST for each in point[own:])


@pytest.mark.parametrize("names", [["b", "a"], ["a", "a"], ["B", "a", "C"]])
def test_another_order_is_noticed(names: list[str]) -> None:
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


def test_one_page_may_have_any_order() -> None:
    ranges = KeyRanges()
    interval = ranges.assign()
    assert interval
    assert ranges.record_page(interval, ["b", "a"], None, False) == KeyRange("", None)
    assert ranges.done


def test_a_server_that_begins_elsewhere_loses_nothing_and_tells_nothing_twice() -> None:
    """It answers every request that has no token with its first page."""
    listing = Listing({f"{n:03}" for n in range(100)})
    ranges, told = listing.ranges, []
    while not ranges.done:
        for interval in list(iter(ranges.assign, None)):
            names, more = listing.ask(interval.after if interval.token else "")
            try:
                span = ranges.record_page(interval, names, "token" if more else None, more)
            except UnorderedListing:
                ranges.switch_to_serial()
                continue
            if span:
                told += [name for name in names if span.until is None or name <= span.until]
    assert ranges.serial
    assert told == listing.names


def test_a_cursor_goes_on_in_the_servers_order() -> None:
    ranges = KeyRanges(serial=True)
    interval = ranges.assign()
    assert interval
    ranges.record_page(interval, ["b", "a"], "token", True)
    again = KeyRanges(ranges.cursor()).assign()
    assert again
    assert again.range == KeyRange("a", None, "token")
    assert ranges.cursor([KeyRange("", None)]).left == (KeyRange("", None),)


def test_what_nobody_was_told_of_is_found_again_in_the_servers_order() -> None:
    listing = Listing({f"{n:03}" for n in range(100)})
    while len(listing.ready) < 6:
        listing.tell() if len(listing.ready) == 5 else None
        for interval in list(iter(listing.ranges.assign, None)):
            listing.answer(interval, interval.after)
    told = listing.told
    listing.ranges.switch_to_serial(span for span, _ in listing.ready)
    listing.ready.clear()
    read(listing, 4)
    assert set(told) == set(listing.names)
