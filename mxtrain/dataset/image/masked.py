"""Base of datasets that give a segmentation mask with every picture."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Dict, List, Mapping, Sequence, Tuple

from mxtrain.dataset.base import Dataset, Samples, Splits
from mxtrain.dataset.image.files import open_inputs
from mxtrain.dataset.image.masked_pictures import MaskCoding, MaskedPictures
from mxtrain.dataset.image.settings import Decoding
from mxtrain.dataset.signature import Signature
from mxtrain.types import Spec

if TYPE_CHECKING:
    from mxtrain.model.base import Model


class NoAugment(Spec):
    """Nothing is changed at random."""

    @property
    def mixes(self) -> bool:
        """No two samples are mixed."""
        return False


class MaskedDataset(Dataset):
    """Base of descriptions of pictures with masks.

    In training a network sees parts of one size, `image_size`. To be measured, and for predictions, whole pictures are
    fitted into a frame: as large as they are where they fit, else made smaller.
    """

    serves: ClassVar[Tuple[str, ...]] = ("segmentation",)

    pixel_weights: ClassVar[Mapping[str, float]] = {}
    """By the name of a class: how much each of its pixels weighs where the loss leaves it to the dataset; others 1."""

    augment: NoAugment = NoAugment()  # type: ignore[assignment]

    def sign(self, splits: Splits, model: Model) -> Signature:
        return replace(super().sign(splits, model), mask_values=list(splits.mask_values))

    def decoded_as(self, decoding: Decoding) -> MaskedDataset:
        """See `Dataset.decoded_as`."""
        channels, height, width = decoding.shape
        return self.model_copy(update={"channels": channels, "image_size": [height, width]})

    def remark(self, signature: Signature, splits: Splits) -> str:
        assert signature.decoding is not None
        frame = signature.decoding.frame
        shown, whole = ("x".join(map(str, size)) for size in (signature.shape[1:], frame or ()))
        return f"parts of {shown} are trained on; whole pictures are measured, those larger than {whole} made smaller"

    def loader_options(self, train: bool) -> Dict[str, Any]:
        """See `Dataset.loader_options`."""
        return {"keeps_size": True}

    def open_inputs(
        self, names: Sequence[str], signature: Signature, skip_unreadable: bool, unreadable: Dict[int, str]
    ) -> Tuple[Samples, Sequence[str]]:
        decoding, coding = signature.decoding, MaskCoding(signature.mask_values)
        assert decoding is not None

        def open_source(files: List[str]) -> MaskedPictures:
            return MaskedPictures(files, None, coding, decoding, signature.mean)

        return open_inputs(names, open_source, skip_unreadable, unreadable)
