"""The signature of images with boxes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Dict, Sequence

from mxtrain.vision.images.signature import ImageSignature, ImageSplits

if TYPE_CHECKING:
    from mxtrain.annotations import Json, JsonForm


@dataclass(frozen=True)
class BoxSplits(ImageSplits):
    """Images with objects in them.

    Attributes:
        category_ids: the number of each class in the dataset's own files; empty: its number from 0.
    """

    category_ids: Sequence[int] = ()


@dataclass(frozen=True)
class BoxSignature(ImageSignature):
    """Images with objects in them.

    Attributes:
        category_ids: the number of each class in the dataset's own files; empty: its number from 0.
    """

    form: ClassVar[Dict[str, JsonForm]] = {**ImageSignature.form, "category_ids?": [int]}

    category_ids: Sequence[int] = ()

    def to_json(self) -> Dict[str, Json]:
        return {**super().to_json(), **({"category_ids": list(self.category_ids)} if self.category_ids else {})}
