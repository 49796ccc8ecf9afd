"""Train on a Ray cluster, each of whose nodes reads its own mount: TorchTrainer with torchvision's ImageFolder.

For a bucket with train/CLASS/IMAGE, on a cluster with `pip install growfs[ray] "ray[train]" torch torchvision`:

    python tools/recipes/ray_train.py s3://bucket/train /mnt/train --show-files 100000 --workers 16 --gpu

growfs.ray.mount mounts on every node, and the nodes feed each other. The training code is the same as without growfs:
it lists a folder. It does so in each epoch, because the cache grows and rotates. `--show-files` gives the listings of
all nodes the same length, so that no worker runs out of batches while the others wait for it in an all-reduce.
"""

from __future__ import annotations

import argparse
from typing import Any

import ray
import ray.train
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import find_classes

import growfs.ray

SIDE = 224
BATCH = 16
PREPARE = transforms.Compose([transforms.Resize((SIDE, SIDE)), transforms.ToTensor()])


def train(config: dict[str, Any]) -> None:
    """Train as one worker of many."""
    job = ray.train.get_context()
    folder = config["mount"].path  # /mnt/train
    layers = nn.Conv2d(3, 16, 16, stride=16), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten()
    model = prepare_model(nn.Sequential(*layers, nn.Linear(256, len(find_classes(folder)[0]))))
    optimizer = torch.optim.AdamW(model.parameters())

    for epoch in range(1, config["epochs"] + 1):
        images = ImageFolder(folder, PREPARE)  # lists; all workers of a node see the same files
        # Divided among the workers of this node: each node passes through all files, starting at its own place.
        sampler = DistributedSampler[object](images, job.get_local_world_size(), job.get_local_rank())
        sampler.set_epoch(epoch)
        loader = DataLoader(images, BATCH, sampler=sampler, num_workers=config["loaders"])
        for batch, labels in prepare_data_loader(loader, add_dist_sampler=False):
            loss = nn.functional.cross_entropy(model(batch), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if job.get_world_rank() == 0:
            print(f"epoch {epoch}: {len(images)} files on the node of rank 0, loss {loss.item():.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on a Ray cluster.")
    parser.add_argument("url", help="of a folder for each class, with images")
    parser.add_argument("mountpoint")
    parser.add_argument("--cache-dir", default="~/.cache/growfs")
    parser.add_argument("--cache-size", default="80%")
    parser.add_argument("--show-files", type=int, help="how many files each node lists")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--loaders", type=int, default=2, help="processes that load, for each worker")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--results", help="where Ray Train keeps its state: a folder or URL that all nodes reach")
    options = parser.parse_args()

    ray.init()
    mount = growfs.ray.mount(
        options.url,
        options.mountpoint,
        cache_dir=options.cache_dir,
        cache_size=options.cache_size,
        show_files=options.show_files,
    )
    try:
        TorchTrainer(
            train,
            train_loop_config={"mount": mount, "epochs": options.epochs, "loaders": options.loaders},
            scaling_config=ScalingConfig(num_workers=options.workers, use_gpu=options.gpu, placement_strategy="SPREAD"),
            run_config=RunConfig(storage_path=options.results),
        ).fit()
        status = mount.status()
    finally:
        mount.unmount()
    read, exchanged = status["remote_bytes"], status["peer_bytes"]
    print(f"{len(status['nodes'])} nodes read {read:,} bytes from the remote, and {exchanged:,} from one another")


if __name__ == "__main__":
    main()
