"""PASCAL VOC's layout with boxes, made of scikit-learn's photographs with shapes drawn on them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, List, Tuple

import numpy as np

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

    from mxtrain.dataset.image.voc_layout import VOC_CLASSES

    photographs = load_sample_images().images
    root = devkit / YEAR
    for folder in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (root / folder).mkdir(parents=True)
    rng = np.random.RandomState(0)
    names: List[str] = [f"train_{number:06d}" for number in range(num_names)]
    val = [f"val_{number:06d}" for number in range(VAL_PICTURES)]
    for number, name in enumerate([*names[:PICTURES], *val]):
        picture, boxes = _scene(photographs[number % len(photographs)], len(VOC_CLASSES), rng)
        picture.save(root / "JPEGImages" / f"{name}.jpg", quality=90)
        (root / "Annotations" / f"{name}.xml").write_text(_annotation([(VOC_CLASSES[k], box) for k, box in boxes]))
    for number in range(PICTURES, num_names):
        for folder, ending in (("JPEGImages", "jpg"), ("Annotations", "xml")):
            first = root / folder / f"{names[number % PICTURES]}.{ending}"
            shutil.copyfile(first, root / folder / f"{names[number]}.{ending}")
    for split, chosen in ((SPLIT, names), (VAL_SPLIT, val)):
        (root / "ImageSets" / "Main" / f"{split}.txt").write_text("\n".join(chosen) + "\n")


def _scene(
    photograph_HWC: Any, num_classes: int, rng: np.random.RandomState
) -> Tuple[Any, List[Tuple[int, List[int]]]]:
    """A part of a photograph with up to four ellipses in colours of their classes, and their exact boxes."""
    from PIL import Image, ImageDraw

    top = rng.randint(photograph_HWC.shape[0] - HEIGHT + 1)
    left = rng.randint(photograph_HWC.shape[1] - WIDTH + 1)
    picture = Image.fromarray(photograph_HWC[top : top + HEIGHT, left : left + WIDTH])
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
