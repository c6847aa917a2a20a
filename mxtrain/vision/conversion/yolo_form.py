"""Writes YOLO's label files with data.yaml, as Ultralytics reads them.

Legend: K points of a polygon, J key points.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar, Iterable, List, Tuple

import numpy as np

from mxtrain.data.spec import BaseDataset
from mxtrain.terminal.progress import WorkProgress
from mxtrain.vision.conversion.content import ConvertedObject
from mxtrain.vision.conversion.form import Form, refuse_unlisted_names, text_file
from mxtrain.vision.conversion.job import Holds
from mxtrain.vision.instance_segmentation.coco_masks import Runs
from mxtrain.vision.objects.yolo import Yolo
from mxtrain.vision.pose.key_points import left_right_pairs

_NUM_CORNERS = 4
"""Corners of oriented boxes, which polygons must not be taken for."""


class YoloForm(Form):
    """`images/train/`, `labels/train/`, likewise val and test, and data.yaml. Rows are boxes, polygons, or boxes with
    key points, in shares of width and height."""

    name: ClassVar[str] = "yolo"
    words: ClassVar[str] = "YOLO's label files"
    holds: ClassVar[Holds] = Holds(
        outlines=True, points=True, duplicates=False, clips=True, boxes_outlines=True, one_polygon=True
    )
    exact: ClassVar[str] = "shares of width and height with 10 digits"

    def image(self, split: str, index: int) -> str:
        return f"images/{split}/{self.job.names[split][index]}"

    def option(self) -> str:
        return "yolo"

    def dataset(self, folder: Path) -> BaseDataset:
        return Yolo(root=str(folder))

    def check(self) -> None:
        refuse_unlisted_names(list(self.content.class_names), "data.yaml")
        if "val" not in self.content.splits:
            self.job.notes.append("data.yaml has no val, which Ultralytics needs: the source has no validation split")
        if self.job.writes_points and self.content.points is not None and self.content.points.skeleton:
            self.job.notes.append("lines between key points are not written: YOLO has no place for them")

    def write_annotations(self, folder: Path, progress: WorkProgress) -> None:
        progress.begin("writing annotations", self.content.num_images)
        # Four corners in each row could be oriented boxes: then the first corner is written again at the end.
        closes = self.job.writes_outlines and not self.job.counts["corners"]
        for split, images in self.content.splits.items():
            for index in range(len(images.encoded)):
                stem = Path(self.job.names[split][index]).stem
                size = self.job.size(split, index)
                with text_file(folder / "labels" / split / f"{stem}.txt") as stream:
                    stream.writelines(self._row(each, size, closes) for each in self.job.objects(split, index))
                progress.advance(1)
        with text_file(folder / "data.yaml") as stream:
            stream.writelines(f"{line}\n" for line in self._description())

    def _row(self, each: ConvertedObject, size: Tuple[int, int], closes: bool) -> str:
        values: List[float] = []
        if each.shape is not None:
            assert not isinstance(each.shape, Runs)
            (point_K2,) = each.shape
            closed = [*point_K2, point_K2[0]] if closes and len(point_K2) == _NUM_CORNERS else point_K2
            values = (np.asarray(closed) / size).ravel().tolist()
        else:
            left, top, right, bottom = np.array(each.edges) / [*size, *size]
            values = [(left + right) / 2, (top + bottom) / 2, right - left, bottom - top]
        return f"{each.class_index} {_numbers(values)}{self._points(each, size)}\n"

    def _points(self, each: ConvertedObject, size: Tuple[int, int]) -> str:
        """Returns the key points of a row, with a blank before them; empty if the dataset has none."""
        if not self.job.writes_points:
            return ""
        assert self.content.points is not None
        point_J3 = np.zeros((len(self.content.points.names), 3)) if each.points is None else each.points
        shares_J3 = np.where(point_J3[:, 2:] > 0, point_J3 / [*size, 1], 0)
        return "".join(f" {_numbers((x, y))} {int(visible)}" for x, y, visible in shares_J3.tolist())

    def _description(self) -> Iterable[str]:
        """Yields the lines of data.yaml. Texts are quoted as in JSON, which is YAML, too: `no` would be false."""
        yield "# Written by mxtrain."
        for split in self.content.splits:
            yield f"{split}: images/{split}"
        yield "names:"
        for number, name in enumerate(self.content.class_names):
            yield f"  {number}: {json.dumps(name, ensure_ascii=False)}"
        points = self.content.points
        if points is None or not self.job.writes_points:
            return
        pairs = left_right_pairs(points.names) if points.flip_pairs is None else points.flip_pairs
        order = list(range(len(points.names)))
        for first, second in pairs:
            order[first], order[second] = second, first
        yield f"kpt_shape: [{len(points.names)}, 3]"
        yield f"flip_idx: {order}"
        yield "kpt_names:"
        yield f"  0: {json.dumps(list(points.names), ensure_ascii=False)}"


def _numbers(values: Iterable[float]) -> str:
    return " ".join(f"{value:.10g}" for value in values)
