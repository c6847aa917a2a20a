"""Reads what SageMaker's archives say beside graph and weights: `hyperparams.json` and `model-shapes.json`."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, List, Optional

from mxtrain.files.download.transfer import WrongContent
from mxtrain.model.network_archive import read_archive


@dataclass(frozen=True)
class TrainedWith:
    """Facts on the training of an archive; None if it does not tell.

    Attributes:
        side: height and width of the images in pixels, if they are equal.
        num_classes: number of classes.
    """

    side: Optional[int] = None
    num_classes: Optional[int] = None


def trained_with(archive: Path) -> TrainedWith:
    """Returns the facts in an archive. They are hints, so files that cannot be parsed are skipped.

    Source of the forms: the hyperparameters of Image Classification (`image_shape` is "3,224,224") and of Object
    Detection (`image_shape` is the side) at https://docs.aws.amazon.com/sagemaker.
    """
    try:
        contents = read_archive(archive).texts
    except (WrongContent, OSError):
        return TrainedWith()  # reading the graph reports it
    named = {Path(name).name: _parsed(content) for name, content in contents.items()}
    settings, inputs = named.get("hyperparams.json"), named.get("model-shapes.json")
    settings = settings if isinstance(settings, dict) else {}
    shapes: List[Any] = (
        [each.get("shape") for each in inputs if isinstance(each, dict)] if isinstance(inputs, list) else []
    )
    side = next((_side([str(size) for size in shape]) for shape in shapes if _is_of_images(shape)), None)
    typed = re.findall(r"\d+", str(settings.get("image_shape", "")))
    classes = str(settings.get("num_classes", ""))
    return TrainedWith(side or _side(typed), int(classes) if re.fullmatch(r"[1-9]\d{0,6}", classes) else None)


def _parsed(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return None


def _is_of_images(shape: Any) -> bool:
    """Returns True for (B, C, H, W); the shape of a label may be there, too."""
    return isinstance(shape, list) and len(shape) == 4


def _side(sizes: List[str]) -> Optional[int]:
    """Returns the side of square images of a shape (..., height, width) or (side,)."""
    usable = sizes and all(re.fullmatch(r"[1-9]\d{0,4}", size) for size in sizes[-2:])
    return int(sizes[-1]) if usable and sizes[-1] == sizes[-2:][0] else None
