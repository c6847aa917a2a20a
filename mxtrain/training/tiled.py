"""Predicts samples tile by tile, and evaluates the joined predictions."""

from __future__ import annotations

import itertools
from contextlib import closing
from typing import TYPE_CHECKING, Generator, Iterator, List, Tuple

import numpy as np

from mxtrain.engine.backend import mx, nd
from mxtrain.engine.predictions import JoinedPredictions
from mxtrain.errors import ConfigError
from mxtrain.training.evaluate import Evaluator, Outputs
from mxtrain.training.loaders import build_loader
from mxtrain.types import shapes_of

if TYPE_CHECKING:
    from mxtrain.data.loading.loader import EpochLoader
    from mxtrain.data.passes import Tile, TiledSamples
    from mxtrain.task.merging import MergeTiles
    from mxtrain.training.trained import Trained
    from mxtrain.types import Batch


def predict_tiles(trained: Trained, tiled: TiledSamples, merger: MergeTiles) -> Iterator[np.ndarray]:
    """Yields the prediction for each sample, in order. Only the tiles of a few batches are in memory.

    Args:
        trained: the network.
        tiled: tiles of all samples.
        merger: merges the predictions for tiles.

    Raises:
        ConfigError: the network does not take inputs of the size of a tile.
    """
    # Tiles have no targets that a task could encode.
    loader = build_loader(
        trained.description,
        tiled,
        trained.signature,
        trained.device,
        in_order=True,
        encode=None,
        collate=None,
    )
    with closing(_parts(trained, tiled, merger, loader)) as parts:
        for first in parts:
            yield merger.merge(first[0].size, _of_sample(first, parts))


def _of_sample(
    first: Tuple[Tile, np.ndarray], parts: Iterator[Tuple[Tile, np.ndarray]]
) -> Iterator[Tuple[Tile, np.ndarray]]:
    """Yields the parts of a sample, up to its last tile.

    Args:
        first: its first part.
        parts: all further parts, of which those of the sample are taken.
    """
    yield first
    is_last = first[0].is_last
    while not is_last:
        part = next(parts)
        yield part
        is_last = part[0].is_last


def _parts(
    trained: Trained, tiled: TiledSamples, merger: MergeTiles, loader: EpochLoader
) -> Generator[Tuple[Tile, np.ndarray], None, None]:
    """Yields each tile with what is kept of its prediction."""
    number = 0
    try:
        for batch, outputs in trained.evaluator.predict(loader):
            for part in merger.decode(outputs, batch):
                yield tiled.tiles[number], part
                number += 1
    except mx.MXNetError as error:
        if number or tuple(tiled.shape) == tuple(shapes_of(trained.signature.shape)[0]):
            raise
        height, width = tiled.tile_size
        reason = str(error).strip().splitlines()[-1]
        raise ConfigError(
            f"tile=[{height},{width}]: the network does not take inputs of this size. Type tile=auto for the size of "
            f"its training images. ({reason})"
        ) from error


class TiledEvaluator(Evaluator):
    """Evaluates predictions that are joined from tiles, by metrics and reports that compare predictions in the original
    size of the samples. Loss and metrics that are computed from outputs of the network are not measured.

    Args:
        evaluator: evaluator of the network.
        predictions: prediction for each sample, in order.
    """

    measures_outputs = False

    def __init__(self, evaluator: Evaluator, predictions: Iterator[np.ndarray]) -> None:
        super().__init__(
            evaluator._strategy, evaluator._loss, evaluator._meter, evaluator._on_host, lambda outputs, batch: outputs
        )
        self._joined = predictions

    def predict(self, loader: EpochLoader) -> Iterator[Tuple[Batch, Outputs]]:
        """Yields batches with the joined predictions of their samples in place of outputs."""
        for batch in loader.epoch():
            joined = itertools.islice(self._joined, batch.size)
            yield batch, JoinedPredictions(joined)  # type: ignore[misc]  # in the place of outputs

    def losses(self, batch: Batch, outputs: Outputs) -> List[nd.NDArray]:
        """Returns NaN for each sample: the loss is not known."""
        return [nd.full((batch.size,), np.nan)]
