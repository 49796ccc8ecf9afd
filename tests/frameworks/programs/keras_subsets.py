"""Keras's pair of calls for a training and a validation set: `keras_subsets.py FOLDER`.

Each line on standard input starts the next step: make the training set, make the validation set, read both; then the
same again as a second epoch. Prints a line of JSON after each step.
"""

import hashlib
import json
import os
import sys
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import tensorflow as tf

folder = sys.argv[1]


def subset(name: str) -> Any:
    return tf.keras.utils.image_dataset_from_directory(
        folder, validation_split=0.25, subset=name, seed=1, image_size=(8, 8), batch_size=4, verbose=False
    )


def describe(dataset: Any) -> dict[str, Any]:
    paths = [os.path.relpath(path, folder) for path in dataset.file_paths]
    return {"paths": paths, "classes": dataset.class_names}


def write(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


for _ in sys.stdin:
    training = subset("training")
    write(describe(training))
    sys.stdin.readline()
    validation = subset("validation")
    write(describe(validation))
    sys.stdin.readline()
    images = []
    for dataset in (training, validation):
        for batch, labels in dataset:
            for image, label in zip(batch.numpy().astype("uint8"), labels.numpy(), strict=True):
                images.append([dataset.class_names[label], hashlib.sha256(image.tobytes()).hexdigest()])
    write({"images": images})
