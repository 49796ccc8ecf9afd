"""Train on several nodes, each of which has its own share of the data: DistributedDataParallel under torchrun.

For several nodes with a disk each. The bucket holds train/CLASS/IMAGE and val/CLASS/IMAGE. On each node, with its
number in $NODE:

    growfs mount s3://bucket/data /mnt/data --cache-size 500GB --partition $NODE/2 --show-files 100000 --freeze 'val/**'
    torchrun --nnodes 2 --node-rank $NODE --master-addr HOST --nproc-per-node 8 tools/recipes/torch_nodes.py /mnt/data

(Use `--partition auto` if the mount is a step of a Slurm job, `srun --ntasks-per-node 1 growfs mount ...`, or has
torchrun's GROUP_RANK and GROUP_WORLD_SIZE.) Each node fetches its own share, so that together they see all data, and no
byte of train/ crosses the network twice, except for one first file of each class. `--show-files` gives every listing on
every node the same length, including frozen files: no rank runs out of batches while the others wait for it in an
all-reduce.

Look for "on each node", whose numbers are equal, and for "new". Validation uses the same files in each epoch.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset
from torchvision import transforms
from torchvision.datasets import ImageFolder

SIDE = 224
BATCH = 16
PREPARE = transforms.Compose([transforms.Resize((SIDE, SIDE)), transforms.ToTensor()])


def train(options: argparse.Namespace) -> None:
    """Train as one process of many; the first process prints a line for each epoch."""
    local_rank, ranks_here = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    rank, ranks = dist.get_rank(), dist.get_world_size()
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")

    # Frozen: complete, and the same on every node in every epoch. So it is listed once, and divided among all ranks.
    held_out = ImageFolder(options.folder / "val", PREPARE)
    validation = DataLoader(Subset(held_out, range(rank, len(held_out), ranks)), BATCH)
    layers = nn.Conv2d(3, 16, 16, stride=16), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten()
    classes = nn.Linear(256, len(held_out.classes))
    model = DistributedDataParallel(nn.Sequential(*layers, classes).to(device), [local_rank] if cuda else None)
    optimizer = torch.optim.AdamW(model.parameters())
    seen: set[str] = set()

    for epoch in range(1, options.epochs + 1):
        began = time.perf_counter()
        images = ImageFolder(options.folder / "train", PREPARE)  # lists; all ranks of a node see the same files
        # Divided among the ranks of this node only: the other nodes have their own files.
        sampler = DistributedSampler[object](images, num_replicas=ranks_here, rank=local_rank)
        sampler.set_epoch(epoch)
        loader = DataLoader(images, BATCH, sampler=sampler, num_workers=options.workers, pin_memory=cuda)
        model.train()
        for batch, labels in loader:
            logits = model(batch.to(device, non_blocking=True))
            loss = nn.functional.cross_entropy(logits, labels.to(device, non_blocking=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        model.eval()
        right = torch.zeros((), dtype=torch.int64, device=device)
        with torch.no_grad():
            for batch, labels in validation:
                right += (model.module(batch.to(device)).argmax(1) == labels.to(device)).sum()
        dist.all_reduce(right)

        files = {path for path, _ in images.samples}
        told = torch.tensor([len(files), len(files - seen), len(sampler)], device=device)
        seen |= files
        everyone = [torch.empty_like(told) for _ in range(ranks)]
        dist.all_gather(everyone, told)
        seconds = time.perf_counter() - began
        if rank == 0:
            nodes = [counts.tolist() for counts in everyone[::ranks_here]]
            samples = sum(int(counts[2]) for counts in everyone)
            print(
                f"epoch {epoch}: {sum(node[0] for node in nodes)} files, {samples} samples,"
                f" {samples / seconds:.0f} samples/s, {' and '.join(str(node[0]) for node in nodes)} on each node,"
                f" {sum(node[1] for node in nodes)} new,"
                f" validation {len(held_out)} files, {right.item() / len(held_out):.0%} right",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on this node's share of the data; start it by torchrun.")
    parser.add_argument("folder", type=Path, help="with train/ and val/ in it; the mountpoint")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    if "LOCAL_RANK" not in os.environ:
        parser.error("start it by torchrun, on one machine: torchrun --standalone tools/recipes/torch_nodes.py FOLDER")
    if not any(options.folder.iterdir()):
        raise SystemExit(f"{options.folder} lists no folder; growfs status says why")
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    train(options)
    dist.destroy_process_group()  # after the model is gone: if it ends later, it may wait for gloo's threads forever


if __name__ == "__main__":
    main()
