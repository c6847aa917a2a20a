"""Image ids in COCO's format of results."""

from __future__ import annotations

import json
from typing import Any, Dict, Sequence

import numpy as np
import pytest

from mxtrain.errors import ConfigError
from mxtrain.vision.detection.coco_results import coco_ids
from mxtrain.vision.detection.signature import BoxSignature
from mxtrain.vision.detection.task import Detection
from mxtrain.vision.images.dataset import Dataset
from mxtrain.vision.images.settings import Decoding


class Numbered(Dataset):
    """Annotations that know some images."""

    known: Dict[str, int] = {}

    def sample_ids(self, places: Sequence[str]) -> Dict[str, int]:
        return {place: self.known[place] for place in places if place in self.known}


def test_ids_match_annotations_else_names(capsys: Any) -> None:
    places = ["x/a.jpg", "x/000012.jpg", "x/b.jpg"]
    assert coco_ids(places, Numbered()) == {"x/a.jpg": "a", "x/000012.jpg": 12, "x/b.jpg": "b"}
    assert capsys.readouterr().err == ""
    known = {"x/a.jpg": 7, "x/000012.jpg": 3}
    assert coco_ids(places, Numbered(known=known)) == {**known, "x/b.jpg": "b"}
    assert "name 2 of the 3 images" in capsys.readouterr().err
    assert coco_ids(places[:2], Numbered(known=known)) == known and capsys.readouterr().err == ""
    assert coco_ids(["x/a.jpg", "x/a.jpg"], Numbered()) == {"x/a.jpg": "a"}  # one image, two objects


@pytest.mark.parametrize("known", [{}, {"x/a.jpg": 12}])
def test_two_files_of_one_id_are_refused(known: Dict[str, int]) -> None:
    places = ["x/a.jpg", "x/12.jpg"] if known else ["y/012.jpg", "x/12.jpg"]
    with pytest.raises(ConfigError, match=f"'{places[0]}' and 'x/12.jpg' would both have the image_id 12"):
        coco_ids(places, Numbered(known=known))


def test_boxes_without_area_are_left_out() -> None:
    task = Detection()
    signature = BoxSignature((3, 8, 8), class_names=["cup"], category_ids=[7], decoding=Decoding((3, 8, 8)))
    boxes = [[1, 1, 5, 5], [3, 3, 3, 9], [3, 3, 9, 3], [3, 3, 3.004, 9]]
    row: Any = task.row(signature, np.array([[0, 0.5, *box] for box in boxes]), 1)  # type: ignore[arg-type]
    (found,) = json.loads("".join(task.prediction_format().write_as("coco", signature, [{"sample_id": 4, **row}])))  # type: ignore[arg-type]
    assert len(row["found"]) == 1
    assert found == {"image_id": 4, "category_id": 7, "bbox": [1, 1, 4, 4], "score": 0.5}
