"""Ready-made functions for --members, and what one's own are made of."""

from __future__ import annotations

from growfs.producers.archives import Member, tar, webdataset, zip_stored

__all__ = ["Member", "tar", "webdataset", "zip_stored"]
