"""The description of the TensorBoard logger, which writes events into the run directory."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import ClassVar, List, Tuple

import pydantic

from mxtrain.callback.protocol import Callback
from mxtrain.logger.spec import Logger
from mxtrain.terminal.program import tensorboard
from mxtrain.types import NonNegative, Positive


class TensorBoard(Logger):
    """Writes events for TensorBoard into the run directory itself, so that runs and sweeps compare by their folders."""

    writes_events: ClassVar[bool] = True

    histograms: NonNegative = 0
    """Histograms of the parameters at every n-th validation; 0: never."""
    images: NonNegative = 1
    """An image of sample predictions at every n-th validation; 0: never."""
    max_images: Positive = pydantic.Field(default=16, le=256)
    """Samples in one image."""
    graph: bool = True
    """Writes the network's graph."""
    hparams: bool = True
    """Writes the values by which the HParams tab compares the runs of a sweep."""

    def commands_for(self, folder: Path) -> List[Tuple[str, str]]:
        return [("compare", f"{tensorboard()} --logdir {shlex.quote(str(folder))}")]

    def build(self) -> Callback:
        from mxtrain.logger.tensorboard_logger import TensorBoardLogger

        return TensorBoardLogger(self.histograms, self.images, self.max_images, self.graph, self.hparams)
