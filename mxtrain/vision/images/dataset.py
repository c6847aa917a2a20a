"""Base class of the settings of image datasets.

Shapes are suffixes: C channels, H height, W width.
"""

from __future__ import annotations

from dataclasses import replace
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Collection,
    Dict,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    Type,
    Union,
)

import pydantic
from typing_extensions import Annotated, Literal, Self

from mxtrain.config.specs import shown
from mxtrain.data.loading.samples import Samples, Source, Splits
from mxtrain.data.spec import BaseDataset, samples_per_step
from mxtrain.errors import CheckpointError, ConfigError
from mxtrain.types import Positive, Shape, shapes_of
from mxtrain.types.kinds import ClassIndex, Gives, Images, TargetKind
from mxtrain.vision.images.settings import Augment, Decoding, as_window
from mxtrain.vision.images.signature import ImageSignature, ImageSplits
from mxtrain.vision.images.sizes import ChannelMean, Channels, ChannelStd, ImageSize, refuse_large_batch, square
from mxtrain.vision.images.transforms.chain import Annotations, TransformChain

if TYPE_CHECKING:
    from mxtrain.data.loading.loader import BatchLoader, LoaderOptions
    from mxtrain.data.signature import Signature
    from mxtrain.data.spec import Splits
    from mxtrain.loss.spec import Loss
    from mxtrain.model.spec import Model
    from mxtrain.vision.images.decoding import EncodedImages
    from mxtrain.vision.images.files import Unlabelled


