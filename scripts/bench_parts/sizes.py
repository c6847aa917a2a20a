"""Sizes of networks and batches for all sides of a comparison. Needs nothing of mxtrain."""

from __future__ import annotations

from typing import Any, Iterator, NamedTuple, Tuple

NUM_CLASSES = 10
BERT_SIZES = {"bert_base": (12, 768, 3072, 12), "bert_4": (4, 512, 2048, 8)}
"""Layers, units, hidden units, heads."""
BERT_VOCAB_SIZE = 30522


class Sizes(NamedTuple):
    """The sizes of a network; `num_heads` of an LSTM is 0."""

    vocab_size: int
    num_layers: int
    units: int
    hidden_size: int
    num_heads: int
    dropout: float


GPTS = {"gpt2": Sizes(50257, 12, 768, 3072, 12, 0.1), "gpt_tiny": Sizes(200, 2, 32, 128, 2, 0.1)}
TRANSFORMERS = {
    "transformer_base": Sizes(8000, 6, 512, 2048, 8, 0.1),
    "transformer_tiny": Sizes(200, 2, 32, 64, 2, 0.1),
}
"""Transformers with as many decoder layers as encoder layers; one vocabulary and one table of source, target and
output."""
LSTMS = {"lstm_650": Sizes(33278, 2, 650, 650, 0, 0.5), "lstm_tiny": Sizes(200, 2, 32, 32, 0, 0.5)}
"""GluonNLP's standard_lstm_lm_650, and the vocabulary of WikiText-2; the table of words is the output layer's."""
LABEL_SMOOTHING = 0.1
BETA2, EPSILON = 0.98, 1e-9
"""Adam's, of Transformers."""
CLIP_NORM = 0.25
"""Limit of the gradient norm of LSTMs."""
LR = 1e-4
"""Learning rate of AdamW and Adam."""
SGD_LR = 1.0
WD = 0.01
"""Weight decay of AdamW."""


FIELDS, UNITS, IDS_BATCH, IDS_LR = 8, 16, 1024, 0.001
"""Sizes of the embedding tables: 8192 ids a step."""


def id_batches(rows: int) -> Iterator[Tuple[Any, Any]]:
    """40 of (ids (B, F) int32, targets (B, 1) float32 of 0 and 1), the same on all sides, to be used again and again;
    each id is as likely as another."""
    import numpy as np

    rng = np.random.default_rng(0)
    for _ in range(40):
        id_BF = rng.integers(0, rows, (IDS_BATCH, FIELDS), dtype=np.int64).astype(np.int32)
        yield id_BF, (id_BF.sum(axis=1, keepdims=True) % 2).astype(np.float32)
