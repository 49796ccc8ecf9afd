"""Ready-made producers, and index functions of archives: examples for your own, too.

A producer makes a local file (`out`) of a remote one (`source`), in a process of its own, so it may be slow:

    growfs mount s3://bucket/volumes /mnt/train --producer gunzip --rename '{stem}'

An index function finds the members of an archive, which are the files then:

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
