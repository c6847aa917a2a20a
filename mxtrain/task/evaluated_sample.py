"""A sample of an evaluation and its prediction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Sequence

import numpy as np


@dataclass(frozen=True)
class EvaluatedSample:
    """A sample of an evaluation, on the host.

    Attributes:
        index: index in its split.
        prediction: prediction of the sample by `Task.result_predictions`.
        targets: its targets, without the batch axis.
        meta: its row of `Batch.meta`; None if there is none.
    """

    index: int
    prediction: np.ndarray
    targets: Sequence[np.ndarray]
    meta: Any
