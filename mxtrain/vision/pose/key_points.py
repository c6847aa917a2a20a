"""Key points of objects in images: their names, the relations between them, and the crop of an object.

Positions are exact, as edges of boxes are: pixel i reaches from i to i + 1, so its middle is i + 0.5. Formats that name
pixels (COCO's) are converted on reading and writing.

Legend: B batch, J key points, H height, W width, C channels.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, Dict, List, Optional, Sequence, Tuple, Union

import numpy as np

from mxtrain.errors import DamagedCheckpoint
from mxtrain.types import NamedInt
from mxtrain.vision.images.affine import inverse, moved, warp
from mxtrain.vision.images.transforms.chain import Annotations
from mxtrain.vision.images.transforms.lazy_image import GeometryStep

if TYPE_CHECKING:
    from mxtrain.annotations import Json, JsonObject

PADDING = 1.25
"""The part that is cut out is longer than the object's box by this. Source: Xiao et al., "Simple Baselines for Human
Pose Estimation and Tracking" (2018), as their code has it."""
Resize = Callable[[Tuple[float, float, float, float], Tuple[int, int]], np.ndarray]
"""(left, top, right, bottom) of a part of an image, (width, height) that it gets -> that part, (C, H, W)."""


class Visibility(NamedInt):
    """Visibility of a key point, as in COCO."""

    UNKNOWN = 0
    HIDDEN = 1
    """Its place is known, and something covers it."""
    VISIBLE = 2


class KeypointMeta(NamedInt):
    """The columns of a row of `Batch.meta` about an object with key points."""

    HEIGHT = 0
    """And three more: height and width of the image, and of what enters the network, as other images have them."""
    MATRIX = 4
    """And five more: the two rows of the map from what enters the network to the image as it is."""
    LEFT = 10
    """And three more: its box in the image."""
    AREA = 14
    """Pixels of the object in the image."""
    IMAGE = 15
    """The number of the image."""
    SCORE = 16
    """Of its box, 1 if it was not detected."""
    SIGMA = 17
    """And one more for each further key point: see `KeyPointSet.sigmas`."""


@dataclass(frozen=True)
class KeyPointSet:
    """Relations between the key points of a kind of object; their names are in the signature.

    Attributes:
        flip_pairs: left and right ones, which change places in a mirrored image.
        skeleton: pairs that a line joins in figures.
        sigmas: how far apart people mark each, as a share of the root of the object's area: what OKS measures in.
        object_names: classes of the objects that have them; empty: any.
    """

    flip_pairs: Sequence[Tuple[int, int]] = ()
    skeleton: Sequence[Tuple[int, int]] = ()
    sigmas: Sequence[float] = ()
    object_names: Sequence[str] = ()

    def order(self, count: int) -> np.ndarray:
        """Returns the index of each key point before mirroring, (J,)."""
        order_J = np.arange(count)
        for left, right in self.flip_pairs:
            order_J[[left, right]] = right, left
        return order_J

    def to_json(self) -> Dict[str, Json]:
        """The plain values that a checkpoint holds."""
        return {
            "flip_pairs": [list(pair) for pair in self.flip_pairs], "skeleton": [list(pair) for pair in self.skeleton],
            "sigmas": list(self.sigmas), "thing_names": list(self.object_names),
        }  # fmt: skip

    @classmethod
    def from_json(cls, values: JsonObject, count: int) -> KeyPointSet:
        """The inverse of `to_json`.

        Args:
            values: of a checkpoint.
            count: J.

        Raises:
            DamagedCheckpoint: a pair is none of these key points.
        """

        def pairs(name: str) -> List[Tuple[int, int]]:
            found: List[List[int]] = values[name]
            for pair in found:
                if len(pair) != 2 or not all(0 <= number < count for number in pair):
                    raise DamagedCheckpoint(
                        f"The checkpoint cannot be used: in its key_points, {name} names {pair}, and there are {count} "
                        "key points."
                    )
            return [(first, second) for first, second in found]

        return cls(pairs("flip_pairs"), pairs("skeleton"), values["sigmas"], values["thing_names"])


