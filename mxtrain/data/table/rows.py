"""Rows of numbers as a source, and batches of them.

Legend: N samples, B batch, F features.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.checking.checks import Checked, Checks, SourceChecks, digest_of
from mxtrain.data.checking.problems import DataLocations
from mxtrain.data.loading.loader import BatchLoader, LoaderOptions
from mxtrain.data.signature import Signature

if TYPE_CHECKING:
    from mxtrain.data.loading.placing import HostArrays


class RowChecks(SourceChecks):
    """Checks of `Rows`. Cells that are no numbers were found when the table was read, so rows are only compared."""

    def check(self, index: int) -> Checked:
        """See `Checks`."""
        rows = self._source
        if rows.have_ids:
            return Checked()
        return Checked(digest=digest_of(rows.value_NF[index].tobytes(), rows.target_N[index].tobytes()))


class Rows:
    """Rows of numbers.

    Args:
        value_NF: features; NaN where missing.
        target_N: targets; None if unknown.
        locations: source location of each, for messages.
        have_ids: whether each has an id of its own, so that rows of the same numbers are different ones.
        weight_N: weight of each; None: all count equally.
    """

    def __init__(
        self,
        value_NF: np.ndarray,
        target_N: Optional[np.ndarray] = None,
        locations: Optional[DataLocations] = None,
        have_ids: bool = False,
        weight_N: Optional[np.ndarray] = None,
    ) -> None:
        self.locations, self.have_ids = locations, have_ids
        self.weight_N = None if weight_N is None else weight_N.astype(np.float32)
        self.value_NF = value_NF.astype(np.float32)
        self.target_N = np.full(len(value_NF), np.nan, np.float32) if target_N is None else target_N.astype(np.float32)

    def __len__(self) -> int:
        return len(self.value_NF)

    def take(self, indices: Sequence[int]) -> Rows:
        """Returns some of the rows; those beyond the end are left out."""
        kept = np.array([index for index in indices if index < len(self)], np.int64)
        return Rows(
            self.value_NF[kept],
            self.target_N[kept],
            self.locations and self.locations.take(kept),
            self.have_ids,
            None if self.weight_N is None else self.weight_N[kept],
        )

    def checks(self) -> Checks:
        """Checks of each row for `data check`."""
        return RowChecks(self, self.locations)


class RowLoader(BatchLoader):
    """Batches of rows, each feature with mean 0 and standard deviation 1 in training, on one device. A missing feature
    is its mean.

    Args:
        source: rows.
        signature: means and deviations.
        options: options of all loaders.
    """

    def __init__(self, source: Rows, signature: Signature, options: LoaderOptions) -> None:
        super().__init__(len(source), options)
        self._source = source
        self._mean_F, self._std_F = (np.asarray(values, np.float32) for values in (signature.mean, signature.std))

    def _read_share(self, share_B: np.ndarray, index_B: np.ndarray, epoch: int) -> Tuple[HostArrays, HostArrays]:
        value_BF = (self._source.value_NF[share_B] - self._mean_F) / self._std_F
        # 0 is the mean in standardised units.
        value_BF[np.isnan(value_BF)] = 0.0
        weight_N = self._source.weight_N
        return (value_BF,), (self._source.target_N[share_B], *([] if weight_N is None else [weight_N[share_B]]))
