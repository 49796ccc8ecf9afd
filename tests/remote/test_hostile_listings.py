"""Listings that a hostile bucket may send: what is accepted of them can be a file here, and all else is skipped."""

from __future__ import annotations

import os
from xml.sax.saxutils import escape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from growfs.remote.metadata import file_from_info
from growfs.remote.names import SIZE_MAX
from growfs.remote.stores.s3.listing import NotAListing, parsed

Key = tuple[str, str, str, str]

names = st.lists(
    st.sampled_from(["..", ".", "", "a", ".growfs", "x" * 300, "%2e%2e", "%2F", "%00", "\\", "é" * 128, "a b", "+"])
    | st.text(max_size=8),
    max_size=5,
).map("/".join)
numbers = st.sampled_from(["0", "-1", "1", str(2**31), str(2**63 - 1), str(2**63), "9" * 400, "1e9", "", " 7 ", "٣"])
times = st.sampled_from(
    ["2024-01-02T03:04:05.000Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "1e300", "nan", "-1", "", "never"]
) | st.text(max_size=30)
entries = st.tuples(names, numbers, times, st.text(max_size=20))


def page(key: Key, encoded: bool) -> bytes:
    """A page of ListObjectsV2 with one key, size, time and ETag."""
    name, size, time, etag = map(escape, key)
    encoding = "<EncodingType>url</EncodingType>" if encoded else ""
    fields = f"<Key>{name}</Key><Size>{size}</Size><LastModified>{time}</LastModified><ETag>{etag}</ETag>"
    content = (
        f"<ListBucketResult><IsTruncated>false</IsTruncated>{encoding}<Contents>{fields}</Contents></ListBucketResult>"
    )
    return content.encode("utf-8", "surrogatepass")


def assert_harmless(path: str, size: int | None, mtime_ns: int | None) -> None:
    joined = os.path.normpath(os.path.join("/base/folder", path))
    assert joined == "/base/folder/" + path, "it leads elsewhere, or two names are one file"
    assert path != ".growfs"
    assert not path.startswith(".growfs/")
    assert b"\0" not in os.fsencode(path)
    assert size is None or 0 <= size <= SIZE_MAX
    assert mtime_ns is None or -(2**63) <= mtime_ns < 2**63, "SQLite has no such number"


@pytest.mark.promise(31)
@given(entries, st.booleans())
def test_what_a_hostile_listing_names_can_be_a_file_or_is_skipped(key: Key, encoded: bool) -> None:
    try:
        found, _ = parsed(page(key, encoded), "").without_skipped(1)
    except NotAListing:
        return
    for file in found:
        assert_harmless(file.path, file.size, file.mtime_ns)


@pytest.mark.promise(31)
@given(st.binary(max_size=400) | st.text(max_size=400).map(lambda text: f"<ListBucketResult>{text}".encode()))
def test_a_page_that_is_no_listing_is_refused(body: bytes) -> None:
    with pytest.raises(NotAListing):
        parsed(body, "")


def test_a_page_that_expands_without_end_is_refused() -> None:
    """Entities of entities, known as a billion laughs. Expat has a limit (XML_SetBillionLaughsAttack...)."""
    entities = "".join(f'<!ENTITY a{number} "{f"&a{number - 1};" * 10}">' for number in range(1, 12))
    body = f'<!DOCTYPE x [<!ENTITY a0 "x">{entities}]><ListBucketResult>&a11;</ListBucketResult>'
    with pytest.raises(NotAListing, match="ParseError"):
        parsed(body.encode(), "")


@given(times | st.integers() | st.floats())
def test_any_time_of_another_store_fits_or_is_unknown(when: object) -> None:
    assert_harmless("a", None, file_from_info("a", {"size": 1, "mtime": when}).mtime_ns)
