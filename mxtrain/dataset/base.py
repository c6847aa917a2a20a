"""Base classes of the descriptions of datasets.

Shapes are suffixes: C channels, H height, W width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Collection, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import pydantic
from typing_extensions import Annotated, Literal

from mxtrain.dataset.image.settings import Augment, Decoding
from mxtrain.dataset.image.sizes import ChannelMean, ChannelStd, ImageSize, refuse_large_batch, square
from mxtrain.dataset.loading.regular_files import explain
from mxtrain.dataset.loading.samples import Samples as Samples  # whoever writes a dataset finds all of these here
from mxtrain.dataset.loading.samples import Source as Source
from mxtrain.dataset.loading.samples import Splits as Splits
from mxtrain.errors import CheckpointError, ConfigError, DataError
from mxtrain.types import BatchSize, NonNegative, OpenFraction, Positive, PositiveFloat, Shape, Spec, shapes_of

if TYPE_CHECKING:
    from mxtrain.dataset.checking.checks import Checks
    from mxtrain.dataset.checking.problems import Findings
    from mxtrain.dataset.image.decoding import DecodedSource
    from mxtrain.dataset.loading.loader import BatchLoader
    from mxtrain.dataset.loading.sampling import Sampler
    from mxtrain.dataset.signature import Signature
    from mxtrain.loss.losses import Loss
    from mxtrain.model.base import Model

STEPS_PER_EPOCH = 16
"""Steps of an epoch that `batch_size=auto` aims at where there are few samples."""
SMALLEST_BATCH = 8
"""Samples that a batch has at least by `batch_size=auto`, where there are as many: fewer make gradients noisy."""


class BaseDataset(Spec):
    """Base of the descriptions of all datasets."""

    gives: ClassVar[str] = ""
    """What its samples are: "images", "text", "numbers" or "features", for example."""
    serves: ClassVar[Tuple[str, ...]] = ("classification",)
    """Names of the tasks that its samples are made for; the first is meant where only the dataset is named."""
    model_option: ClassVar[str] = ""
    """The model that is meant where only the dataset is named; empty: the task's."""

    problem_kinds: ClassVar[Tuple[str, ...]] = ()
    """Kinds of problems that `data check` finds in this dataset alone, beside those of `checking.problems.KINDS`."""

    of_the_checkpoint: ClassVar[Tuple[str, ...]] = ()
    """Settings that only say how samples become inputs, which a checkpoint holds: with one, they are not needed."""

    largest_batch: ClassVar[int] = 128
    """The batch that `batch_size=auto` means for many samples."""

    batch_size: BatchSize = 128
    """Samples per optimizer step, over all devices and workers together; auto = `largest_batch`, or fewer where an
    epoch of the training samples would have fewer than `STEPS_PER_EPOCH` steps."""
    eval_batch_size: Positive = 256
    """Samples per batch of an evaluation."""
    sampler: Literal["shuffle", "balanced", "weighted"] = "shuffle"
    """Which samples an epoch of training has: shuffle = each once; balanced = as many of each class; weighted = classes
    in the ratio of class_weights. Always as many as the split has, in random order."""
    class_weights: Dict[str, PositiveFloat] = {}
    """By the name of a class, for sampler=weighted: how often it is drawn relative to others, whose weight is 1."""
    val_fraction: OpenFraction = 0.1
    """Share of samples held out for validation where the format has no validation split."""
    test_fraction: OpenFraction = 0.0
    """Share of samples held out for testing where the format has no test split."""
    split_seed: int = 0
    """The seed that chooses which samples are held out; another one than the run's, so that runs compare."""
    prefetch: NonNegative = 2
    """Batches prepared ahead on the device; 0 = none, in the training thread."""

    @pydantic.model_validator(mode="after")
    def _check_split(self) -> BaseDataset:
        if self.val_fraction + self.test_fraction >= 1:
            raise ValueError(
                f"val_fraction + test_fraction must be below 1 so that something is left to train on, "
                f"got {self.val_fraction} + {self.test_fraction}"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _check_sampler(self) -> BaseDataset:
        if self.sampler == "weighted" and not self.class_weights:
            raise ValueError(
                "sampler=weighted needs class_weights={NAME: WEIGHT}; for as many samples of each class type "
                "dataset.sampler=balanced"
            )
        if self.class_weights and self.sampler != "weighted":
            raise ValueError(
                f"class_weights are for sampler=weighted, but sampler={self.sampler} was given. Type "
                "dataset.sampler=weighted"
            )
        return self

    @property
    def mixes(self) -> bool:
        """Whether training mixes samples, so that labels are probabilities."""
        return False

    @property
    def batch_unit(self) -> Tuple[str, int]:
        """The setting that says how large a batch of training is, and what it says: "batch_size" where all batches have
        as many samples."""
        return "batch_size", self.samples_per_step

    @property
    def samples_per_step(self) -> int:
        """`batch_size`; as long as nothing is known of the data, at most as many where it is auto."""
        return self.largest_batch if self.batch_size == "auto" else self.batch_size

    def for_size(self, num_samples: int, divisor: int = 1) -> BaseDataset:
        """This dataset with a `batch_size` for its number of training samples, where the description says auto: the
        largest power of 2 that gives `STEPS_PER_EPOCH` steps an epoch, from `SMALLEST_BATCH` to `largest_batch`.

        Args:
            num_samples: of the training split.
            divisor: the batch is a multiple of it, rounded up.
        """
        if self.batch_size != "auto":
            return self
        wanted = min(max(num_samples // STEPS_PER_EPOCH, SMALLEST_BATCH), self.largest_batch, max(num_samples, 1))
        batch_size = -(-(2 ** (wanted.bit_length() - 1)) // divisor) * divisor
        return self.model_copy(update={"batch_size": batch_size})

    def for_task(self, name: str) -> BaseDataset:
        """This dataset, whose samples have what a task needs of them, where samples have more than one task needs.

        Args:
            name: of the option of conf/task/; empty for a task of the user's own.
        """
        return self

    def build_sampler(self, splits: Splits, seed: int) -> Optional[Sampler]:
        """Which samples an epoch of training has; None = each once.

        Args:
            splits: what `open` gave.
            seed: of the run.

        Raises:
            ConfigError: a weight is of a class that there is not.
            DataError: the samples do not say which class they have.
        """
        if self.sampler == "shuffle":
            return None
        from mxtrain.dataset.loading.sampling import build_class_sampler

        return build_class_sampler(splits.train, splits.class_names, self.class_weights, seed)

    def restored(self, given: Signature, typed: Collection[str], source: str) -> Tuple[BaseDataset, Signature]:
        """This dataset, whose samples become inputs as those of a checkpoint did, and how. Imports no MXNet.

        Args:
            given: the checkpoint's signature.
            typed: settings that this command was given.
            source: the checkpoint's path, for messages.

        Raises:
            ConfigError: something of what enters the network was to be changed.
        """
        return self, given

    def sign(self, splits: Splits, model: Model) -> Signature:
        """What enters a network that is trained on `splits`; the description of the model may want another size."""
        raise NotImplementedError

    def require_same(self, signature: Signature, before: Signature, source: str) -> None:
        """Refuses to go on with a network whose inputs mean something else now.

        Args:
            signature: of the data as they are.
            before: that of a checkpoint.
            source: its path, for messages.

        Raises:
            CheckpointError: they differ in what a network has learned to read.
        """

    def for_model(self, model: Model) -> BaseDataset:
        """This dataset, whose samples are as a network wants them where the description leaves that open.

        Args:
            model: of the run.
        """
        return self

    def for_loss(self, loss: Loss) -> BaseDataset:
        """This dataset, whose samples are drawn as a loss wants them where the description leaves that open.

        Args:
            loss: of the run.
        """
        return self

    def scaled(self, source: Samples, signature: Signature) -> Sequence[Tuple[Samples, Signature]]:
        """The samples of training in each of the sizes that batches have in turn, and what enters the network then;
        empty: all have one size."""
        return ()

    def further_checks(self, checks: Mapping[str, Checks], findings: Findings) -> Mapping[str, Checks]:
        """The checks of each split with those that the description calls for; a problem of all goes to `findings`."""
        return checks

    def remark(self, signature: Signature, splits: Splits) -> str:
        """A sentence on how samples enter the network; empty where there is nothing to say."""
        return ""

    def build_loader(self, source: Samples, signature: Signature, *, num_classes: int, **options: Any) -> BatchLoader:
        """The loader of a split.

        Args:
            source: of the samples.
            signature: what enters the network.
            num_classes: the width of mixed labels.
            options: of `BatchLoader`; `in_order` keeps the order of the samples also where another is faster.
        """
        raise NotImplementedError

    def open_inputs(
        self, names: Sequence[str], signature: Signature, skip_unreadable: bool, unreadable: Dict[int, str]
    ) -> Tuple[Samples, Sequence[str]]:
        """Samples without labels to predict for, and where each stands, e.g. its file.

        Args:
            names: files and folders.
            signature: what enters the network.
            skip_unreadable: go on where one cannot be read.
            unreadable: gets why, by place. Places of samples in it get no prediction.

        Raises:
            DataError: one cannot be read, or there is none.
        """
        raise DataError(f"{type(self).__name__} does not say how to read files to predict for.")

    def copied_cells(
        self, names: Sequence[str], columns: Optional[Sequence[str]], signature: Signature
    ) -> Mapping[str, Mapping[str, str]]:
        """Reads the cells of tables that `predict` copies beside its predictions: by place of the row, then by column.

        Args:
            names: files and folders.
            columns: that are to be copied; None = those that are called like ids and are not read.
            signature: what enters the network.

        Raises:
            ConfigError: these inputs have no columns.
            DataError: a file lacks a column.
        """
        if columns:
            raise ConfigError(f"keep: {type(self).__name__} reads no tables, so there are no columns to copy.")
        return {}

    def picture_ids(self, places: Sequence[str]) -> Dict[str, Union[int, str]]:
        """The numbers that the dataset's own files give pictures, by where these stand; without those of which no file
        says one.

        Args:
            places: the pictures' files.

        Raises:
            DataError: a file of the dataset is there, and cannot be read.
        """
        return {}

    def corruptions(self) -> Mapping[str, Sequence[int]]:
        """The ways in which samples can be corrupted, by name, and at which severities; by default none."""
        return {}

    def corrupted(self, source: Samples, name: str, severity: int) -> Samples:
        """The samples of a split, corrupted as in the world: for `eval`, which measures how metrics fall. Imports no
        MXNet.

        Args:
            source: of the samples.
            name: of the corruption.
            severity: as `corruptions` says.

        Raises:
            ConfigError: such samples cannot be corrupted so.
        """
        gives = self.gives or "something else"
        raise ConfigError(
            f"corrupt={name}: it changes the pixels of pictures, and the dataset gives {gives}. Leave corrupt out."
        )

    def open(self) -> Splits:
        """Find, check and split the data. Imports no MXNet.

        Returns:
            The splits.

        Raises:
            DataError: Files are missing, damaged or not what the description says.
        """
        raise NotImplementedError

    def examine(self, findings: Findings) -> Splits:
        """Opens the data for `data check`, which reads each sample afterwards by the `checks()` of its source.

        A dataset that overrides it goes on where something is wrong, without what is wrong, and its `open` is
        `self.examine(STRICT)`.

        Args:
            findings: gets each problem.

        Raises:
            DataError: the data cannot be opened; one more problem. `NothingLeft` where all was said.
        """
        return self.open()


class Dataset(BaseDataset):
    """Base of all descriptions of images."""

    gives: ClassVar[str] = "images"

    image_size: Annotated[Union[Literal["auto"], ImageSize], pydantic.BeforeValidator(square)] = "auto"
    """[height, width] in pixels of what enters the network; auto = the dataset's own size, or for files of any size one
    that fits most of them."""
    channels: Literal["auto", 1, 3] = "auto"
    """Channels of what enters the network: 1 grey, 3 colour; auto = the dataset's own."""
    augment: Augment = Augment()
    """Random changes of training images."""
    mean: ChannelMean = "auto"
    """Subtracted, per channel, in units where white is 1; auto = measured on the training samples."""
    std: ChannelStd = "auto"
    """Divided by, per channel, in units where white is 1; auto = measured on the training samples."""
    num_workers: Union[Literal["auto"], Positive] = "auto"
    """Threads that decode images; auto = the cores this process may use."""

    @pydantic.model_validator(mode="after")
    def _check_memory(self) -> Dataset:
        if self.image_size != "auto":
            refuse_large_batch("image_size", self.image_size, self.channels, self.samples_per_step)
        return self

    @property
    def mixes(self) -> bool:
        return self.augment.mixes

    def decoding_for(self, shape: Shape) -> Decoding:
        """How image files are read for a network whose checkpoint says no more than the (C, H, W) that enters it."""
        return Decoding(shape)

    def decoded_as(self, decoding: Decoding) -> Dataset:
        """This dataset with images read so, where its images are read from files; else itself."""
        return self

    def restored(self, given: Signature, typed: Collection[str], source: str) -> Tuple[BaseDataset, Signature]:
        from mxtrain.dataset.image.inputs import restored_signature

        found = restored_signature(self, given, typed, source)
        assert found.decoding is not None
        # As trained: nothing is measured anew on samples that may have changed, or are not there.
        statistics = {"mean": list(found.mean), "std": list(found.std)}
        return self.decoded_as(found.decoding).model_copy(update=statistics), found

    def sign(self, splits: Splits, model: Model) -> Signature:
        from mxtrain.dataset.image.inputs import sign_images

        return sign_images(self, splits, model)

    def require_same(self, signature: Signature, before: Signature, source: str) -> None:
        """See `BaseDataset.require_same`: a network has learned objects of the sizes that they had."""
        decoded, decoded_before = ((one.decoding or one).shape for one in (signature, before))
        for now, then in ((signature.shape, before.shape), (decoded, decoded_before)):
            if tuple(now) != tuple(then):
                shown_now, shown_then = ("x".join(map(str, shape)) for shape in (now, then))
                raise CheckpointError(
                    f"{source}: images entered the network as {shown_then}, and now they would as {shown_now}. Type "
                    f"dataset.image_size=[{then[-2]},{then[-1]}]."
                )

    def remark(self, signature: Signature, splits: Splits) -> str:
        if signature.shape == tuple(splits.shape):
            return ""
        native, entering = ("x".join(map(str, shape)) for shape in (splits.shape, signature.shape))
        return f"images of {native} enter the network as {entering}"

    def build_loader(  # type: ignore[override]  # of its own samples
        self, source: Source, signature: Signature, *, num_classes: int, **options: Any
    ) -> BatchLoader:  # fmt: skip
        from mxtrain.dataset.loading.loader import Loader

        options.pop("in_order", None)  # it is
        return Loader(
            source, input_shape=shapes_of(signature.shape)[0], mean=signature.mean, std=signature.std,
            num_classes=num_classes, num_workers=self.num_workers,
            **self.loader_options(options.get("train", False)), **options,
        )  # fmt: skip

    def corruptions(self) -> Mapping[str, Sequence[int]]:
        from mxtrain.dataset.image.corruptions import SEVERITIES, STRENGTHS

        return dict.fromkeys(STRENGTHS, SEVERITIES)

    def corrupted(self, source: Samples, name: str, severity: int) -> Samples:
        from mxtrain.dataset.image.corruptions import Corrupted

        return Corrupted(source, name, severity)  # type: ignore[arg-type]  # of its own samples

    def loader_options(self, train: bool) -> Dict[str, Any]:
        """Arguments of `Loader` that depend on what the samples are.

        Args:
            train: whether its batches are trained on.
        """
        return {"augment": self.augment if train else None}

    def open_inputs(
        self, names: Sequence[str], signature: Signature, skip_unreadable: bool, unreadable: Dict[int, str]
    ) -> Tuple[Samples, Sequence[str]]:
        from mxtrain.dataset.image.files import open_files, open_inputs

        decoding = signature.decoding
        assert decoding is not None

        def open_source(files: List[str]) -> DecodedSource:
            return open_files(files, decoding, skip_unreadable)

        return open_inputs(names, open_source, skip_unreadable, unreadable)

    def input_shape(self, native: Shape) -> Shape:
        """The (C, H, W) that enters the network.

        Args:
            native: (C, H, W) of the dataset, as in `Splits.shape`.

        Returns:
            `native` with what `channels` and `image_size` ask for.
        """
        channels = native[0] if self.channels == "auto" else self.channels
        height, width = native[1:] if self.image_size == "auto" else self.image_size
        return (channels, height, width)


def open_splits(dataset: BaseDataset) -> Splits:
    """Opens a dataset of ours or of a user.

    Raises:
        DataError: as `open` says, or the system does not let it read: no permission, a path that is too long, a disk
            that fails.
    """
    try:
        return dataset.open()
    except OSError as error:
        raise explain(error.filename or getattr(dataset, "root", type(dataset).__name__), error) from error
