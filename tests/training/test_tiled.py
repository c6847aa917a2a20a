"""Predictions that are joined from the tiles of samples, in batches that do not end with a sample."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Dict, Iterator, List, Tuple

import numpy as np
import pytest

from mxtrain.data.signature import Signature
from mxtrain.engine.backend import mx
from mxtrain.engine.predictions import JoinedPredictions, to_host
from mxtrain.errors import ConfigError
from mxtrain.training import tiled as module
from mxtrain.training.tiled import TiledEvaluator, predict_tiles
from mxtrain.types import Batch
from mxtrain.vision.images.tiles import tiles_of

TILES = [
    tile for sample, size in enumerate([(16, 40), (16, 16), (40, 16)]) for tile in tiles_of(sample, size, (16, 16), 0)
]


class Merger:
    """Keeps the number of each tile, and joins the numbers of a sample."""

    def __init__(self) -> None:
        self.in_memory = self.most = 0

    def decode(self, outputs: Any, batch: Batch) -> List[np.ndarray]:
        self.in_memory += batch.size
        self.most = max(self.most, self.in_memory)
        return [np.array(number) for number in outputs]

    def merge(self, size: Tuple[int, int], parts: Iterator[Any]) -> np.ndarray:
        numbers = []
        for tile, number in parts:
            assert tile.size == size
            self.in_memory -= 1
            numbers.append(int(number))
        return np.array([*size, *numbers])


def trained(batch_size: int, error: str = "", is_late: bool = False) -> Any:
    def predict(loader: Any) -> Iterator[Any]:
        if error and not is_late:
            raise mx.MXNetError(error)
        for begin in range(0, len(TILES), batch_size):
            numbers = range(begin, min(begin + batch_size, len(TILES)))
            yield Batch((), (), len(numbers)), numbers
            if error:
                raise mx.MXNetError(error)

    return SimpleNamespace(
        evaluator=SimpleNamespace(predict=predict), description=None, signature=Signature((3, 32, 32)), device=None
    )


@pytest.fixture(autouse=True)
def options(monkeypatch: pytest.MonkeyPatch) -> Dict[str, Any]:
    """Options that the loader of tiles was built with."""
    given: Dict[str, Any] = {}
    monkeypatch.setattr(module, "build_loader", lambda *arguments, **options: given.update(options))
    return given


@pytest.mark.parametrize("batch_size", [1, 2, 5, 100])
def test_each_sample_gets_its_tiles(batch_size: int, options: Dict[str, Any]) -> None:
    merger, tiled = Merger(), SimpleNamespace(tiles=TILES, tile_size=(16, 16), shape=(3, 16, 16))
    found = [joined.tolist() for joined in predict_tiles(trained(batch_size), tiled, merger)]  # type: ignore[arg-type]
    assert found == [[16, 40, 0, 1, 2], [16, 16, 3], [40, 16, 4, 5, 6]]
    assert options == {"in_order": True, "encode": None, "collate": None}
    assert merger.most <= batch_size  # the next batch is predicted when the last tile is merged


def test_networks_that_do_not_take_the_size_of_a_tile_are_named() -> None:
    tiled: Any = SimpleNamespace(tiles=TILES, tile_size=(16, 20), shape=(3, 16, 20))
    with pytest.raises(ConfigError) as error:
        list(predict_tiles(trained(1, "head\nCheck failed: 3 == 4"), tiled, Merger()))
    assert str(error.value).startswith("tile=[16,20]: the network does not take inputs of this size. Type tile=auto")
    assert "3 == 4" in str(error.value)
    with pytest.raises(mx.MXNetError):  # inputs of this size were taken before
        list(predict_tiles(trained(1, "out of memory", is_late=True), tiled, Merger()))
    with pytest.raises(mx.MXNetError):  # another error
        tiled.shape = (3, 32, 32)
        list(predict_tiles(trained(1, "out of memory"), tiled, Merger()))


def test_evaluation_takes_joined_predictions_in_order() -> None:
    plain: Any = SimpleNamespace(_strategy=SimpleNamespace(predict=None), _loss=None, _meter=None, _on_host={})
    evaluator = TiledEvaluator(plain, iter([np.zeros((2, 2)), np.ones((3, 3)), np.ones(1)]))
    loader: Any = SimpleNamespace(epoch=lambda: iter([Batch((), (), 2), Batch((), (), 1)]))
    batches = list(evaluator.predict(loader))
    assert [[one.shape for one in outputs] for _, outputs in batches] == [[(2, 2), (3, 3)], [(1,)]]
    assert evaluator.decode is not None and not evaluator.measures_outputs
    decoded: Any = evaluator.decode(batches[0][1], batches[0][0])
    assert isinstance(decoded, JoinedPredictions) and to_host(decoded)[1].sum() == 9
    (loss_B,) = evaluator.losses(*batches[0])
    assert loss_B.shape == (2,) and np.isnan(loss_B.asnumpy()).all()
