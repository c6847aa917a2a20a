"""Annotated images as plain values, written in formats by this file itself, and values in pixels that are expected."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np
from boxed_files import draw

Points = Sequence[Tuple[float, float]]


@dataclass
class Thing:
    """An annotated object: index of the class, edges, polygons, key points (x, y, visibility) and marks."""

    kind: int
    edges: Tuple[float, float, float, float]
    polygons: Sequence[Points] = ()
    points: Sequence[Tuple[float, float, int]] = ()
    crowd: bool = False
    difficult: bool = False


@dataclass
class Picture:
    """An annotated image."""

    name: str
    size: Tuple[int, int]
    things: List[Thing] = field(default_factory=list)


Pictures = Dict[str, List[Picture]]


def random_pictures(
    seed: int, *, polygons: bool = False, points: int = 0, whole: bool = False, counts: Sequence[int] = (5, 3)
) -> Pictures:
    """Images with random objects of two classes; the first image has one of each class."""
    rng = np.random.RandomState(seed)
    splits: Pictures = {}
    for split, count in zip(("train", "val", "test"), counts):
        splits[split] = []
        for number in range(count):
            width, height = (int(side) for side in rng.randint(24, 90, 2))
            kinds = [0, 1] if number == 0 else rng.randint(0, 2, rng.randint(0, 4)).tolist()
            picture = Picture(f"{split}_{number:03d}.jpg", (width, height))
            for kind in kinds:
                left, right = sorted(rng.uniform(0, width, 2).tolist())
                top, bottom = sorted(rng.uniform(0, height, 2).tolist())
                right, bottom = min(right + 1, width), min(bottom + 1, height)
                left, top = min(left, right - 1), min(top, bottom - 1)
                if whole:
                    left, top, right, bottom = (float(int(edge)) for edge in (left, top, right + 0.999, bottom + 0.999))
                    right, bottom = min(right, width), min(bottom, height)
                thing = Thing(kind, (left, top, right, bottom))
                if polygons:
                    thing.polygons = [[(left, top), (right, top), (right, bottom)]]
                if points:
                    xs, ys = rng.uniform(left, right, points), rng.uniform(top, bottom, points)
                    marks = rng.randint(0, 3, points)
                    marks[0] = 2
                    thing.points = [(x, y, int(v)) if v else (0.0, 0.0, 0) for x, y, v in zip(xs, ys, marks)]
                picture.things.append(thing)
            splits[split].append(picture)
    return splits


def write_coco(root: Path, pictures: Pictures, names: Sequence[str], point_names: Sequence[str] = ()) -> Path:
    """COCO's JSON; boxes are left, top, width, height, and key points indices of pixels."""
    (root / "annotations").mkdir(parents=True)
    for split, listed in pictures.items():
        images: List[Any] = []
        annotations: List[Any] = []
        for number, picture in enumerate(listed):
            draw(root / f"{split}2017" / picture.name, picture.size, seed=number)
            width, height = picture.size
            images.append({"id": number + 1, "file_name": picture.name, "width": width, "height": height})
            for thing in picture.things:
                left, top, right, bottom = thing.edges
                annotation = {
                    "id": len(annotations) + 1,
                    "image_id": number + 1,
                    "category_id": thing.kind + 1,
                    "bbox": [left, top, right - left, bottom - top],
                    "area": (right - left) * (bottom - top),
                    "iscrowd": int(thing.crowd),
                }
                if thing.polygons:
                    annotation["segmentation"] = [
                        [value for point in each for value in point] for each in thing.polygons
                    ]
                if point_names:
                    flat = [(x - 0.5, y - 0.5, v) if v else (0, 0, 0) for x, y, v in thing.points]
                    annotation["keypoints"] = [value for point in flat for value in point] or [0, 0, 0] * len(
                        point_names
                    )
                    annotation["num_keypoints"] = sum(v > 0 for *_, v in thing.points)
                annotations.append(annotation)
        more = {"keypoints": list(point_names), "skeleton": []} if point_names else {}
        categories = [{"id": number + 1, "name": name, **more} for number, name in enumerate(names)]
        content = {"images": images, "annotations": annotations, "categories": categories}
        (root / "annotations" / f"instances_{split}2017.json").write_text(json.dumps(content))
    return root


def read_coco(root: Path) -> Tuple[Pictures, List[str]]:
    """The content of COCO's JSON, by the standard library alone."""
    pictures: Pictures = {}
    names: List[str] = []
    for split in ("train", "val", "test"):
        path = root / "annotations" / f"instances_{split}2017.json"
        if not path.exists():
            continue
        content = json.loads(path.read_text())
        names = [category["name"] for category in content["categories"]]
        number_of = {category["id"]: number for number, category in enumerate(content["categories"])}
        found = {
            image["id"]: Picture(image["file_name"], (image["width"], image["height"])) for image in content["images"]
        }
        for each in content["annotations"]:
            left, top, width, height = each["bbox"]
            polygons = [list(zip(flat[::2], flat[1::2])) for flat in each.get("segmentation") or []]
            flat = each.get("keypoints") or []
            points = [
                (x + 0.5, y + 0.5, v) if v else (0.0, 0.0, 0) for x, y, v in zip(flat[::3], flat[1::3], flat[2::3])
            ]
            edges = (left, top, left + width, top + height)
            thing = Thing(number_of[each["category_id"]], edges, polygons, points, bool(each["iscrowd"]))
            found[each["image_id"]].things.append(thing)
        pictures[split] = list(found.values())
    return pictures, names


def values(pictures: Pictures, split: Optional[str] = None) -> Dict[str, List[Any]]:
    """Image -> class, edges, polygons and key points of its objects, as nested lists of numbers."""
    return {
        f"{each_split}/{picture.name.rpartition('.')[0]}": [
            [thing.kind, *thing.edges, *np.ravel(thing.polygons).tolist(), *np.ravel(thing.points).tolist()]
            for thing in picture.things
        ]
        for each_split, listed in pictures.items()
        if split in (None, each_split)
        for picture in listed
    }
