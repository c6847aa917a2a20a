"""Settings of the decoding and augmentation of images, as used in configurations and checkpoints.

Shapes are suffixes: B batch, C channels, H height, W width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Dict, List, Mapping, Optional, Tuple, Type, Union

import pydantic
from typing_extensions import Annotated, Literal, get_args

from mxtrain.errors import DamagedCheckpoint
from mxtrain.types import NonNegative, NonNegativeFloat, PositiveFloat, Range, Shape
from mxtrain.vision.images.transforms.base import AreaShare, DatasetTransform
from mxtrain.vision.images.transforms.chain import AugmentSettings
from mxtrain.vision.images.window import Window as Window
from mxtrain.vision.images.window import as_window as as_window
from mxtrain.vision.images.window import require_window

if TYPE_CHECKING:
    from mxtrain.types.annotations import Json, JsonObject

WindowSetting = Annotated[
    Union[Literal["auto", "full", "percentile"], List[float]], pydantic.BeforeValidator(require_window)
]
"""Type of a setting with a `Window`."""
SliceAxis = Literal["axial", "coronal", "sagittal", "i", "j", "k"]


class Mixup(DatasetTransform):
    """Blends two images and their labels."""

    is_last: ClassVar[bool] = True
    alpha: PositiveFloat = 0.2
    """Alpha of the Beta distribution of the weight of each image."""

    def settings(self) -> Dict[str, object]:
        return {"mixup": self.alpha}


class CutMix(DatasetTransform):
    """Pastes a box of another image. With mixup in the list as well, each sample draws one of the two."""

    is_last: ClassVar[bool] = True
    alpha: PositiveFloat = 1.0
    """Alpha of the Beta distribution of the share of the box."""

    def settings(self) -> Dict[str, object]:
        return {"cutmix": self.alpha}


class FileCrop(DatasetTransform):
    """`ResizedCrop` at the start of a list: crops the original image of the file."""

    scale: Range[AreaShare] = [0.25, 1.0]
    """Smallest and largest share of the area."""

    def settings(self) -> Dict[str, object]:
        return {"crop_scale": self.scale}


class Augment(AugmentSettings):
    """Random changes of training images; every draw is a function of (seed, epoch, sample index)."""

    dataset_transforms: ClassVar[Mapping[str, Type[DatasetTransform]]] = {"mixup": Mixup, "cutmix": CutMix}

    crop_padding: NonNegative = 0
    """Pixels of zeros added on each side before a random crop of the original size; 0 = off."""
    flip: bool = False
    """Mirror left-right with probability one half."""
    cutout: NonNegative = 0
    """Side in pixels of a square set to zero at a random centre; 0 = off."""
    mixup: NonNegativeFloat = 0.0
    """Alpha of the Beta distribution that blends two images and their labels; 0 = off."""
    cutmix: NonNegativeFloat = 0.0
    """Alpha of the Beta distribution of the share of a box pasted from another image; 0 = off. With mixup on as well,
    each sample draws one of the two."""
    crop_scale: Range[AreaShare] = [1.0, 1.0]
    """Smallest and largest share of the area of a random crop of a decoded image; [1, 1] = off, the central part.
    Not used by datasets that are held in memory."""

    @property
    def mixes(self) -> bool:
        """Returns True if two samples are mixed, so that labels are probabilities."""
        return self.mixup > 0 or self.cutmix > 0


class FileAugment(Augment):
    """Random changes of training images that are decoded when they are read."""

    dataset_transforms: ClassVar[Mapping[str, Type[DatasetTransform]]] = {
        "resized_crop": FileCrop,
        **Augment.dataset_transforms,
    }


@dataclass(frozen=True)
class Decoding:
    """Deterministic decoding of an image file to a sample; part of checkpoints.

    `pixels.ImageReader` reads the pixels; then a central part is cropped and resized, unless `frame` or `fit` is given.
    Images that were never encoded (MNIST, CIFAR) are used whole.

    Attributes:
        shape: (C, H, W) that images are decoded to; C is 1, 3, or the number of bands of the files. The shape of the
            network's input may differ.
        central_crop: factor of the crop: 1 is the largest central part with the aspect ratio of `shape`.
        frame: (H, W) that whole images are fitted into, in semantic segmentation: larger images are scaled down, and
            the frame is padded at the right and at the bottom.
        window: grey values that become black and white: (centre, width) in the units of the file, for DICOM after the
            rescale; "full": the whole range of the bit depth; "percentile": percentiles of the file's own values;
            "auto": the window in a DICOM file, otherwise "full".
        slice_axis: direction of the slices of volumes, see `nifti.ANATOMICAL` and `nifti.STORED`.
        fit: resizing of whole images to `shape`, in object detection: "stretch" or "pad"; otherwise "". It excludes
            `frame`.
    """

    shape: Shape
    central_crop: float = 1.0
    frame: Optional[Tuple[int, int]] = None
    window: Window = "auto"
    fit: Literal["", "stretch", "pad"] = ""
    slice_axis: str = "axial"

    def to_json(self) -> Dict[str, Json]:
        """Returns the settings as JSON values for a checkpoint."""
        frame = {} if self.frame is None else {"frame": list(self.frame)}
        chosen = window_setting(self.window)
        # Left out for `auto`, as in checkpoints of earlier versions.
        window = {} if chosen == "auto" else {"window": [chosen] if isinstance(chosen, str) else chosen}
        fit = {"fit": self.fit} if self.fit else {}
        axis = {} if self.slice_axis == "axial" else {"slice_axis": self.slice_axis}
        return {"shape": list(self.shape), "central_crop": self.central_crop, **frame, **window, **fit, **axis}

    @classmethod
    def from_json(cls, values: JsonObject) -> Decoding:
        """Restores the settings that `to_json` returned."""
        frame = values.get("frame")
        try:
            window = as_window(values.get("window") or ["auto"])
            if values.get("slice_axis", "axial") not in get_args(SliceAxis):
                raise ValueError(f"slice_axis is {values['slice_axis']}")
        except ValueError as error:
            raise DamagedCheckpoint(f"The checkpoint cannot be used: in its decoding, {error}.") from error
        return cls(
            tuple(values["shape"]),
            float(values["central_crop"]),
            None if frame is None else tuple(frame),
            window,
            values.get("fit", ""),
            values.get("slice_axis", "axial"),
        )


def window_setting(window: Window) -> Union[str, List[float]]:
    """Converts a window to the value of the setting; the inverse of `as_window`."""
    return window if isinstance(window, str) else list(window)
