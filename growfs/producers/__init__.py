"""Ready-made producers, and examples for your own: each makes a local file (`out`) of a remote one (`source`).

    growfs mount s3://bucket/volumes /mnt/train --producer growfs.producers:gunzip --rename '{stem}'

They run in processes of their own, so they may be as slow as they like.
"""

from growfs.producers.compressed import copy, gunzip, unxz, unzstd
from growfs.producers.images import at_most_256, at_most_512, resize

__all__ = ["at_most_256", "at_most_512", "copy", "gunzip", "resize", "unxz", "unzstd"]
