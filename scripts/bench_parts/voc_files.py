"""What made-up files in PASCAL VOC's layout have in common: parts of photographs, and pictures that come again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, List, Mapping, Sequence, Tuple

import numpy as np


def name_pictures(num_names: int, num_val: int) -> Tuple[List[str], List[str]]:
    """Names of pictures of training and of validation."""
    return [f"train_{number:06d}" for number in range(num_names)], [f"val_{number:06d}" for number in range(num_val)]


def cut_out(photograph_HWC: np.ndarray, height: int, width: int, rng: np.random.RandomState) -> Any:
    """A part of a photograph, as a picture of Pillow's."""
    from PIL import Image

    top = rng.randint(photograph_HWC.shape[0] - height + 1)
    left = rng.randint(photograph_HWC.shape[1] - width + 1)
    return Image.fromarray(photograph_HWC[top : top + height, left : left + width])


def repeat(root: Path, endings: Mapping[str, str], names: Sequence[str], num_different: int) -> None:
    """Copies files, so that the first pictures come again under the further names.

    Args:
        root: of the folders.
        endings: folder -> ending of its files.
        names: of which the first `num_different` are there.
        num_different: pictures that differ.
    """
    for number in range(num_different, len(names)):
        for folder, ending in endings.items():
            first = root / folder / f"{names[number % num_different]}.{ending}"
            shutil.copyfile(first, root / folder / f"{names[number]}.{ending}")