class Dataset(BaseDataset):
    """Base class of image datasets."""

    gives: ClassVar[Gives] = Gives(Images, ClassIndex)
    signature_class: ClassVar[Type[ImageSignature]] = ImageSignature
    reads_bands: ClassVar[bool] = False
    """True if files may have other numbers of channels than 1 and 3."""
    converter: ClassVar[str] = "mxtrain.vision.conversion.command"
    """See `mxtrain.data.conversion.Convertible`."""

    image_size: Annotated[Union[Literal["auto"], ImageSize], pydantic.BeforeValidator(square)] = "auto"
    """[height, width] of the network input in pixels; auto = the dataset's own size, or for files of any size one that
    fits most of them."""
    channels: Channels = "auto"
    """Channels of the network input: 1 grey, 3 colour, or the number of bands of TIFF files; auto = the dataset's own:
    3 for files, or the number of bands if there are more than four."""
    augment: Augment = Augment()
    """Random augmentation of training images."""
    mean: ChannelMean = "auto"
    """Mean per channel that is subtracted from images, where white is 1; auto = measured on the training samples."""
    std: ChannelStd = "auto"
    """Standard deviation per channel that images are divided by, where white is 1; auto = measured on the training
    samples."""
    num_workers: Union[Literal["auto"], Positive] = "auto"
    """Threads that decode images; auto = the cores this process may use."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _refuse_unused_settings(cls, values: Any) -> Any:
        augment = values.get("augment") if isinstance(values, Mapping) else None
        if isinstance(augment, Mapping) and augment.get("transforms") is not None:
            defaults = cls.model_fields["augment"].default
            for name in set(type(defaults).model_fields) - {"transforms", *type(defaults).kept_settings}:
                value, default = augment.get(name), getattr(defaults, name)
                if name in augment and value != default:
                    raise ValueError(
                        f"augment.{name}={shown(value)} has no effect beside augment.transforms. Add what it does to "
                        f"the list and leave it out, or type dataset.augment.{name}={shown(default)}"
                    )
        return values

    @pydantic.model_validator(mode="after")
    def _check_memory(self) -> Dataset:
        if self.image_size != "auto":
            refuse_large_batch("image_size", self.image_size, self.channels, samples_per_step(self))
        return self

    @pydantic.model_validator(mode="after")
    def _check_channels(self) -> Dataset:
        if self.channels not in ("auto", 1, 3) and not self.reads_bands:
            raise ValueError(f"channels is auto, 1 or 3, but {self.channels} was given: images are grey or in colour")
        # Numbers for colour are averaged for grey; for other numbers of channels that would be a guess.
        for name, values in (("mean", self.mean), ("std", self.std)):
            given = 0 if isinstance(values, str) else len(values)
            if given and self.channels not in ("auto", 1, 3, given):
                raise ValueError(
                    f"{name} has {given} numbers, and channels={self.channels}: give one for each channel, or auto"
                )
        return self

    @property
    def mixes(self) -> bool:
        return self.augment.mixes

    def for_run(
        self, target: Type[TargetKind], model: Optional[Model] = None, loss: Optional[Loss] = None
    ) -> BaseDataset:
        """See `BaseDataset.for_run`: a network that takes pixels from 0 to 255 gets them, if mean and std are auto."""
        if model is None or not model.takes_pixels or (self.mean, self.std) != ("auto", "auto"):
            return self
        return self.model_copy(update={"mean": [0.0] * 3, "std": [1 / 255] * 3})

    def decoded_as(self, decoding: Decoding) -> Dataset:
        """Returns this dataset with another decoding of its image files; itself if images are not read from files."""
        return self

    def with_decoding(self: Self, decoding: Decoding, **settings: object) -> Self:
        """Returns this dataset with the channels and the size of a decoding, and further changed settings."""
        channels, height, width = decoding.shape
        return self.model_copy(update={"channels": channels, "image_size": [height, width], **settings})

    def restored(self, signature: Signature, overrides: Collection[str], source: str) -> Tuple[BaseDataset, Signature]:
        restored = restored_signature(self, ImageSignature.cast(signature), overrides, source)
        # Keep the statistics of the training: the samples may have changed, or may be missing.
        statistics = {"mean": list(restored.mean), "std": list(restored.std)}
        return self.decoded_as(restored.decoding).model_copy(update=statistics), restored

    def infer_signature(self, splits: Splits, model: Model) -> Signature:
        return sign_images(self, splits, model)

    def check_compatible(self, signature: Signature, trained: Signature, source: str) -> None:
        """Rejects images of another size than in training.

        Raises:
            CheckpointError: the sizes differ; the message says what to type.
        """
        decoded, trained_decoded = (ImageSignature.cast(each).decoding.shape for each in (signature, trained))
        for size, trained_size in ((signature.shape, trained.shape), (decoded, trained_decoded)):
            if tuple(size) != tuple(trained_size):
                size_text, trained_text = ("x".join(map(str, shape)) for shape in (size, trained_size))
                raise CheckpointError(
                    f"{source}: the network was trained with images of {trained_text}, and now they are {size_text}. "
                    f"Type dataset.image_size=[{trained_size[-2]},{trained_size[-1]}]."
                )

    def remark(self, signature: Signature, splits: Splits) -> str:
        if signature.shape == tuple(splits.shape):
            return ""
        native, input_shape = ("x".join(map(str, shape)) for shape in (splits.shape, signature.shape))
        return f"images of {native} enter the network as {input_shape}"

    def build_loader(  # type: ignore[override]  # takes sources of images
        self, source: Source, signature: Signature, options: LoaderOptions
    ) -> BatchLoader:
        from mxtrain.vision.images.loader import ImageSettings, Loader

        settings = ImageSettings(
            input_shape=shapes_of(signature.shape)[0],
            mean=signature.mean,
            std=signature.std,
            num_workers=self.num_workers,
            chain=TransformChain(self.augment.transforms or (), self.annotations(signature)),
            **self.loader_options(options.train),
        )
        return Loader(source, settings, options)

    def sample_ids(self, locations: Sequence[str]) -> Dict[str, Union[int, str]]:
        """Returns the ids that the dataset's own annotations give to input files, by path; files without an id are
        left out.

        Args:
            locations: paths of the input files.

        Raises:
            DataError: an annotation file exists but cannot be read.
        """
        return {}

    def annotations(self, signature: Signature) -> Annotations:
        """Returns the rules by which annotations follow a geometric transform of their images."""
        return Annotations()

    def loader_options(self, train: bool) -> Dict[str, Any]:
        """Returns the fields of `ImageSettings` that depend on the kind of dataset.

        Args:
            train: True for training batches.
        """
        return {"augment": self.augment}

    def source_of(self, encoded: EncodedImages, signature: Signature) -> Unlabelled:
        """Returns a source of images without labels, to predict for."""
        from mxtrain.vision.images.decoding import DecodedSource

        return DecodedSource(encoded, ImageSignature.cast(signature).decoding)

    def open_inputs(
        self, names: Sequence[str], signature: Signature, skip_unreadable: bool, unreadable: Dict[int, str]
    ) -> Tuple[Samples, Sequence[str]]:
        from mxtrain.vision.images.files import BlankForUnreadable, ImageFiles, find_files
        from mxtrain.vision.images.volume_files import sliced

        direction = ImageSignature.cast(signature).decoding.slice_axis
        files = sliced(ImageFiles(find_files(names, skip_unreadable)), direction, not skip_unreadable)
        source = self.source_of(files, signature)
        return BlankForUnreadable(source, unreadable) if skip_unreadable else source, files.paths

    def samples_from(self, value: Any, signature: Signature) -> Samples:
        """Returns images to predict for, in memory: `PIL.Image`, or uint8 arrays (H, W), (H, W, C), (N, H, W) or
        (N, H, W, C); see `GivenImages`."""
        from mxtrain.vision.images.given_images import GivenImages

        return self.source_of(GivenImages(value, shapes_of(signature.shape)[0][-2:]), signature)

    def input_shape(self, native: Shape) -> Shape:
        """Returns the (C, H, W) of the network's input.

        Args:
            native: (C, H, W) of the dataset, as in `Splits.shape`.

        Returns:
            `native`, changed by the settings `channels` and `image_size`.
        """
        channels = native[0] if self.channels == "auto" else self.channels
        height, width = native[1:] if self.image_size == "auto" else self.image_size
        return (channels, height, width)


def sign_images(dataset: Dataset, splits: Splits, model: Model) -> ImageSignature:
    """Builds the signature: the dataset's own size and channels, unless the model or the settings require others."""
    channels, height, width = model.input_shape(dataset.input_shape(splits.shape))
    if dataset.channels != "auto":
        channels = dataset.channels
    native = splits.shape[0]
    if native not in (1, 3) and dataset.channels == "auto":  # neither grey nor colour: no network converts bands
        channels = native
    if channels != native and (native not in (1, 3) or channels not in (1, 3)):
        raise ConfigError(
            f"dataset.channels={channels}: images have {native} channels, and only grey and colour are converted to "
            f"each other. Type dataset.channels={native}, or leave it out."
        )
    if dataset.image_size != "auto":
        height, width = dataset.image_size
    decoding = splits.decoding if isinstance(splits, ImageSplits) else Decoding(tuple(splits.shape))
    return ImageSignature(
        (channels, height, width), list(splits.mean), list(splits.std), list(splits.class_names), decoding=decoding
    )


