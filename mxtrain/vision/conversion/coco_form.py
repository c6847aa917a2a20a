"""Writes COCO's JSON files.

Legend: K points of a polygon, J key points.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar, Dict, List, Optional, Tuple

import numpy as np

from mxtrain.data.recognition import Setting
from mxtrain.data.spec import BaseDataset
from mxtrain.terminal.progress import WorkProgress
from mxtrain.vision.conversion.content import SPLITS, ConvertedObject
from mxtrain.vision.conversion.form import Form, plain_number, text_file
from mxtrain.vision.conversion.job import Holds
from mxtrain.vision.detection.boxes import Flag
from mxtrain.vision.detection.coco import Coco
from mxtrain.vision.instance_segmentation.coco_masks import Runs
from mxtrain.vision.instance_segmentation.outlines import polygon_area
from mxtrain.vision.objects.objects import Shape

_YEAR = "2017"
"""Names of files and folders are those of COCO 2017, which most tools expect."""


class CocoForm(Form):
    """`train2017/` with images, `annotations/instances_train2017.json`, and likewise val and test."""

    name: ClassVar[str] = "coco"
    words: ClassVar[str] = "COCO's JSON"
    holds: ClassVar[Holds] = Holds(outlines=True, points=True, crowds=True)
    exact: ClassVar[str] = "64-bit floats"

    def image(self, split: str, index: int) -> str:
        return f"{split}{_YEAR}/{self.job.names[split][index]}"

    def option(self) -> str:
        return "coco_key_points" if self.job.writes_points else "coco"

    def settings(self) -> Dict[str, Setting]:
        defaults = {field: info.default for field, info in Coco.model_fields.items()}
        found: Dict[str, Optional[str]] = {}
        for split in SPLITS:
            exists = split in self.content.splits
            found[f"{split}_annotations"] = f"annotations/{self._file(split)}" if exists else None
        if self.job.writes_points:
            return {field: value or "null" for field, value in found.items() if field != "test_annotations" or value}
        return {field: value or "null" for field, value in found.items() if value != defaults[field]}

    def dataset(self, folder: Path) -> BaseDataset:
        files: Dict[str, Any] = {
            f"{split}_annotations": f"annotations/{self._file(split)}" if split in self.content.splits else None
            for split in SPLITS
        }
        return Coco(root=str(folder), **files)

    @staticmethod
    def _file(split: str) -> str:
        return f"instances_{split}{_YEAR}.json"

    def write_annotations(self, folder: Path, progress: WorkProgress) -> None:
        progress.begin("writing annotations", self.content.num_images)
        image_id, number = 1, 1
        for split, images in self.content.splits.items():
            path, count = folder / "annotations" / self._file(split), len(images.encoded)
            with text_file(path) as stream:
                stream.write('{"info": {"description": "converted by mxtrain"}, "licenses": [],\n"categories": ')
                stream.write(json.dumps(self._categories(split)))
                stream.write(',\n"images": [')
                for index in range(count):
                    stream.write(",\n" if index else "\n")
                    stream.write(json.dumps(self._image(split, index, image_id + index)))
                stream.write('\n],\n"annotations": [')
                separator = "\n"
                for index in range(count):
                    for each in self.job.objects(split, index):
                        size = self.job.size(split, index)
                        stream.write(separator + json.dumps(self._annotation(each, number, image_id + index, size)))
                        separator, number = ",\n", number + 1
                    progress.advance(1)
                stream.write("\n]}\n")
            image_id += count

    def _ids(self) -> List[int]:
        """Returns the id of each category: those of the source if all are positive, else from 1."""
        ids = [int(number) for number in self.content.category_ids]
        is_usable = ids == sorted(set(ids)) and len(ids) == len(self.content.class_names) and min(ids, default=0) > 0
        return ids if is_usable else list(range(1, len(self.content.class_names) + 1))

    def _categories(self, split: str) -> List[Dict[str, Any]]:
        points = self.content.points
        categories: List[Dict[str, Any]] = []
        for number, name in zip(self._ids(), self.content.class_names):
            category: Dict[str, Any] = {"id": number, "name": name, "supercategory": ""}
            if points is not None and self.job.writes_points and self._has_points(name):
                category["keypoints"] = list(points.names)
                category["skeleton"] = [[first + 1, second + 1] for first, second in points.skeleton]
            categories.append(category)
        return categories

    def _has_points(self, name: str) -> bool:
        return list(self.content.class_names).index(name) in self.job.point_classes

    def _image(self, split: str, index: int, image_id: int) -> Dict[str, Any]:
        width, height = self.job.size(split, index)
        return {"id": image_id, "file_name": self.job.names[split][index], "width": width, "height": height}

    def _annotation(self, each: ConvertedObject, number: int, image_id: int, size: Tuple[int, int]) -> Dict[str, Any]:
        left, top, right, bottom = each.edges
        box = [plain_number(value) for value in (left, top, right - left, bottom - top)]
        area = each.area
        if area is None:
            area = (right - left) * (bottom - top) if each.shape is None else area_of(each.shape)
        annotation = {
            "id": number,
            "image_id": image_id,
            "category_id": self._ids()[each.class_index],
            "bbox": box,
            "segmentation": [] if each.shape is None else _segmentation(each.shape),
            "area": plain_number(area),
            "iscrowd": int(bool(each.flags & Flag.CROWD)),
        }
        if self.job.writes_points and each.class_index in self.job.point_classes:
            annotation.update(self._points(each.points))
        return annotation

    def _points(self, point_J3: Optional[np.ndarray]) -> Dict[str, Any]:
        assert self.content.points is not None
        array_J3 = np.zeros((len(self.content.points.names), 3)) if point_J3 is None else point_J3
        # COCO's positions are pixel indices.
        shifted_J3 = np.where(array_J3[:, 2:] > 0, array_J3 - [0.5, 0.5, 0], 0)
        values = [plain_number(value) for value in shifted_J3.ravel().tolist()]
        return {"keypoints": values, "num_keypoints": int((array_J3[:, 2] > 0).sum())}


def area_of(shape: Shape) -> float:
    """Returns the area of a mask in pixels."""
    if isinstance(shape, Runs):
        return float(shape.lengths[1::2].sum())
    return sum(polygon_area(np.asarray(point_K2)) for point_K2 in shape)


def _segmentation(shape: Shape) -> Any:
    if isinstance(shape, Runs):
        return {"size": list(shape.size), "counts": shape.lengths.tolist()}
    return [[plain_number(value) for value in np.asarray(point_K2).ravel().tolist()] for point_K2 in shape]
