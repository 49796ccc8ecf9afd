"""Files are admitted in the order drawn, whatever the order in which they are fetched."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from growfs.cache.catalog import Node
from growfs.scheduler.admission import BATCH_MAX, AdmissionQueue
from growfs.scheduler.in_flight import Download, DownloadGroup, DownloadState


def download(id: int, group: DownloadGroup, urgent: bool = False, renews: bool = False) -> Download:
    node = Node(id, 1, f"{id}", False, 10, None, "v1", 0, 0, None)
    return Download(node, f"{id}", Path(f"{id}"), 10, group, urgent=urgent, renews=renews)


def drawn(admission_queue: AdmissionQueue, *ids: int) -> DownloadGroup:
    """A group that is drawn now."""
    group = DownloadGroup(drawn=True, ids=ids if len(ids) > 1 else ())
    admission_queue.append(group)
    for id in ids:
        download(id, group)
    return group


def fetched(admission_queue: AdmissionQueue, *downloads: Download) -> None:
    """Do what the fetcher does with each fetched file."""
    for download in downloads:
        download.move(DownloadState.FETCHING)
        download.move(DownloadState.FETCHED)
        admission_queue.prioritize(download.group)


def admitted(admission_queue: AdmissionQueue) -> list[int]:
    """Admit what is ready."""
    batch = admission_queue.next_batch()
    for download in batch:
        download.move(DownloadState.ADMITTED)
    return [download.node.id for download in batch]


@pytest.mark.promise(14)
@given(st.lists(st.integers(1, 3), max_size=8), st.randoms())
def test_the_order_of_admission_is_that_of_the_draws(sizes: list[int], order: random.Random) -> None:
    admission_queue, ids = AdmissionQueue(), iter(range(1, 100))
    groups = [drawn(admission_queue, *(next(ids) for _ in range(size))) for size in sizes]
    downloads = [download for group in groups for download in group.downloads]
    expected = [download.node.id for download in downloads]
    result = []
    order.shuffle(downloads)
    for download in downloads:
        fetched(admission_queue, download)
        result += admitted(admission_queue)
    assert result == expected
    assert len(admission_queue) == 0


def test_a_group_is_admitted_as_a_whole() -> None:
    admission_queue = AdmissionQueue()
    pair = drawn(admission_queue, 1, 2)
    fetched(admission_queue, pair.downloads[1])
    assert admitted(admission_queue) == []
    fetched(admission_queue, pair.downloads[0])
    assert admitted(admission_queue) == [1, 2]


def test_an_urgent_file_does_not_wait_for_earlier_ones() -> None:
    admission_queue = AdmissionQueue()
    first, second = drawn(admission_queue, 1), drawn(admission_queue, 2)
    fetched(admission_queue, *second.downloads)
    assert admitted(admission_queue) == []
    second.downloads[0].urgent = True
    admission_queue.prioritize(second)
    assert admitted(admission_queue) == [2]
    assert len(admission_queue) == 1
    fetched(admission_queue, *first.downloads)
    assert admitted(admission_queue) == [1]


def test_a_miss_of_a_group_waits_for_the_whole_group() -> None:
    admission_queue = AdmissionQueue()
    drawn(admission_queue, 9)
    group = DownloadGroup(ids=(1, 2))
    miss = [download(1, group, urgent=True), download(2, group, urgent=True)]
    fetched(admission_queue, miss[0])
    assert admitted(admission_queue) == []
    fetched(admission_queue, miss[1])
    assert admitted(admission_queue) == [1, 2]
    assert len(admission_queue) == 1


def test_a_newer_version_does_not_wait_in_the_window() -> None:
    admission_queue = AdmissionQueue()
    drawn(admission_queue, 9)
    fetched(admission_queue, download(1, DownloadGroup(), renews=True))
    assert admitted(admission_queue) == [1]


def test_a_failed_file_does_not_block_later_ones() -> None:
    admission_queue = AdmissionQueue()
    first, second, third = (drawn(admission_queue, id) for id in (1, 2, 3))
    fetched(admission_queue, *second.downloads, *third.downloads)
    first.downloads[0].move(DownloadState.FAILED)
    assert admitted(admission_queue) == [2, 3]
    assert len(admission_queue) == 0


def test_a_group_admitted_from_the_window_is_not_admitted_again() -> None:
    admission_queue = AdmissionQueue()
    group = drawn(admission_queue, 1)
    fetched(admission_queue, *group.downloads)
    group.downloads[0].urgent = True
    admission_queue.prioritize(group)
    assert admitted(admission_queue) == [1]
    assert admitted(admission_queue) == []


def test_no_more_at_a_time_than_a_commit_may_take() -> None:
    admission_queue = AdmissionQueue()
    groups = [drawn(admission_queue, id) for id in range(1, BATCH_MAX + 11)]
    for group in groups:
        fetched(admission_queue, *group.downloads)
    assert len(admitted(admission_queue)) == BATCH_MAX
    assert len(admitted(admission_queue)) == 10
