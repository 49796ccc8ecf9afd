"""Files are admitted in the order drawn, whatever the order in which they are fetched."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from growfs.cache.catalog import Node
from growfs.scheduler.admission import LATE_S, AdmissionQueue
from growfs.scheduler.in_flight import Download, DownloadGroup, DownloadState, Place, Priority


def download(id: int, group: DownloadGroup, priority: Priority = Priority.DRAW) -> Download:
    node = Node(id, 1, f"{id}", False, 10, None, "v1", 0, 0, None)
    return Download(node, f"{id}", f"{id}", group, priority)


def draw(queue: AdmissionQueue, *ids: int) -> DownloadGroup:
    """Append a group of drawn files to the queue."""
    group = DownloadGroup(is_drawn=True, ids=ids if len(ids) > 1 else ())
    queue.append(group)
    for id in ids:
        download(id, group)
    return group


def finish_fetch(queue: AdmissionQueue, *downloads: Download) -> None:
    """Mark downloads as fetched, as the fetcher does."""
    for download in downloads:
        download.move(DownloadState.FETCHING)
        download.move(DownloadState.FETCHED)
        queue.prioritize(download.group)


def admit_batch(queue: AdmissionQueue) -> list[int]:
    """Admit the next batch; returns its ids."""
    batch = queue.next_batch()
    for download in batch:
        download.move(DownloadState.ADMITTED)
    return [download.node.id for download in batch]


@pytest.mark.promise(14)
@given(st.lists(st.integers(1, 3), max_size=8), st.randoms())
def test_files_are_admitted_in_the_order_of_the_draws(sizes: list[int], order: random.Random) -> None:
    queue, ids = AdmissionQueue(), iter(range(1, 100))
    groups = [draw(queue, *(next(ids) for _ in range(size))) for size in sizes]
    downloads = [download for group in groups for download in group.downloads]
    expected = [download.node.id for download in downloads]
    result = []
    order.shuffle(downloads)
    for download in downloads:
        finish_fetch(queue, download)
        result += admit_batch(queue)
    assert result == expected
    assert len(queue) == 0


@pytest.mark.promise(14)
def test_a_file_that_others_passed_holds_them_back_for_seconds_only() -> None:
    queue = AdmissionQueue()
    slow, fast, slower, last = (draw(queue, id) for id in (1, 2, 3, 4))
    assert queue.release_late(100.0) == [], "none is behind others that are fetched"
    finish_fetch(queue, *fast.downloads)
    assert queue.release_late(100.0 + 2 * LATE_S) == []
    assert queue.release_late(100.0 + 3 * LATE_S) == []
    assert admit_batch(queue) == []
    assert queue.release_late(100.0 + 3 * LATE_S + 0.1) == [slow]
    assert admit_batch(queue) == [2]
    assert queue.release_late(200.0) == [], "the next in the order has passed none"
    finish_fetch(queue, *last.downloads)
    assert queue.release_late(200.0) == []
    finish_fetch(queue, *slow.downloads)
    assert admit_batch(queue) == [1], "it is admitted once it is fetched"
    assert queue.release_late(200.0 + 2 * LATE_S) == [slower]
    assert admit_batch(queue) == [4]


def test_those_behind_a_released_group_do_not_wait_for_it() -> None:
    queue = AdmissionQueue()
    refused, other = draw(queue, 1), draw(queue, 2)
    finish_fetch(queue, *other.downloads)
    assert admit_batch(queue) == []
    queue.release(refused)
    queue.release(refused)
    assert admit_batch(queue) == [2]
    finish_fetch(queue, *refused.downloads)
    assert admit_batch(queue) == [1]
    assert len(queue) == 0


def test_an_urgent_file_does_not_wait_for_earlier_ones_but_for_its_group() -> None:
    queue = AdmissionQueue()
    first, second = draw(queue, 1), draw(queue, 2, 3)
    finish_fetch(queue, second.downloads[1])
    second.downloads[0].priority = Priority.READER
    queue.prioritize(second)
    assert admit_batch(queue) == []
    finish_fetch(queue, second.downloads[0])
    assert admit_batch(queue) == [2, 3]
    missed = DownloadGroup(ids=(4, 5))
    misses = [download(id, missed, Priority.READER) for id in (4, 5)]
    finish_fetch(queue, misses[0])
    assert admit_batch(queue) == []
    finish_fetch(queue, misses[1])
    assert admit_batch(queue) == [4, 5]
    assert len(queue) == 1
    finish_fetch(queue, *first.downloads)
    assert admit_batch(queue) == [1]


def test_a_failed_file_does_not_block_later_ones() -> None:
    queue = AdmissionQueue()
    first, second, third = (draw(queue, id) for id in (1, 2, 3))
    finish_fetch(queue, *second.downloads, *third.downloads)
    first.downloads[0].move(DownloadState.FAILED)
    assert admit_batch(queue) == [2, 3]
    assert len(queue) == 0


def test_a_batch_has_no_more_files_than_a_commit_may_have() -> None:
    queue = AdmissionQueue()
    for id in range(1, 301):
        finish_fetch(queue, *draw(queue, id).downloads)
    assert [len(admit_batch(queue)) for _ in range(3)] == [256, 44, 0]


def test_a_group_is_in_one_batch_once() -> None:
    """Its store was busy, so those behind it do not wait; it arrives; a reader opens it, and it is asked for again."""
    queue = AdmissionQueue()
    group = draw(queue, 1)
    queue.release(group)
    finish_fetch(queue, *group.downloads)
    group.downloads[0].priority = Priority.READER
    queue.prioritize(group)
    queue.prioritize(group)
    assert [download.node.id for download in queue.next_batch()] == [1]
    queue.prioritize(group)
    assert queue.next_batch() == [], "it is being admitted"


def test_a_group_that_the_disk_refused_is_admitted_once_it_is_fetched_again() -> None:
    queue = AdmissionQueue()
    group = draw(queue, 1)
    finish_fetch(queue, *group.downloads)
    (refused,) = queue.next_batch()
    queue.give_back(group)
    refused.move(DownloadState.QUEUED)
    finish_fetch(queue, refused)
    assert admit_batch(queue) == [1]


def test_a_drawn_group_that_has_left_the_window_may_be_released() -> None:
    """A reader opened it, and then its store was busy."""
    queue = AdmissionQueue()
    group, other = draw(queue, 1), draw(queue, 2)
    finish_fetch(queue, *group.downloads)
    group.downloads[0].priority = Priority.READER
    queue.prioritize(group)
    queue.release(group)
    assert group.place is Place.NEXT
    finish_fetch(queue, *other.downloads)
    assert admit_batch(queue) == [1, 2]
    queue.release(group)
    assert len(queue) == 0
