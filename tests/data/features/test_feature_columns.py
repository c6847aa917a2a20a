"""Columns of features: sizes, shapes, and their form in a checkpoint."""

from __future__ import annotations

import json
from typing import Any, Dict

import pytest

from mxtrain.data.features.feature_columns import FeatureColumn, FeatureColumns
from mxtrain.data.features.signature import FeatureSignature
from mxtrain.errors import DamagedCheckpoint
from mxtrain.files.json_form import problems_of, unknown_keys

COLUMNS = FeatureColumns(
    (
        FeatureColumn("age", "number", mean=40.0, std=12.5, indicator=True),
        FeatureColumn("town", "category", vocabulary=("Rome", "Oslo")),
        FeatureColumn("page", "hashed", buckets=100),
        FeatureColumn("visits", "number", mean=1.5, std=0.5, log=True),
    )
)


def test_fields_have_ids_for_missing_and_unseen_values() -> None:
    assert COLUMNS.field_sizes == (4, 101) and COLUMNS.num_numbers == 3 and COLUMNS.shapes == ((2,), (3,))
    assert dict(COLUMNS.fields[0].id_of) == {"Rome": 2, "Oslo": 3}


def test_an_input_without_columns_is_left_out() -> None:
    assert FeatureColumns(COLUMNS.fields).shapes == ((2,),) and FeatureColumns(COLUMNS.numbers).shapes == ((3,),)


def test_feature_columns_are_restored_from_a_checkpoint() -> None:
    signature = FeatureSignature(COLUMNS.shapes, columns=COLUMNS)
    values = json.loads(json.dumps(signature.to_json()))
    assert not [*problems_of(values, signature.form), *unknown_keys(values, signature.form)]
    found = FeatureSignature.from_json(values)
    assert found.columns == COLUMNS and found.shape == COLUMNS.shapes
    assert found.columns.field_sizes == (4, 101) and found.columns.num_numbers == 3


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "text"},
        {"buckets": 0},
        {"buckets": -3},
        {"kind": "number", "buckets": 0, "std": 0.0},
        {"name": "age"},
        {"buckets": 2**31},
        {"length": 3},
        {"kind": "indexed"},
    ],
)
def test_damaged_columns_of_a_checkpoint_are_refused(change: Dict[str, Any]) -> None:
    values: Any = json.loads(json.dumps(COLUMNS.to_json()))
    values[2].update(change)
    with pytest.raises(DamagedCheckpoint, match="The checkpoint cannot be used: "):
        FeatureColumns.from_json(values)
