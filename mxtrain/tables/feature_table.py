"""A table with a class or a number as target: CSV, TSV, JSON lines or Parquet."""

from __future__ import annotations

import logging
from itertools import islice
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Collection,
    Dict,
    List,
    Literal,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    Type,
    Union,
)

import numpy as np
import pydantic
from typing_extensions import Annotated

from mxtrain.data.checking.problems import Findings
from mxtrain.data.exported_data import DatasetExport
from mxtrain.data.features.feature_columns import Kind
from mxtrain.data.features.feature_rows import FeatureRows
from mxtrain.data.features.feature_statistics import ColumnSettings, build_columns
from mxtrain.data.features.feature_store import FeatureLayout, FeatureStore, ReadColumn
from mxtrain.data.features.signature import FeatureSignature
from mxtrain.data.loading.dataset_files import list_first
from mxtrain.data.recognition import Certainty, FileTree, Recognised
from mxtrain.data.sample_weights import (
    WeightedDataset,
    refuse_weight_without_file,
    require_other_column,
    require_some_weight,
    weights_remark,
)
from mxtrain.data.signature import Signature
from mxtrain.data.spec import BaseDataset, Splits
from mxtrain.data.table.cells import MISSING_CELLS, CellTexts, Decimal
from mxtrain.data.table.class_sets import AUTO, SetColumns, find_set_columns
from mxtrain.data.table.column_kinds import (
    GUESSED_ROWS,
    ColumnSpec,
    as_column_specs,
    has_row_ids,
    header_of,
    kinds_of,
    refuse_unknown_columns,
    silent_rows,
)
from mxtrain.data.table.columns import ListColumn, names_of_columns
from mxtrain.data.table.copied_cells import copied_cells
from mxtrain.data.table.dates import columns_read, features_of, guessed_parts, split_feature
from mxtrain.data.table.groups import group_column
from mxtrain.data.table.target_classes import find_classes, refuse_named_classes
from mxtrain.errors import ConfigError, DataError
from mxtrain.tables.class_set_rows import CLASS_KEY, ClassSetRows
from mxtrain.tables.feature_dataset import MAX_NAMED, build_store, with_numeric_target
from mxtrain.tables.feature_files import FeatureFiles
from mxtrain.tables.number_table import DIABETES, read_diabetes
from mxtrain.types import Names
from mxtrain.types.kinds import ClassSet, Gives, Number, RowClass, TableFeatures, TargetKind

if TYPE_CHECKING:
    from mxtrain.loss.spec import Loss
    from mxtrain.model.spec import Model

log = logging.getLogger(__name__)


