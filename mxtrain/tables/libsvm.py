"""Files of libsvm and libffm: a target, and features by index."""

from __future__ import annotations

from typing import ClassVar, Dict, Mapping, Optional, Sequence, Tuple

from mxtrain.data.base import Samples, Splits
from mxtrain.data.checking.problems import STRICT, Findings
from mxtrain.data.features.feature_columns import FeatureColumn, FeatureColumns
from mxtrain.data.features.feature_rows import FeatureRows
from mxtrain.data.features.feature_store import open_inputs
from mxtrain.data.signature import Signature
from mxtrain.tables.feature_dataset import FeatureDataset
from mxtrain.tables.feature_files import Names, files_of, open_all
from mxtrain.tables.indexed_rows import IndexedRows, measure_indexed, open_indexed
from mxtrain.types import BatchSize, OpenFraction, Positive


class Libsvm(FeatureDataset):
    """A line for each row: `target index:value ...` (libsvm), or `target field:index:value ...` (libffm, whose fields
    are not used).

    Targets are 0 or -1, and 1. Values enter as they are.
    """

    sample_type: ClassVar[str] = "indexed_features"
    model_hints: ClassVar[Mapping[str, str]] = dict.fromkeys(("", "tabular"), "model=factorization_machine")
    model_option: ClassVar[str] = "factorization_machine"
    exported_reader: ClassVar[str] = "mxtrain.tables.exported_indexed"

    train: Names = None
    """File of training rows, or a list of files; names may end in .gz."""
    val: Names = None
    """File or files of validation rows; null = val_fraction of the training rows."""
    test: Names = None
    """File or files of test rows; null = test_fraction of the training rows."""
    max_features: Optional[Positive] = None
    """Maximum number of features of a row; further ones are dropped; null = as many as the longest training row has, at
    most 10,000."""
    max_index: Positive = 10_000_000
    """Largest allowed index; the network has an embedding for each index up to the largest one in the data."""
    largest_batch: ClassVar[int] = 256
    batch_size: BatchSize = "auto"
    """Samples per optimizer step, over all devices and workers together; auto = 256, or fewer where there are few
    samples."""
    eval_batch_size: Positive = 1024
    val_fraction: OpenFraction = 0.15
    """Share of the training rows held out for validation where there is no file of them."""
    test_fraction: OpenFraction = 0.15
    """Share of the training rows held out for testing where there is no file of them."""

    def open(self) -> Splits:
        """See `BaseDataset.open`."""
        return self.examine(STRICT)

    def examine(self, findings: Findings) -> Splits:
        """See `BaseDataset.examine`."""
        files = files_of(self.train, self.val, self.test, findings)
        stores = open_all(files, lambda path: open_indexed(path, True, findings), findings)
        rows = {name: IndexedRows(stores_of_split) for name, stores_of_split in stores.items()}  # type: ignore[arg-type]  # rows of their own
        return self.split(f"dataset.train={files['train'][0]}", ("0", "1"), self._measure, **rows)

    def _measure(self, rows: FeatureRows) -> FeatureColumns:
        num_ids, length = measure_indexed(rows, self.max_features, self.max_index)
        return FeatureColumns((FeatureColumn("features", "indexed", buckets=num_ids, length=length),))

    def open_inputs(
        self, names: Sequence[str], signature: Signature, skip_unreadable: bool, unreadable: Dict[int, str]
    ) -> Tuple[Samples, Sequence[str]]:
        """Opens all rows of the files, with or without targets; a source location is `file:line`."""
        stores, places = open_inputs(names, lambda path: open_indexed(path, False), skip_unreadable, unreadable)
        return IndexedRows(stores), places  # type: ignore[arg-type]  # rows of their own
