"""Rows of a table that have any number of classes each.

Legend: N samples, B batch, R rows of a file, K classes, V codes.
"""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence, Union

import numpy as np

from mxtrain.data.features.feature_rows import FeatureRows
from mxtrain.data.features.feature_store import FeatureStore
from mxtrain.data.table.class_sets import YES_NO, SetColumns, shown_names, split_names
from mxtrain.errors import DataError, did_you_mean

CLASS_KEY = "\0class "
"""Beginning of the keys of class columns among the columns of a store; no column can have such a name."""


class ClassSetRows(FeatureRows):
    """Rows with any number of classes each.

    Args:
        stores: stores of files, which have the columns of classes.
        found: these columns.
        row_N: row numbers; None = all.
    """

    def __init__(self, stores: Sequence[FeatureStore], found: SetColumns, row_N: Optional[np.ndarray] = None) -> None:
        super().__init__(stores, row_N)
        self._found = found
        self._sets: Dict[int, np.ndarray] = {}

    def take(self, indices: Union[Sequence[int], np.ndarray]) -> FeatureRows:
        """Returns some of the rows; those beyond the end are left out."""
        return ClassSetRows(self.stores, self._found, super().take(indices).row_N)

    def labels(self, index_B: np.ndarray) -> np.ndarray:
        """Returns the classes of each sample, (B, K) int32."""
        set_BK = np.zeros((len(index_B), len(self._found.class_names)), np.int32)
        for store, position, row in self.by_store(index_B):
            set_BK[position] = self._labels_of(store, row)
        return set_BK

    def read_labels(self) -> np.ndarray:
        """Returns the classes of all rows, (N, K) int32."""
        return self.labels(np.arange(len(self)))

    def _labels_of(self, store: FeatureStore, row_B: np.ndarray) -> np.ndarray:
        code_BC = store.code_RF[row_B][:, [store.codes.index(CLASS_KEY + name) for name in self._found.columns]]
        if self._found.delimiter is not None:
            return self._sets_of(store)[code_BC[:, 0]]
        columns = zip(self._found.columns, code_BC.T)
        return np.stack([_yes_no_of(store, name)[code_B] for name, code_B in columns], axis=1) > 0

    def _sets_of(self, store: FeatureStore) -> np.ndarray:
        """Returns the classes of each code of a column of names, (V, K); the first code is an empty cell."""
        if id(store) not in self._sets:
            texts: List[str] = ["", *store.texts[CLASS_KEY + self._found.columns[0]]]
            set_VK = np.zeros((len(texts), len(self._found.class_names)), np.int32)
            assert self._found.delimiter is not None
            for code, text in enumerate(texts):
                for name in split_names(text, self._found.delimiter):
                    if name in self._found.class_names:
                        set_VK[code, self._found.class_names.index(name)] = 1
            self._sets[id(store)] = set_VK
        return self._sets[id(store)]

    def require_known(self) -> None:
        """Checks the classes of all rows of the files.

        Raises:
            DataError: a class is unknown, or a cell is neither 0 nor 1.
        """
        names = self._found.class_names
        for store in self.stores:
            for column in self._found.columns:
                code_R = store.code_RF[:, store.codes.index(CLASS_KEY + column)]
                if self._found.delimiter is None:
                    wrong = np.flatnonzero(_yes_no_of(store, column)[code_R] < 0)
                    if len(wrong):
                        text = ["", *store.texts[CLASS_KEY + column]][code_R[wrong[0]]]
                        shown = f"'{text:.40}'" if text else "empty or a missing value"
                        location = store.locations(wrong[:1])[0]
                        raise DataError(f"{location}: '{column}' is {shown}; allowed are 0 and 1.")
                    continue
                for code, text in enumerate(store.texts[CLASS_KEY + column], start=1):
                    unknown = [name for name in split_names(text, self._found.delimiter) if name not in names]
                    if unknown:
                        location = store.locations(np.flatnonzero(code_R == code)[:1])[0]
                        if not unknown[0]:
                            raise DataError(f"{location}: '{column}' is {shown_names(text)}, with an empty name.")
                        raise DataError(
                            f"{location} has the class '{unknown[0]:.60}'.{did_you_mean(unknown[0], names)} Classes of "
                            f"the training rows are {', '.join(names[:20])}."
                        )


def _yes_no_of(store: FeatureStore, column: str) -> np.ndarray:
    """Returns the value of each code of a column of 0 and 1, (V,): -1 for other texts and for an empty cell."""
    texts = store.texts[CLASS_KEY + column]
    return np.array([-1, *(YES_NO.get(text.strip().lower(), -1) for text in texts)])
