"""Splits and signature of images with boxes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Dict, Sequence

from mxtrain.vision.images.signature import ImageSignature, ImageSplits

if TYPE_CHECKING:
    from mxtrain.types.annotations import Json, JsonForm


@dataclass(frozen=True)
class BoxSplits(ImageSplits):
    """Splits of images with boxes of objects.

    Attributes:
        category_ids: id of each class in the files of the dataset; empty: the index of the class.
    """

    category_ids: Sequence[int] = ()

    def counts(self) -> Dict[str, int]:
        """Returns the number of images, boxes and classes; see `Splits.counts`."""
        parts = [part for part in (self.train, self.val, self.test) if part is not None]
        boxes = sum(part.num_boxes for part in parts)  # type: ignore[attr-defined]  # images with boxes
        return {"images": sum(map(len, parts)), "boxes": boxes, "classes": len(self.class_names)}


@dataclass(frozen=True)
class BoxSignature(ImageSignature):
    """Signature of images with boxes of objects.

    Attributes:
        category_ids: id of each class in the files of the dataset; empty: the index of the class.
    """

    form: ClassVar[Dict[str, JsonForm]] = {**ImageSignature.form, "category_ids?": [int]}

    category_ids: Sequence[int] = ()

    def to_json(self) -> Dict[str, Json]:
        return {**super().to_json(), **({"category_ids": list(self.category_ids)} if self.category_ids else {})}
