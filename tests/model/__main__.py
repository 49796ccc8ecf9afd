"""Runs the model for a given time, with other examples each time: python -m tests.model MINUTES [SEED [MACHINE]].

MACHINE: InProcess, Passthrough or Libfuse.
"""

from __future__ import annotations

import logging
import sys
import time

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.errors import FlakyStrategyDefinition
from hypothesis.stateful import run_state_machine_as_test

from tests.model import test_model
from tests.model.machine import figures

EXAMPLES = 20
STEPS = 50


def main() -> None:
    minutes = float(sys.argv[1])
    number = int(sys.argv[2]) if len(sys.argv) > 2 else int(time.time())
    machine = vars(test_model)[f"{sys.argv[3] if len(sys.argv) > 3 else 'InProcess'}Machine"]
    logging.disable(logging.CRITICAL)
    began = time.monotonic()
    checks = settings(
        max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck), report_multiple_bugs=False,
    )  # fmt: skip
    try:
        while time.monotonic() < began + 60 * minutes:
            print(
                f"\rseed {number}: {', '.join(f'{count:,} {name}' for name, count in sorted(figures.items()))}", end=""
            )
            try:
                run_state_machine_as_test(seed(number)(machine), settings=checks)
            except FlakyStrategyDefinition:  # the timing of threads decides what a step finds; it is no fault
                figures["examples that do not repeat"] += 1
            number += 1
    finally:
        print(f"\nseed {number}, {time.monotonic() - began:.0f} s")
        for name, count in sorted(figures.items()):
            print(f"{name:>28} {count:>10,}")


if __name__ == "__main__":
    main()
