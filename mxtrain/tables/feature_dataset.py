"""Base of datasets of features and a target: a class or a number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, ClassVar, List, Literal, Optional, Sequence, Tuple, Type

import numpy as np

from mxtrain.data.features.feature_rows import FeatureLoader, FeatureRows
from mxtrain.data.features.feature_store import FeatureLayout, FeatureStore, ReadColumn, store_rows
from mxtrain.data.features.signature import FeatureSignature, FeatureSplits
from mxtrain.data.loading.splitting import refuse_empty
from mxtrain.data.loading.target_scale import require_same_scale, target_remark, with_target_scale
from mxtrain.data.predict_inputs import rows_from
from mxtrain.data.signature import Signature
from mxtrain.data.spec import BaseDataset, Samples, Splits
from mxtrain.data.table.columns import ROWS
from mxtrain.data.table.dates import shown_feature, split_feature
from mxtrain.data.table.groups import read_groups
from mxtrain.errors import CheckpointError, ConfigError, run_dir_setting
from mxtrain.types import MAX_COUNT
from mxtrain.types.kinds import Gives, RowClass, TableFeatures

if TYPE_CHECKING:
    from mxtrain.data.features.feature_columns import FeatureColumns
    from mxtrain.data.loading.loader import BatchLoader, LoaderOptions
    from mxtrain.model.spec import Model

MAX_NAMED = 12
"""Maximum number of columns that a message lists by name."""


class FeatureDataset(BaseDataset):
    """Rows of categories and numbers with a class as target, or with a number if `target_is_number`."""

    signature_class: ClassVar[Type[Signature]] = FeatureSignature
    gives: ClassVar[Gives] = Gives(TableFeatures, RowClass)
    folds_by: ClassVar[Literal["", "samples", "columns"]] = "samples"

    def samples_from(self, value: Any, signature: Signature) -> Samples:
        """Returns rows to predict for, in memory: dicts from column to value, or a data frame of pandas. None and NaN
        are missing values."""
        columns = FeatureSignature.cast(signature).columns.columns
        if any(column.kind == "indexed" for column in columns):  # without names
            return super().samples_from(value, signature)
        read = [ReadColumn(column.name, column.kind, split_feature(column.name)[0]) for column in columns]
        layout = self.layout_of_rows(tuple(read))
        is_canonical = all(column.canonical for column in columns if column.kind == "hashed")
        return FeatureRows([store_rows(rows_from(value, ROWS), layout._replace(canonical=is_canonical))])

    def layout_of_rows(self, columns: Tuple[ReadColumn, ...]) -> FeatureLayout:
        """Returns how cells of rows without a target are parsed."""
        return FeatureLayout(columns, None, () if self.target_is_number else ("0", "1"))

    @property
    def target_is_number(self) -> bool:
        """Returns True if the target is a number, False if it is a class."""
        return False

    @property
    def target_names(self) -> Sequence[str]:
        """Returns the names of several targets that are numbers; empty if there is one target."""
        return ()

    def split(
        self,
        origin: str,
        class_names: Sequence[str],
        measure: Callable[[FeatureRows], FeatureColumns],
        train: FeatureRows,
        val: Optional[FeatureRows] = None,
        test: Optional[FeatureRows] = None,
    ) -> Splits:
        """Returns the splits. Missing ones are held out from the training rows, with the same share of each class.

        Args:
            origin: name of the data, for messages.
            class_names: names of the targets from 0 on; empty if the target is a number.
            measure: function that computes the columns of the network from the training rows.
            train, val, test: rows of files; None = no file.

        Raises:
            DataError: no rows are left for training or validation.
        """
        groups = None
        fold = self.division.fold
        if fold is not None and fold.groups is not None:
            groups = read_groups(fold.groups, [store.locations(np.arange(len(store))) for store in train.stores])
        # Numbers, and sets of classes, have no classes whose shares the parts should keep.
        label_N = train.read_labels()
        label_N = np.zeros(len(train), np.int32) if self.target_is_number or label_N.ndim > 1 else label_N
        parts = self.division.divide(label_N, val is not None, test is not None, groups)
        val = self.division.own_validation(val)
        train_rows = train if len(parts[0]) == len(train) else train.take(parts[0])
        val = train.take(parts[1]) if val is None else val
        test = train.take(parts[2]) if test is None and len(parts[2]) else test
        refuse_empty(origin, len(train_rows), len(val), self.val_fraction)
        return FeatureSplits(train_rows, val, test, list(class_names), build_columns=lambda: measure(train_rows))

    def infer_signature(self, splits: Splits, model: Model) -> Signature:
        columns = FeatureSplits.cast(splits).build_columns()
        if sum(columns.field_sizes) > MAX_COUNT:
            raise ConfigError(
                f"dataset: the fields have {sum(columns.field_sizes):,} ids together, and MXNet 1.9.1 counts to "
                f"{MAX_COUNT:,}. Choose fewer dataset.buckets, or a larger dataset.min_count."
            )
        signature = FeatureSignature(columns.shapes, class_names=list(splits.class_names), columns=columns)
        if not self.target_is_number:
            return signature
        target_N = splits.train.read_labels()  # type: ignore[attr-defined]  # `FeatureRows`
        return with_target_scale(signature, target_N, self.target_names)

    def check_compatible(self, signature: Signature, before: Signature, source: str) -> None:
        columns, trained_columns = FeatureSignature.cast(signature).columns, FeatureSignature.cast(before).columns
        if columns != trained_columns:
            names = [column.name for column in columns.columns]
            changed = [column.name for column in trained_columns.columns if column not in columns.columns] or names
            raise CheckpointError(
                f"{source} was trained with other columns than there are now, or with other values in them: "
                f"{', '.join(map(shown_feature, changed[:MAX_NAMED]))}. Give it the data and the settings of dataset "
                f"that it was trained with, or choose another {run_dir_setting()}: means, deviations and vocabularies "
                "are measured anew."
            )
        if self.target_is_number:
            require_same_scale(signature, before, source)

    def remark(self, signature: Signature, splits: Splits) -> str:
        columns = FeatureSignature.cast(signature).columns
        parts = []
        if columns.num_indices is not None:
            parts.append(f"up to {columns.columns[0].length} of {columns.num_indices:,} features by index")
        elif columns.fields:
            parts.append(_named("categories", [f"{column.name}: {column.num_ids:,} ids" for column in columns.fields]))
        if columns.numbers:
            parts.append(_named("numbers", [shown_feature(column.name) for column in columns.numbers]))
        added = sum(column.indicator for column in columns.numbers)
        parts += [f"{added} further to say where a number is missing"] if added else []
        return f"rows of {', '.join(parts)}; {self._target_remark(signature, splits)}"

    def _target_remark(self, signature: Signature, splits: Splits) -> str:
        if self.target_is_number:
            return target_remark(signature, splits.val.read_labels())  # type: ignore[attr-defined]  # `FeatureRows`
        label_N = splits.train.read_labels()  # type: ignore[attr-defined]  # they are `FeatureRows`
        names = splits.class_names
        count_K = np.bincount(label_N, minlength=len(names))
        warning = ", so there is nothing to tell apart" if count_K.max() == len(label_N) else ""
        shown = [1] if len(names) == 2 else list(range(min(len(names), MAX_NAMED)))
        shares = [f"{count_K[label] / len(label_N):.2%} {names[label]}" for label in shown]
        more = ", ..." if len(names) > MAX_NAMED else ""
        return f"of {len(label_N):,} training rows {', '.join(shares)}{more}{warning}"

    def build_loader(  # type: ignore[override]  # of its own samples
        self, source: FeatureRows, signature: Signature, options: LoaderOptions
    ) -> BatchLoader:
        return FeatureLoader(source, signature, options)


def _named(kind: str, names: List[str]) -> str:
    return f"{len(names)} {kind}" + (f" ({', '.join(names)})" if len(names) <= MAX_NAMED else "")


def build_store(name: str, numbers: Sequence[str], value_RN: np.ndarray, label_R: np.ndarray) -> FeatureStore:
    """Builds a store from arrays in memory.

    Args:
        name: key of the store, which identifies its content.
        numbers: names of the columns.
        value_RN: numbers.
        label_R: targets: class indices, int32, or numbers, float64.
    """
    count = len(label_R)
    empty = np.empty((count, 0), np.uint32)
    return FeatureStore(name, numbers, (), value_RN.astype(np.float32), empty, label_R)


def with_numeric_target(dataset: FeatureDataset, numeric_class: Type[FeatureDataset]) -> FeatureDataset:
    """Returns a dataset with the same settings whose target is a number.

    Args:
        dataset: dataset with a setting `classes`.
        numeric_class: class of the result.

    Raises:
        ConfigError: classes are given.
    """
    classes = dataset.classes  # type: ignore[attr-defined]
    if classes != "auto":
        raise ConfigError(
            f"dataset.classes={classes}: task=regression predicts a number. Type task=tabular, or leave "
            "dataset.classes out."
        )
    return dataset.as_class(numeric_class)
