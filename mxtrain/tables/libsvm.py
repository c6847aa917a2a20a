"""Files of libsvm and libffm: a target, and features by index."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar, Collection, Dict, Literal, Optional, Sequence, Tuple, Type, Union

import pydantic
from typing_extensions import Annotated

from mxtrain.data.checking.problems import Findings
from mxtrain.data.exported_data import DatasetExport
from mxtrain.data.features.feature_columns import FeatureColumn, FeatureColumns
from mxtrain.data.features.feature_rows import FeatureRows
from mxtrain.data.features.feature_store import open_inputs
from mxtrain.data.recognition import Certainty, FileTree, Recognised
from mxtrain.data.signature import Signature
from mxtrain.data.spec import BaseDataset, Samples, Splits
from mxtrain.data.table.cells import CellTexts, number_of
from mxtrain.tables.feature_dataset import FeatureDataset, with_numeric_target
from mxtrain.tables.feature_files import Names, files_of, open_all
from mxtrain.tables.indexed_rows import IndexedRows, find_indexed_classes, measure_indexed, open_indexed
from mxtrain.types import BatchSize, OpenFraction, Positive
from mxtrain.types.kinds import Gives, IndexedFeatures, Number, RowClass, TargetKind

if TYPE_CHECKING:
    from mxtrain.loss.spec import Loss
    from mxtrain.model.spec import Model


class Libsvm(FeatureDataset):
    """A line for each row: `target index:value ...` (libsvm), or `target field:index:value ...` (libffm, whose fields
    are not used).

    Targets are numbers: classes, of which 0 or -1 and 1 are the usual two, or with task=regression values. Values of
    features enter as they are.
    """

    gives: ClassVar[Gives] = Gives(IndexedFeatures, RowClass, Number, usual_model="factorization_machine")

    train: Names = None
    """File of training rows, or a list of files; names may end in .gz."""
    val: Names = None
    """File or files of validation rows; null = val_fraction of the training rows."""
    test: Names = None
    """File or files of test rows; null = test_fraction of the training rows."""
    classes: Union[Literal["auto"], Annotated[CellTexts, pydantic.Field(min_length=2)]] = "auto"
    """Targets that are classes, for task=tabular. The second of two classes is the positive class. auto = all targets
    of the first training file in order, which are logged."""
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

    @classmethod
    def recognise(cls, files: FileTree) -> Optional[Recognised]:
        """See `Recognising`."""
        pattern = re.compile(r"\S+( \d+:\S+| \d+:\d+:\S+)+\s*")
        names = [
            name
            for name in files.names
            if (lines := files.lines(name, 5)) and all(map(pattern.fullmatch, lines[:-1] or lines))
        ]
        settings = files.typed_splits(names)
        return Recognised("libsvm's or libffm's rows", settings, certainty=Certainty.SURE) if settings else None

    @pydantic.model_validator(mode="after")
    def _check_classes(self) -> Libsvm:
        if self.classes != "auto":
            numbers = [number_of(name) for name in self.classes]
            if any(number != number for number in numbers) or len(set(numbers)) < len(numbers):
                raise ValueError(f"classes={self.classes} must be different numbers, as targets of libsvm files are")
        return self

    def exported(self, signature: Signature) -> DatasetExport:
        """See `BaseDataset.exported`."""
        return DatasetExport("mxtrain.tables.exported_indexed", super().exported(signature).facts)

    def for_run(
        self, target: Type[TargetKind], model: Optional[Model] = None, loss: Optional[Loss] = None
    ) -> BaseDataset:
        """See `BaseDataset.for_run`.

        Raises:
            ConfigError: classes are given, and a number is predicted.
        """
        return self if not issubclass(target, Number) else with_numeric_target(self, NumericLibsvm)

    def class_names(self) -> Tuple[str, ...]:
        """Returns the names of the targets from 0 on; empty if the target is a number.

        Raises:
            DataError: the first training file has a single target or too many ones.
        """
        if self.classes != "auto":
            return tuple(self.classes)
        first = self.train[0] if isinstance(self.train, list) else self.train
        return tuple(find_indexed_classes(str(first)))

    def examine(self, findings: Findings) -> Splits:
        """See `BaseDataset.examine`."""
        files = files_of(self.train, self.val, self.test, findings)
        classes = self.class_names()
        stores = open_all(files, lambda path: open_indexed(path, True, classes, findings), findings)
        rows = {name: IndexedRows(stores_of_split) for name, stores_of_split in stores.items()}  # type: ignore[arg-type]  # rows of their own
        return self.split(f"dataset.train={files['train'][0]}", classes, self._measure, **rows)

    def _measure(self, rows: FeatureRows) -> FeatureColumns:
        num_ids, length = measure_indexed(rows, self.max_features, self.max_index)
        return FeatureColumns((FeatureColumn("features", "indexed", buckets=num_ids, length=length),))

    def open_inputs(
        self, names: Sequence[str], signature: Signature, skip_unreadable: bool, unreadable: Dict[int, str]
    ) -> Tuple[Samples, Sequence[str]]:
        """Opens all rows of the files, with or without targets; a source location is `file:line`."""
        stores, locations = open_inputs(
            names, lambda path: open_indexed(path, False, signature.class_names), skip_unreadable, unreadable
        )
        return IndexedRows(stores), locations  # type: ignore[arg-type]  # rows of their own

    def restored(self, signature: Signature, overrides: Collection[str], source: str) -> Tuple[BaseDataset, Signature]:
        if self.target_is_number:
            return self, signature
        return self.model_copy(update={"classes": list(signature.class_names)}), signature


class NumericLibsvm(Libsvm):
    """A `Libsvm` dataset whose target is a number, for task=regression."""

    gives: ClassVar[Gives] = Gives(IndexedFeatures, Number)

    @property
    def target_is_number(self) -> bool:
        return True

    def class_names(self) -> Tuple[str, ...]:
        return ()
