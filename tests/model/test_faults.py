"""The model finds faults that growfs once had, when their mends are taken out."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.errors import FlakyFailure, FlakyStrategyDefinition
from hypothesis.stateful import run_state_machine_as_test

from tests.model.faults import FAULTS, Fault
from tests.model.test_model import InProcessMachine

SEARCH = settings(
    max_examples=20,
    stateful_step_count=50,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


SEEDS = range(20)


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.put_back.__name__)
def test_a_fault_that_is_put_back_is_found(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing is found with the same examples when it is mended."""
    fault.put_back(monkeypatch)
    found = next(number for number in SEEDS if fault.found in search(number))
    monkeypatch.undo()
    assert search(found) == ""


def search(number: int) -> str:
    """What the model finds with a seed."""
    try:
        run_state_machine_as_test(seed(number)(InProcessMachine), settings=SEARCH)
    except AssertionError as error:
        return str(error)
    except FlakyFailure as error:  # the order of tasks was another one when the example was repeated
        return str(error.exceptions[0])
    except FlakyStrategyDefinition:  # the timing of threads decided what a step finds
        pass
    return ""
