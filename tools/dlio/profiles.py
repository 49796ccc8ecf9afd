"""The profiles of DLIO that run, shrunk to a machine with two cores.

Each takes one of DLIO's own workloads, for an NVIDIA A100, and overrides what is in the table. The samples of resnet50
and cosmoflow have the size that they have there, and the accelerator is as fast. Those of unet3d are a twentieth as
large, and the accelerator takes a tenth of the bytes, because two cores cannot read more of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Profile:
    """A workload, and how much of it runs.

    target: the utilization that DLIO requires. sample_bytes: on average. step_s: how long the accelerator computes
    for a batch. epochs: of a run from a cache that has all of the data. slower: with a link, the accelerator takes this
    multiple of the time, as the emulated link has its limits. more: further overrides.
    """

    name: str
    reader: str
    target: float
    files: int
    samples_per_file: int
    sample_bytes: int
    batch: int
    step_s: float
    epochs: int
    slower: float
    more: tuple[str, ...] = ()

    @property
    def rate(self) -> float:
        """The bytes that training takes in a second."""
        return self.batch * self.sample_bytes / self.step_s

    def slowed(self) -> Profile:
        """The same for a link."""
        return replace(self, step_s=self.step_s * self.slower)

    def fewer(self) -> Profile:
        """A quarter of it, with the same number of steps for each file."""
        return replace(self, files=self.files // 4, epochs=2)

    def overrides(self, data: Path, out: Path, files: int, epochs: int, generate: bool = False) -> Iterator[str]:
        """The command line of DLIO. data: the folder that has train/ and valid/. out: for what DLIO writes."""
        values = {
            "workflow.generate_data": generate,
            "workflow.train": not generate,
            "workflow.checkpoint": False,
            "checkpoint.model_size": 1,  # DLIO makes the tensors even so
            "dataset.data_folder": data,
            "dataset.num_files_train": files,
            "dataset.num_samples_per_file": self.samples_per_file,
            "reader.batch_size": self.batch,
            "train.computation_time": self.step_s,
            "train.epochs": epochs,
            "output.folder": out,
        }
        yield f"workload={self.name}_a100"
        yield from (f"++workload.{name}={value}" for name, value in values.items())
        yield from (f"++workload.{word}" for word in self.more)
        yield f"hydra.run.dir={out}"


PROFILES = (
    Profile("resnet50", "TensorFlow, TFRecord", 0.9, 80, 40, 114_660, batch=40, step_s=0.0435, epochs=3, slower=1),
    Profile("cosmoflow", "TensorFlow, TFRecord", 0.7, 160, 1, 2_828_486, batch=1, step_s=0.00551, epochs=6, slower=3),
    Profile(
        *("unet3d", "PyTorch, npz", 0.9, 80, 1, 7_330_031),
        batch=1,
        step_s=0.0455,
        epochs=3,
        slower=1,
        more=(
            "dataset.record_length=7330031",
            "dataset.record_length_stdev=3417090",
            "dataset.record_length_resize=104857",
        ),
    ),
)
