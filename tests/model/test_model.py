"""Any sequence of what readers, users and the remote do, against a dictionary.

`python -m tests.model MINUTES` runs it for as long, with other examples each time.
"""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.model.in_process import InProcess
from tests.model.machine import Machine

pytestmark = pytest.mark.promise(1, 2, 3, 5, 6, 7, 16, 17, 19, 28, 29)


class InProcessMachine(Machine):
    """Without a kernel, by the ten thousand."""

    new_driver = InProcess


TestInProcess = InProcessMachine.TestCase
TestInProcess.settings = settings(
    max_examples=max(4, settings().max_examples // 12), stateful_step_count=25, derandomize=True
)
