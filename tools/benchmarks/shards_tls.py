"""The benchmark "shards" over TLS, with a certificate that the clients are configured to trust."""

from __future__ import annotations

from tools.benchmarks import shards
from tools.benchmarks.measure import Figure, Setting
from tools.benchmarks.servers import Certificate

TARGET = 0.9


def measure(setting: Setting) -> tuple[str, list[Figure]]:
    """Measure over TLS."""
    return shards.measure_transport(setting, Certificate.create(setting.folder), TARGET)
