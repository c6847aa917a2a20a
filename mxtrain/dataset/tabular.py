"""Rows of numbers, and a number to predict from them: from CSV files, or scikit-learn's diabetes data.

Legend: N samples, B batch, F features.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Dict, List, Optional, Sequence, Tuple

import numpy as np

from mxtrain.dataset.base import BaseDataset, Samples, Splits
from mxtrain.dataset.checking.problems import (
    NOT_A_NUMBER,
    STRICT,
    DataPlace,
    Findings,
    NothingLeft,
    Problem,
    attempt,
)
from mxtrain.dataset.loading.input_files import read_each
from mxtrain.dataset.loading.official import sklearn_datasets
from mxtrain.dataset.loading.regular_files import refuse_shared
from mxtrain.dataset.loading.splitting import refuse_empty, split_indices
from mxtrain.dataset.signature import Signature
from mxtrain.dataset.table.cells import LARGEST_NUMBER, number_of, why_no_number
from mxtrain.dataset.table.columns import names_of_columns, read_columns
from mxtrain.dataset.table.rows import RowLoader, Rows
from mxtrain.errors import CheckpointError, DataError, did_you_mean
from mxtrain.types import OpenFraction, PathText, Positive

if TYPE_CHECKING:
    from mxtrain.dataset.loading.loader import BatchLoader
    from mxtrain.model.base import Model

DIABETES = ("age", "sex", "bmi", "bp", "s1", "s2", "s3", "s4", "s5", "s6")
"""Features of scikit-learn's diabetes data. Source: B. Efron et al., "Least Angle Regression", 2004."""


