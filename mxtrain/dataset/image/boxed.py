"""Base of datasets that give the boxes of the things in every picture."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Collection, Dict, List, Literal, Sequence, Tuple

from mxtrain.dataset.base import BaseDataset, Dataset, Samples, Splits
from mxtrain.dataset.image.boxed_pictures import BoxedPictures
from mxtrain.dataset.image.files import ImageFiles, open_inputs
from mxtrain.dataset.image.masked import NoAugment
from mxtrain.dataset.image.settings import Decoding
from mxtrain.dataset.signature import Signature
from mxtrain.errors import ConfigError

if TYPE_CHECKING:
    from mxtrain.model.base import Model


class BoxedDataset(Dataset):
    """Base of descriptions of pictures with boxes. A network sees whole pictures, brought to `image_size`."""

    serves: ClassVar[Tuple[str, ...]] = ("detection",)

    augment: NoAugment = NoAugment()  # type: ignore[assignment]
    fit: Literal["stretch", "pad"] = "stretch"
    """How a whole picture is brought to `image_size`: stretch changes its aspect; pad keeps it, and fills up what
    is left at the right or at the bottom."""

    def sign(self, splits: Splits, model: Model) -> Signature:
        """See `BaseDataset.sign`.

        Raises:
            ConfigError: the model takes pictures of another size than they are brought to.
        """
        (_, *wanted), own = model.input_shape(splits.shape), list(splits.shape[1:])
        if wanted != own:
            raise ConfigError(
                f"dataset.image_size: the model takes pictures of {wanted[0]} x {wanted[1]}, and they are brought to "
                f"{own[0]} x {own[1]}, boxes too. Type dataset.image_size=[{wanted[0]},{wanted[1]}]."
            )
        return replace(super().sign(splits, model), category_ids=list(splits.category_ids))

    def decoded_as(self, decoding: Decoding) -> BoxedDataset:
        """See `Dataset.decoded_as`."""
        channels, height, width = decoding.shape
        update = {"channels": channels, "image_size": [height, width], "fit": decoding.fit}
        return self.model_copy(update=update)

    def restored(self, given: Signature, typed: Collection[str], source: str) -> Tuple[BaseDataset, Signature]:
        """See `BaseDataset.restored`; `fit` is part of what was trained."""
        fit = given.decoding.fit if given.decoding is not None else self.fit
        if "dataset.fit" in typed and self.fit != fit:
            raise ConfigError(
                f"dataset.fit={self.fit}: what enters the network is part of what was trained, and {source} says "
                f"dataset.fit={fit}. Leave it out."
            )
        return super().restored(given, typed, source)

    def loader_options(self, train: bool) -> Dict[str, Any]:
        """See `Dataset.loader_options`: sources give the size that enters the network."""
        return {"keeps_size": True}

    def open_inputs(
        self, names: Sequence[str], signature: Signature, skip_unreadable: bool, unreadable: Dict[int, str]
    ) -> Tuple[Samples, Sequence[str]]:
        decoding = signature.decoding
        assert decoding is not None

        def open_source(files: List[str]) -> BoxedPictures:
            return BoxedPictures(ImageFiles(files), None, decoding, signature.mean)

        return open_inputs(names, open_source, skip_unreadable, unreadable)