class FeatureTable(FeatureFiles, WeightedDataset):
    """A table of categories and numbers. One column is predicted: a class, or a number with task=regression."""

    gives: ClassVar[Gives] = Gives(TableFeatures, RowClass, Number, ClassSet)
    folds_by: ClassVar[Literal["", "samples", "columns"]] = "columns"

    target: str = "target"
    """Column to predict; with task=multi_label, the column with the names of all classes."""
    targets: Optional[Names] = None
    """Columns of numbers to predict together, with task=regression; columns of 0 and 1, one for each class, with
    task=multi_label. null = the column `target`."""
    delimiter: str = AUTO
    """Text between two names of classes, with task=multi_label; auto = the one of | ; , that occurs."""
    classes: Union[Literal["auto"], Annotated[CellTexts, pydantic.Field(min_length=2)]] = "auto"
    """Values of the target as written in the file, for task=tabular. The second of two classes is the positive class.
    auto = all values of the target in order, which are logged."""
    features: Optional[Names] = None
    """Columns that the network reads; null = all except the target, ids and row numbers."""
    columns: Annotated[Dict[str, ColumnSpec], pydantic.BeforeValidator(as_column_specs)] = {}
    """Kinds of the columns, by name: number, count (enters as log(1 + x)), category, hashed or ignore, e.g. {age:
    number, town: hashed}; or with settings, {town: {kind: hashed, buckets: 5000}}."""
    others: Literal["guess", "ignore"] = "guess"
    """Columns that `columns` does not name: guess = guess their kinds from the first rows, and log them; ignore =
    ignore them."""
    missing: CellTexts = list(MISSING_CELLS)
    """Values of cells that mean a missing value."""
    decimal: Decimal = "."
    """Decimal sign of numbers: "." or ","; the other one groups digits."""

    @classmethod
    def recognise(cls, files: FileTree) -> Optional[Recognised]:
        """See `Recognising`."""
        tables = [name for name in files.find(".csv", ".tsv", ".jsonl", ".parquet")]
        settings = files.typed_splits(tables)
        columns = files.columns(files.by_split(tables)["train"]) if settings else []
        if len(columns) < 2 and not (settings and settings["train"].endswith(".parquet")):
            return None
        asks = () if "target" in columns else ("dataset.target=COLUMN",)
        remark = f"COLUMN is the one to predict: {list_first(columns)}." if asks else ""
        form = "a table of categories and numbers"
        return Recognised(form, settings, "tabular", Certainty.MAY_BE, asks, remark)

    @pydantic.model_validator(mode="after")
    def _check_target(self) -> FeatureTable:
        if self.target in self.columns:
            raise ValueError(f"columns names the target '{self.target}', which cannot be predicted from itself")
        if self.classes != "auto" and len(set(self.classes)) < len(self.classes):
            raise ValueError(f"classes={self.classes} must differ")
        if self.features is not None and self.target in self.features:
            raise ValueError(f"features names the target '{self.target}', which cannot be predicted from itself")
        require_other_column(self, "dataset.target", [self.target])
        require_other_column(self, "dataset.targets", self.targets or [])
        require_other_column(self, "dataset.features", self.features or [])
        require_other_column(self, "dataset.columns", list(self.columns))
        return self

    def for_run(
        self, target: Type[TargetKind], model: Optional[Model] = None, loss: Optional[Loss] = None
    ) -> BaseDataset:
        """See `BaseDataset.for_run`.

        Raises:
            ConfigError: the settings are for another task.
        """
        if self.targets is not None and self.target != type(self).model_fields["target"].default:
            raise ConfigError(
                f"dataset.target={self.target} and dataset.targets={self.targets} both name what is predicted. Leave "
                "one of them out."
            )
        if issubclass(target, ClassSet):
            return self.as_class(ClassSetTable)
        if issubclass(target, Number):
            return with_numeric_target(self, NumericFeatureTable)
        if self.targets is not None:
            raise ConfigError(
                "dataset.targets is a list of columns, which task=regression and task=multi_label read. Type one of "
                "them."
            )
        return self

    def exported(self, signature: Signature) -> DatasetExport:
        """See `BaseDataset.exported`: how cells are read."""
        return super().exported(signature).with_facts({"missing": list(self.missing), "decimal": self.decimal})

    def class_names(self) -> Tuple[str, ...]:
        return ("0", "1") if self.classes == "auto" else tuple(self.classes)

    def resolved(self, path: str) -> FeatureTable:
        """See `FeatureFiles.resolved`: the classes of the target are looked up."""
        header_of(path, [self.target], "dataset.target")
        self.require_weight(path)
        class_names = None if self.classes == "auto" else self.class_names()
        return self.model_copy(update={"classes": find_classes(path, self.target, self.missing, class_names)})

    def require_weight(self, path: str) -> None:
        """Checks that a file has the column of weights, if there are some.

        Raises:
            DataError: it has not; the message names the nearest column.
        """
        if self.weight is not None:
            header_of(path, [self.weight], "dataset.weight")

    def examine(self, findings: Findings) -> Splits:
        """See `BaseDataset.examine`."""
        splits = super().examine(findings)
        if self.weight is not None:
            parts: Dict[str, Any] = {"training": splits.train, "validation": splits.val, "test": splits.test}
            weights = {name: rows.weights(np.arange(len(rows))) for name, rows in parts.items() if rows is not None}
            require_some_weight(self.weight, weights)
        return splits

    def remark(self, signature: Signature, splits: Splits) -> str:
        remark = super().remark(signature, splits)
        if self.weight is None:
            return remark
        rows: Any = splits.train
        return f"{remark}; {weights_remark(self.weight, rows.weights(np.arange(len(rows))))}"

    def column_settings(self, path: str) -> Sequence[ColumnSettings]:
        """Returns the settings of the columns of the network, in file order."""
        specs = self.kinds(path)
        if not specs:
            raise DataError(f"{path}: no column is left to predict '{self.target}' from.")
        settings: List[ColumnSettings] = []
        for name, spec in specs.items():
            if spec.kind == "date":
                settings += [
                    ColumnSettings(one, "number") for one in features_of(name, spec.parts or self._parts_of(path, name))
                ]
                continue
            buckets, min_count = spec.buckets or self.buckets, spec.min_count or self.min_count
            settings.append(ColumnSettings(name, spec.kind, buckets, min_count))
        return settings

    def _parts_of(self, path: str, name: str) -> Sequence[str]:
        """Returns the parts of a column of dates that the first rows call for, and logs them."""
        rows = islice(silent_rows(path, [name], self.missing), GUESSED_ROWS)
        parts = guessed_parts([row[0].strip() for _, row in rows])
        log.info(
            "%s: '%s' has dates, which are read as %s. Others: dataset.columns={%s: {kind: date, parts: [trend]}}; as "
            "texts: dataset.columns={%s: category}.",
            path,
            name,
            ", ".join(parts),
            name,
            name,
        )
        return parts

    def kinds(self, path: str) -> Dict[str, ColumnSpec]:
        """Returns the kind of each column that is not ignored, in file order; logs the guessed ones.

        Raises:
            DataError: the file lacks a column that the description names.
        """
        guesses = self.others == "guess"
        columns = dict(self.columns)
        if self.features is not None:
            names = names_of_columns(path)
            refuse_unknown_columns(path, self.features, names, "dataset.features")
            chosen = {*self.features, *self.columns, self.target}
            columns.update({name: ColumnSpec(kind="ignore") for name in names if name not in chosen})
        groups = group_column(self.division.fold, path)
        for name in (groups, self.weight):
            if name is not None:
                columns.setdefault(name, ColumnSpec(kind="ignore"))
        return kinds_of(
            path, columns, self.target, "dataset.target", "dataset.columns", guesses, self.missing, self.decimal, True
        )

    def layout(self, path: str, columns: Sequence[Tuple[str, Kind]], with_target: bool) -> FeatureLayout:
        read = tuple(ReadColumn(name, kind, split_feature(name)[0]) for name, kind in columns)
        target = self.target if with_target else None
        have_ids = has_row_ids(path, columns_read([name for name, _ in columns]))
        return FeatureLayout(
            read,
            target,
            self.class_names(),
            tuple(self.missing),
            is_described=True,
            decimal=self.decimal,
            have_ids=have_ids,
            weight=self.weight if with_target else None,
        )

    def layout_of_rows(self, columns: Tuple[ReadColumn, ...]) -> FeatureLayout:
        layout = super().layout_of_rows(columns)
        return layout._replace(missing=tuple(self.missing), is_described=True, decimal=self.decimal)

    def copied_cells(
        self, names: Sequence[str], columns: Optional[Sequence[str]], signature: Signature
    ) -> Mapping[str, Mapping[str, str]]:
        trained = FeatureSignature.cast(signature).columns.columns
        return copied_cells(names, columns, columns_read([column.name for column in trained]))

    def restored(self, signature: Signature, overrides: Collection[str], source: str) -> Tuple[BaseDataset, Signature]:
        restored, _ = super().restored(signature, overrides, source)
        # The columns are those of training: guessing could yield others, and the training files may be missing.
        columns: Dict[str, ColumnSpec] = {}
        for column in FeatureSignature.cast(signature).columns.columns:  # none is indexed
            name, part = split_feature(column.name)
            if part:
                before = columns[name].parts or [] if name in columns else []
                parts: Any = list(dict.fromkeys([*before, part.split(" ")[0]]))
                columns[name] = ColumnSpec(kind="date", parts=parts)
                continue
            columns[name] = ColumnSpec(kind="count" if column.log else column.kind)  # type: ignore[arg-type]
        update: Dict[str, Any] = {"columns": columns, "others": "ignore", "features": None}
        if not self.target_is_number:
            update["classes"] = list(signature.class_names)
        return restored.model_copy(update=update), signature


