"""What a mount says that it is doing."""

from __future__ import annotations

from growfs.scheduler.outage import Outage
from growfs.scheduler.readiness import PrefetchState, StartCondition
from growfs.status import MountState
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
