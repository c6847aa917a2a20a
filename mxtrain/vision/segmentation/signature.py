"""The signature of images with masks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Dict, Sequence

from mxtrain.vision.images.signature import ImageSignature, ImageSplits

if TYPE_CHECKING:
    from mxtrain.annotations import Json, JsonForm


@dataclass(frozen=True)
class MaskSplits(ImageSplits):
    """Images with a class for every pixel.

    Attributes:
        mask_values: the value of each class in a mask's file; empty: its number.
    """

    mask_values: Sequence[int] = ()


@dataclass(frozen=True)
class MaskSignature(ImageSignature):
    """Images with a class for every pixel.

    Attributes:
        mask_values: the value of each class in a mask's file; empty: its number.
    """

    form: ClassVar[Dict[str, JsonForm]] = {**ImageSignature.form, "mask_values?": [int]}

    mask_values: Sequence[int] = ()

    def to_json(self) -> Dict[str, Json]:
        return {**super().to_json(), **({"mask_values": list(self.mask_values)} if self.mask_values else {})}
