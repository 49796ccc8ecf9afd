"""Programs that run over a peer, in the peers' own environment, and import nothing from growfs.

`python trainer.py SOURCE` is a training loop that measures how long its accelerator waits: a pause of fixed length for
each batch. All peers have the same loop; they differ in the source, which yields the numbers of the samples that it
read. It prints a line for the first batch and for each epoch, which is as many samples as the dataset has, whichever
they are.

`python trainer.py decode|read` goes over the files of a folder. An epoch lists the folder, and then decodes or reads
each file. It prints a line when it has seen all files, and one for each pass after that.

After its imports each prints "ready". Then it waits for a line of JSON with its parameters and the time (of the
monotonic clock) at which the run began. The lines that it prints are JSON, too.

`python trainer.py burn SECONDS PROCESSES` is a job that only needs CPU. It prints how many samples it made per second.
"""

from __future__ import annotations

import io
import itertools
import json
import multiprocessing
import os
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any, TypeVar

HEADER = 512
"""The size of a tar block."""
THREADS = 8
PROCESSES = 2
Spec = dict[str, Any]
T = TypeVar("T")


def number(sample: bytes) -> int:
    return int.from_bytes(sample[:8], "big")


def samples_of(shard: bytes, sample_bytes: int) -> list[int]:
    """The samples of a tar file of equal members."""
    each = HEADER + sample_bytes
    return [number(shard[at + HEADER :]) for at in range(0, len(shard) // each * each, each)]


def in_parallel(read: Callable[[Any], T], items: Iterator[Any]) -> Iterator[T]:
    """Read the items on threads, as many ahead as there are threads, in order."""
    with ThreadPoolExecutor(THREADS) as pool:
        ahead: deque[Future[T]] = deque()
        for item in items:
            ahead.append(pool.submit(read, item))
            if len(ahead) > THREADS:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


def read_file(path: str) -> bytes:
    """A whole file. Its pages are dropped: a dataset that is larger than the cache is also larger than memory."""
    fd = os.open(path, os.O_RDONLY)
    try:
        content = bytearray()
        while piece := os.read(fd, 1 << 20):
            content += piece
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return bytes(content)
    finally:
        os.close(fd)


# Sources. Each yields the numbers of the samples of one read, forever.


def files(spec: Spec) -> Iterator[list[int]]:
    """Whole files of a folder, which is listed again for each pass."""

    def passes() -> Iterator[str]:
        while True:
            paths = [str(path) for path in Path(spec["folder"]).rglob("*") if path.suffix == ".tar"]
            random.shuffle(paths)
            yield from paths

    for content in in_parallel(read_file, passes()):
        yield samples_of(content, spec["sample_bytes"])


def parts(spec: Spec) -> Iterator[list[int]]:
    """Whole files of a mount with --exact.

    As a data loader would, a thread reads ahead of the training, also into the next part.
    """
    import growfs

    ahead = Queue[bytes](THREADS)

    def read_ahead() -> None:
        while True:
            for part in growfs.epoch(spec["folder"]):
                paths = [str(path) for path in part.rglob("*") if path.suffix == ".tar"]
                random.shuffle(paths)
                for content in in_parallel(read_file, iter(paths)):
                    ahead.put(content)

    threading.Thread(target=read_ahead, daemon=True).start()
    while True:
        yield samples_of(ahead.get(), spec["sample_bytes"])


def shards_in(spec: Spec) -> tuple[list[str], Callable[[str], bytes]]:
    """The keys of all shards, and a function that fetches one, on any thread."""
    import boto3
    from botocore.config import Config

    config = Config(max_pool_connections=THREADS, s3={"addressing_style": "path"})
    client = boto3.client("s3", endpoint_url=spec["endpoint"], region_name="us-east-1", config=config)
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=spec["bucket"], Prefix="shards/")
    keys = [row["Key"] for page in pages for row in page["Contents"]]
    return keys, lambda key: bytes(client.get_object(Bucket=spec["bucket"], Key=key)["Body"].read())


def shuffled(items: list[str]) -> Iterator[str]:
    while True:
        random.shuffle(items)
        yield from items


def keep(spec: Spec) -> Iterator[list[int]]:
    """A cache that never evicts: the first files stay, and the rest is fetched each time (MinIO in CoorDL,
    https://arxiv.org/abs/2007.06775).
    """
    folder, lock, free = Path(spec["cache_dir"]), threading.Lock(), [spec["cache_bytes"]]
    folder.mkdir(parents=True, exist_ok=True)
    keys, fetch = shards_in(spec)

    def get(key: str) -> bytes:
        local = folder / key.replace("/", "_")
        if local.exists():
            return read_file(str(local))
        content = fetch(key)
        with lock:
            is_kept = free[0] >= len(content)
            free[0] -= len(content) * is_kept
        if is_kept:
            local.with_suffix(".new").write_bytes(content)
            local.with_suffix(".new").rename(local)
        return content

    for content in in_parallel(get, shuffled(keys)):
        yield samples_of(content, spec["sample_bytes"])


def multi_storage(spec: Spec, policy: str) -> Iterator[list[int]]:
    """NVIDIA's Multi-Storage Client: https://nvidia.github.io/multi-storage-client/user_guide/cache.html."""
    from multistorageclient import StorageClient, StorageClientConfig

    store = {"endpoint_url": spec["endpoint"], "base_path": spec["bucket"], "region_name": "us-east-1"}
    cache = {
        "location": spec["cache_dir"],
        "size": f"{max(1, round(spec['cache_bytes'] / (1 << 20)))}M",
        "cache_line_size": "1M",  # for reads of parts of a file; by default larger than this cache
        "check_source_version": False,  # else it asks the store before each read of a cached file
        "eviction_policy": {"policy": policy, "refresh_interval": 1},  # in seconds, the least
    }
    profile = {"storage_provider": {"type": "s3", "options": store}, "caching_enabled": True}
    client = StorageClient(StorageClientConfig.from_dict({"profiles": {"s3": profile}, "cache": cache}, profile="s3"))
    keys = [row.key for row in client.list(path="shards/")]
    for content in in_parallel(client.read, shuffled(keys)):
        yield samples_of(content, spec["sample_bytes"])


def smartcache(spec: Spec) -> Iterator[list[int]]:
    """MONAI's SmartCacheDataset: https://docs.monai.io/en/stable/data.html#smartcachedataset."""
    from monai.data import DataLoader, SmartCacheDataset
    from monai.transforms import Lambda

    keys, fetch = shards_in(spec)
    replaced = 0.2  # as growfs; the link delivers as much in an epoch of the cached files
    dataset = SmartCacheDataset(
        keys,
        Lambda(fetch, track_meta=False),
        replace_rate=replaced,
        # The replacements are in memory, too, before they take their places.
        cache_num=int(spec["cache_bytes"] / (1 + replaced) / (spec["per_shard"] * spec["sample_bytes"])),
        num_init_workers=THREADS,
        num_replace_workers=THREADS,
        progress=False,
        copy_cache=False,
    )
    numbers = partial(samples_of, sample_bytes=spec["sample_bytes"])
    loader = DataLoader(dataset, batch_size=None, shuffle=True, collate_fn=numbers)
    dataset.start()
    while True:
        yield from loader
        dataset.update_cache()


def mosaicml(spec: Spec) -> Iterator[list[int]]:
    """MosaicML Streaming: https://docs.mosaicml.com/projects/streaming/en/stable/dataset_configuration/."""
    from streaming import StreamingDataLoader, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    os.environ["S3_ENDPOINT_URL"] = spec["endpoint"]
    dataset = StreamingDataset(
        remote=f"s3://{spec['bucket']}/mds",
        local=spec["cache_dir"],
        cache_limit=spec["cache_bytes"],
        shuffle=True,
        # By default it shuffles blocks of 262,144 samples, far more than this dataset has: it would need all shards at
        # once. https://docs.mosaicml.com/projects/streaming/en/stable/dataset_configuration/shuffling.html
        shuffle_block_size=max(spec["batch"], spec["cache_bytes"] // spec["sample_bytes"] // 2),
        num_canonical_nodes=1,
        batch_size=spec["batch"],
    )
    loader = StreamingDataLoader(
        dataset, batch_size=spec["batch"], num_workers=PROCESSES, persistent_workers=True, collate_fn=mds_numbers
    )
    while True:
        for batch in loader:
            yield batch["numbers"]


def mds_numbers(samples: list[Any]) -> dict[str, list[int]]:
    """The numbers of a batch. Runs in the loader's processes, so that batches are not copied."""
    return {"numbers": [number(sample["data"]) for sample in samples]}


def s3torch(spec: Spec) -> Iterator[list[int]]:
    """The Amazon S3 Connector for PyTorch: https://github.com/awslabs/s3-connector-for-pytorch."""
    from s3torchconnector import S3ClientConfig, S3MapDataset
    from torch.utils.data import DataLoader

    dataset = S3MapDataset.from_prefix(
        f"s3://{spec['bucket']}/shards/",
        region="us-east-1",
        endpoint=spec["endpoint"],
        transform=partial(read_shard, spec["sample_bytes"]),
        s3client_config=S3ClientConfig(force_path_style=True),
    )
    loader = DataLoader(dataset, batch_size=None, shuffle=True, num_workers=THREADS, persistent_workers=True)
    while True:
        yield from loader


def read_shard(sample_bytes: int, reader: Any) -> list[int]:
    """Read an S3 object as a shard."""
    return samples_of(reader.read(), sample_bytes)


def webdataset(spec: Spec) -> Iterator[list[int]]:
    """WebDataset over a pipe: https://github.com/webdataset/webdataset."""
    import webdataset as wds
    from torch.utils.data import DataLoader

    shards = range(spec["samples"] // spec["per_shard"])
    urls = [f"pipe:{spec['cat']} s3://{spec['bucket']}/shards/{shard:05}.tar" for shard in shards]
    dataset = wds.WebDataset(urls, shardshuffle=len(urls)).map(webdataset_number)
    loader = DataLoader(
        dataset, batch_size=spec["batch"], num_workers=THREADS, persistent_workers=True, collate_fn=list
    )
    while True:
        yield from loader


def webdataset_number(sample: dict[str, Any]) -> int:
    return number(sample["bin"])


SOURCES: dict[str, Callable[[Spec], Iterator[list[int]]]] = {
    "files": files,
    "parts": parts,
    "keep": keep,
    "mosaicml": mosaicml,
    "msc_mru": partial(multi_storage, policy="mru"),
    "msc_no_eviction": partial(multi_storage, policy="no_eviction"),
    "s3torch": s3torch,
    "smartcache": smartcache,
    "webdataset": webdataset,
}
IMPORTS = {
    "keep": ("boto3",),
    "mosaicml": ("streaming",),
    "msc_mru": ("multistorageclient.providers.s3",),
    "msc_no_eviction": ("multistorageclient.providers.s3",),
    "s3torch": ("s3torchconnector", "torch.utils.data"),
    "smartcache": ("boto3", "monai.data", "monai.transforms"),
    "webdataset": ("webdataset", "torch.utils.data"),
    "decode": ("torch.utils.data",),
}


def batches(spec: Spec) -> Iterator[list[int]]:
    batch: list[int] = []
    for some in SOURCES[spec["source"]](spec):
        batch += some
        while len(batch) >= spec["batch"]:
            yield batch[: spec["batch"]]
            batch = batch[spec["batch"] :]


def train(spec: Spec) -> None:
    source, seen, steps, began = batches(spec), set[int](), spec["samples"] // spec["batch"], spec["began"]
    first = next(source)
    say(first_batch_s=time.monotonic() - began)
    source = itertools.chain([first], source)
    for epoch in range(1, spec["epochs"] + 1):
        seen_now: set[int] = set()
        wrong = 0
        for _ in range(steps):
            read = next(source)
            seen_now.update(number for number in read if number < spec["samples"])
            wrong += sum(number >= spec["samples"] for number in read)
            time.sleep(spec["step_s"])
        seen |= seen_now
        now = time.monotonic()
        say(
            epoch=epoch,
            wall_s=now - began,
            utilisation=steps * spec["step_s"] / (now - began),
            samples_per_s=steps * spec["batch"] / (now - began),
            different=len(seen_now) / spec["samples"],
            coverage=len(seen) / spec["samples"],
            wrong=wrong,
        )
        began = now


# Files of a folder.


class Images:
    """The dataset of a list of images."""

    def __init__(self, paths: list[str]) -> None:
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, number: int) -> int:
        from PIL import Image

        with open(self._paths[number], "rb") as file:
            return int(Image.open(file).convert("RGB").resize((224, 224)).size[0])


def read_through(path: str) -> int:
    """Read a whole file; returns its length."""
    fd = os.open(path, os.O_RDONLY)
    try:
        return sum(map(len, iter(lambda: os.read(fd, 1 << 20), b"")))
    finally:
        os.close(fd)


def epoch(folder: str, processes: int) -> tuple[list[str], int]:
    """List the files, and go over them in random order; returns them, and the bytes read if they are not decoded."""
    paths = [str(path) for path in Path(folder).rglob("*.*") if path.is_file()]
    random.shuffle(paths)
    if not processes:
        return paths, sum(map(read_through, paths))
    from torch.utils.data import DataLoader

    for _ in DataLoader(Images(paths), batch_size=64, num_workers=processes):
        pass
    return paths, 0


def read_all(spec: Spec) -> None:
    """Go over the files until all were seen, and then repeatedly."""
    seen, epochs, images, folder = set[str](), 0, 0, spec[spec["at"]]
    while len(seen) < spec["files"]:
        paths, _ = epoch(folder, spec["processes"])
        seen.update(paths)
        epochs, images = epochs + 1, images + len(paths)
    say(all_seen_s=time.monotonic() - spec["began"], epochs=epochs, images=images)
    for _ in range(spec["passes"]):
        began = time.monotonic()
        paths, length = epoch(folder, spec["processes"])
        seconds = time.monotonic() - began
        say(files_per_s=len(paths) / seconds, bytes_per_s=length / seconds)


# A job that needs CPU.


def decode_until(until: float, image: bytes) -> int:
    """Decode an image until a time of the monotonic clock; returns how often."""
    from PIL import Image

    count = 0
    while time.monotonic() < until:
        Image.open(io.BytesIO(image)).convert("RGB").resize((224, 224))
        count += 1
    return count


def burn(seconds: float, processes: int) -> None:
    from PIL import Image

    made = io.BytesIO()
    Image.effect_noise((500, 375), 60).convert("RGB").save(made, "JPEG", quality=90)
    with multiprocessing.Pool(processes) as pool:
        until = time.monotonic() + seconds
        print(sum(pool.starmap(decode_until, [(until, made.getvalue())] * processes)) / seconds)


def say(**values: object) -> None:
    print(json.dumps(values), flush=True)


def main() -> None:
    what = sys.argv[1]
    if what == "burn":
        burn(float(sys.argv[2]), int(sys.argv[3]))
        return
    for module in IMPORTS.get(what, ()):
        __import__(module)
    print("ready", flush=True)
    spec = json.loads(sys.stdin.readline())
    if what in SOURCES:
        train({"source": what, **spec})
    else:
        read_all(spec)
    os._exit(0)  # threads and processes that read ahead have nothing to finish


if __name__ == "__main__":
    main()
