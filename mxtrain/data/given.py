"""Datasets that the Python API got as arrays, or as Gluon, PyTorch or other Python datasets.

Legend: N samples, B batch.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, ClassVar, Dict, List, Literal, Mapping, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.base import BaseDataset, Splits
from mxtrain.data.loading.loader import BatchLoader, LoaderOptions
from mxtrain.data.loading.splitting import refuse_empty
from mxtrain.data.loading.target_scale import require_same_scale, target_remark, with_target_scale
from mxtrain.data.signature import Signature
from mxtrain.errors import CheckpointError, ConfigError, DataError, LoaderError
from mxtrain.given import Given, class_of
from mxtrain.types import BatchSize, Names, Shape

if TYPE_CHECKING:
    from mxtrain.data.loading.placing import HostArrays
    from mxtrain.model.base import Model

SPLITS = ("train", "val", "test")
ADVICE = (
    "dataset= takes (x, y) arrays, a dataset whose items are (x, y), or a tuple of two or three of these: train, val "
    'and test. To choose a dataset by its name, give an override: "dataset=mnist".'
)


TASK_OF: Mapping[str, str] = {"class": "classification", "number": "regression"}
"""The task for each kind of target."""


class GivenSamples:
    """Samples of an array, or of a dataset with `__len__` and `__getitem__`, whose inputs are read on demand.

    Args:
        inputs: array (N, ...), or a dataset of (x, y) pairs.
        target_N: target of each sample; None: samples to predict for.
        index_N: indices into `inputs` and `target_N` of the samples of this split; None: all.
    """

    def __init__(self, inputs: Any, target_N: Optional[np.ndarray], index_N: Optional[np.ndarray] = None):
        self._inputs, self._target_N = inputs, target_N
        self._index_N = np.arange(len(inputs)) if index_N is None else index_N
        self.shape: Shape = tuple(self._read(0).shape) if len(inputs) else ()
        self.dtype = self._read(0).dtype if len(inputs) else np.dtype(np.float32)

    def __len__(self) -> int:
        return len(self._index_N)

    def take(self, indices: Sequence[int]) -> GivenSamples:
        """Returns the samples at `indices`, without copying them."""
        chosen = np.asarray([index for index in indices if index < len(self)], np.int64)
        return GivenSamples(self._inputs, self._target_N, self._index_N[chosen])

    @property
    def has_targets(self) -> bool:
        """Returns False for samples to predict for."""
        return self._target_N is not None

    def read_labels(self) -> np.ndarray:
        """Returns the target of each sample, (N,)."""
        assert self._target_N is not None
        return self._target_N[self._index_N]

    def read(self, index_B: np.ndarray) -> np.ndarray:
        """Returns the inputs of samples, (B, ...), in their own dtype.

        Raises:
            LoaderError: a sample has another shape than the first one, or the dataset's code fails.
        """
        chosen_B = self._index_N[index_B]
        if isinstance(self._inputs, np.ndarray):
            return self._inputs[chosen_B]
        arrays = [self._read(int(index)) for index in chosen_B]
        for index, array in zip(chosen_B, arrays):
            if array.shape != self.shape:
                raise LoaderError(
                    f"dataset: sample {index} has shape {array.shape}, and the first one {self.shape}. All must be "
                    "equal."
                )
        return np.stack(arrays)

    def fetch(self, index_B: np.ndarray, *, seed: int, epoch: int, train: bool) -> Tuple[np.ndarray, ...]:
        """Returns the inputs, scaled to 0 to 255, and the targets of samples for figures."""
        input_B = self.read(index_B)
        if input_B.dtype != np.uint8:
            low, high = float(input_B.min()), float(input_B.max())
            input_B = (input_B - low) * (255 / max(high - low, 1e-12))
        return input_B, self.read_labels()[index_B]

    def _read(self, index: int) -> np.ndarray:
        if isinstance(self._inputs, np.ndarray):
            return np.asarray(self._inputs[index])
        return as_array(_parts_of(_item(self._inputs, index), index)[0])


class GivenDataset(Given, BaseDataset):
    """Placeholder of arrays or Python datasets with one input and one target per sample.

    Inputs are converted to float32. uint8 inputs are also standardised with one mean and one standard deviation of all
    training inputs, which are saved in checkpoints; other inputs are not scaled.
    """

    argument: ClassVar[str] = "dataset"
    makes_folds: ClassVar[bool] = True
    model_hints: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("", *TASK_OF.values()), "model=mlp, or in Python model=NETWORK, a gluon.Block of your own"
    )

    batch_size: BatchSize = "auto"
    shape: List[int] = []
    """Shape of one input."""
    dtype: str = "float32"
    """Dtype of the inputs."""
    target: Literal["class", "number"] = "class"
    """Meaning of a target: the index of a class, or a number to predict."""
    num_samples: Dict[str, int] = {}
    """Number of samples by split; "all" where validation samples are held out by val_fraction."""
    class_names: Names = []
    """Names of the classes; empty: 0, 1, ..."""

    @classmethod
    def describe_object(cls, value: Any) -> Dict[str, Any]:
        """Returns facts that identify a dataset: number, shape and dtype of its samples, and the kind of its targets.

        Raises:
            ConfigError: the object is not a dataset.
        """
        splits = splits_of(value)
        first = next(iter(splits.values()))
        for name, split in splits.items():
            if split.shape != first.shape:
                raise ConfigError(f"dataset: the {name} inputs have shape {split.shape}, and others {first.shape}.")
        is_number = any(split.read_labels().dtype.kind == "f" for split in splits.values())
        return {
            "shape": list(first.shape), "dtype": str(first.dtype), "target": "number" if is_number else "class",
            "num_samples": {name: len(split) for name, split in splits.items()},
        }  # fmt: skip

    @classmethod
    def describe_test(cls, value: Any) -> Dict[str, Any]:
        """Describes samples that are only evaluated; see `describe_object`.

        Raises:
            ConfigError: the object is not a single dataset.
        """
        facts = cls.describe_object(value)
        if list(facts["num_samples"]) != ["all"]:
            raise ConfigError("evaluate: dataset= takes (x, y) arrays, or one dataset whose items are (x, y).")
        return {**facts, "num_samples": {"test": facts["num_samples"]["all"]}}

    @property
    def sample_type(self) -> str:  # type: ignore[override]  # a class variable in other datasets
        is_image = len(self.shape) == 3 and self.shape[0] in (1, 3)
        return "images" if is_image else "numbers" if len(self.shape) == 1 else "arrays"

    @property
    def tasks(self) -> Tuple[str, ...]:  # type: ignore[override]
        return (TASK_OF[self.target],)

    @property
    def location(self) -> str:
        return self.object

    def open(self) -> Splits:
        """See `BaseDataset.open`."""
        splits = splits_of(self.require())
        if "test" in self.num_samples and "all" in splits:
            splits = {"test": splits["all"]}
        train = splits.get("train", splits.get("all", splits.get("test")))
        assert train is not None
        names = self._names(splits)
        if self.fold is not None:
            splits = {"all" if name == "train" else name: samples for name, samples in splits.items()}
        if "all" in splits:
            label_N = train.read_labels() if self.target == "class" else np.zeros(len(train), int)
            # Test samples are only held out together with validation samples.
            has_val = "val" in splits
            parts = self.divide(label_N, has_val, has_val or "test" in splits)
            if self.own_validation(splits.get("val")) is None:
                splits.pop("val", None)
            refuse_empty("dataset", len(parts[0]), len(parts[1]), self.val_fraction)
            held_out = {name: train.take(part.tolist()) for name, part in zip(SPLITS, parts) if len(part)}
            splits = {**held_out, **{name: samples for name, samples in splits.items() if name != "all"}}
        mean, std = _moments(splits.get("train", train))
        val, test = splits.get("val", train), splits.get("test")
        return Splits(splits.get("train", train), val, test, names, tuple(self.shape), mean, std)

    def _names(self, splits: Mapping[str, GivenSamples]) -> List[str]:
        """Returns the names of the classes; without `class_names`, the numbers up to the largest label of any split."""
        if self.target == "number":
            return []
        label_N = np.concatenate([split.read_labels() for split in splits.values()])
        smallest, count = int(label_N.min()), int(label_N.max()) + 1
        if smallest < 0:
            raise DataError(f"dataset: labels are class indices from 0 on, and one is {smallest}.")
        if not self.class_names:
            return [str(number) for number in range(count)]
        if count > len(self.class_names):
            raise DataError(
                f"dataset.class_names has {len(self.class_names)} names, and there is a label {count - 1}. Name all."
            )
        return list(self.class_names)

    def infer_signature(self, splits: Splits, model: Model) -> Signature:
        signature = Signature(splits.shape, list(splits.mean), list(splits.std), list(splits.class_names))
        if self.target == "class":
            return signature
        return with_target_scale(signature, splits.train.read_labels())  # type: ignore[attr-defined]  # `GivenSamples`

    def check_compatible(self, signature: Signature, before: Signature, source: str) -> None:
        if list(before.class_names) != list(signature.class_names):
            raise CheckpointError(
                f"{source} was trained for {len(before.class_names)} classes, and now there are "
                f"{len(signature.class_names)}."
            )
        if self.target == "number":
            require_same_scale(signature, before, source)

    def remark(self, signature: Signature, splits: Splits) -> str:
        inputs = "x".join(map(str, self.shape)) or "one number"
        treatment = "standardised" if signature.mean else "as they are"
        text = f"inputs of {inputs} ({self.dtype}) enter the network {treatment}"
        if self.target == "class":
            return text
        return f"{text}; {target_remark(signature, splits.val.read_labels())}"  # type: ignore[attr-defined]

    def build_loader(  # type: ignore[override]  # of its own samples
        self, source: GivenSamples, signature: Signature, options: LoaderOptions
    ) -> BatchLoader:  # fmt: skip
        return GivenLoader(source, signature, options)

    def open_inputs(
        self, names: Sequence[str], signature: Signature, skip_unreadable: bool, unreadable: Dict[int, str]
    ) -> Tuple[GivenSamples, Sequence[str]]:
        raise DataError(
            "this run was trained on arrays, so there are no files to predict for. Predict in Python: "
            "mxtrain.load(PATH).predict(x)."
        )


class GivenLoader(BatchLoader):
    """Loads batches of `GivenSamples`."""

    def __init__(self, source: GivenSamples, signature: Signature, options: LoaderOptions) -> None:
        super().__init__(len(source), options)
        self._source, self._encode = source, options.encode
        (self._mean,), (self._std,) = (signature.mean, signature.std) if signature.mean else ((0.0,), (1.0,))

    def _read_share(
        self, share_B: np.ndarray, index_B: np.ndarray, epoch: int
    ) -> Tuple[HostArrays, HostArrays]:  # fmt: skip
        input_B = self._source.read(share_B).astype(np.float32)
        if (self._mean, self._std) != (0.0, 1.0):
            input_B = (input_B - np.float32(self._mean)) / np.float32(self._std)
        if not self._source.has_targets:
            return (input_B,), ()
        target_B = self._source.read_labels()[share_B]
        return (input_B,), (target_B.astype(np.float32),) if self._encode is None else self._encode(target_B)


def inputs_of(value: Any, dataset: GivenDataset) -> GivenSamples:
    """Converts arrays to samples to predict for.

    Args:
        value: an array (N, ...), one sample (...), or a list of samples.
        dataset: the dataset of the run.

    Raises:
        ConfigError: the inputs have another shape or dtype than those of the run.
        DataError: an input is not finite.
    """
    shape, object_name = dataset.shape, dataset.object
    if any(isinstance(item, (str, os.PathLike)) for item in (value if isinstance(value, (list, tuple)) else [value])):
        raise ConfigError(
            f"predict: this run was trained on arrays ({object_name}), so it reads no files. Read them in Python, and "
            f"give numbers of shape (N{''.join(f', {size}' for size in shape)})."
        )
    rows = [as_array(item) for item in value] if isinstance(value, (list, tuple)) else None
    array = None
    if rows is None or len({row.shape for row in rows}) == 1:
        array = as_array(value) if rows is None else np.stack(rows)
        array = array[None] if array.shape == tuple(shape) else array
    if array is None or array.shape[1:] != tuple(shape) or array.dtype.kind not in "fiub":
        kinds = "of several shapes" if array is None else f"{array.dtype} {array.shape}"
        raise ConfigError(
            f"predict: the inputs are {kinds}. This run was trained on arrays ({object_name}): give numbers of shape "
            f"(N{''.join(f', {size}' for size in shape)}), or one sample of {tuple(shape)}."
        )
    is_byte = array.dtype.kind != "f" and bool(((array >= 0) & (array <= 255)).all())
    if dataset.dtype == "uint8" and not is_byte:
        raise ConfigError(
            f"predict: the inputs are {array.dtype}, and this run was trained on uint8, which it standardises. Give "
            "whole numbers from 0 to 255."
        )
    wrong_N = ~np.isfinite(array).all(axis=tuple(range(1, array.ndim)))
    if wrong_N.any():
        raise DataError(f"predict: input {int(np.argmax(wrong_N))} has a number that is not finite (NaN or infinite).")
    return GivenSamples(array, None)


def splits_of(value: Any) -> Dict[str, GivenSamples]:
    """Returns split -> samples of the argument `dataset`. A single dataset, not split yet, has the name "all".

    Raises:
        ConfigError: the object is not a dataset.
    """
    if isinstance(value, (tuple, list)) and len(value) in (2, 3) and not _is_array(value[0]):
        return {name: _samples_of(part, name) for name, part in zip(SPLITS, value)}
    return {"all": _samples_of(value, "")}


def _samples_of(value: Any, split: str) -> GivenSamples:
    place = f"dataset ({split})" if split else "dataset"
    if isinstance(value, (tuple, list)) and len(value) in (4, 6) and all(map(_is_array, value)):
        raise ConfigError(f"{place}: {len(value)} arrays. Give pairs: ((x, y), (x_val, y_val)).")
    if isinstance(value, (tuple, list)) and len(value) == 2 and _is_array(value[0]):
        inputs, target_N = as_array(value[0]), as_array(value[1])
        if inputs.dtype.kind not in "fiub":
            raise ConfigError(f"{place}: x has the type {inputs.dtype}. Give an array of numbers.")
    elif _is_dataset(value):
        try:
            items = [_parts_of(_item(value, index), index)[1] for index in range(len(value))]
        except LoaderError as error:
            raise ConfigError(str(error)) from error
        inputs, target_N = value, np.asarray([as_array(target) for target in items])
    else:
        if _is_array(value):
            raise ConfigError(f"{place}={class_of(value)}: an array without targets. Give (x, y).")
        hint = " It is a loader: give its dataset." if hasattr(value, "dataset") or hasattr(value, "__iter__") else ""
        raise ConfigError(f"{place}={value!r:.60} ({class_of(value)}) is no dataset.{hint} {ADVICE}")
    if target_N.ndim == 2 and target_N.shape[1] == 1:
        target_N = target_N[:, 0]
    if not len(inputs):
        raise ConfigError(f"{place}: there are no samples in it.")
    if target_N.ndim != 1 or len(target_N) != len(inputs) or target_N.dtype.kind not in "fiub":
        raise ConfigError(
            f"{place}: targets are {target_N.dtype} of shape {target_N.shape}, for {len(inputs)} inputs. Give one "
            "number for each: the index of a class (an integer) or a value (a float)."
        )
    if target_N.dtype.kind == "f" and not np.isfinite(target_N).all():
        raise ConfigError(f"{place}: the target of sample {int(np.argmin(np.isfinite(target_N)))} is not finite.")
    return GivenSamples(inputs, target_N if target_N.dtype.kind == "f" else target_N.astype(np.int32))


def _is_array(value: Any) -> bool:
    """Returns True for arrays of NumPy, MXNet and PyTorch, and for data frames of pandas."""
    return hasattr(value, "shape") and (hasattr(value, "dtype") or hasattr(value, "to_numpy"))


def _is_dataset(value: Any) -> bool:
    return hasattr(value, "__getitem__") and hasattr(value, "__len__") and not isinstance(value, (str, Mapping)) and \
        not _is_array(value)  # fmt: skip


def _item(dataset: Any, index: int) -> Any:
    """Reads an item of a dataset.

    Raises:
        LoaderError: the dataset's code raised an exception.
    """
    try:
        return dataset[index]
    except Exception as error:
        raise LoaderError(f"dataset: item {index} cannot be read: {type(error).__name__}: {error}") from error


def _parts_of(item: Any, index: int) -> Tuple[Any, Any]:
    """Returns the input and the target of an item of a dataset.

    Raises:
        ConfigError: the item is not a pair.
    """
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        length = f" of {len(item)}" if isinstance(item, (tuple, list)) else ""
        raise ConfigError(f"dataset: item {index} is a {type(item).__name__}{length}, and must be a pair (x, y).")
    return item[0], item[1]


def as_array(value: Any) -> np.ndarray:
    """Converts an array of NumPy, MXNet or PyTorch, a number or a Pillow image to a NumPy array."""
    return value.asnumpy() if hasattr(value, "asnumpy") else np.asarray(value)


def _moments(samples: GivenSamples) -> Tuple[List[float], List[float]]:
    """Returns mean and standard deviation of all uint8 inputs, one number each; empty lists for other dtypes."""
    if samples.dtype != np.uint8:
        return [], []
    # Integer sums are exact, so that the result does not depend on the size of the parts.
    total = square = count = 0
    for begin in range(0, len(samples), 1024):
        part = samples.read(np.arange(begin, min(begin + 1024, len(samples)))).astype(np.int64)
        total, square, count = total + int(part.sum()), square + int((part * part).sum()), count + part.size
    mean = total / count
    return [mean], [max(square / count - mean * mean, 1e-6) ** 0.5]
