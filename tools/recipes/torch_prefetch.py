"""Keep the GPU from waiting for data: copy the next batches to it on a separate stream while the model computes.

For training on large samples, here random crops of volumes (.npy files, which are mapped: only the pages of a crop are
read), on a GPU that is idle between steps.

    growfs mount s3://bucket/volumes /mnt/volumes --cache-size 2TB
    python tools/recipes/torch_prefetch.py /mnt/volumes --epochs 6

Look for "wait", the time from asking for a batch until it is on the device; the last line compares epochs without and
with the prefetcher. If it stays high with it, reading is too slow: try more workers. With growfs's libfuse engine
(`growfs status` names it) a mapped file is slow to read: omit mmap_mode there.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

SIDE, BATCH = 16, 16
OF_ONE = 4
"""Crops that are taken from a volume while it is open: opening one takes longer than reading a small crop of it."""
AHEAD = 2
"""Batches that are on the device, or on their way to it, in addition to the one that is computed with."""


class Crops(Dataset[Tensor]):
    """Random crops of the volumes that a folder lists now, a multiple of OF_ONE of each."""

    def __init__(self, folder: Path, times: int) -> None:
        self.volumes = sorted(folder.rglob("*.npy"))
        self.times = times

    def __len__(self) -> int:
        return len(self.volumes) * self.times

    def __getitem__(self, number: int) -> Tensor:
        volume = np.load(self.volumes[number // self.times], mmap_mode="r")
        crops = np.stack([crop(volume) for _ in range(OF_ONE)])
        return torch.from_numpy(crops[:, np.newaxis].astype(np.float32) / 255)


def crop(volume: np.ndarray) -> np.ndarray:
    """A cube of SIDE from anywhere in the volume."""
    starts = [random.randrange(length - SIDE + 1) for length in volume.shape]
    return volume[tuple(slice(start, start + SIDE) for start in starts)]


class Prefetcher:
    """A loader's batches, on the device. Meanwhile, a thread takes the next ones and starts their copies."""

    def __init__(self, loader: Iterable[Tensor], device: torch.device) -> None:
        self._loader = loader
        self._device = device
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None

    def __iter__(self) -> Iterator[Tensor]:
        batches = iter(self._loader)  # forks the workers, before there is a thread
        with ThreadPoolExecutor(1) as thread:
            coming = deque(thread.submit(self._take, batches) for _ in range(AHEAD))
            while taken := coming.popleft().result():  # raises what the loader raised
                coming.append(thread.submit(self._take, batches))
                batch, copied = taken
                if copied:
                    computing = torch.cuda.current_stream(self._device)
                    computing.wait_event(copied)  # wait_stream(side) would also wait for later copies
                    batch.record_stream(computing)  # its memory belongs to the side stream, which must not reuse it yet
                yield batch

    def _take(self, batches: Iterator[Tensor]) -> tuple[Tensor, torch.cuda.Event | None] | None:
        """The next batch, and the event that its copy is done; None at the end."""
        if (batch := next(batches, None)) is None:
            return None
        if self._side is None:
            return batch, None
        with torch.cuda.stream(self._side):  # the copy returns at once, because the batch is pinned
            return batch.to(self._device, non_blocking=True), self._side.record_event()


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on crops of volumes, with and without a prefetcher.")
    parser.add_argument("folder", type=Path, help="with *.npy in it, volumes of bytes; the mountpoint")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--crops", type=int, default=100, help="crops of each volume (default: %(default)s)")
    options = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    cuda = device.type == "cuda"
    model = nn.Sequential(nn.Conv3d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv3d(8, 1, 3, padding=1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    waits: dict[str, list[float]] = {"plain": [], "prefetched": []}

    for epoch in range(1, options.epochs + 1):
        how = "prefetched" if epoch % 2 == 0 else "plain"
        began = time.perf_counter()
        crops = Crops(options.folder, max(1, options.crops // OF_ONE))  # lists the folder
        if not crops.volumes:
            raise SystemExit(f"{options.folder} lists no *.npy; growfs status says why")
        loader = DataLoader(
            crops, BATCH // OF_ONE, shuffle=True, collate_fn=torch.cat, num_workers=options.workers, pin_memory=cuda
        )
        batches: Iterable[Tensor] = Prefetcher(loader, device) if how == "prefetched" else loader
        samples, waited, asked = 0, 0.0, time.perf_counter()
        for batch in batches:
            clean = batch.to(device)  # a prefetched one is already there
            if cuda:
                torch.cuda.current_stream(device).synchronize()  # so that a copy counts as wait
            waited += time.perf_counter() - asked
            loss = nn.functional.mse_loss(model(clean + 0.1 * torch.randn_like(clean)), clean)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()  # the step is over, so what follows is wait, not model time
            samples += len(batch)
            asked = time.perf_counter()
        seconds = time.perf_counter() - began
        waits[how].append(waited / len(loader) * 1000)
        print(
            f"epoch {epoch}: {len(crops.volumes)} files, {samples} samples, {samples / seconds:.0f} samples/s,"
            f" wait {waits[how][-1]:.2f} ms a step, {how}",
            flush=True,
        )
    means = (f"{sum(each) / len(each):.2f} ms {how}" for how, each in waits.items() if each)
    print("wait per step:", ", ".join(means))


if __name__ == "__main__":
    main()
