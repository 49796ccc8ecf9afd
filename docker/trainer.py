"""Stands for a training program: lists the folder in each epoch, and reads every file once in random order."""

import random
import sys
import time
from pathlib import Path

folder = Path(sys.argv[1])
epochs = int(sys.argv[2]) if len(sys.argv) > 2 else sys.maxsize
for epoch in range(epochs):
    files = sorted(folder.glob("*/*"))
    random.shuffle(files)
    start = time.monotonic()
    size = 0
    for file in files:
        size += len(file.read_bytes())
        time.sleep(0.01)  # a training step
    print(f"epoch {epoch}: {len(files)} files, {size / 1e6:.0f} MB in {time.monotonic() - start:.1f} s")