def known(point_BJ3: np.ndarray) -> np.ndarray:
    """Returns a mask of key points with a known position, (B, J), including hidden ones."""
    return point_BJ3[..., 2] > Visibility.UNKNOWN


@dataclass(frozen=True)
class Crop:
    """Affine map from a part of an image to the network's input: translation, scaling, rotation and optional mirroring.

    Attributes:
        centre: x and y in the image of what comes to the middle.
        scale: pixels that enter the network of one of the image's.
        size: (H, W) of what enters the network.
        degrees: by which the image is turned, clockwise as it is seen.
        is_flipped: mirrored left-right, after it was turned.
    """

    centre: Tuple[float, float]
    scale: float
    size: Tuple[int, int]
    degrees: float = 0.0
    is_flipped: bool = False

    @classmethod
    def around(
        cls, box_4: Sequence[float], size: Sequence[int], factor: float = 1.0, degrees: float = 0.0,
        is_flipped: bool = False,
    ) -> Crop:  # fmt: skip
        """The part around a box that has the aspect of what enters the network.

        Args:
            box_4: left, top, right, bottom.
            size: (H, W) of what enters the network.
            factor: by which the part is longer than usual.
            degrees, is_flipped: as of `Crop`.
        """
        left, top, right, bottom = box_4
        scale = min(size[0] / max(bottom - top, 1e-3), size[1] / max(right - left, 1e-3)) / (PADDING * factor)
        return cls(((left + right) / 2, (top + bottom) / 2), scale, (size[0], size[1]), degrees, is_flipped)

    @property
    def matrix_23(self) -> np.ndarray:
        """The map from the image to what enters the network."""
        cos, sin = math.cos(math.radians(self.degrees)), math.sin(math.radians(self.degrees))
        turn_22 = self.scale * np.array([[cos, -sin], [sin, cos]])
        if self.is_flipped:
            turn_22[0] *= -1
        shift_2 = np.array(self.size[::-1]) / 2 - turn_22 @ np.array(self.centre)
        return np.concatenate([turn_22, shift_2[:, None]], axis=1)

    @property
    def back_23(self) -> np.ndarray:
        """The map from what enters the network to the image."""
        return inverse(self.matrix_23)

    def points(self, point_J3: np.ndarray, order_J: np.ndarray) -> np.ndarray:
        """Key points of the image in what enters the network, (J, 3).

        Args:
            point_J3: x, y, visibility.
            order_J: see `KeyPointSet.order`, for mirrored crops.
        """
        return moved_points(point_J3, self.matrix_23, order_J if self.is_flipped else None)

    def draw(self, resize: Resize, image_size: Tuple[int, int], fill_C: np.ndarray) -> np.ndarray:
        """Returns the network's input, (C, H, W).

        Args:
            resize: of the image.
            image_size: its (width, height).
            fill_C: where the image ends.
        """
        height, width = self.size
        if not self.degrees:
            image_CHW = self._upright(resize, image_size, (width, height), fill_C)
            return image_CHW[..., ::-1] if self.is_flipped else image_CHW
        # Resize an upright part that contains the rotated one, so that downsampling is smoothed.
        cos, sin = abs(math.cos(math.radians(self.degrees))), abs(math.sin(math.radians(self.degrees)))
        size = (math.ceil(width * cos + height * sin) + 2, math.ceil(width * sin + height * cos) + 2)
        part_CHW = self._upright(resize, image_size, size, fill_C)
        turn_23 = Crop((size[0] / 2, size[1] / 2), 1.0, self.size, self.degrees, self.is_flipped).matrix_23
        return warp(part_CHW, turn_23, (height, width), fill_C)

    def _upright(
        self, resize: Resize, image_size: Tuple[int, int], size: Tuple[int, int], fill_C: np.ndarray
    ) -> np.ndarray:
        """A part of that (width, height) with the centre in its middle, resized only."""
        begins, ends, windows = [], [], []
        for middle, length, wanted in zip(self.centre, image_size, size):
            start = middle - wanted / 2 / self.scale  # where the part begins, in the image
            # Whole pixels inside of the image, so that the resized part lies exactly where the matrix maps it.
            first = max(0, math.ceil(-start * self.scale - 1e-9))
            last = min(wanted, math.floor((length - start) * self.scale + 1e-9))
            begins.append(first)
            ends.append(last)
            windows.append((max(start + first / self.scale, 0.0), min(start + last / self.scale, float(length))))
        if ends[0] <= begins[0] or ends[1] <= begins[1]:
            return np.broadcast_to(fill_C[:, None, None], (len(fill_C), size[1], size[0])).copy()
        (left, right), (top, bottom) = windows
        part_CHW = resize((left, top, right, bottom), (ends[0] - begins[0], ends[1] - begins[1]))
        image_CHW = np.empty((len(fill_C), size[1], size[0]), part_CHW.dtype)
        image_CHW[:] = fill_C[:, None, None]
        image_CHW[:, begins[1] : ends[1], begins[0] : ends[0]] = part_CHW
        return image_CHW


