"""Weights of samples: a dataset can give each sample a weight in loss and metrics.

A weight of 2 counts as much as two equal samples, a weight of 0 as none. The loss of a batch is sum(weight * loss) /
sum(weight) over the global batch, so it does not depend on the division over devices and workers.

In the batches of a dataset with weights, the last target is the weight of each sample, (B,) float32. A task that makes
targets of its own must keep it last. `training.objective` then weights the loss, and the metrics with `takes_weights`.

Legend: N samples.
"""

from __future__ import annotations

from typing import List, Mapping, Optional, Protocol, Sequence, Tuple, runtime_checkable

import numpy as np

from mxtrain.data.spec import BaseDataset, Samples
from mxtrain.errors import ConfigError, DataError

SETTING = "dataset.weight"


class WeightedDataset(BaseDataset):
    """Base class of datasets whose samples can have weights."""

    weight: Optional[str] = None
    """Column with the weight of each sample in loss and metrics: 2 counts as much as two equal samples, 0 as none.
    null = all samples count equally."""


@runtime_checkable
class WeightedSamples(Protocol):
    """Samples of a split that know their weights."""

    def read_weights(self) -> Optional[np.ndarray]:
        """Returns the weight of each sample, (N,) float32; None = all count equally."""


def weights_of(samples: Samples) -> Optional[np.ndarray]:
    """Returns the weight of each sample of a split, (N,); None if it has none."""
    return samples.read_weights() if isinstance(samples, WeightedSamples) else None


def has_weights(dataset: BaseDataset) -> bool:
    """Returns True if the last target of each batch is the weight of each sample."""
    return isinstance(dataset, WeightedDataset) and dataset.weight is not None


def require_other_column(dataset: WeightedDataset, setting: str, names: Sequence[str]) -> None:
    """Checks that the column of weights has no other purpose.

    Args:
        dataset: the dataset.
        setting: setting with the names of other columns, for the message.
        names: these names.

    Raises:
        ConfigError: the column of weights is one of them.
    """
    if dataset.weight is not None and dataset.weight in names:
        raise ConfigError(
            f"{SETTING}={dataset.weight} is also named in {setting}. A column is either a weight or something else."
        )


def refuse_weight_without_file(dataset: WeightedDataset) -> None:
    """Checks that no column of weights is given for bundled data.

    Raises:
        ConfigError: one is given.
    """
    if dataset.weight is not None:
        raise ConfigError(
            f"{SETTING}={dataset.weight}: the default data have no such column. Name your table with "
            "dataset.train=FILE."
        )


def wrong_weights(value_N: np.ndarray, texts: Sequence[str]) -> List[Tuple[int, str]]:
    """Returns the index of each weight that is no finite number of at least 0, and the reason as the end of a sentence.

    Args:
        value_N: weights; NaN for a cell without a number.
        texts: text of each cell, for the reason.
    """
    float32_limit = float(np.finfo(np.float32).max)
    wrong = np.flatnonzero(~((value_N >= 0) & (value_N <= float32_limit))).tolist()  # not `<`: NaN must count as wrong
    return [(index, f"{texts[index]!r:.60}; a weight is a finite number of at least 0") for index in wrong]


def require_some_weight(column: str, weights: Mapping[str, Optional[np.ndarray]]) -> None:
    """Checks that each split has a sample that counts.

    Args:
        column: column of the weights.
        weights: weights of the samples of each split, by its name; None = there is no such split.

    Raises:
        DataError: all weights of a split are 0, so that its loss would be undefined.
    """
    for split, weight_N in weights.items():
        if weight_N is not None and len(weight_N) and not (weight_N > 0).any():
            raise DataError(
                f"{SETTING}={column}: all weights of the {len(weight_N):,} {split} samples are 0, so none would "
                f"count. Give at least one of them a positive weight, or leave {SETTING} out."
            )


def weights_remark(column: str, weight_N: np.ndarray) -> str:
    """Returns a clause on the weights of the training samples, for the log."""
    return (
        f"'{column}' weights loss and metrics: {weight_N.min():.6g} to {weight_N.max():.6g}, mean {weight_N.mean():.6g}"
    )
