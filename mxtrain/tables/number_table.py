"""Regression dataset: tables of numbers from CSV, TSV, JSONL or Parquet files, or scikit-learn's diabetes data.

Legend: N samples, B batch, F features.
"""

from __future__ import annotations

import logging
import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Dict, List, Literal, Mapping, Optional, Sequence, Tuple, Union

import numpy as np
import pydantic

from mxtrain.data.checking.problems import (
    NOT_A_NUMBER,
    STRICT,
    DataLocation,
    DataLocations,
    Findings,
    NoUsableSamples,
    Problem,
    call_or_report,
)
from mxtrain.data.exported_data import DatasetExport
from mxtrain.data.loading.dataset_files import refuse_shared
from mxtrain.data.loading.input_files import read_each
from mxtrain.data.loading.official import sklearn_datasets
from mxtrain.data.loading.splitting import refuse_empty
from mxtrain.data.loading.target_scale import require_same_scale, target_remark, with_target_scale
from mxtrain.data.loading.text_stream import ending_of
from mxtrain.data.predict_inputs import rows_from
from mxtrain.data.sample_weights import (
    WeightedDataset,
    refuse_weight_without_file,
    require_other_column,
    require_some_weight,
    weights_remark,
    wrong_weights,
)
from mxtrain.data.signature import Signature
from mxtrain.data.spec import Samples, Splits
from mxtrain.data.table.cells import MISSING_CELLS, CellTexts, Decimal, read_numbers
from mxtrain.data.table.column_kinds import guess_kinds, has_row_ids, refuse_unknown_columns, silent_rows
from mxtrain.data.table.columns import (
    PARQUET,
    ROWS,
    Row,
    classes_in,
    given_rows,
    names_of_columns,
    read_columns,
    require_column,
)
from mxtrain.data.table.copied_cells import copied_cells
from mxtrain.data.table.groups import SETTING, group_column, read_groups
from mxtrain.data.table.number_columns import parse_column
from mxtrain.data.table.rows import RowLoader, Rows
from mxtrain.data.table.target_classes import numbered_classes, refuse_named_classes
from mxtrain.data.table.written_numbers import read_number
from mxtrain.errors import CheckpointError, DataError, run_dir_setting
from mxtrain.types import BatchSize, Names, OpenFraction, PathText
from mxtrain.types.kinds import Gives, Number, Numbers

if TYPE_CHECKING:
    from mxtrain.data.loading.loader import BatchLoader, LoaderOptions
    from mxtrain.model.spec import Model
    from mxtrain.types.annotations import Json

log = logging.getLogger(__name__)

DIABETES = ("age", "sex", "bmi", "bp", "s1", "s2", "s3", "s4", "s5", "s6")
"""Features of scikit-learn's diabetes data. Source: B. Efron et al., "Least Angle Regression", 2004."""


