"""Base class of the descriptions of datasets."""

from __future__ import annotations

import logging
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
)

import pydantic
from typing_extensions import Literal

from mxtrain.data.checking.data_checks import DataChecks
from mxtrain.data.checking.problems import STRICT, Findings
from mxtrain.data.exported_data import DatasetExport
from mxtrain.data.loading.dataset_files import file_error
from mxtrain.data.loading.described_paths import with_local_names
from mxtrain.data.loading.division import Division
from mxtrain.data.loading.folds import Fold
from mxtrain.data.loading.samples import Samples as Samples  # part of the API for own datasets
from mxtrain.data.loading.samples import Source as Source
from mxtrain.data.loading.samples import Splits as Splits
from mxtrain.data.predict_inputs import as_list, undecodable_input
from mxtrain.data.signature import Signature
from mxtrain.errors import ConfigError, DataError, did_you_mean
from mxtrain.types import BatchSize, NonNegative, OpenFraction, Positive, PositiveFloat, Spec
from mxtrain.types.kinds import ClassIndex, Gives, SampleKind, TargetKind

if TYPE_CHECKING:
    from mxtrain.data.loading.loader import BatchLoader, LoaderOptions
    from mxtrain.loss.spec import Loss
    from mxtrain.model.spec import Model

log = logging.getLogger(__name__)

STEPS_PER_EPOCH = 16
"""Number of steps per epoch that `batch_size=auto` aims at for small datasets."""
MIN_BATCH = 8
"""Smallest batch that `batch_size=auto` chooses, if there are as many samples: smaller batches make gradients noisy."""


