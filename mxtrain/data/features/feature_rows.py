"""Rows of features: data source, encoder and loader.

Legend: N samples, B batch, F fields, M numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple, Union

import numpy as np

from mxtrain.data.checking.checks import Checked, Checks, SourceChecks, digest_of
from mxtrain.data.checking.problems import DataLocation
from mxtrain.data.features.feature_columns import FIRST_BUCKET, MISSING, UNSEEN, FeatureColumns
from mxtrain.data.features.feature_statistics import as_logarithm
from mxtrain.data.features.feature_store import MISSING_CODE, FeatureStore, iterate_rows
from mxtrain.data.features.signature import FeatureSignature
from mxtrain.data.loading.loader import BatchLoader, LoaderOptions
from mxtrain.data.table.cell_text import find_id
from mxtrain.data.table.unseen_values import UnseenValues

if TYPE_CHECKING:
    from mxtrain.data.loading.placing import HostArrays
    from mxtrain.data.signature import Signature

_ROWS_AT_ONCE = 1 << 20


class FeatureRows:
    """Rows of features.

    Args:
        stores: stores of files, whose rows are numbered consecutively.
        row_N: row numbers; None = all.
    """

    def __init__(self, stores: Sequence[FeatureStore], row_N: Optional[np.ndarray] = None) -> None:
        self.stores, self.row_N = stores, row_N
        self._begin_S = np.cumsum([0, *map(len, stores)])

    def __len__(self) -> int:
        return int(self._begin_S[-1]) if self.row_N is None else len(self.row_N)

    def take(self, indices: Union[Sequence[int], np.ndarray]) -> FeatureRows:
        """Returns some of the rows; those beyond the end are left out."""
        kept = np.asarray(indices, np.int64)
        kept = kept[kept < len(self)]
        return FeatureRows(self.stores, kept if self.row_N is None else self.row_N[kept])

    def by_store(self, index_B: np.ndarray) -> List[Tuple[FeatureStore, np.ndarray, np.ndarray]]:
        """Groups samples by store: returns (store, positions in `index_B`, rows in the store) for each store."""
        row_B = index_B if self.row_N is None else self.row_N[index_B]
        store_B = np.searchsorted(self._begin_S, row_B, side="right") - 1
        groups = []
        for number in np.unique(store_B).tolist():
            position = np.flatnonzero(store_B == number)
            groups.append((self.stores[number], position, row_B[position] - self._begin_S[number]))
        return groups

    def labels(self, index_B: np.ndarray) -> np.ndarray:
        """Returns the target of each sample: class indices, int32, or numbers, float64; of several targets (B, T)."""
        first_R = self.stores[0].label_R if self.stores else np.zeros(0, np.int32)
        label_B = np.zeros((len(index_B), *first_R.shape[1:]), first_R.dtype)
        for store, position, row in self.by_store(index_B):
            label_B[position] = store.label_R[row]
        return label_B

    def read_labels(self) -> np.ndarray:
        """Returns the class of each row, for `dataset.sampler`, or its number."""
        none = self.labels(np.arange(0))
        label_N = np.empty((len(self), *none.shape[1:]), none.dtype)
        for begin in range(0, len(self), _ROWS_AT_ONCE):
            index = np.arange(begin, min(begin + _ROWS_AT_ONCE, len(self)))
            label_N[index] = self.labels(index)
        return label_N

    @property
    def have_weights(self) -> bool:
        """Returns True if the rows have weights."""
        return any(store.weight_R is not None for store in self.stores)

    def weights(self, index_B: np.ndarray) -> np.ndarray:
        """Returns the weight of each sample, (B,) float64."""
        weight_B = np.ones(len(index_B))
        for store, position, row in self.by_store(index_B):
            if store.weight_R is not None:
                weight_B[position] = store.weight_R[row]
        return weight_B

    def checks(self) -> Checks:
        """Returns the checks that `data check` runs on each row."""
        return FeatureChecks(self)

    def build_encoder(self, columns: FeatureColumns) -> FeatureEncoder:
        """Builds the encoder that converts rows to inputs of a network."""
        return FeatureEncoder(columns)

    def unseen_sentences(self, columns: FeatureColumns) -> List[str]:
        """Returns a sentence for each column with values that are in no vocabulary; see `UnseenValues`.

        Args:
            columns: columns of the network.
        """
        categories = [column for column in columns.fields if column.kind == "category"]
        if not categories:  # rows of libsvm have no codes
            return []
        unseen = UnseenValues({column.name: column.vocabulary for column in categories})
        for store, row_R in iterate_rows(self.stores, self.row_N if self.row_N is None else np.sort(self.row_N)):
            code_RF = store.code_RF[row_R]
            for column in categories:
                texts = store.texts[column.name]
                count_V = np.bincount(code_RF[:, store.codes.index(column.name)], minlength=len(texts) + 1)
                unseen.count(column.name, None, int(count_V[MISSING_CODE]))
                for code in np.flatnonzero(count_V[1:]).tolist():
                    text = texts[code]
                    is_known = find_id(text, column.id_of) is not None
                    unseen.count(column.name, None if is_known else text, int(count_V[1 + code]))
        return unseen.sentences()


class FeatureChecks(SourceChecks):
    """Checks of `FeatureRows`: cells were looked at when the table was read, so rows are only compared and counted."""

    def location(self, index: int) -> DataLocation:
        """See `Checks`."""
        ((store, _, row),) = self._source.by_store(np.array([index]))
        return store.locations(row)[0]

    def check(self, index: int) -> Checked:
        """See `Checks`. Codes differ between files, so hashes and texts are compared."""
        ((store, _, row),) = self._source.by_store(np.array([index]))
        codes = store.code_RF[row[0]].tolist()
        values = [
            store.texts[name][code - 1] if code and name in store.texts else str(code)
            for name, code in zip(store.codes, codes)
        ]
        label = store.label_R[row]
        classes = label.tolist() if label.dtype.kind == "i" else ()
        if store.have_ids:
            return Checked(classes=classes)
        digest = digest_of(store.number_RN[row[0]].tobytes(), label.tobytes(), *(value.encode() for value in values))
        return Checked(digest=digest, classes=classes)


class FeatureEncoder:
    """Converts rows to ids and numbers.

    Args:
        columns: columns of the network.
    """

    def __init__(self, columns: FeatureColumns) -> None:
        self._columns = columns
        self._begin_F = np.cumsum([0, *columns.field_sizes])[:-1]
        self._lookups: Dict[int, List[Optional[np.ndarray]]] = {}

    def __call__(self, source: FeatureRows, index_B: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
        """Returns the ids (B, F) int32 and the numbers (B, M) float32 of samples; either may have no columns."""
        columns = self._columns
        id_BF = np.zeros((len(index_B), len(columns.fields)), np.int32)
        number_BM = np.zeros((len(index_B), columns.num_numbers), np.float32)
        for store, position, row in source.by_store(index_B):
            if columns.fields:
                id_BF[position] = self._ids(store, row)
            if columns.numbers:
                number_BM[position] = self._numbers(store, row)
        return id_BF, number_BM

    def inputs(self, source: FeatureRows, index_B: np.ndarray) -> List[np.ndarray]:
        """Returns the inputs of a network: ids, numbers, or both."""
        return [array for array in self(source, index_B) if array.shape[1]]

    def design(self, source: FeatureRows, index_B: np.ndarray) -> Any:
        """Returns a sparse matrix (B, ids + M) for linear models: a 1 for each id, and the numbers."""
        from scipy.sparse import csr_matrix, hstack

        id_BF, number_BM = self(source, index_B)
        count, fields = id_BF.shape
        values = np.ones(count * fields)
        shape = (count, sum(self._columns.field_sizes))
        one_hot = csr_matrix((values, id_BF.ravel(), np.arange(count + 1) * fields), shape=shape)
        return hstack([one_hot, csr_matrix(number_BM.astype(np.float64))], format="csr")

    def _ids(self, store: FeatureStore, row_B: np.ndarray) -> np.ndarray:
        lookups = self._lookups_of(store)
        code_BC = store.code_RF[row_B]
        ids = []
        for column, lookup, begin in zip(self._columns.fields, lookups, self._begin_F.tolist()):
            code_B = code_BC[:, store.codes.index(column.name)]
            if lookup is None:
                bucket_B = FIRST_BUCKET + (code_B % column.buckets).astype(np.int64)
                id_B = np.where(code_B == MISSING_CODE, MISSING, bucket_B)
            else:
                id_B = lookup[code_B]
            ids.append(begin + id_B)
        return np.stack(ids, axis=1)

    def _lookups_of(self, store: FeatureStore) -> List[Optional[np.ndarray]]:
        """Returns the id of each code within its field, for each field; None if codes are hashes."""
        # One look-up array for each file: codes number the values in the order of that file.
        lookups = self._lookups.get(id(store))
        if lookups is None:
            lookups = []
            for column in self._columns.fields:
                if column.kind == "hashed":
                    lookups.append(None)
                    continue
                found = (find_id(text, column.id_of) for text in store.texts[column.name])
                ids = [UNSEEN if id_ is None else id_ for id_ in found]
                lookups.append(np.array([MISSING, *ids], np.int64))
            self._lookups[id(store)] = lookups
        return lookups

    def _numbers(self, store: FeatureStore, row_B: np.ndarray) -> np.ndarray:
        # float64 until the end: subtracting a large mean in float32 would leave few digits.
        value_BC = store.number_RN[row_B].astype(np.float64)
        numbers = []
        for column in self._columns.numbers:
            value_B = value_BC[:, store.numbers.index(column.name)]
            is_missing_B = np.isnan(value_B)
            value_B = as_logarithm(value_B) if column.log else value_B
            numbers.append(np.where(is_missing_B, 0.0, (value_B - column.mean) / column.std))
            if column.indicator:
                numbers.append(is_missing_B)
        return np.stack(numbers, axis=1).astype(np.float32)


class FeatureLoader(BatchLoader):
    """Loads batches: ids (B, F) int32 and numbers (B, M) float32, targets (B,) or (B, T), and the weights (B,) of rows
    that have some.

    Args:
        source: rows.
        signature: signature with the columns.
        options: options of all loaders.
    """

    def __init__(self, source: FeatureRows, signature: Signature, options: LoaderOptions) -> None:
        super().__init__(len(source), options)
        self._source = source
        self._encoder = source.build_encoder(FeatureSignature.cast(signature).columns)

    def _read_share(self, share_B: np.ndarray, index_B: np.ndarray, epoch: int) -> Tuple[HostArrays, HostArrays]:
        targets = [self._source.labels(share_B).astype(np.float32)]
        if self._source.have_weights:
            targets.append(self._source.weights(share_B).astype(np.float32))
        return tuple(self._encoder.inputs(self._source, share_B)), tuple(targets)