class NumberTable(WeightedDataset):
    """A table of numbers. One column is predicted from others."""

    gives: ClassVar[Gives] = Gives(Numbers, Number)
    folds_by: ClassVar[Literal["", "samples", "columns"]] = "columns"

    train: Optional[PathText] = None
    """File of training rows, .csv, .tsv or .jsonl, whose first row names the columns; null = scikit-learn's diabetes
    data: 442 patients, and the progression of the disease after one year (25 to 346)."""
    val: Optional[PathText] = None
    """File of validation rows; null = val_fraction of the training rows."""
    test: Optional[PathText] = None
    """File of test rows; null = test_fraction of the training rows."""
    target: str = "target"
    """Column to predict."""
    features: Optional[Names] = None
    """Numeric columns that the network reads; null = all except the target, ids and row numbers."""
    missing: CellTexts = list(MISSING_CELLS)
    """Cells that mean a missing value; a missing feature is replaced by its mean."""
    decimal: Decimal = "."
    """Decimal sign of numbers: "." or ","; the other one groups digits."""
    batch_size: BatchSize = 32
    val_fraction: OpenFraction = 0.15
    """Share of the training samples held out for validation where there is no file of them."""
    test_fraction: OpenFraction = 0.15
    """Share of the training samples held out for testing where there is no file of them."""

    @pydantic.model_validator(mode="after")
    def _check_weight(self) -> NumberTable:
        require_other_column(self, "dataset.target", [self.target])
        require_other_column(self, "dataset.features", self.features or [])
        return self

    def examine(self, findings: Findings) -> Splits:
        """See `BaseDataset.examine`."""
        if self.train is None:
            refuse_weight_without_file(self)
            names = list(DIABETES)
            rows_by_split: List[Optional[Rows]] = [read_diabetes(), None, None]
            origin = "scikit-learn's diabetes data"
        else:
            files = {name: path for name in ("train", "val", "test") if (path := getattr(self, name)) is not None}
            refuse_shared({name: [Path(path)] for name, path in files.items()}, findings)
            refuse_named_classes("dataset.target", self.train, [self.target])
            names = self._feature_names(self.train)
            for name, classes in classes_in(self.train).items():
                if name in names:
                    log.info("%s: %s", self.train, numbered_classes(name, classes))
            tables = {
                name: call_or_report(findings, DataLocation(path), partial(self._read, path, names, findings))
                for name, path in files.items()
            }
            if None in tables.values():
                raise NoUsableSamples(f"dataset.train={self.train}: a table cannot be read.")
            rows_by_split = [tables.get(name) for name in ("train", "val", "test")]
            origin = f"dataset.train={self.train}"
        train, val, test = rows_by_split
        assert train is not None
        parts = self.division.divide(np.zeros(len(train), int), val is not None, test is not None, self._groups(train))
        val = self.division.own_validation(val)
        val = val if val is not None else train.take(parts[1].tolist())
        test = test if test is not None else train.take(parts[2].tolist()) if len(parts[2]) else None
        train = train.take(parts[0].tolist())
        refuse_empty(origin, len(train), len(val), self.val_fraction)
        if self.weight is not None:
            parts_by_name = {"training": train, "validation": val, "test": test}
            require_some_weight(
                self.weight, {name: rows.weight_N for name, rows in parts_by_name.items() if rows is not None}
            )
        mean_F, std_F = _moments(train.value_NF)
        return Splits(
            train, val, test, class_names=names, shape=(len(names),), mean=mean_F.tolist(), std=std_F.tolist()
        )

    def _groups(self, rows: Rows) -> Optional[np.ndarray]:
        if self.division.fold is None or self.division.fold.groups is None:
            return None
        if rows.locations is None:
            raise DataError(f"{SETTING}={self.division.fold.groups}: these rows come from no file with such a column.")
        return read_groups(self.division.fold.groups, [rows.locations])

    def _feature_names(self, path: str) -> List[str]:
        if self.features is not None:
            return self.features
        if path.endswith(".jsonl"):
            raise DataError("dataset.features: name the columns to predict from, a file of JSON lines has no header.")
        names = names_of_columns(path)
        require_column("dataset.target", str(self.target), path, names)
        excluded = (self.target, self.weight, group_column(self.division.fold, path))
        open_names = [name for name in names if name not in excluded]
        kinds = guess_kinds(path, open_names, self.missing, self.decimal, "")
        number_columns = [name for name in open_names if kinds[name] == "number"]
        texts = [name for name in open_names if kinds[name] in ("category", "hashed")]
        if texts:
            raise DataError(
                f"{path}: {'columns' if len(texts) > 1 else 'the column'} {', '.join(map(repr, texts))} "
                f"{'hold' if len(texts) > 1 else 'holds'} texts{self._example(path, texts[0])}, and this dataset reads "
                "numbers. Type dataset=feature_table, which reads texts as categories."
            )
        if not number_columns:
            raise DataError(f"{path}: no column is left to predict '{self.target}' from.")
        return number_columns

    def _example(self, path: str, name: str) -> str:
        """Returns the first cell of a column that is no number, and its line, as a part of a sentence."""
        for line, (cell,) in silent_rows(path, [name], self.missing):
            text = cell.strip()
            number = read_number(text, self.decimal)
            if text not in self.missing and (number is None or not math.isfinite(number.value)):
                return f", such as '{text:.40}' in {'record' if ending_of(path) == PARQUET else 'line'} {line}"
        return ""

    def _read(self, path: str, names: Sequence[str], findings: Findings = STRICT, with_target: bool = True) -> Rows:
        weight = [self.weight] if self.weight is not None and with_target else []
        columns = [*names, self.target, *weight] if with_target else list(names)
        if ending_of(path) != ".jsonl":  # rows of JSON lines have their own names; there is no header to compare with
            found = names_of_columns(path)
            refuse_unknown_columns(path, weight, found, "dataset.weight")
            refuse_unknown_columns(path, columns, found, "dataset.features")
        null = self.missing[0] if self.missing else None
        decimal_in: Dict[Union[str, int], str] = dict.fromkeys(columns, self.decimal)
        rows, locations = read_columns(
            path,
            columns,
            header=True,
            findings=findings,
            null=null,
            decimal_in=decimal_in,
            names_classes=(self.target,),  # features keep their numbers, which a setting asks for
        )
        assert locations is not None
        number_RC, locations = self._parse(path, columns, rows, locations, findings)
        target_N = number_RC[:, len(names)] if with_target else None
        weight_N = number_RC[:, -1] if weight else None
        return Rows(number_RC[:, : len(names)], target_N, locations, has_row_ids(path, columns), weight_N)

    def _parse(
        self,
        path: str,
        columns: Sequence[str],
        rows: Sequence[Row],
        locations: DataLocations,
        findings: Findings = STRICT,
    ) -> Tuple[np.ndarray, DataLocations]:
        """Returns the numbers of rows (R, C) and their source locations, without unusable rows.

        Args:
            path: file of the rows; empty for rows in memory.
            columns: name of each column, including the target.
            rows: cells.
            locations: source locations of the rows.
            findings: collects the problems of cells.
        """
        number_RC = np.empty((len(rows), len(columns)))
        is_valid_R = np.ones(len(rows), bool)
        problems: List[Tuple[int, Problem]] = []
        for number, name in enumerate(columns):
            cells = [row[number].strip() for row in rows]
            if name == self.weight:
                number_RC[:, number] = read_numbers(cells, self.missing, self.decimal).value_R
                for row, reason in wrong_weights(number_RC[:, number], cells):
                    fact = f"{locations[row]}: '{name}' is {reason}."
                    problems.append((row, Problem(NOT_A_NUMBER, locations[row], fact, "Correct the cell.")))
                    is_valid_R[row] = False
                continue
            parsed = parse_column(name, cells, self.missing, self.decimal, allows_missing=name != self.target)
            number_RC[:, number] = parsed.number_R
            for row, fact, remedy in parsed.faults:
                problem = Problem(NOT_A_NUMBER, locations[row], f"{locations[row]}: {fact}", remedy)
                problems.append((row, problem))
            for sentence in parsed.sentences:
                log.info("%s: %s", path, sentence)
            is_valid_R &= ~parsed.is_wrong_R
        findings.refuse(*(problem for _, problem in sorted(problems, key=lambda pair: pair[0])))
        return number_RC[is_valid_R], locations.take(np.flatnonzero(is_valid_R))

    def infer_signature(self, splits: Splits, model: Model) -> Signature:
        assert isinstance(splits.train, Rows)
        signature = Signature(splits.shape, list(splits.mean), list(splits.std), list(splits.class_names))
        return with_target_scale(signature, splits.train.target_N)

    def check_compatible(self, signature: Signature, before: Signature, source: str) -> None:
        if list(before.class_names) != list(signature.class_names):
            raise CheckpointError(
                f"{source} was trained with the columns {', '.join(before.class_names)}, and now there are "
                f"{', '.join(signature.class_names)}. Type dataset.features=[{','.join(before.class_names)}], or "
                f"choose another {run_dir_setting()}."
            )
        require_same_scale(signature, before, source)

    def remark(self, signature: Signature, splits: Splits) -> str:
        assert isinstance(splits.train, Rows) and isinstance(splits.val, Rows)
        missing_F = np.isnan(splits.train.value_NF).sum(axis=0)
        missing = [f"{name}: {count:,}" for name, count in zip(signature.class_names, missing_F.tolist()) if count]
        note = f", of which missing ones enter as the mean of their column ({', '.join(missing)})" if missing else ""
        weights = (
            "" if splits.train.weight_N is None else f"; {weights_remark(str(self.weight), splits.train.weight_N)}"
        )
        return (
            f"rows of {len(signature.class_names)} numbers{note}; {target_remark(signature, splits.val.target_N)}"
            f"{weights}"
        )

    def build_loader(  # type: ignore[override]  # of its own samples
        self, source: Rows, signature: Signature, options: LoaderOptions
    ) -> BatchLoader:
        return RowLoader(source, signature, options)

    def open_inputs(
        self, names: Sequence[str], signature: Signature, skip_unreadable: bool, unreadable: Dict[int, str]
    ) -> Tuple[Samples, Sequence[str]]:
        """Opens all rows of the files; a source location is `file:line`, or `file:record` for Parquet."""
        parts, locations = [], []
        read = partial(self._read, names=signature.class_names, with_target=False)
        for name, rows in read_each(names, read, skip_unreadable, unreadable):
            parts.append(rows.value_NF)
            assert rows.locations is not None
            locations += [f"{name}:{number}" for number in rows.locations.number_N.tolist()]
        return Rows(np.concatenate(parts) if parts else np.zeros((0, len(signature.class_names)))), locations

    def samples_from(self, value: Any, signature: Signature) -> Samples:
        """Returns rows to predict for, in memory: dicts from column to value, or a data frame of pandas. None and NaN
        are missing values."""
        names = signature.class_names
        null = self.missing[0] if self.missing else None
        numbered = given_rows(rows_from(value, ROWS), names, null, dict.fromkeys(names, self.decimal))
        locations = DataLocations([""], [number for number, _ in numbered], None, True)
        return Rows(self._parse("", names, [row for _, row in numbered], locations)[0])

    def exported(self, signature: Signature) -> DatasetExport:
        """See `BaseDataset.exported`: how cells are read."""
        facts: Dict[str, Json] = {"missing": list(self.missing), "decimal": self.decimal}
        return DatasetExport("mxtrain.data.features.exported_rows", facts)

    def copied_cells(
        self, names: Sequence[str], columns: Optional[Sequence[str]], signature: Signature
    ) -> Mapping[str, Mapping[str, str]]:
        return copied_cells(names, columns, signature.class_names)


def _moments(value_NF: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """Returns mean and standard deviation of each feature, (F,), over the rows that have a value.

    The deviation of a constant feature is 1. A feature without any value has mean 0 and deviation 1.
    """
    count_F = np.maximum((~np.isnan(value_NF)).sum(axis=0), 1)
    mean_F = np.nansum(value_NF, axis=0, dtype=np.float64) / count_F
    std_F = np.sqrt(np.nansum((value_NF - mean_F) ** 2, axis=0, dtype=np.float64) / count_F)
    return mean_F, np.where(std_F > 0, std_F, 1.0)


def read_diabetes() -> Rows:
    """Reads scikit-learn's diabetes data in original units, not scaled.

    Raises:
        DataError: scikit-learn is not installed.
    """
    folder = sklearn_datasets("number_table") / "data"
    if (folder / "diabetes_data_raw.csv.gz").is_file():
        return Rows(
            np.loadtxt(folder / "diabetes_data_raw.csv.gz"),  # lint: a file of an installed package
            np.loadtxt(folder / "diabetes_target.csv.gz"),  # lint: a file of an installed package
        )
    from sklearn.datasets import load_diabetes

    data = load_diabetes(scaled=False)
    return Rows(data.data, data.target)