class BaseDataset(Spec):
    """Base of the descriptions of all datasets."""

    gives: ClassVar[Gives] = Gives(SampleKind, ClassIndex)
    """Kind of its samples, and kinds of targets that they can have. The first kind of target decides the task if only
    the dataset is chosen. A property if a setting decides."""
    signature_class: ClassVar[Type[Signature]] = Signature
    """Class of the signatures that `infer_signature` returns, by which those of checkpoints are read."""

    data_checks: ClassVar[DataChecks] = DataChecks()
    """Checks of `data check` that only this dataset has."""

    folds_by: ClassVar[Literal["", "samples", "columns"]] = ""
    """Folds for cross-validation that `open` can make by `division`. "samples": folds of single samples; "columns":
    also folds that keep rows with the same value of a column together; empty: no folds."""

    largest_batch: ClassVar[int] = 128
    """Upper limit of the batch size that `batch_size=auto` chooses."""

    batch_size: BatchSize = 128
    """Samples per optimizer step, over all devices and workers together; auto = `largest_batch`, or fewer where an
    epoch of the training samples would have fewer than `STEPS_PER_EPOCH` steps, or the batch is estimated not to fit
    into memory."""
    eval_batch_size: Positive = 256
    """Samples per batch of an evaluation."""
    sampler: Literal["shuffle", "balanced", "weighted", "grouped"] = "shuffle"
    """Samples of a training epoch: shuffle = each once; balanced = equally many of each class; weighted = classes in
    the ratio of class_weights; grouped = each batch has samples_per_class samples of each of batch_size /
    samples_per_class classes. The number of samples is always that of the split, in random order."""
    class_weights: Dict[str, PositiveFloat] = {}
    """Sampling weight by class name, for sampler=weighted, e.g. {cat: 2.0}; 1 for other classes."""
    samples_per_class: Positive = 4
    """Samples of each class in a batch, for sampler=grouped; batch_size is a multiple of it."""
    val_fraction: OpenFraction = 0.1
    """Share of samples held out for validation if the format has no validation split."""
    test_fraction: OpenFraction = 0.0
    """Share of samples held out for testing if the format has no test split."""
    split_seed: int = 0
    """Seed of the choice of held-out samples; independent of trainer.seed, so that runs with different seeds are
    comparable."""
    prefetch: NonNegative = 2
    """Number of batches that a background thread prepares in advance on the device; 0 = the training thread prepares
    them."""

    _fold: Optional[Fold] = None
    """See `with_fold`."""

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
        if self.sampler == "grouped" and self.batch_size != "auto" and self.batch_size % self.samples_per_class:
            raise ValueError(
                f"sampler=grouped with batch_size={self.batch_size} and samples_per_class={self.samples_per_class}: a "
                "batch must be a whole number of classes. Type "
                f"dataset.batch_size={-(-self.batch_size // self.samples_per_class) * self.samples_per_class}"
            )
        if self.samples_per_class != type(self).model_fields["samples_per_class"].default and self.sampler != "grouped":
            raise ValueError(
                f"samples_per_class is for sampler=grouped, but sampler={self.sampler} was given. Type "
                "dataset.sampler=grouped"
            )
        if self.class_weights and self.sampler != "weighted":
            raise ValueError(
                f"class_weights are for sampler=weighted, but sampler={self.sampler} was given. Type "
                "dataset.sampler=weighted"
            )
        return self

    @property
    def division(self) -> Division:
        """Returns the settings by which samples are divided into splits and folds."""
        return Division(self.val_fraction, self.test_fraction, self.split_seed, self._fold)

    @property
    def mixes(self) -> bool:
        """Returns True if training mixes samples, so that labels are probabilities."""
        return False

    @property
    def batch_unit(self) -> Tuple[str, int]:
        """Returns the setting that limits the size of training batches, and its value: "batch_size" if all batches have
        the same number of samples."""
        return "batch_size", samples_per_step(self)

    def restored(self, signature: Signature, overrides: Collection[str], source: str) -> Tuple[BaseDataset, Signature]:
        """Returns this dataset with the preprocessing of a checkpoint, and the signature. Imports no MXNet.

        Args:
            signature: the checkpoint's signature.
            overrides: settings that this command was given.
            source: the checkpoint's path, for messages.

        Raises:
            ConfigError: an override changes the input of the network.
        """
        return self, signature

    def infer_signature(self, splits: Splits, model: Model) -> Signature:
        """Returns the signature of a network trained on `splits`; the model's description may require another size."""
        raise NotImplementedError

    def check_compatible(self, signature: Signature, before: Signature, source: str) -> None:
        """Refuses to resume a network if the meaning of its inputs has changed.

        Args:
            signature: signature of the data as they are.
            before: signature of a checkpoint.
            source: its path, for messages.

        Raises:
            CheckpointError: they differ in the meaning of the network's inputs.
        """

    def for_run(
        self, target: Type[TargetKind], model: Optional[Model] = None, loss: Optional[Loss] = None
    ) -> BaseDataset:
        """Returns this dataset with one of the kinds of targets that it gives. Settings of samples that the description
        leaves open are set as the network and the loss require.

        Args:
            target: a member of `gives.targets`, or `TargetKind` for a task without targets of the dataset.
            model: model of the run; None = settings that depend on it stay open.
            loss: loss of the run; None = settings that depend on it stay open.
        """
        return self

    def scaled(self, source: Samples, signature: Signature) -> Sequence[Tuple[Samples, Signature]]:
        """Returns the training samples in each input size of multi-scale training, with the signature of each; empty:
        all batches have one size."""
        return ()

    def remark(self, signature: Signature, splits: Splits) -> str:
        """Returns a sentence on how samples enter the network; empty if there is nothing to say."""
        return ""

    def build_loader(self, source: Samples, signature: Signature, options: LoaderOptions) -> BatchLoader:
        """Returns the loader of a split.

        Args:
            source: source of the samples.
            signature: signature of the network.
            options: options of all loaders.
        """
        raise NotImplementedError

    def exported(self, signature: Signature) -> DatasetExport:
        """Returns the facts and arrays of the dataset that the reader of an exported folder needs.

        Args:
            signature: signature of the network.

        Raises:
            DataError: the data cannot be read.
        """
        return DatasetExport(signature.exported_reader)

    def open_inputs(
        self, names: Sequence[str], signature: Signature, skip_unreadable: bool, unreadable: Dict[int, str]
    ) -> Tuple[Samples, Sequence[str]]:
        """Opens samples without labels to predict for, and returns the source location of each, e.g. its file.

        Args:
            names: files and folders.
            signature: signature of the network.
            skip_unreadable: continue if a file cannot be read.
            unreadable: gets the reasons by the index of the sample, which gets no prediction, or by `key_of_file`.

        Raises:
            DataError: one cannot be read, or there is none.
        """
        raise DataError(f"{type(self).__name__} does not say how to read files to predict for.")

    def samples_from(self, value: Any, signature: Signature) -> Samples:
        """Returns samples without labels of Python objects to predict for, equal to those of files that hold the same.
        Objects are no paths, see `SampleKind.has_text`.

        Args:
            value: one object, or a list or tuple of several.
            signature: signature of the network.

        Raises:
            ConfigError: it reads no objects of this type; the message says what it reads.
            DataError: an object holds a wrong value.
        """
        raise undecodable_input(0, as_list(value)[0], "paths of files")

    def copied_cells(
        self, names: Sequence[str], columns: Optional[Sequence[str]], signature: Signature
    ) -> Mapping[str, Mapping[str, str]]:
        """Reads the cells of tables that `predict` copies beside its predictions: by place of the row, then by column.

        Args:
            names: files and folders.
            columns: columns to copy; None = columns with names of ids that are no inputs.
            signature: signature of the network.

        Raises:
            ConfigError: these inputs have no columns.
            DataError: a file lacks a column.
        """
        if columns:
            raise ConfigError(f"keep: {type(self).__name__} reads no tables, so there are no columns to copy.")
        return {}

    def open(self) -> Splits:
        """Finds, checks and splits the data. Imports no MXNet. Datasets override this method or `examine`.

        Returns:
            The splits.

        Raises:
            DataError: Files are missing, damaged or not what the description says.
        """
        if type(self).examine is BaseDataset.examine:
            raise NotImplementedError
        return self.examine(STRICT)

    def examine(self, findings: Findings) -> Splits:
        """Opens the data for `data check`, which reads each sample afterwards by the `checks()` of its source.

        A dataset that overrides it skips wrong samples and continues; `open` then calls it with `STRICT`, which raises
        the first problem.

        Args:
            findings: gets each problem.

        Raises:
            DataError: the data cannot be opened; this is one more problem. `NoUsableSamples` if all problems were
            reported before.
        """
        return self.open()


