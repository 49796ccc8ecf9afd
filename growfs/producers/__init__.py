"""Ready-made producers and index functions of archives. They also serve as examples for your own.

A producer makes a local file (`out`) from a remote one (`source`). It runs in its own process, so it may be slow:

    growfs mount s3://bucket/volumes /mnt/train --producer gunzip --rename '{stem}'

An index function finds the members of an archive, which then appear as files:

    growfs mount s3://bucket/shards /mnt/train --members webdataset
"""

from growfs.producers.archives import Member, tar, webdataset, zip_stored
from growfs.producers.compressed import copy, gunzip, unxz, unzstd
from growfs.producers.images import at_most_256, at_most_512, resize

__all__ = [
    "Member",
    "at_most_256",
    "at_most_512",
    "copy",
    "gunzip",
    "resize",
    "tar",
    "unxz",
    "unzstd",
    "webdataset",
    "zip_stored",
]
