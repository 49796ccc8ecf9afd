"""Any sequence of what readers, users and the remote do, against a dictionary.

`python -m tests.model` runs it for longer, with other examples each time.
"""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import settings

from tests.model.in_process import InProcess
from tests.model.machine import Machine
from tests.model.mounted import Mounted

pytestmark = pytest.mark.promise(1, 2, 3, 5, 6, 7, 16, 17, 19, 28, 29)


class InProcessMachine(Machine):
    """Without a kernel, by the ten thousand."""

    new_driver = InProcess


class PassthroughMachine(Machine):
    """With a kernel, by the hundred."""

    new_driver = partial(Mounted, engine="passthrough")


class LibfuseMachine(Machine):
    """As well, with the other engine."""

    new_driver = partial(Mounted, engine="libfuse")


TestInProcess = InProcessMachine.TestCase
TestInProcess.settings = settings(
    max_examples=max(4, settings().max_examples // 12), stateful_step_count=25, derandomize=True
)

TestPassthrough, TestLibfuse = PassthroughMachine.TestCase, LibfuseMachine.TestCase
TestPassthrough.settings = TestLibfuse.settings = settings(
    max_examples=max(2, settings().max_examples // 200), stateful_step_count=10, derandomize=True
)