def restored_signature(
    dataset: Dataset, trained: ImageSignature, overrides: Collection[str], source: str
) -> ImageSignature:
    """Returns the signature of a trained network, with another `dataset.central_crop`, `dataset.window` or
    `dataset.slice_axis` if overridden on the command line.

    Args:
        dataset: settings of the dataset.
        trained: signature of the checkpoint.
        overrides: names of the overridden settings.
        source: checkpoint, for messages.

    Raises:
        ConfigError: another setting of the network's input is overridden with a different value.
    """
    channels, *size = trained.shape
    settings = {
        "dataset.image_size": list(size),
        "dataset.channels": channels,
        "dataset.mean": list(trained.mean),
        "dataset.std": list(trained.std),
    }
    for key, value in settings.items():
        configured = getattr(dataset, key.partition(".")[2], value)
        if key in overrides and configured not in (value, "auto"):
            raise ConfigError(
                f"{key}={configured}: the network was trained with {key}={value} ({source}), and the size and scale of "
                "its input cannot change. Leave it out."
            )
    decoding = trained.decoding
    if "dataset.central_crop" in overrides:
        decoding = replace(decoding, central_crop=dataset.central_crop)  # type: ignore[attr-defined]
    if "dataset.window" in overrides:
        decoding = replace(decoding, window=as_window(dataset.window))  # type: ignore[attr-defined]
    if "dataset.slice_axis" in overrides:
        decoding = replace(decoding, slice_axis=dataset.slice_axis)  # type: ignore[attr-defined]
    return replace(trained, decoding=decoding)