def moved_points(point_J3: np.ndarray, matrix_23: np.ndarray, order_J: Optional[np.ndarray]) -> np.ndarray:
    """Key points (J, 3) after a map; those without a known place are 0.

    Args:
        point_J3: x, y, visibility.
        matrix_23: the map.
        order_J: see `KeyPointSet.order`, where the map mirrors; else None.
    """
    moved_J3 = np.column_stack([moved(point_J3[:, :2], matrix_23), point_J3[:, 2]])
    moved_J3[~known(point_J3)] = 0
    return moved_J3 if order_J is None else moved_J3[order_J]


class KeyPointAnnotations(Annotations):
    """Key points (J, 3). Left and right ones change places in a mirrored image."""

    def __init__(self, order_J: np.ndarray) -> None:
        """Args: order_J: see `KeyPointSet.order`."""
        self._order_J = order_J

    def follow(self, label: np.ndarray, step: GeometryStep) -> np.ndarray:
        """See `Annotations.follow`."""
        order_J = self._order_J if step.is_mirrored else None
        return moved_points(label, step.matrix_23, order_J).astype(label.dtype)


def facts(
    crop: Crop, image_size: Tuple[int, int], box_4: Sequence[float], area: float, image: int, score: float,
    sigma_J: Union[Sequence[float], np.ndarray],
) -> np.ndarray:  # fmt: skip
    """A row of `Batch.meta`, as `Fact` says.

    Args:
        crop: how the object was cut out.
        image_size: (width, height) of the image.
        box_4, area, score: of the object.
        image: its number.
        sigma_J: of the key points.
    """
    sizes = (*image_size[::-1], *crop.size)
    return np.concatenate([sizes, crop.back_23.ravel(), box_4, [area, image, score], sigma_J])


PERSON_NAMES = (
    "nose", "left_eye", "right_eye", "left_ear", "right_ear", "left_shoulder", "right_shoulder", "left_elbow",
    "right_elbow", "left_wrist", "right_wrist", "left_hip", "right_hip", "left_knee", "right_knee", "left_ankle",
    "right_ankle",
)  # fmt: skip
"""COCO's key points of a person."""
PERSON_SIGMAS = (
    0.026, 0.025, 0.025, 0.035, 0.035, 0.079, 0.079, 0.072, 0.072, 0.062, 0.062, 0.107, 0.107, 0.087, 0.087, 0.089,
    0.089,
)  # fmt: skip
"""Source: COCO's key point evaluation, as pycocotools has them."""


def left_right_pairs(names: Sequence[str]) -> List[Tuple[int, int]]:
    """Pairs of key points whose names differ in "left" and "right", or the words L and R, alone, in any case:
    `left_eye`, `Right Eye`, `eyeL`, `R_Eye`."""
    index = {_words(name): number for number, name in enumerate(names)}
    pairs = ((number, index.get(_mirrored(words))) for words, number in index.items() if _mirrored(words) != words)
    return [(left, right) for left, right in pairs if right is not None]


def _words(name: str) -> Tuple[str, ...]:
    """The words of a name in lower case; `leftEye` has two."""
    return tuple(word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W\d_]+", name))


def _mirrored(words: Sequence[str]) -> Tuple[str, ...]:
    """Translates the words of a left key point to the right one."""
    return tuple("r" if word == "l" else word.replace("left", "right") for word in words)