def location_of(dataset: BaseDataset) -> str:
    """Returns the file or folder that a dataset reads, for messages; its class where no setting names one."""
    names = [name for name in ("root", "train", "object") if name in type(dataset).model_fields]
    paths = (str(getattr(dataset, name) or "") for name in names)
    return next(filter(None, paths), type(dataset).__name__)


def samples_per_step(dataset: BaseDataset) -> int:
    """Returns `batch_size`, or its upper limit if it is auto and the data are not known yet."""
    return dataset.largest_batch if dataset.batch_size == "auto" else dataset.batch_size


def choose_batch_size(dataset: BaseDataset, num_samples: int, divisor: int = 1) -> BaseDataset:
    """Returns a dataset with a `batch_size` for its number of training samples, where the description says auto:
    the largest power of 2 that gives `STEPS_PER_EPOCH` steps an epoch, from `MIN_BATCH` to `largest_batch`.

    Args:
        dataset: the dataset.
        num_samples: number of samples of the training split.
        divisor: the batch is a multiple of it, rounded up.
    """
    if dataset.batch_size != "auto":
        return dataset
    # A fixed batch of 256 gave a table of 800 rows three steps an epoch.
    target_size = min(max(num_samples // STEPS_PER_EPOCH, MIN_BATCH), dataset.largest_batch, max(num_samples, 1))
    batch_size = -(-(2 ** (target_size.bit_length() - 1)) // divisor) * divisor
    return dataset.model_copy(update={"batch_size": batch_size})


def with_fold(dataset: BaseDataset, fold: Optional[Fold]) -> BaseDataset:
    """Returns a dataset with a fold of its training samples as validation split; None = as the settings say."""
    # The description belongs to the caller, who may make the other folds of it.
    dataset = dataset.model_copy()
    dataset._fold = fold
    return dataset


def warn_unseen(source: Samples, signature: Signature) -> None:
    """Logs a warning for each column with values that the network does not know; see `Signature.unseen_values`."""
    for sentence in signature.unseen_values(source):
        log.warning("%s", sentence)


def choose_split(splits: Splits, name: str) -> Tuple[str, Samples]:
    """Returns a split by name, with its name; auto: test if there is one, otherwise val.

    Raises:
        DataError: there is no such split.
    """
    splits_by_name = {"train": splits.train, "val": splits.val, "test": splits.test}
    chosen = name if name != "auto" else ("test" if splits.test is not None else "val")
    source = splits_by_name.get(chosen)
    if source is None:
        available = [split for split, samples in splits_by_name.items() if samples is not None]
        raise DataError(
            f"split={chosen}: this dataset has no such split.{did_you_mean(chosen, available)} Choose "
            f"{' or '.join(f'split={split}' for split in available)}."
        )
    return chosen, source


def open_splits(dataset: BaseDataset) -> Splits:
    """Opens a dataset of mxtrain or of a user.

    Raises:
        DataError: as `open` says, or the system does not let it read: no permission, a path that is too long, a disk
            that fails.
    """
    try:
        return with_local_names(dataset).open()
    except OSError as error:
        raise file_error(error.filename or location_of(dataset), error) from error
