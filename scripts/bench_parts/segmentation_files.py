"""PASCAL VOC's layout, made of scikit-learn's photographs with shapes drawn on them, whose pixels are the masks."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Tuple

import numpy as np

from bench_parts.voc_files import cut_out, name_pictures, repeat

HEIGHT, WIDTH = 240, 320
NUM_CLASSES = 21
PICTURES = 64
"""Pictures that differ."""
VAL_PICTURES = 4


def write_files(devkit: Path, num_names: int) -> None:
    """Writes VOC2012 into `devkit`.

    GluonCV's VOCSegmentation trains on trainval.txt when it is told train, mxtrain on train.txt: both hold the same.

    Args:
        devkit: is made.
        num_names: that a training epoch holds; the pictures come again under other names.
    """
    from sklearn.datasets import load_sample_images

    photographs = load_sample_images().images
    root = devkit / "VOC2012"
    for folder in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (root / folder).mkdir(parents=True)
    rng = np.random.RandomState(0)
    names, val = name_pictures(num_names, VAL_PICTURES)
    for number, name in enumerate([*names[:PICTURES], *val]):
        picture, mask = _scene(photographs[number % len(photographs)], rng)
        picture.save(root / "JPEGImages" / f"{name}.jpg", quality=90)
        mask.save(root / "SegmentationClass" / f"{name}.png")
    repeat(root, {"JPEGImages": "jpg", "SegmentationClass": "png"}, names, PICTURES)
    for split, chosen in (("train", names), ("trainval", names), ("val", val)):
        (root / "ImageSets" / "Segmentation" / f"{split}.txt").write_text("\n".join(chosen) + "\n")


def _scene(photograph_HWC: Any, rng: np.random.RandomState) -> Tuple[Any, Any]:
    """A part of a photograph with up to four ellipses in colours of their classes, and its mask with a palette."""
    from PIL import Image, ImageDraw

    picture = cut_out(photograph_HWC, HEIGHT, WIDTH, rng)
    mask = Image.new("P", (WIDTH, HEIGHT))
    mask.putpalette([int(value) for value in np.random.RandomState(1).randint(0, 256, 256 * 3)])
    for _ in range(rng.randint(1, 5)):
        kind = int(rng.randint(1, NUM_CLASSES))
        x, y = int(rng.randint(WIDTH - 40)), int(rng.randint(HEIGHT - 40))
        box = [x, y, x + int(rng.randint(40, 160)), y + int(rng.randint(40, 160))]
        ImageDraw.Draw(picture).ellipse(box, fill=(12 * kind, 255 - 12 * kind, 40 * kind % 256))
        # 255 is ignored: as VOC outlines its objects.
        ImageDraw.Draw(mask).ellipse(box, fill=kind, outline=255, width=3)
    return picture, mask
