"""The recipes of docs/fill.md, as they stand there, with the least around them that makes them programs; in a filled
folder and in a mount.

Without that of Hugging Face's Trainer, which no test installs.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from growfs.daemon.launch import stop
from tests.frameworks.harness import ENV, images
from tests.harness import Growfs
from tests.needs import need
from tools.benchmarks.recipe_data import tfrecord

PAGE = Path(__file__).parents[2] / "docs/fill.md"
RECIPES = re.findall(r"```python\n(.*?)```", PAGE.read_text().partition("## Recipes")[2], re.DOTALL)

MODEL = """
import growfs, keras
model = keras.Sequential([keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(2)])
model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
"""
AROUND = {
    "keras.utils": (MODEL + "epochs, callbacks = 2, []\n", "print(len(data.file_paths))"),
    "keras.callbacks": (
        MODEL + "import numpy\n",
        """
class Data(keras.utils.PyDataset):
    def list(self, folder):
        self.files = sorted(folder.rglob("*.png"))
    def __len__(self):
        return len(self.files)
    def __getitem__(self, number):
        image = keras.utils.img_to_array(keras.utils.load_img(self.files[number]))
        return image[None], numpy.array([0])
data = Data()
data.list(growfs.next_generation("/data/train"))
model.fit(data, epochs=2, callbacks=[NextGeneration(data)])
print(len(data.files))
""",
    ),
    "tf.data": (
        "import growfs, tensorflow as tf\nparse = tf.strings.length\n",
        "for _ in range(2):\n    found = sum(len(batch) for batch in dataset)\nprint(found)",
    ),
    "lightning": (
        "import growfs, lightning, torch\nfrom torch.utils.data import DataLoader\n"
        "from torchvision.datasets import ImageFolder\nfrom torchvision.transforms import ToTensor\n"
        "transform = ToTensor()\n",
        """
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.LazyLinear(2)
    def training_step(self, batch, _):
        return torch.nn.functional.cross_entropy(self.layer(batch[0].flatten(1)), batch[1])
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)
data, model = Data(), Model()
model.layer(next(iter(data.train_dataloader()))[0].flatten(1))
lightning.Trainer(max_epochs=2, reload_dataloaders_every_n_epochs=1, logger=False, enable_checkpointing=False,
    accelerator="cpu").fit(model, datamodule=data)
print(len(data.train_dataloader().dataset))
""",
    ),
}

FILES = 4

pytestmark = [pytest.mark.long, pytest.mark.timeout(180)]


@pytest.mark.parametrize("command", ["fill", "mount"])
@pytest.mark.parametrize("what", AROUND)
def test_a_recipe_of_the_page_runs(growfs: Growfs, tmp_path: Path, what: str, command: str) -> None:
    if what == "lightning":
        need("lightning")
    remote = tmp_path / "remote"
    if what == "tf.data":
        remote.mkdir()
        (remote / "shard.tfrecord").write_bytes(tfrecord([b"record"] * FILES))
    else:
        images(remote, classes=2, each=FILES // 2)
    growfs.run(command, remote, growfs.mountpoint, "--cache-dir", growfs.cache_dir, "--min-free", "0MB")
    try:
        (recipe,) = (recipe for recipe in RECIPES if what in recipe)
        before, after = AROUND[what]
        program = f"{before}\n{recipe}\n{after}".replace("/data/train", str(growfs.mountpoint))
        done = subprocess.run(
            [sys.executable, "-c", program], env=growfs.env | ENV, capture_output=True, text=True, check=False
        )
    finally:
        if command == "fill":
            stop(growfs.mountpoint)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(FILES)
