"""What `growfs doctor` expects of a mount, from given measurements."""

from __future__ import annotations

from typing import Any

import pytest

from growfs.daemon.options import Options
from growfs.extensions.doctor.check import Check, Disk, Level, Listing, MeasuredDownload
from growfs.extensions.doctor.outlook import Outlook, check_outlook

GB = 10**9
LISTING = Listing(10_000, 0, 100 * GB, 10**7, s=2.0, first_s=0.5, whole=True)
DOWNLOAD = MeasuredDownload(100, GB, s=10.0, first_s=0.2)
DISK = Disk(20 * GB, write=GB, read=GB)


def outlook(
    disk: Disk = DISK, listing: Listing = LISTING, download: MeasuredDownload = DOWNLOAD, **given: Any
) -> tuple[dict[str, Check], Outlook]:
    """(the checks by name, the Outlook)"""
    *checks, last = check_outlook(Options.parse(given), disk, listing, download)
    assert isinstance(last, Outlook)
    return {check.name: check for check in checks if isinstance(check, Check)}, last


def test_a_cache_that_is_smaller_than_the_data() -> None:
    checks, found = outlook()
    assert (found.first_file_s, found.full_s, found.fill_bytes) == (0.7, 200.0, 20 * GB)
    assert found.start_s == pytest.approx(20.7), "a tenth of the cache"
    assert found.seen
    assert 0 < found.seen[1] < found.seen[10] < found.seen[50] <= 1
    assert checks["full cache"].text == "20 GB, 20.0% of the data, after about 3 minutes and 20 seconds"
    assert "--data-size 100GB --files 10000 --cache-size 20GB --bandwidth 100MB/s" in checks["coverage"].remedy


@pytest.mark.parametrize(
    ("given", "start_s"),
    [
        ({"no_wait": True}, 0.7),
        ({"wait_files": "50"}, 5.7),
        ({"wait_bytes": "1GB"}, 10.7),
        ({"partition": "0/10"}, 10.7),
        ({"download": MeasuredDownload(1, 10**7, s=10.0, first_s=1.0)}, 21.5),
    ],
)
def test_when_the_mount_returns(given: dict[str, Any], start_s: float) -> None:
    """It does not wait for a tenth of a large cache over a slow link."""
    _, found = outlook(**given)
    assert found.start_s == pytest.approx(start_s)


def test_data_that_fit_the_cache() -> None:
    checks, found = outlook(Disk(500 * GB))
    assert (found.fill_bytes, found.seen) == (100 * GB, None)
    assert checks["full cache"].text.startswith("the whole dataset, 100 GB, after about 16 minutes")


def test_without_rotation_no_more_is_seen_than_the_cache_holds() -> None:
    checks, found = outlook(rotation="never")
    assert found.seen
    assert 0 < found.seen[1] <= found.seen[10] <= found.seen[50] == pytest.approx(0.2)
    assert "20% after 50 epochs" in checks["coverage"].text


@pytest.mark.parametrize("disk", [DISK, Disk(500 * GB)])
def test_parts_are_not_foretold(disk: Disk) -> None:
    """When one can be read, and how much is seen, is not as without --exact."""
    checks, found = outlook(disk, exact=True)
    assert (found.start_s, found.seen) == (None, None)
    assert found.full_s
    assert checks.keys() == {"first file", "full cache"}


def test_a_disk_that_is_slower_than_the_link() -> None:
    checks, found = outlook(Disk(20 * GB, write=10**7, read=10**7))
    assert checks["bottleneck"].level is Level.WARNING
    assert found.full_s == 2000.0


def test_a_listing_that_was_stopped_tells_no_total() -> None:
    checks, found = outlook(listing=Listing(10_000, 0, GB, 1, s=2.0, first_s=0.5, whole=False))
    assert checks["full cache"].text == "20 GB after about 3 minutes and 20 seconds, if the remote has as much"
    assert (found.start_s, found.seen) == (None, None)


def test_files_of_unknown_size_count_as_large_as_those_that_were_fetched_by_several_processes() -> None:
    listing = Listing(1000, 1000, 0, 0, s=1.0, first_s=0.1, whole=True)
    _, found = outlook(Disk(500 * GB), listing, MeasuredDownload(100, GB, s=10.0, first_s=0.2, processes=4))
    assert (found.fill_bytes, found.full_s) == (10 * GB, 25.0)
