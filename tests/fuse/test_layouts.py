"""The layouts of public datasets (--group) through a mount: a listing never shows a part of a sample."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuse.conftest import only
from tests.fuse.reader import Reader
from tests.fuse.rotation_helpers import HALF, SIZE, local, waited_opens
from tests.harness import Growfs
from tests.layouts import LAYOUTS, make_samples

COUNT = 12
EXACT = "--exact", "--part-size", "50%"
NESTED = {"{dir:2}": lambda n: {f"{n % 2}/{n}/zarr.json", f"{n % 2}/{n}/a/c/0", f"{n % 2}/{n}/a/c/1"}}
FREE = {r"([^/]+)-\w+$": lambda n: {f"{n}-image", f"labels/{n}-mask", f"more/labels/{n}-box"}}
OF_GROUPS = LAYOUTS | NESTED | FREE
"""tests/unit/test_layouts.py has what each puts together. Here are some of each kind."""


@pytest.mark.promise(7, 24)
@pytest.mark.parametrize(
    ("group", "flags"),
    [(group, HALF) for group in ("cityscapes", "mirax", "{top}", "{stem}", *NESTED, *FREE)]
    + [(group, EXACT) for group in ("nnunet", "zarr", "{parent}", *NESTED)],
    ids=lambda value: value if isinstance(value, str) else value[0].removeprefix("--"),
)
def test_a_listing_shows_whole_samples(
    growfs: Growfs, tmp_path: Path, reader: Reader, group: str, flags: tuple[str, ...]
) -> None:
    samples = make_samples(tmp_path / "remote", OF_GROUPS[group], COUNT, SIZE)
    of_sample = len(samples[0])
    capacity = COUNT * of_sample // 3 if flags == HALF else COUNT * of_sample // 2
    growfs.mount(tmp_path / "remote", "--cache-size", capacity * SIZE, "--group", group, *flags)
    left = set().union(*samples)
    while left:
        shown = reader.walk()
        assert not reader.request("has_empty_folders", "")
        assert [sample & shown for sample in samples if sample & shown] == [each for each in samples if each <= shown]
        reader.read_all(shown)
        left -= shown
    assert waited_opens(growfs) == 0
    assert "groups" not in " ".join(growfs.status()["warnings"])


@pytest.mark.promise(24)
@only("libfuse")
@pytest.mark.parametrize("group", ["cityscapes", *NESTED, *FREE])
def test_a_miss_fetches_the_whole_sample(growfs: Growfs, tmp_path: Path, reader: Reader, group: str) -> None:
    samples = make_samples(tmp_path / "remote", OF_GROUPS[group], COUNT, SIZE)
    capacity = COUNT * len(samples[0]) // 3
    growfs.mount(tmp_path / "remote", "--cache-size", capacity * SIZE, "--group", group)
    growfs.until_cached(capacity)
    for sample in samples:
        assert reader.read(max(sample)) == SIZE
        assert sample <= local(growfs)
    assert growfs.status()["cache"]["files"] == capacity
