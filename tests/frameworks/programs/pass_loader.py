"""One DataLoader with persistent workers over whole passes: python pass_loader.py FOLDER JOB, a dict in JSON.

workers, batch, passes: how many, and how large. stop_after: batches of the first pass, after which it is left. fails:
whether reading every tenth file ends with an error. Prints a line of JSON for each pass: its batches, the names of its
files, and how many batches failed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import growfs

JOB = json.loads(sys.argv[2])


def read(file: Path) -> str:
    file.read_bytes()
    if JOB.get("fails") and file.stem.endswith("0"):
        raise OSError(f"{file}: is damaged")
    return file.name


class Names(IterableDataset[str]):
    def __iter__(self) -> Iterator[str]:
        worker = get_worker_info()
        assert worker
        return growfs.samples(sys.argv[1], read, share=(worker.id, worker.num_workers))


loader = DataLoader(
    Names(), JOB["batch"], num_workers=JOB["workers"], prefetch_factor=16, persistent_workers=True, drop_last=True
)
for number in range(JOB["passes"]):
    batches, failed = iter(loader), 0
    names: list[str] = []
    while number > 0 or len(names) != JOB.get("stop_after", -1) * JOB["batch"]:
        try:
            names.extend(next(batches))
        except OSError:
            failed += 1
        except StopIteration:
            break
    print(json.dumps({"names": names, "failed": failed}), flush=True)
