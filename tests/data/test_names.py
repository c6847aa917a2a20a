"""Names in descriptions, of which YAML and the command line read some as numbers, truth or dates."""

from __future__ import annotations

import datetime
from typing import Any, Type

import pydantic
import pytest

from mxtrain.tables.number_table import NumberTable
from mxtrain.types import Spec
from mxtrain.vision.detection.coco import Coco
from mxtrain.vision.detection.image_list import ImageList
from mxtrain.vision.detection.voc import Voc
from mxtrain.vision.segmentation.segmentation_folder import SegmentationFolder


@pytest.mark.parametrize(
    "dataset, setting",
    [
        (Voc, "classes"),
        (Coco, "classes"),
        (SegmentationFolder, "classes"),
        (ImageList, "classes"),
        (NumberTable, "features"),
    ],
)
@pytest.mark.parametrize(
    "names, kind",
    [
        ([1e5, 2e5], "a number"),
        (["cat", 31], "a number"),
        ([False, "cat"], "true or false"),
        (["cat", datetime.date(2020, 1, 1)], "a date"),
    ],
)
def test_names_parsed_as_other_types_are_refused(dataset: Type[Spec], setting: str, names: Any, kind: str) -> None:
    words = f"one without quotes was read as {kind}. Put quotes around the names as they are written in the data"
    with pytest.raises(pydantic.ValidationError, match=words):
        dataset(**{setting: names})
    assert getattr(dataset(**{setting: ["1E5", "no"]}), setting) == ["1E5", "no"]
