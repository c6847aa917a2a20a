"""Small datasets of images with boxes, in the forms that users have."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any, Dict, Iterable, Optional, Sequence, Tuple

import numpy as np
from PIL import Image

Box = Tuple[str, float, float, float, float]
"""Class, left, top, right, bottom: exact edges."""


def draw(
    path: Path,
    size: Tuple[int, int],
    boxes: Iterable[Sequence[Any]] = (),
    colours: Sequence[Sequence[int]] = (),
    seed: int = 0,
    **options: Any,
) -> Path:
    """An image of noise with a filled rectangle for each box."""
    path.parent.mkdir(parents=True, exist_ok=True)
    width, height = size
    image_HWC = np.random.RandomState(seed).randint(0, 40, (height, width, 3)).astype(np.uint8)
    for number, box in enumerate(boxes):
        left, top, right, bottom = (int(edge) for edge in box[1:5])
        image_HWC[top:bottom, left:right] = colours[number] if colours else (200, 60 + 60 * (number % 3), 90)
    Image.fromarray(image_HWC).save(path, **options)
    return path


def voc_xml(
    boxes: Iterable[Sequence[Any]], size: Optional[Tuple[int, int]] = None, difficult: Optional[Sequence[int]] = None
) -> str:
    """An annotation as PASCAL VOC's tools write it."""
    lines = ["<annotation>", "  <filename>another name.png</filename>"]
    if size is not None:
        lines.append(f"  <size><width>{size[0]}</width><height>{size[1]}</height><depth>3</depth></size>")
    for number, (name, left, top, right, bottom) in enumerate(boxes):
        flag = f"<difficult>{difficult[number]}</difficult>" if difficult else ""
        lines += [
            "  <object>",
            f"    <name>{name}</name>{flag}",
            f"    <bndbox><ymax>{bottom}</ymax><xmin>{left + 1}</xmin><ymin>{top + 1}</ymin><xmax>{right}</xmax>",
            "    </bndbox><part><name>head</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax>",
            "    </bndbox></part>",
            "  </object>",
        ]
    lines.append("  <source><object><name>nothing</name></object></source>")
    return "\n".join([*lines, "</annotation>", ""])


IMAGES: Dict[str, Tuple[Tuple[int, int], Sequence[Box]]] = {
    "a": ((60, 40), [("cat", 5, 4, 30, 20), ("Dog", 20, 10, 60, 40)]),
    "b": ((40, 60), [("cat", 0, 0, 40, 60)]),
    "c": ((50, 50), []),
    "d": ((64, 48), [("Dog", 10, 10, 20, 30)]),
    "e": ((48, 64), [("cat", 8, 8, 40, 40), ("cat", 1, 1, 2, 2)]),
}
"""Name -> (width, height), boxes."""
NAMES = ["cat", "Dog"]


def write_voc(
    root: Path, names: Sequence[str] = "abcde", train: str = "abc", val: str = "de", ending: str = "jpg"
) -> Path:
    """One year of PASCAL VOC's layout; lists with blank lines and a column that says nothing here."""
    for number, name in enumerate(names):
        size, boxes = IMAGES[name]
        draw(root / "JPEGImages" / f"{name}.{ending}", size, boxes, seed=ord(root.name[-1]) * 9 + number)
        annotation = root / "Annotations" / f"{name}.xml"
        annotation.parent.mkdir(exist_ok=True)
        annotation.write_text(voc_xml(boxes, size if number else None, [0] * len(boxes) if number % 2 else None))
    lists = root / "ImageSets" / "Main"
    lists.mkdir(parents=True)
    (lists / "train.txt").write_text("\n\n".join(train) + "\n\n")
    (lists / "val.txt").write_text("".join(f"{name}  -1\n" for name in val))
    (lists / "trainval.txt").write_text("\n".join([*train, *val]))
    return root


IDS = {"cat": 17, "Dog": 3}


def coco_json(
    names: Sequence[str], first_id: int = 1, ids: Optional[Dict[str, int]] = None, reverse: bool = True
) -> Dict[str, Any]:
    """Returns a COCO file for images; ids have gaps and nothing is in order."""
    ids = ids or IDS
    images, annotations = [], []
    for number, name in enumerate(names):
        size, boxes = IMAGES[name]
        image = {"id": 100 + 7 * ord(name), "file_name": f"{name}.jpg", "width": size[0], "height": size[1]}
        images.append(image)
        for kind, left, top, right, bottom in boxes:
            width, height = right - left, bottom - top
            polygon = [left, top, right, top, right, bottom, left, bottom]
            annotations.append(
                {
                    "id": first_id + len(annotations),
                    "image_id": image["id"],
                    "category_id": ids[kind],
                    "bbox": [left, top, width, height],
                    "area": width * height * 0.75,
                    "iscrowd": int(number == 1),
                    "segmentation": [polygon],
                    "keypoints": [left, top, 2],
                }
            )
    categories = [{"id": number, "name": name, "supercategory": "things"} for name, number in ids.items()]
    parts = {"info": {"year": 2017}, "annotations": annotations, "images": images, "categories": categories}
    if reverse:
        images.reverse()
        annotations.reverse()
    return parts


def write_coco(root: Path, train: str = "abc", val: str = "de") -> Path:
    """COCO's layout, as it was published in 2017."""
    (root / "annotations").mkdir(parents=True)
    for split, names in (("train2017", train), ("val2017", val)):
        (root / split).mkdir()
        for number, name in enumerate(names):
            draw(root / split / f"{name}.jpg", *IMAGES[name], seed=number)
        path = root / "annotations" / f"instances_{split}.json"
        path.write_text(json.dumps(coco_json(names)))
    return root


def list_label(name: str, normalized: bool = True, header: int = 4, difficult: Optional[int] = None) -> list:
    """The label of an image as GluonCV writes it: A, B, width, height, and five numbers or six for each object."""
    (width, height), boxes = IMAGES[name]
    sides = (width, height, width, height) if normalized else (1, 1, 1, 1)
    more = [] if difficult is None else [difficult]
    label = [header, 5 + len(more), width, height][:header]
    for kind, *edges in boxes:
        label += [NAMES.index(kind), *(edge / side for edge, side in zip(edges, sides)), *more]
    return label


def write_list(root: Path, **splits: str) -> Path:
    """`SPLIT.lst` for each, with paths below `pictures/`."""
    for split, names in (splits or {"train": "abcde"}).items():
        lines = []
        for number, name in enumerate(names):
            draw(root / "pictures" / f"{name} 1.jpg", *IMAGES[name], seed=ord(name))
            cells = [number, *list_label(name), f"pictures/{name} 1.jpg"]
            lines.append("\t".join(map(str, cells)))
        (root / f"{split}.lst").write_text("\n\n".join(lines) + "\n")
    return root


def write_records(root: Path, split: str = "train", names: str = "abcde", indexed: bool = True, **options: Any) -> Path:
    """`SPLIT.rec` as MXNet writes it."""
    from mxtrain.engine.backend import mx

    root.mkdir(exist_ok=True)
    writer = mx.recordio.MXIndexedRecordIO(str(root / f"{split}.idx"), str(root / f"{split}.rec"), "w")
    for number, name in enumerate(names):
        path = draw(root / "spare" / f"{name}.jpg", *IMAGES[name], seed=ord(name))
        header = mx.recordio.IRHeader(0, np.array(list_label(name, **options), np.float32), number, 0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # MXNet calls what NumPy has renamed
            writer.write_idx(number, mx.recordio.pack(header, path.read_bytes()))
    writer.close()
    if not indexed:
        (root / f"{split}.idx").unlink()
    return root
