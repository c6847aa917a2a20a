"""scikit-learn's breast cancer data: is a tumour malignant?"""

from __future__ import annotations

from typing import Dict, Sequence, Tuple

import numpy as np

from mxtrain.data.features.feature_rows import FeatureRows
from mxtrain.data.features.feature_statistics import ColumnSettings, build_columns
from mxtrain.data.features.feature_store import FeatureLayout, ReadColumn, open_inputs, open_store
from mxtrain.data.loading.official import sklearn_datasets
from mxtrain.data.signature import Signature
from mxtrain.data.spec import Samples, Splits
from mxtrain.tables.feature_dataset import FeatureDataset, build_store
from mxtrain.types import BatchSize, OpenFraction

MEASURES = (
    "radius",
    "texture",
    "perimeter",
    "area",
    "smoothness",
    "compactness",
    "concavity",
    "concave points",
    "symmetry",
    "fractal dimension",
)
NAMES = (
    *(f"mean {name}" for name in MEASURES),
    *(f"{name} error" for name in MEASURES),
    *(f"worst {name}" for name in MEASURES),
)
CLASS_NAMES = ("benign", "malignant")


class BreastCancer(FeatureDataset):
    """569 tumours of the breast: 30 numbers that were measured in an image of cells, and whether it is malignant.

    Source: Street et al., "Nuclear feature extraction for breast tumor diagnosis" (1993), as scikit-learn has it. There
    the target 1 is benign; here it is malignant, which is what a test looks for.
    """

    batch_size: BatchSize = 32
    val_fraction: OpenFraction = 0.15
    """Share of the training rows held out for validation."""
    test_fraction: OpenFraction = 0.25
    """Share of the training rows held out for testing."""

    def open(self) -> Splits:
        """See `BaseDataset.open`."""
        path = sklearn_datasets("breast_cancer") / "data" / "breast_cancer.csv"
        rows = np.loadtxt(path, delimiter=",", skiprows=1)  # lint: a file of an installed package
        store = build_store(
            "scikit-learn's breast cancer data", NAMES, rows[:, :-1], (1 - rows[:, -1]).astype(np.int32)
        )
        settings = [ColumnSettings(name, "number") for name in NAMES]
        return self.split(
            "scikit-learn's breast cancer data",
            CLASS_NAMES,
            lambda rows: build_columns(rows.stores, rows.row_N, settings),
            FeatureRows([store]),
        )

    def open_inputs(
        self, names: Sequence[str], signature: Signature, skip_unreadable: bool, unreadable: Dict[int, str]
    ) -> Tuple[Samples, Sequence[str]]:
        """Opens all rows of tables with the 30 numbers, by name; a source location is `file:row`."""
        layout = FeatureLayout(tuple(ReadColumn(name, "number", name) for name in NAMES), None, ("0", "1"))
        stores, locations = open_inputs(names, lambda path: open_store(path, layout), skip_unreadable, unreadable)
        return FeatureRows(stores), locations