class Tabular(BaseDataset):
    """A table of numbers, one column of which is to be predicted from others."""

    gives: ClassVar[str] = "numbers"
    serves: ClassVar[Tuple[str, ...]] = ("regression",)

    train: Optional[PathText] = None
    """File of training rows, .csv, .tsv or .jsonl, whose first row names the columns; null = scikit-learn's diabetes
    data: 442 patients, and how far the disease had gone a year later (25 to 346)."""
    val: Optional[PathText] = None
    """File of validation rows; null = val_fraction of the training rows."""
    test: Optional[PathText] = None
    """File of test rows; null = test_fraction of the training rows."""
    target: str = "target"
    """Column to predict."""
    features: Optional[List[str]] = None
    """Columns to predict it from; null = all others."""
    batch_size: Positive = 32
    val_fraction: OpenFraction = 0.15
    test_fraction: OpenFraction = 0.15

    def open(self) -> Splits:
        """See `BaseDataset.open`."""
        return self.examine(STRICT)

    def examine(self, findings: Findings) -> Splits:
        """See `BaseDataset.examine`."""
        if self.train is None:
            names = list(DIABETES)
            found: List[Optional[Rows]] = [read_diabetes(), None, None]
            origin = "scikit-learn's diabetes data"
        else:
            files = {name: path for name in ("train", "val", "test") if (path := getattr(self, name)) is not None}
            refuse_shared({name: [Path(path)] for name, path in files.items()}, findings)
            names = self._feature_names(self.train)
            tables = {name: attempt(findings, DataPlace(path), partial(self._read, path, names, findings))
                      for name, path in files.items()}  # fmt: skip
            if None in tables.values():
                raise NothingLeft(f"dataset.train={self.train}: a table cannot be read.")
            found = [tables.get(name) for name in ("train", "val", "test")]
            origin = f"dataset.train={self.train}"
        train, val, test = found
        assert train is not None
        held = 0.0 if val is not None else self.val_fraction, 0.0 if test is not None else self.test_fraction
        parts = split_indices(np.zeros(len(train), int), *held, self.split_seed)
        val = val if val is not None else train.take(parts[1].tolist())
        test = test if test is not None else train.take(parts[2].tolist()) if len(parts[2]) else None
        train = train.take(parts[0].tolist())
        refuse_empty(origin, len(train), len(val), self.val_fraction)
        std_F = train.value_NF.std(axis=0, dtype=np.float64)
        return Splits(
            train, val, test, class_names=names, shape=(len(names),),
            mean=train.value_NF.mean(axis=0, dtype=np.float64).tolist(), std=np.where(std_F > 0, std_F, 1.0).tolist(),
        )  # fmt: skip

    def _feature_names(self, path: str) -> List[str]:
        if self.features is not None:
            return self.features
        if path.endswith(".jsonl"):
            raise DataError("dataset.features: name the columns to predict from, a file of JSON lines has no header.")
        names = names_of_columns(path)
        if self.target not in names:
            raise DataError(
                f"dataset.target={self.target}: {path}, line 1: there is no column '{self.target}'."
                f"{did_you_mean(self.target, names)} Type dataset.target=NAME, with one of {', '.join(names)}."
            )
        return [name for name in names if name != self.target]

    def _read(
        self, path: str, names: Sequence[str], findings: Findings = STRICT, with_target: bool = True
    ) -> Rows:  # fmt: skip
        columns = [*names, self.target] if with_target else list(names)
        rows, places = read_columns(path, columns, header=True, findings=findings)
        assert places is not None
        found = np.empty((len(rows), len(columns)))
        for number, row in enumerate(rows):
            for column, text in enumerate(row):
                found[number, column] = value = number_of(text)
                if not -LARGEST_NUMBER <= value <= LARGEST_NUMBER:
                    what = f"'{columns[column]}' is {why_no_number(text)}."
                    problem = Problem(NOT_A_NUMBER, places[number], f"{places[number]}: {what}", "Correct the cell.")
                    findings.refuse(problem, sentence=f"{path}, row {number + 1}: {what}")
        kept = (np.abs(found) <= LARGEST_NUMBER).all(axis=1)  # is false for a NaN
        found = found[kept]
        places = places.take(np.flatnonzero(kept))
        return Rows(found[:, : len(names)], found[:, -1] if with_target else None, places)

    def sign(self, splits: Splits, model: Model) -> Signature:
        return Signature(splits.shape, list(splits.mean), list(splits.std), list(splits.class_names))

    def require_same(self, signature: Signature, before: Signature, source: str) -> None:
        if list(before.class_names) != list(signature.class_names):
            raise CheckpointError(
                f"{source} was trained with the columns {', '.join(before.class_names)}, and now there are "
                f"{', '.join(signature.class_names)}. Type dataset.features=[{','.join(before.class_names)}], or "
                "choose another hydra.run.dir."
            )

    def remark(self, signature: Signature, splits: Splits) -> str:
        return f"rows of {len(signature.class_names)} numbers"

    def build_loader(  # type: ignore[override]  # of its own samples
        self, source: Rows, signature: Signature, *, num_classes: int, **options: Any
    ) -> BatchLoader:  # fmt: skip
        options.pop("in_order", None)  # it is
        return RowLoader(source, signature, **options)

    def open_inputs(
        self, names: Sequence[str], signature: Signature, skip_unreadable: bool, unreadable: Dict[int, str]
    ) -> Tuple[Samples, Sequence[str]]:
        """All rows of the files; a place is `file:row`."""
        parts, places = [], []
        read = partial(self._read, names=signature.class_names, with_target=False)
        for name, rows in read_each(names, read, skip_unreadable, unreadable):
            parts.append(rows.value_NF)
            places += [f"{name}:{row}" for row in range(1, len(rows) + 1)]
        return Rows(np.concatenate(parts) if parts else np.zeros((0, len(signature.class_names)))), places


def read_diabetes() -> Rows:
    """scikit-learn's diabetes data, in its own units.

    Raises:
        DataError: scikit-learn is not installed.
    """
    folder = sklearn_datasets("tabular") / "data"
    if (folder / "diabetes_data_raw.csv.gz").is_file():
        return Rows(np.loadtxt(folder / "diabetes_data_raw.csv.gz"), np.loadtxt(folder / "diabetes_target.csv.gz"))
    from sklearn.datasets import load_diabetes

    data = load_diabetes(scaled=False)
    return Rows(data.data, data.target)
