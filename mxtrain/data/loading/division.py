"""Divides samples into training, validation and test samples."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional, Tuple, TypeVar

from mxtrain.data.loading.folds import Fold, split_fold
from mxtrain.data.loading.splitting import split_indices

if TYPE_CHECKING:
    import numpy as np

Part = TypeVar("Part")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Division:
    """Settings by which a dataset divides its samples.

    Attributes:
        val_fraction, test_fraction: shares of samples that are held out if the format has no such split.
        seed: seed of the choice.
        fold: the fold that is the validation split; None = there are no folds.
    """

    val_fraction: float
    test_fraction: float
    seed: int
    fold: Optional[Fold] = None

    def divide(
        self,
        label_N: np.ndarray,
        has_val: bool = False,
        has_test: bool = False,
        group_N: Optional[np.ndarray] = None,
        unit_N: Optional[np.ndarray] = None,
    ) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the ascending indices of the training, validation and test samples among those for training.

        Args:
            label_N: class indices; all equal if samples have no class.
            has_val, has_test: True if the dataset has its own samples for that split, so that none are held out. With
                folds, its own validation split counts as well: test samples are then the same as without folds.
            group_N: number of the group of each sample, if the groups of the folds come from columns.
            unit_N: number of the unit of each sample, whose samples stay together, such as the slices of a volume. A
                unit counts once, with the class of its first sample; None: each sample is a unit.

        Raises:
            ConfigError, DataError: the samples cannot be divided into these folds.
        """
        if unit_N is not None:
            import numpy as np

            units, first_U = np.unique(unit_N, return_index=True)
            parts = self.divide(label_N[first_U], has_val, has_test)
            in_train, in_val, in_test = (np.flatnonzero(np.isin(unit_N, units[part])) for part in parts)
            return in_train, in_val, in_test
        val_fraction = 0.0 if has_val else self.val_fraction
        test_fraction = 0.0 if has_test else self.test_fraction
        if self.fold is None:
            return split_indices(label_N, val_fraction, test_fraction, self.seed)
        return split_fold(label_N, self.fold, val_fraction, test_fraction, self.seed, group_N)

    def own_validation(self, val: Optional[Part]) -> Optional[Part]:
        """Returns the validation samples of the dataset's own split; None if there is none or a fold replaces it.

        `has_val` of `divide` is True for a split that existed before this call, also if a fold replaces it.
        """
        if val is not None and self.fold is not None:
            log.info("trainer.folds: the folds are made of the training samples, and the validation split is not used")
            return None
        return val
