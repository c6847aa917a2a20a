"""Weights of samples that are rows of tables; see `data.sample_weights`.

Legend: N samples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, List, Mapping, Optional

import numpy as np

from mxtrain.data.checking.problems import NOT_A_NUMBER, DataLocations, Findings, Problem
from mxtrain.data.sample_weights import (
    SETTING,
    refuse_weight_without_file,
    require_some_weight,
    weights_of,
    weights_remark,
    wrong_weights,
)
from mxtrain.data.signature import Signature
from mxtrain.data.spec import Samples, Splits
from mxtrain.data.table.cells import MISSING_CELLS, read_numbers
from mxtrain.data.table.column_kinds import header_of, silent_rows

if TYPE_CHECKING:
    from mxtrain.data.sample_weights import WeightedDataset

    Base = WeightedDataset
else:
    Base = object  # as a model, its inherited fields would replace those of the dataset


class WeightedRows(Base):
    """Weights of images or texts that a table lists: a column of the table.

    Classes derive from it first, from the dataset of the samples second, and from `WeightedDataset` last.
    """

    def remark(self, signature: Signature, splits: Splits) -> str:
        """See `BaseDataset.remark`: with the range of the weights."""
        weight_N = weights_of(splits.train)
        weights = "" if weight_N is None else weights_remark(str(self.weight), weight_N)
        return "; ".join(filter(None, [super().remark(signature, splits), weights]))

    def read_weights(
        self, locations: Optional[DataLocations], decimal: str, findings: Findings
    ) -> Optional[np.ndarray]:
        """Returns the weight of each sample, (N,) float32; None if there are none.

        Args:
            locations: source locations of the samples; None = they come from no file.
            decimal: decimal sign.
            findings: collects rows without a weight, which become 0.

        Raises:
            ConfigError: the samples come from no file.
            DataError: the file has no such column.
        """
        if self.weight is None:
            return None
        if locations is None:
            refuse_weight_without_file(self)
        assert locations is not None
        if not len(locations.number_N):
            return np.zeros(0, np.float32)
        texts = [""] * len(locations.number_N)
        for path, index_N in locations.by_file():
            header_of(path, [self.weight], SETTING)
            cells = silent_rows(path, [self.weight], MISSING_CELLS[:1], decimal=decimal)
            text_of: Dict[int, str] = {line: row[0].strip() for line, row in cells}
            for index in index_N.tolist():
                texts[index] = text_of.get(int(locations.number_N[index]), "")
        value_N = read_numbers(texts, MISSING_CELLS, decimal).value_R
        problems: List[Problem] = []
        for row, reason in wrong_weights(value_N, texts):
            fact = f"{locations[row]}: '{self.weight}' is {reason}."
            problems.append(Problem(NOT_A_NUMBER, locations[row], fact, "Correct the cell."))
            value_N[row] = 0.0
        findings.refuse(*problems)
        return value_N.astype(np.float32)

    def require_some_weights(self, splits: Mapping[str, Optional[Samples]]) -> None:
        """Checks that each split has a sample that counts.

        Args:
            splits: samples of each split, by its name; None = there is no such split.

        Raises:
            DataError: all weights of a split are 0.
        """
        if self.weight is not None:
            weights = {name: None if split is None else weights_of(split) for name, split in splits.items()}
            require_some_weight(self.weight, weights)
