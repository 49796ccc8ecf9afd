"""As shards, over TLS: the server's certificate is one that the clients are told to trust."""

from __future__ import annotations

from tools.benchmarks import shards
from tools.benchmarks.measure import Figure, Setting
from tools.benchmarks.servers import Certificate

TARGET = 0.9


def measure(setting: Setting) -> tuple[str, list[Figure]]:
    """As shards."""
    return shards.measured(setting, Certificate.made(setting.folder), TARGET)
