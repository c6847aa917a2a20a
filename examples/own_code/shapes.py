"""A network, a dataset and a callback of your own. mxtrain finds them by import path: no registration, no fork."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import numpy as np

from mxtrain.data.spec import Splits
from mxtrain.types import Callback, Positive, Result, RunInfo
from mxtrain.vision.images.dataset import Dataset
from mxtrain.vision.images.memory import split_in_memory


def small_network(num_classes: int, channels: int = 16, dropout: float = 0.0):
    """Any function or class that gives a HybridBlock: `num_classes` is filled in, the rest comes from the YAML.

    MXNet is imported here and not at the top, so that `--help` and mistakes are answered without it.
    """
    from mxnet.gluon import nn

    network = nn.HybridSequential()
    network.add(
        nn.Conv2D(channels, 3, padding=1, activation="relu"),
        nn.MaxPool2D(2),
        nn.Conv2D(2 * channels, 3, padding=1, activation="relu"),
        nn.GlobalAvgPool2D(),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Dense(num_classes),
    )
    return network


def dense_network(num_classes: int, hidden: int = 64, **unused: object):
    """A network to try without a YAML file: `**unused` takes the fields of the option that it replaces."""
    from mxnet.gluon import nn

    network = nn.HybridSequential()
    network.add(nn.Flatten(), nn.Dense(hidden, activation="relu"), nn.Dense(num_classes))
    return network


class Shapes(Dataset):
    """Discs and squares. The fields are checked like mxtrain's own: `dataset.sise=8` is refused by name."""

    size: Positive = 16
    """Side of an image in pixels."""
    num_samples: Positive = 512
    """In all splits together."""
    ink: Literal["grey", "white"] = "white"
    """How bright the shapes are."""
    batch_size: Positive = 32

    def open(self) -> Splits:
        random = np.random.default_rng(0)
        label_N = (np.arange(self.num_samples) % 2).astype(np.int32)
        y_HW, x_HW = np.mgrid[: self.size, : self.size]
        image_NCHW = random.integers(0, 60, (self.num_samples, 1, self.size, self.size), dtype=np.uint8)
        for image_HW, label in zip(image_NCHW[:, 0], label_N):
            radius = random.uniform(0.2, 0.35) * self.size
            dx_HW = np.abs(x_HW - random.uniform(radius, self.size - radius))
            dy_HW = np.abs(y_HW - random.uniform(radius, self.size - radius))
            inside_HW = np.maximum(dx_HW, dy_HW) < radius if label else dx_HW**2 + dy_HW**2 < radius**2
            image_HW[inside_HW] = 255 if self.ink == "white" else 128
        return split_in_memory(self, image_NCHW, label_N, ["disc", "square"])


class Diary(Callback):
    """Writes one line about each run that ends."""

    def __init__(self, file_name: str = "diary.jsonl"):
        self._file_name = file_name

    def on_start(self, run: RunInfo) -> None:
        self._path = Path(run.run_dir) / self._file_name

    def on_end(self, result: Result) -> None:
        with open(self._path, "a") as file:
            file.write(json.dumps({"state": result.state, "step": result.step, "best": result.best}) + "\n")
