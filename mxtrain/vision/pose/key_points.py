"""Key points of objects in images: their names, and the relations between them.

Pixel i extends from i to i + 1, so its centre is i + 0.5. Formats with integer pixel positions (COCO's) are converted
on reading and writing.

A sample is an object, not an image: the network sees the part around one box. Losses are divided by the key points
whose position is known. GluonCV divides by all, so its gradient shrinks with the share that is not annotated.

Legend: B batch, J key points, H height, W width, C channels.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Dict, List, Sequence, Tuple, Union

import numpy as np

from mxtrain.errors import DamagedCheckpoint
from mxtrain.types import NamedInt
from mxtrain.vision.images.transforms.chain import Annotations
from mxtrain.vision.images.transforms.lazy_image import GeometryStep
from mxtrain.vision.pose.crop import Crop, moved_points
from mxtrain.vision.pose.crop import known as known  # re-exported

if TYPE_CHECKING:
    from mxtrain.types.annotations import Json, JsonObject


class Visibility(NamedInt):
    """Visibility of a key point, as in COCO."""

    UNKNOWN = 0
    HIDDEN = 1
    """The position is known, but something covers the point."""
    VISIBLE = 2


class KeypointMeta(NamedInt):
    """First columns of the fields in a row of `Batch.meta` for objects with key points."""

    HEIGHT = 0
    """4 columns: height and width of the image, then of the network's input, as in the metadata of other images."""
    MATRIX = 4
    """6 columns: the matrix (2, 3) from pixels of the network's input to pixels of the image, row by row."""
    LEFT = 10
    """4 columns: left, top, right, bottom of the object in the image."""
    AREA = 14
    """Area of the object in pixels of the image."""
    IMAGE = 15
    """Index of the image."""
    SCORE = 16
    """Score of the box; 1 for annotated boxes."""
    SIGMA = 17
    """J columns: see `KeyPointSet.sigmas`."""


@dataclass(frozen=True)
class KeyPointSet:
    """Relations between the key points of a kind of object; their names are in the signature.

    Attributes:
        flip_pairs: pairs of left and right key points, which are swapped in a mirrored image.
        skeleton: pairs that are joined by a line in figures.
        sigmas: standard deviation of human annotations of each key point, relative to the square root of the object's
            area; used by OKS (object key point similarity).
        object_names: classes of the objects that have these key points; empty: any.
    """

    flip_pairs: Sequence[Tuple[int, int]] = ()
    skeleton: Sequence[Tuple[int, int]] = ()
    sigmas: Sequence[float] = ()
    object_names: Sequence[str] = ()

    def order(self, count: int) -> np.ndarray:
        """Returns the index in the original image of each key point of a mirrored one, (J,).

        Args:
            count: J.
        """
        order_J = np.arange(count)
        for left, right in self.flip_pairs:
            order_J[[left, right]] = right, left
        return order_J

    def to_json(self) -> Dict[str, Json]:
        """Returns the set as JSON values for a checkpoint."""
        return {
            "flip_pairs": [list(pair) for pair in self.flip_pairs],
            "skeleton": [list(pair) for pair in self.skeleton],
            "sigmas": list(self.sigmas),
            "thing_names": list(self.object_names),
        }

    @classmethod
    def from_json(cls, values: JsonObject, count: int) -> KeyPointSet:
        """Restores the set that `to_json` returned.

        Args:
            values: values of a checkpoint.
            count: J.

        Raises:
            DamagedCheckpoint: a pair names a key point that does not exist.
        """

        def pairs(name: str) -> List[Tuple[int, int]]:
            listed: List[List[int]] = values[name]
            for pair in listed:
                if len(pair) != 2 or not all(0 <= number < count for number in pair):
                    raise DamagedCheckpoint(
                        f"The checkpoint cannot be used: in its key_points, {name} names {pair}, and there are {count} "
                        "key points."
                    )
            return [(first, second) for first, second in listed]

        return cls(pairs("flip_pairs"), pairs("skeleton"), values["sigmas"], values["thing_names"])


class KeyPointAnnotations(Annotations):
    """Key points (J, 3). Left and right ones are swapped in a mirrored image."""

    def __init__(self, order_J: np.ndarray) -> None:
        """Stores the order.

        Args:
            order_J: see `KeyPointSet.order`.
        """
        self._order_J = order_J

    def follow(self, label: np.ndarray, step: GeometryStep) -> np.ndarray:
        """Transforms the key points of a sample; see `Annotations.follow`."""
        order_J = self._order_J if step.is_mirrored else None
        return moved_points(label, step.matrix_23, order_J).astype(label.dtype)


def meta_row(
    crop: Crop,
    image_size: Tuple[int, int],
    box_4: Sequence[float],
    area: float,
    image: int,
    score: float,
    sigma_J: Union[Sequence[float], np.ndarray],
) -> np.ndarray:
    """Builds a row of `Batch.meta`, see `KeypointMeta`.

    Args:
        crop: crop of the object.
        image_size: (width, height) of the image.
        box_4, area, score: box, area and score of the object.
        image: index of the image.
        sigma_J: sigmas of the key points.
    """
    sizes = (*image_size[::-1], *crop.size)
    return np.concatenate([sizes, crop.back_23.ravel(), box_4, [area, image, score], sigma_J])


PERSON_NAMES = (
    "nose",
    "left_eye",
    "right_eye",
    "left_ear",
    "right_ear",
    "left_shoulder",
    "right_shoulder",
    "left_elbow",
    "right_elbow",
    "left_wrist",
    "right_wrist",
    "left_hip",
    "right_hip",
    "left_knee",
    "right_knee",
    "left_ankle",
    "right_ankle",
)
"""COCO's key points of a person."""
PERSON_SIGMAS = (
    0.026,
    0.025,
    0.025,
    0.035,
    0.035,
    0.079,
    0.079,
    0.072,
    0.072,
    0.062,
    0.062,
    0.107,
    0.107,
    0.087,
    0.087,
    0.089,
    0.089,
)
"""Source: COCO's key point evaluation, as pycocotools has them."""


def left_right_pairs(names: Sequence[str]) -> List[Tuple[int, int]]:
    """Returns the pairs of indices of left and right key points: their names differ only in the words "left" and
    "right", or L and R, in any case, e.g. `left_eye`, `Right Eye`, `eyeL`, `R_Eye`."""
    index = {_words(name): number for number, name in enumerate(names)}
    pairs = ((number, index.get(_mirrored(words))) for words, number in index.items() if _mirrored(words) != words)
    return [(left, right) for left, right in pairs if right is not None]


def _words(name: str) -> Tuple[str, ...]:
    """Returns the words of a name in lower case; `leftEye` has two."""
    return tuple(word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W\d_]+", name))


def _mirrored(words: Sequence[str]) -> Tuple[str, ...]:
    """Translates the words of a left key point to the right one."""
    return tuple("r" if word == "l" else word.replace("left", "right") for word in words)
