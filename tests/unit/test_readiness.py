"""What a mount says that it is doing."""

from __future__ import annotations

from growfs.bitmaps import BitMap64
from growfs.cache.catalog import Node
from growfs.errors import RemoteError
from growfs.rotation.pass_order import Order
from growfs.scheduler.outage import Outage
from growfs.scheduler.readiness import PrefetchState, SeedTracker, StartCondition
from growfs.status_and_metrics import MountState
from tests.unit.local_cache import answers


def test_a_complete_mount_is_filling_as_soon_as_the_remote_has_more() -> None:
    """The order of what is new takes a while; `growfs wait` would take "held" for the end."""
    is_whole = True
    state = PrefetchState(StartCondition(), lambda: is_whole, lambda: False, Outage(answers))
    state.rest()
    state.invalidate_order()
    seen = [state.mount_state]  # what changed is nothing that it lacks
    is_whole = False
    state.invalidate_order()
    state.begin_order()
    seen.append(state.mount_state)
    state.rest()
    assert [*seen, state.mount_state] == [MountState.COMPLETE, MountState.FILLING, MountState.HELD]


def node(id: int, directory: int) -> Node:
    """A file of a directory."""
    return Node(id, directory, f"{id}.bin", False, 100, 0, "v1", 0, 0, None)


def tracker(*ids: int, bytes: int = 100) -> SeedTracker:
    """Of a pass with these seeds, which take so many bytes of a cache of 1000."""
    seeds = SeedTracker(StartCondition())
    seeds.begin(Order(seeds=ids, seed_ids=BitMap64(ids), seed_bytes=bytes), 1000)
    return seeds


def test_no_directory_is_said_to_lack_a_file_once_all_have_one() -> None:
    """What was expected when the pass began may turn out otherwise: sizes may be estimates."""
    seeds = tracker(1, 2, bytes=600)
    assert "more than half of the cache" in (seeds.missing_reason or "")
    seeds.finish(1, 2)
    assert seeds.missing_reason is None


def test_a_directory_whose_first_file_failed_is_named_until_it_has_another() -> None:
    seeds = tracker(1, 2)
    for id in (1, 2):
        seeds.failed(node(id, 10 * id), RemoteError(f"{id}: denied"))
        seeds.finish(id)
    reasons = [seeds.missing_reason]
    for other in (node(7, 10), node(8, 20)):
        seeds.fetched(other)
        reasons.append(seeds.missing_reason)
    assert reasons == [
        "the first file of a directory failed: 1: denied",
        "the first file of a directory failed: 2: denied",
        None,
    ]
