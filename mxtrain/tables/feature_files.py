"""Base class of datasets of features in files."""

from __future__ import annotations

from functools import partial
from typing import Callable, ClassVar, Collection, Dict, List, Mapping, Sequence, Tuple, TypeVar, Union

import pydantic

from mxtrain.data.checking.problems import DataLocation, Findings, NoUsableSamples, call_or_report
from mxtrain.data.features.feature_columns import Kind
from mxtrain.data.features.feature_rows import FeatureRows
from mxtrain.data.features.feature_statistics import ColumnSettings, build_columns
from mxtrain.data.features.feature_store import FeatureLayout, FeatureStore, open_inputs, open_store
from mxtrain.data.features.signature import FeatureSignature
from mxtrain.data.loading.dataset_files import refuse_shared
from mxtrain.data.signature import Signature
from mxtrain.data.spec import BaseDataset, Samples, Splits
from mxtrain.data.table.columns import require_file
from mxtrain.errors import ConfigError, DataError
from mxtrain.tables.feature_dataset import FeatureDataset
from mxtrain.types import BatchSize, OpenFraction, PathText, Positive

COLUMN_SETTINGS = ("columns", "others", "buckets", "min_count", "categories")
"""Settings that determine the columns of a network; the checkpoint stores the result."""
Store = TypeVar("Store")
Names = Union[None, PathText, List[PathText]]


class FeatureFiles(FeatureDataset):
    """Features in files, each of which is prepared once."""

    train: Names = None
    """File of training rows, or a list of files."""
    val: Names = None
    """File or files of validation rows; null = val_fraction of the training rows."""
    test: Names = None
    """File or files of test rows; null = test_fraction of the training rows."""
    buckets: Positive = 1000
    """Number of ids of a hashed column: the id of a value is crc32(value) modulo this."""
    min_count: Positive = 1
    """Minimum number of training rows with a value of a category for the value to get its own id."""
    largest_batch: ClassVar[int] = 256
    batch_size: BatchSize = "auto"
    """Samples per optimizer step, over all devices and workers together; auto = 256, or fewer where there are few
    samples."""
    eval_batch_size: Positive = 1024
    val_fraction: OpenFraction = 0.15
    """Share of the training rows held out for validation where there is no file of them."""
    test_fraction: OpenFraction = 0.15
    """Share of the training rows held out for testing where there is no file of them."""

    _canonical: bool = pydantic.PrivateAttr(True)
    """See `FeatureColumn.canonical`; False for networks that were trained by earlier versions."""

    def column_settings(self, path: str) -> Sequence[ColumnSettings]:
        """Returns the columns of the network, given by the settings and by the first training file.

        Raises:
            DataError: the file lacks a column that a setting names.
        """
        raise NotImplementedError

    def layout(self, path: str, columns: Sequence[Tuple[str, Kind]], with_target: bool) -> FeatureLayout:
        """Returns the layout with which a file is read.

        Args:
            path: path of the file.
            columns: names and kinds of the columns.
            with_target: True to read targets.

        Raises:
            DataError: the file has another format.
        """
        raise NotImplementedError

    def resolved(self, path: str) -> FeatureFiles:
        """Returns this dataset with settings of "auto" replaced by values from the first training file.

        Raises:
            DataError: the file does not determine a value.
        """
        return self

    def class_names(self) -> Tuple[str, ...]:
        """Returns the names of the targets from 0 on; empty if the target is a number."""
        return ("0", "1")

    def examine(self, findings: Findings) -> Splits:
        """See `BaseDataset.examine`."""
        files = files_of(self.train, self.val, self.test, findings)
        dataset = self.resolved(files["train"][0])
        settings = [
            column._replace(canonical=self._canonical and column.kind == "hashed")
            for column in dataset.column_settings(files["train"][0])
        ]
        columns = [(column.name, column.read_kind) for column in settings]
        stores = open_all(files, lambda path: dataset._open(path, columns, findings), findings)
        return self.split(
            f"dataset.train={files['train'][0]}",
            dataset.class_names(),
            lambda rows: build_columns(rows.stores, rows.row_N, settings),
            **{name: dataset.rows_of(stores_of_split) for name, stores_of_split in stores.items()},
        )

    def rows_of(self, stores: Sequence[FeatureStore]) -> FeatureRows:
        """Returns the rows of files with their targets."""
        return FeatureRows(stores)

    def _open(self, path: str, columns: Sequence[Tuple[str, Kind]], findings: Findings) -> FeatureStore:
        return open_store(path, self.layout(path, columns, True)._replace(canonical=self._canonical), findings)

    def restored(self, signature: Signature, overrides: Collection[str], source: str) -> Tuple[BaseDataset, Signature]:
        for setting in overrides:
            if setting.split(".")[:2] in (["dataset", name] for name in COLUMN_SETTINGS):
                raise ConfigError(f"{setting}: {source} keeps its columns as it was trained with them. Leave it out.")
        restored = self.model_copy()
        columns = FeatureSignature.cast(signature).columns.columns
        restored._canonical = all(column.canonical for column in columns if column.kind == "hashed")
        return restored, signature

    def open_inputs(
        self, names: Sequence[str], signature: Signature, skip_unreadable: bool, unreadable: Dict[int, str]
    ) -> Tuple[Samples, Sequence[str]]:
        """Opens all rows of the files; a source location is `file:line`, or `file:record` for Parquet."""
        columns = [(column.name, column.kind) for column in FeatureSignature.cast(signature).columns.columns]
        stores, locations = open_inputs(
            names,
            lambda path: open_store(path, self.layout(path, columns, False)._replace(canonical=self._canonical)),
            skip_unreadable,
            unreadable,
        )
        return FeatureRows(stores), locations


def files_of(train: Names, val: Names, test: Names, findings: Findings) -> Dict[str, List[str]]:
    """Returns the files of each split that has files.

    Raises:
        DataError: no training file is named, or a file is missing.
    """
    if not train:
        raise DataError("dataset.train: name the file of training rows, e.g. dataset.train=train.csv.")
    settings = {"train": train, "val": val, "test": test}
    files = {name: [paths] if isinstance(paths, str) else paths for name, paths in settings.items() if paths}
    for paths in files.values():
        for path in paths:
            require_file(path)
    refuse_shared(files, findings)
    return files


def open_all(
    files: Mapping[str, Sequence[str]], open_one: Callable[[str], Store], findings: Findings
) -> Dict[str, List[Store]]:
    """Opens all files of each split.

    Raises:
        DataError: a file cannot be read; `NoUsableSamples` if the findings already have the reason.
    """
    opened = {
        name: [call_or_report(findings, DataLocation(path), partial(open_one, path)) for path in paths]
        for name, paths in files.items()
    }
    stores = {name: [store for store in split_stores if store is not None] for name, split_stores in opened.items()}
    if any(len(stores[name]) < len(files[name]) for name in files):
        raise NoUsableSamples(f"dataset.train={files['train'][0]}: a table cannot be read.")
    return stores
