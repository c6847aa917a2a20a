"""Base of datasets of features in files: which files, what becomes of their columns, and files to predict for."""

from __future__ import annotations

from functools import partial
from typing import Callable, ClassVar, Collection, Dict, List, Mapping, Sequence, Tuple, TypeVar, Union

from mxtrain.data.base import BaseDataset, Samples, Splits
from mxtrain.data.checking.problems import STRICT, DataPlace, Findings, NoUsableSamples, attempt
from mxtrain.data.features.feature_columns import Kind
from mxtrain.data.features.feature_rows import FeatureRows
from mxtrain.data.features.feature_statistics import WantedColumn, build_columns
from mxtrain.data.features.feature_store import FeatureLayout, FeatureStore, open_inputs, open_store
from mxtrain.data.features.signature import FeatureSignature
from mxtrain.data.loading.regular_files import refuse_shared
from mxtrain.data.signature import Signature
from mxtrain.data.table.columns import require_file
from mxtrain.errors import ConfigError, DataError
from mxtrain.tables.feature_dataset import FeatureDataset
from mxtrain.types import BatchSize, OpenFraction, PathText, Positive

OF_THE_COLUMNS = ("columns", "others", "buckets", "min_count", "categories")
"""Settings that decide what the columns of a network are."""
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

    def wanted(self, path: str) -> Sequence[WantedColumn]:
        """Returns the columns of the network, as the description and the first training file say.

        Raises:
            DataError: the file lacks a column that the description names.
        """
        raise NotImplementedError

    def layout(self, path: str, columns: Sequence[Tuple[str, Kind]], with_target: bool) -> FeatureLayout:
        """Chooses the layout by which a file with columns of these names and kinds is read.

        Raises:
            DataError: the file is none of this format.
        """
        raise NotImplementedError

    def described(self, path: str) -> FeatureFiles:
        """This dataset with what it leaves open looked up in the first training file.

        Raises:
            DataError: the file does not say it.
        """
        return self

    def class_names(self) -> Tuple[str, str]:
        """Names of the targets 0 and 1."""
        return ("0", "1")

    def open(self) -> Splits:
        """See `BaseDataset.open`."""
        return self.examine(STRICT)

    def examine(self, findings: Findings) -> Splits:
        """See `BaseDataset.examine`."""
        files = files_of(self.train, self.val, self.test, findings)
        own = self.described(files["train"][0])
        wanted = own.wanted(files["train"][0])
        columns = [(column.name, column.read_kind) for column in wanted]
        stores = open_all(files, lambda path: own._open(path, columns, findings), findings)
        return self.split(
            f"dataset.train={files['train'][0]}", own.class_names(),
            lambda rows: build_columns(rows.stores, rows.row_N, wanted),
            **{name: FeatureRows(some) for name, some in stores.items()},
        )  # fmt: skip

    def _open(self, path: str, columns: Sequence[Tuple[str, Kind]], findings: Findings) -> FeatureStore:
        return open_store(path, self.layout(path, columns, True), findings)

    def restored(self, given: Signature, typed: Collection[str], source: str) -> Tuple[BaseDataset, Signature]:
        for setting in typed:
            if setting.split(".")[:2] in (["dataset", name] for name in OF_THE_COLUMNS):
                raise ConfigError(f"{setting}: {source} keeps its columns as it was trained with them. Leave it out.")
        return self, given

    def open_inputs(
        self, names: Sequence[str], signature: Signature, skip_unreadable: bool, unreadable: Dict[int, str]
    ) -> Tuple[Samples, Sequence[str]]:
        """Returns all rows of the files; a place is `file:line`, or `file:record` of Parquet."""
        columns = [(column.name, column.kind) for column in FeatureSignature.cast(signature).columns.columns]
        stores, places = open_inputs(
            names, lambda path: open_store(path, self.layout(path, columns, False)), skip_unreadable, unreadable
        )
        return FeatureRows(stores), places


def files_of(train: Names, val: Names, test: Names, findings: Findings) -> Dict[str, List[str]]:
    """Returns the files of each split that has some.

    Raises:
        DataError: no training file is named, or one is not there.
    """
    if not train:
        raise DataError("dataset.train: name the file of training rows, e.g. dataset.train=train.csv.")
    named = {"train": train, "val": val, "test": test}
    files = {name: [given] if isinstance(given, str) else given for name, given in named.items() if given}
    for paths in files.values():
        for path in paths:
            require_file(path)
    refuse_shared(files, findings)
    return files


def open_all(
    files: Mapping[str, Sequence[str]], open_one: Callable[[str], Store], findings: Findings
) -> Dict[str, List[Store]]:  # fmt: skip
    """Returns the rows of all files of each split.

    Raises:
        DataError: a file cannot be read; `NoUsableSamples` where that was said.
    """
    found = {name: [attempt(findings, DataPlace(path), partial(open_one, path)) for path in paths]
             for name, paths in files.items()}  # fmt: skip
    stores = {name: [store for store in some if store is not None] for name, some in found.items()}
    if any(len(stores[name]) < len(files[name]) for name in files):
        raise NoUsableSamples(f"dataset.train={files['train'][0]}: a table cannot be read.")
    return stores
