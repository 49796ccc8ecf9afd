"""What the options of --peers exclude."""

from __future__ import annotations

import pytest

from growfs.daemon.options import Options
from growfs.errors import UsageError


def test_a_bandwidth_for_peers_needs_peers() -> None:
    with pytest.raises(UsageError, match="--peer-bandwidth needs --peers; see docs/many-nodes"):
        Options.parse({"peer_bandwidth": "1MB/s"}).remote("s3://bucket")
