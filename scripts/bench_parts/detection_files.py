"""PASCAL VOC's layout with boxes, made of scikit-learn's photographs with shapes drawn on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, List, Tuple

import numpy as np

from bench_parts.voc_files import cut_out, name_pictures, repeat

HEIGHT, WIDTH = 375, 500
"""The commonest size in PASCAL VOC."""
PICTURES = 64
"""Pictures that differ."""
VAL_PICTURES = 4
YEAR, SPLIT, VAL_SPLIT = "VOC2007", "trainval", "test"


def write_files(devkit: Path, num_names: int) -> None:
    """Writes a year of VOC into `devkit`, with the lists trainval and test.

    Args:
        devkit: is made.
        num_names: that a training epoch holds; the pictures come again under other names.
    """
    from sklearn.datasets import load_sample_images

    from mxtrain.dataset.image.class_lists import VOC_CLASSES

    photographs = load_sample_images().images
    root = devkit / YEAR
    for folder in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (root / folder).mkdir(parents=True)
    rng = np.random.RandomState(0)
    names, val = name_pictures(num_names, VAL_PICTURES)
    for number, name in enumerate([*names[:PICTURES], *val]):
        picture, boxes = _scene(photographs[number % len(photographs)], len(VOC_CLASSES), rng)
        picture.save(root / "JPEGImages" / f"{name}.jpg", quality=90)
        (root / "Annotations" / f"{name}.xml").write_text(_annotation([(VOC_CLASSES[k], box) for k, box in boxes]))
    repeat(root, {"JPEGImages": "jpg", "Annotations": "xml"}, names, PICTURES)
    for split, chosen in ((SPLIT, names), (VAL_SPLIT, val)):
        (root / "ImageSets" / "Main" / f"{split}.txt").write_text("\n".join(chosen) + "\n")


def _scene(
    photograph_HWC: Any, num_classes: int, rng: np.random.RandomState
) -> Tuple[Any, List[Tuple[int, List[int]]]]:
    """A part of a photograph with up to four ellipses in colours of their classes, and their exact boxes."""
    from PIL import ImageDraw

    picture = cut_out(photograph_HWC, HEIGHT, WIDTH, rng)
    boxes = []
    for _ in range(rng.randint(1, 5)):
        kind = int(rng.randint(num_classes))
        width, height = int(rng.randint(40, 240)), int(rng.randint(40, 240))
        x, y = int(rng.randint(WIDTH - width)), int(rng.randint(HEIGHT - height))
        # Pillow's last pixel is part of what is drawn.
        shape = [x, y, x + width - 1, y + height - 1]
        ImageDraw.Draw(picture).ellipse(shape, fill=(12 * kind, 255 - 12 * kind, 40 * kind % 256))
        boxes.append((kind, [x, y, x + width, y + height]))
    return picture, boxes


def _annotation(boxes: List[Tuple[str, List[int]]]) -> str:
    """As VOC's tools write it: coordinates count from 1, and the last pixel is part of a box."""
    size = f"<size><width>{WIDTH}</width><height>{HEIGHT}</height><depth>3</depth></size>"
    objects = "\n".join(
        f"<object><name>{name}</name><difficult>0</difficult><bndbox><xmin>{left + 1}</xmin><ymin>{top + 1}</ymin>"
        f"<xmax>{right}</xmax><ymax>{bottom}</ymax></bndbox></object>"
        for name, (left, top, right, bottom) in boxes
    )
    return f"<annotation>\n{size}\n{objects}\n</annotation>\n"
