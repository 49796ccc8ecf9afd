"""Fixtures for mounts of S3 servers."""

from __future__ import annotations

import pytest

from tests.harness import Growfs
from tests.servers import S3Server


@pytest.fixture
def moto(moto_s3: S3Server, growfs: Growfs) -> S3Server:
    """moto, with its credentials in the environment of growfs."""
    growfs.env.update(moto_s3.env)
    return moto_s3