class NumericFeatureTable(FeatureTable):
    """A `FeatureTable` whose target is a number, for task=regression. Without a file, it is scikit-learn's diabetes
    data: 442 patients, and the progression of the disease after one year (25 to 346)."""

    gives: ClassVar[Gives] = Gives(TableFeatures, Number)

    @pydantic.model_validator(mode="after")
    def _check_targets(self) -> NumericFeatureTable:
        names = self.targets
        if names is None:
            return self
        # `for_run` builds this class, whose errors no file of the configuration explains.
        if not names or len(set(names)) < len(names):
            raise ConfigError(f"dataset.targets={names}: name one or several different columns.")
        for setting, others in (("features", self.features or []), ("columns", self.columns)):
            given = [name for name in names if name in others]
            if given:
                raise ConfigError(
                    f"dataset.{setting} names the target '{given[0]}', which cannot be predicted from itself."
                )
        return self

    @property
    def target_is_number(self) -> bool:
        return True

    @property
    def target_names(self) -> Sequence[str]:
        return self.targets if self.targets is not None and len(self.targets) > 1 else ()

    @property
    def target_column(self) -> str:
        """See `NamedTarget`."""
        return "" if self.target_names else self.targets[0] if self.targets else self.target

    def class_names(self) -> Tuple[str, ...]:
        return ()

    def resolved(self, path: str) -> FeatureTable:
        """See `FeatureFiles.resolved`: a number has no classes to look up, and of several targets none is an input."""
        header_of(path, self.targets or [self.target], "dataset.target" if self.targets is None else "dataset.targets")
        self.require_weight(path)
        setting, names = ("target", [self.target]) if self.targets is None else ("targets", self.targets)
        refuse_named_classes(f"dataset.{setting}", path, names)
        if self.targets is None:
            return self
        ignored = {name: ColumnSpec(kind="ignore") for name in self.targets[1:]}
        return self.model_copy(update={"target": self.targets[0], "columns": {**self.columns, **ignored}})

    def layout(self, path: str, columns: Sequence[Tuple[str, Kind]], with_target: bool) -> FeatureLayout:
        layout = super().layout(path, columns, with_target)
        return layout._replace(more_targets=tuple(self.target_names[1:])) if with_target else layout

    def examine(self, findings: Findings) -> Splits:
        """See `BaseDataset.examine`."""
        if self.train:
            return super().examine(findings)
        refuse_weight_without_file(self)
        if self.targets is not None:
            raise ConfigError(
                f"dataset.targets={self.targets}: the default data have one target. Name your table with "
                "dataset.train=FILE."
            )
        rows, settings = read_diabetes(), [ColumnSettings(name, "number") for name in DIABETES]
        store = build_store("scikit-learn's diabetes data", DIABETES, rows.value_NF, rows.target_N.astype(np.float64))
        return self.split(
            "scikit-learn's diabetes data",
            (),
            lambda rows: build_columns(rows.stores, rows.row_N, settings),
            FeatureRows([store]),
        )


