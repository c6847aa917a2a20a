"""Report of `eval` for language models: metrics of the network and of n-gram models on the same split."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, List, Sequence, Tuple, Union

import numpy as np

from mxtrain.data.spec import open_splits
from mxtrain.errors import DataError
from mxtrain.task.ngrams import KneserNey
from mxtrain.task.report import Report
from mxtrain.text.signature import TextSignature
from mxtrain.types import Artifact, Table

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

    from mxtrain.config.parts import RunParts
    from mxtrain.data.signature import Signature
    from mxtrain.text.language_modeling.running_text import RunningText
    from mxtrain.types import Batch

MAX_COUNTED = 20_000_000
"""N-grams are counted in this number of tokens at the beginning of the training text."""
HEADER = ("model", "perplexity", "bits per byte")


class LanguageReport(Report):
    """Compares the network with interpolated Kneser-Ney models, which are counted when the table is built.

    Args:
        description: description of the run; its dataset has the training text.
        signature: signature of the network.
        source: evaluated split.
        sizes: orders of the n-gram models.
    """

    def __init__(self, description: RunParts, signature: Signature, source: object, sizes: Sequence[int]) -> None:
        self._description, self._signature, self._source, self._sizes = description, signature, source, sizes
        self._sums: List[NDArray] = []
        self._loads: List[NDArray] = []

    def update(self, batch: Batch, outputs: Tuple[NDArray, ...]) -> None:
        """See `Report`."""
        from mxtrain.engine.backend import nd

        label_BT, bytes_B = batch.targets
        self._sums.append(nd.stack(outputs[0].sum(), (label_BT >= 0).sum(), bytes_B.sum(), axis=0).reshape((3,)))
        self._loads += [load_BLE.sum(axis=0) for load_BLE in outputs[1:]]

    def artifacts(self, title: str) -> List[Artifact]:
        """See `Report`."""
        total, count, size = np.sum([sums.asnumpy().astype(np.float64) for sums in self._sums], axis=0)
        rows = [("this network", *_figures(total, count, size)), *self._ngram_rows()]
        return [Table("language_models", HEADER, rows), *self._expert_tables()]

    def _expert_tables(self) -> List[Table]:
        """Returns the share of the tokens that each expert of each layer gets; none for a network without experts."""
        if not self._loads:
            return []
        load_LE = np.sum([load_LE.asnumpy().astype(np.float64) for load_LE in self._loads], axis=0)
        share_LE = load_LE / np.maximum(load_LE.sum(axis=1, keepdims=True), 1)
        header = ("layer", *(f"expert {number}" for number in range(load_LE.shape[1])))
        return [Table("experts", header, [(n, *map(float, row.round(4))) for n, row in enumerate(share_LE)])]

    def _ngram_rows(self) -> List[Tuple[Union[str, float], ...]]:
        config = TextSignature.cast(self._signature).tokenizer_config
        if not self._sizes:
            return []
        try:
            trained: RunningText = open_splits(self._description.dataset).train.encode(config)  # type: ignore[attr-defined]
        except DataError as error:
            return [(f"no n-gram model, for the training text cannot be read: {error}", "", "")]
        measured: RunningText = self._source.encode(config)  # type: ignore[attr-defined]
        rows: List[Tuple[Union[str, float], ...]] = []
        for order in self._sizes:
            model = KneserNey(trained.token_N[:MAX_COUNTED], order, config.size)
            total = -float(model.log_probabilities(measured.token_N).sum())
            figures = _figures(total, len(measured.token_N) - 1, measured.num_bytes)
            rows.append((f"interpolated Kneser-Ney {order}-gram", *figures))
        return rows


def _figures(total: float, count: float, num_bytes: float) -> Tuple[float, float]:
    """Returns perplexity and bits per byte.

    Args:
        total: sum of -log p over the tokens.
        count: number of tokens.
        num_bytes: number of UTF-8 bytes of their text.
    """
    return round(math.exp(total / max(count, 1)), 3), round(total / math.log(2) / max(num_bytes, 1), 4)
