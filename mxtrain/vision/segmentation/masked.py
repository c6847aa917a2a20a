"""Base class of semantic segmentation datasets.

Whole images are evaluated in a frame of one size, `dataset.eval_size`: smaller images are padded with ignored pixels,
larger ones are reduced, so that one image is one row of a batch for all placements. Validation uses no windows, which
would make several rows of an image; one batch shape per size would be traced anew for each. `tile` of `eval` and
`predict` cuts images in their original size (`tiled_masks`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Dict, Mapping, Type

from mxtrain.data.signature import Signature
from mxtrain.data.spec import Splits
from mxtrain.types.kinds import Gives, Images
from mxtrain.vision.images.dataset import Dataset
from mxtrain.vision.images.settings import Decoding
from mxtrain.vision.images.signature import ImageSignature
from mxtrain.vision.images.transforms.chain import Annotations, AugmentSettings
from mxtrain.vision.kinds import ClassMap
from mxtrain.vision.segmentation.masked_images import MaskAnnotations, MaskCoding, MaskedImages
from mxtrain.vision.segmentation.signature import MaskSignature, MaskSplits

if TYPE_CHECKING:
    from mxtrain.model.spec import Model
    from mxtrain.vision.images.decoding import EncodedImages
    from mxtrain.vision.images.files import Unlabelled


class MaskedDataset(Dataset):
    """Base class of datasets of images with masks.

    In training the network receives crops of the size `image_size`. In evaluation and prediction, whole images are
    fitted into a frame: in their original size if they fit, otherwise scaled down.
    """

    gives: ClassVar[Gives] = Gives(Images, ClassMap)
    signature_class: ClassVar[Type[ImageSignature]] = MaskSignature

    pixel_weights: ClassVar[Mapping[str, float]] = {}
    """Recommended weight of the pixels of a class, by name; 1 for other classes."""

    augment: AugmentSettings = AugmentSettings()  # type: ignore[assignment]  # of its own annotations

    def infer_signature(self, splits: Splits, model: Model) -> Signature:
        values = list(splits.mask_values) if isinstance(splits, MaskSplits) else []
        return MaskSignature.extending(super().infer_signature(splits, model), mask_values=values)

    def decoded_as(self, decoding: Decoding) -> MaskedDataset:
        """Returns this dataset with the image size of a decoding."""
        return self.with_decoding(decoding)

    def remark(self, signature: Signature, splits: Splits) -> str:
        signature = ImageSignature.cast(signature)
        frame = signature.decoding.frame
        part, frame_text = ("x".join(map(str, size)) for size in (signature.shape[1:], frame or ()))
        return f"parts of {part} are trained on; whole images are measured, those larger than {frame_text} made smaller"

    def annotations(self, signature: Signature) -> Annotations:
        return MaskAnnotations()

    def loader_options(self, train: bool) -> Dict[str, Any]:
        """Returns the options of the loader. Sources return images in the size of the network's input."""
        return {"keeps_size": True}

    def source_of(self, encoded: EncodedImages, signature: Signature) -> Unlabelled:
        signature = MaskSignature.cast(signature)
        return MaskedImages(encoded, None, MaskCoding(signature.mask_values), signature.decoding, signature.mean)
