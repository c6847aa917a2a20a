"""PASCAL VOC's layout, made of scikit-learn's photographs with shapes drawn on them, whose pixels are the masks."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, List, Tuple

import numpy as np

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
    names: List[str] = [f"train_{number:06d}" for number in range(num_names)]
    val = [f"val_{number:06d}" for number in range(VAL_PICTURES)]
    for number, name in enumerate([*names[:PICTURES], *val]):
        picture, mask = _scene(photographs[number % len(photographs)], rng)
        picture.save(root / "JPEGImages" / f"{name}.jpg", quality=90)
        mask.save(root / "SegmentationClass" / f"{name}.png")
    for number in range(PICTURES, num_names):
        for folder, ending in (("JPEGImages", "jpg"), ("SegmentationClass", "png")):
            first = root / folder / f"{names[number % PICTURES]}.{ending}"
            shutil.copyfile(first, root / folder / f"{names[number]}.{ending}")
    for split, chosen in (("train", names), ("trainval", names), ("val", val)):
        (root / "ImageSets" / "Segmentation" / f"{split}.txt").write_text("\n".join(chosen) + "\n")


def _scene(photograph_HWC: Any, rng: np.random.RandomState) -> Tuple[Any, Any]:
    """A part of a photograph with up to four ellipses in colours of their classes, and its mask with a palette."""
    from PIL import Image, ImageDraw

    top = rng.randint(photograph_HWC.shape[0] - HEIGHT + 1)
    left = rng.randint(photograph_HWC.shape[1] - WIDTH + 1)
    picture = Image.fromarray(photograph_HWC[top : top + HEIGHT, left : left + WIDTH])
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