class ClassSetTable(FeatureTable):
    """A `FeatureTable` whose rows have any number of classes each, for task=multi_label."""

    gives: ClassVar[Gives] = Gives(TableFeatures, ClassSet)

    _found: Optional[SetColumns] = pydantic.PrivateAttr(None)

    @pydantic.model_validator(mode="after")
    def _check_classes(self) -> ClassSetTable:
        if self.classes != "auto":
            raise ConfigError(
                "dataset.classes: task=multi_label takes the classes from the training rows. Leave it out."
            )
        return self

    def class_names(self) -> Tuple[str, ...]:
        return () if self._found is None else self._found.class_names

    def resolved(self, path: str) -> FeatureTable:
        """See `FeatureFiles.resolved`: the columns of the classes are found, and are no inputs."""
        setting = "dataset.target" if self.targets is None else "dataset.targets"
        self.require_weight(path)
        labels = self.targets or self.target
        found = find_set_columns(path, labels, self.delimiter, (), self.missing, setting, names_classes=True)
        given = [name for name in found.columns if name in {*(self.features or ()), *self.columns}]
        if given:
            raise DataError(
                f"dataset.features or dataset.columns names '{given[0]}', which is predicted. Leave it out."
            )
        ignored = {name: ColumnSpec(kind="ignore") for name in found.columns[1:]}
        dataset = self.model_copy(update={"target": found.columns[0], "columns": {**self.columns, **ignored}})
        dataset._found = found
        return dataset

    def layout(self, path: str, columns: Sequence[Tuple[str, Kind]], with_target: bool) -> FeatureLayout:
        layout = super().layout(path, columns, False)
        if not with_target:
            return layout
        assert self._found is not None
        as_column = str if self._found.delimiter is None else ListColumn
        read = tuple(ReadColumn(CLASS_KEY + name, "category", as_column(name)) for name in self._found.columns)
        return layout._replace(columns=(*layout.columns, *read), weight=self.weight)

    def rows_of(self, stores: Sequence[FeatureStore]) -> FeatureRows:
        assert self._found is not None
        return ClassSetRows(stores, self._found)

    def restored(self, signature: Signature, overrides: Collection[str], source: str) -> Tuple[FeatureTable, Signature]:
        restored, signature = super().restored(signature, overrides, source)
        assert isinstance(restored, FeatureTable)
        return restored.model_copy(update={"classes": "auto"}), signature

    def examine(self, findings: Findings) -> Splits:
        """See `BaseDataset.examine`."""
        splits = super().examine(findings)
        for split in (splits.train, splits.val, splits.test):
            if isinstance(split, ClassSetRows):
                split.require_known()
        return splits

    def _target_remark(self, signature: Signature, splits: Splits) -> str:
        set_NK = splits.train.read_labels()  # type: ignore[attr-defined]  # they are `FeatureRows`
        shares = [f"{share:.2%} {name}" for share, name in zip(set_NK.mean(axis=0), splits.class_names)][:MAX_NAMED]
        more = ", ..." if len(splits.class_names) > MAX_NAMED else ""
        return f"of {len(set_NK):,} training rows {', '.join(shares)}{more}"
