"""Report of `eval` for embeddings: the pairs or samples that are most wrong.

Legend: N samples, D embedding size, P pairs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, List, Sequence, Tuple, Union

import numpy as np

from mxtrain.engine.predictions import to_host
from mxtrain.task.prediction_format import class_name
from mxtrain.task.report import Report
from mxtrain.task.sample_results import location_texts
from mxtrain.types import Artifact, Table
from mxtrain.vision.metric_learning.verification import fold_accuracy, pairs_of, true_accept_rate

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

    from mxtrain.data.signature import Signature
    from mxtrain.data.spec import Samples
    from mxtrain.engine.predictions import Decode
    from mxtrain.types import Batch

Cell = Union[str, int, float]
MAX_SHOWN = 20
RATES = (0.1, 0.01, 0.001, 0.0001)
"""False accept rates of the table."""


class EmbeddingReport(Report):
    """Accept rates of pairs, and the pairs that are most wrong.

    Args:
        decode: decodes outputs to embeddings.
        signature: signature with the names of the identities.
        source: samples that are measured.
    """

    def __init__(self, decode: Decode, signature: Signature, source: Samples):
        self._decode, self._signature, self._source = decode, signature, source
        self._batches: List[Tuple[np.ndarray, NDArray, NDArray]] = []

    def decode_by(self, decode: Decode) -> None:
        self._decode = decode

    def update(self, batch: Batch, outputs: Sequence[NDArray]) -> None:
        assert batch.index_B is not None
        self._batches.append((batch.index_B, self._decode(tuple(outputs), batch), batch.targets[0]))  # type: ignore[arg-type]

    def artifacts(self, title: str) -> List[Artifact]:
        index_N = np.concatenate([index_B for index_B, _, _ in self._batches])
        embedding_ND = np.concatenate([np.asarray(to_host(embedding)) for _, embedding, _ in self._batches])
        label_N = np.concatenate([label.asnumpy() for _, _, label in self._batches]).astype(np.int64)
        order = np.argsort(index_N, kind="stable")
        index_N, embedding_ND, label_N = index_N[order], embedding_ND[order], label_N[order]
        first, second, is_same_P = pairs_of(label_N)
        similarity_P = (embedding_ND[first] * embedding_ND[second]).sum(axis=1)
        rows: List[List[Cell]] = [
            [
                f"true accept rate at a false accept rate of {rate:g}",
                _shown(true_accept_rate(similarity_P, is_same_P, rate)),
            ]
            for rate in RATES
        ]
        rows.insert(0, ["accuracy, ten folds", _shown(fold_accuracy(2 - 2 * similarity_P, is_same_P))])
        rows += [["pairs of one identity", int(is_same_P.sum())], ["pairs of two identities", int((~is_same_P).sum())]]
        # Pairs of one identity that are far apart, and pairs of two that are close.
        error_P = np.where(is_same_P, 1 - similarity_P, similarity_P)
        worst = np.argsort(-error_P, kind="stable")[:MAX_SHOWN]
        first_files, second_files = (
            location_texts(self._source, "sample", index_N[side[worst]].tolist()) for side in (first, second)
        )
        pairs = [
            [
                first_file,
                second_file,
                "one" if is_same_P[pair] else "two",
                round(float(similarity_P[pair]), 4),
            ]
            for first_file, second_file, pair in zip(first_files, second_files, worst.tolist())
        ]
        return [
            Table("verification", ("pairs", "value"), rows),
            Table("worst_pairs", ("first", "second", "identities", "cosine"), pairs),
        ]


def _shown(value: float) -> Cell:
    return "" if np.isnan(value) else round(value, 6)


def nearest_table(signature: Signature, predictions: Sequence[np.ndarray], label_N: np.ndarray) -> Table:
    """Returns a table of samples with the nearest other one among them."""
    identities = [class_name(signature.class_names, int(label)) for label in label_N]
    embedding_ND = np.stack(predictions)
    similarity_NN = embedding_ND @ embedding_ND.T
    np.fill_diagonal(similarity_NN, -2)
    rows = [
        [number, identities[number], identities[nearest], round(float(similarity_NN[number, nearest]), 4)]
        for number, nearest in enumerate(similarity_NN.argmax(axis=1).tolist())
    ]
    return Table("samples", ("sample", "identity", "identity of the nearest", "cosine"), rows)
