"""Small datasets of pictures with boxes, in the forms that users have."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Iterable, Optional, Sequence, Tuple

import numpy as np
from PIL import Image

Box = Tuple[str, float, float, float, float]
"""Class, left, top, right, bottom: exact edges."""


def draw(
    path: Path, size: Tuple[int, int], boxes: Iterable[Sequence[Any]] = (), colours: Sequence[Sequence[int]] = (),
    seed: int = 0, **options: Any,
) -> Path:  # fmt: skip
    """A picture of noise with a filled rectangle for each box."""
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
) -> str:  # fmt: skip
    """An annotation as PASCAL VOC's tools write it."""
    lines = ["<annotation>", "  <filename>another name.png</filename>"]
    if size is not None:
        lines.append(f"  <size><width>{size[0]}</width><height>{size[1]}</height><depth>3</depth></size>")
    for number, (name, left, top, right, bottom) in enumerate(boxes):
        flag = f"<difficult>{difficult[number]}</difficult>" if difficult else ""
        lines += [
            "  <object>", f"    <name>{name}</name>{flag}",
            f"    <bndbox><ymax>{bottom}</ymax><xmin>{left + 1}</xmin><ymin>{top + 1}</ymin><xmax>{right}</xmax>",
            "    </bndbox><part><name>head</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax>",
            "    </bndbox></part>",
            "  </object>",
        ]  # fmt: skip
    return "\n".join([*lines, "</annotation>", ""])


PICTURES: Dict[str, Tuple[Tuple[int, int], Sequence[Box]]] = {
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
) -> Path:  # fmt: skip
    """One year of PASCAL VOC's layout; lists with blank lines and a column that says nothing here."""
    for number, name in enumerate(names):
        size, boxes = PICTURES[name]
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
