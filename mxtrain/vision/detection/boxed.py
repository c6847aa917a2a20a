"""Base class of detection datasets: images with the boxes of the objects in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Collection, Dict, Literal, Tuple, Type

from mxtrain.data.signature import Signature
from mxtrain.data.spec import BaseDataset, Splits
from mxtrain.errors import ConfigError
from mxtrain.types.kinds import Gives, Images
from mxtrain.vision.detection.boxed_images import BoxedImages
from mxtrain.vision.detection.boxes import BoxAnnotations
from mxtrain.vision.detection.signature import BoxSignature, BoxSplits
from mxtrain.vision.images.dataset import Dataset
from mxtrain.vision.images.settings import Decoding
from mxtrain.vision.images.signature import ImageSignature
from mxtrain.vision.images.transforms.chain import Annotations, AugmentSettings
from mxtrain.vision.kinds import Boxes

if TYPE_CHECKING:
    from mxtrain.model.spec import Model
    from mxtrain.vision.images.decoding import EncodedImages
    from mxtrain.vision.images.files import Unlabelled


class BoxedDataset(Dataset):
    """Base class of datasets of images with boxes. In evaluation, the network's input is the whole image, resized to
    `image_size`."""

    signature_class: ClassVar[Type[ImageSignature]] = BoxSignature
    gives: ClassVar[Gives] = Gives(Images, Boxes)

    annotation_class: ClassVar[Type[BoxAnnotations]] = BoxAnnotations
    """Rules by which rows of samples follow a geometric transform."""

    augment: AugmentSettings = AugmentSettings()  # type: ignore[assignment]  # of its own annotations
    fit: Literal["stretch", "pad"] = "stretch"
    """Resizing of an image to `image_size`: stretch changes its aspect ratio; pad keeps it, and fills the rest at the
    right or at the bottom."""

    def infer_signature(self, splits: Splits, model: Model) -> Signature:
        """Builds the signature; see `BaseDataset.infer_signature`.

        Raises:
            ConfigError: the model requires another image size than the dataset's.
        """
        (_, *expected), configured = model.input_shape(splits.shape), list(splits.shape[1:])
        if expected != configured:
            raise ConfigError(
                f"dataset.image_size: the model takes images of {expected[0]} x {expected[1]}, and they are brought to "
                f"{configured[0]} x {configured[1]}, boxes too. Type dataset.image_size=[{expected[0]},{expected[1]}]."
            )
        ids = list(splits.category_ids) if isinstance(splits, BoxSplits) else []
        return BoxSignature.extending(super().infer_signature(splits, model), category_ids=ids)

    def decoded_as(self, decoding: Decoding) -> BoxedDataset:
        """Returns this dataset with the image size and `fit` of a decoding."""
        return self.with_decoding(decoding, fit=decoding.fit)

    def restored(self, trained: Signature, overridden: Collection[str], source: str) -> Tuple[BaseDataset, Signature]:
        """Restores the dataset of a trained network; see `BaseDataset.restored`.

        Raises:
            ConfigError: `fit` is overridden with another value than in training.
        """
        fit = ImageSignature.cast(trained).decoding.fit
        if "dataset.fit" in overridden and self.fit != fit:
            raise ConfigError(
                f"dataset.fit={self.fit}: the network was trained with dataset.fit={fit} ({source}), which cannot "
                "change. Leave it out."
            )
        return super().restored(trained, overridden, source)

    def annotations(self, signature: Signature) -> Annotations:
        return self.annotation_class()

    def loader_options(self, train: bool) -> Dict[str, Any]:
        """Returns the options of the loader. Sources return images in the size of the network's input."""
        return {"keeps_size": True}

    def source_of(self, encoded: EncodedImages, signature: Signature) -> Unlabelled:
        return BoxedImages(encoded, None, ImageSignature.cast(signature).decoding, signature.mean)
