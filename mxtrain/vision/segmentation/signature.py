"""Splits and signature of images with segmentation masks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Dict, Sequence

from mxtrain.vision.images.signature import ImageSignature, ImageSplits

if TYPE_CHECKING:
    from mxtrain.types.annotations import Json, JsonForm


@dataclass(frozen=True)
class MaskSplits(ImageSplits):
    """Splits of images with segmentation masks.

    Attributes:
        mask_values: value of each class in mask files; empty: the index of the class.
    """

    mask_values: Sequence[int] = ()


@dataclass(frozen=True)
class MaskSignature(ImageSignature):
    """Signature of images with segmentation masks.

    Attributes:
        mask_values: value of each class in mask files; empty: the index of the class.
    """

    form: ClassVar[Dict[str, JsonForm]] = {**ImageSignature.form, "mask_values?": [int]}

    mask_values: Sequence[int] = ()

    def to_json(self) -> Dict[str, Json]:
        return {**super().to_json(), **({"mask_values": list(self.mask_values)} if self.mask_values else {})}
