"""Datasets whose targets are numbers, which networks learn standardised."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Sequence, runtime_checkable

import numpy as np

from mxtrain.data.loading.target_scale import require_same_scale, target_remark, with_target_scale
from mxtrain.data.signature import Signature
from mxtrain.data.spec import Samples, Splits

if TYPE_CHECKING:
    from mxtrain.data.spec import BaseDataset
    from mxtrain.model.spec import Model

    Base = BaseDataset
else:
    Base = object  # as a model, its inherited fields would replace those of the dataset


class NumberTargets(Base):
    """Adds the scale of the targets to the signature of a dataset. Its splits return numbers from `read_labels`.

    Classes derive from it first, and from the dataset of the samples second.
    """

    @property
    def target_names(self) -> Sequence[str]:
        """Returns the names of several targets; empty if there is one."""
        return ()

    def infer_signature(self, splits: Splits, model: Model) -> Signature:
        """See `BaseDataset.infer_signature`: with mean and deviation of the targets of the training samples."""
        signature = super().infer_signature(splits, model)
        return with_target_scale(signature, targets_of(splits.train), self.target_names)

    def check_compatible(self, signature: Signature, before: Signature, source: str) -> None:
        """See `BaseDataset.check_compatible`: the scale of the targets must be the same."""
        super().check_compatible(signature, before, source)
        require_same_scale(signature, before, source)

    def remark(self, signature: Signature, splits: Splits) -> str:
        """See `BaseDataset.remark`: with the scale of the targets, and the errors of predicting their mean."""
        remarks = [super().remark(signature, splits), target_remark(signature, targets_of(splits.val))]
        return "; ".join(filter(None, remarks))


@runtime_checkable
class NamedTarget(Protocol):
    """Dataset that knows the column of its only target."""

    @property
    def target_column(self) -> str:
        """Returns the name of the column; empty if it was found by the data, or if there are several."""


def target_column_of(dataset: BaseDataset) -> str:
    """Returns the column of the only target of a dataset; empty if the dataset names none."""
    return dataset.target_column if isinstance(dataset, NamedTarget) else ""


def targets_of(samples: Samples) -> np.ndarray:
    """Returns the number of each sample of a split of `NumberTargets`, (N,), or of several targets (N, T)."""
    targets: np.ndarray = samples.read_labels()  # type: ignore[attr-defined]  # see `NumberTargets`
    return targets
