"""The option of the metrics."""

from __future__ import annotations

from dataclasses import dataclass

from growfs.daemon.option_parsers import address
from growfs.daemon.options import FeatureOptions, option


@dataclass(frozen=True, kw_only=True)
class MetricsOptions(FeatureOptions):
    """See FeatureOptions."""

    metrics_addr: tuple[str, int] | None = option(
        None,
        address,
        "HOST:PORT",
        "Serve Prometheus metrics over HTTP, not encrypted; 9401 means 127.0.0.1:9401.",
        group="Advanced",
        affects_node=True,
    )
