"""Datasets that the Python API got as arrays, or as Gluon, PyTorch or other Python datasets.

Legend: N samples, B batch.
"""

from __future__ import annotations

import inspect
import math
import os
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Dict,
    List,
    Literal,
    Mapping,
    Sequence,
    Tuple,
    Union,
)

import numpy as np

from mxtrain.config.placeholders import Given
from mxtrain.data.given_samples import SPLITS, GivenSamples, as_array, named_arrays, shown_shapes, splits_of
from mxtrain.data.loading.loader import BatchLoader, LoaderOptions
from mxtrain.data.loading.splitting import refuse_empty
from mxtrain.data.loading.target_scale import require_same_scale, target_remark, with_target_scale
from mxtrain.data.signature import Signature
from mxtrain.data.spec import BaseDataset, Splits
from mxtrain.errors import CheckpointError, ConfigError, DataError
from mxtrain.types import BatchSize, Names
from mxtrain.types.kinds import Arrays, ClassIndex, Gives, Images, Number, Numbers, SeveralArrays

if TYPE_CHECKING:
    from mxnet import gluon

    from mxtrain.data.loading.placing import HostArrays
    from mxtrain.model.spec import Model

MAX_CLASS_LIKE = 20
"""Largest number of distinct whole numbers in float targets that a remark suggests to be class indices."""
TASK_OF: Mapping[str, str] = {"class": "classification", "number": "regression"}
"""The task for each kind of target."""


class GivenDataset(Given, BaseDataset):
    """Placeholder of arrays or Python datasets with one or several inputs and one target per sample.

    Inputs are converted to float32. uint8 inputs are also standardised with one mean and one standard deviation of all
    training inputs, which are saved in checkpoints; other inputs are not scaled. Several inputs enter the network in
    the order of the tuple or dict that holds them.
    """

    argument: ClassVar[str] = "dataset"
    folds_by: ClassVar[Literal["", "samples", "columns"]] = "samples"

    batch_size: BatchSize = "auto"
    shape: List[Union[int, List[int]]] = []
    """Shape of one input; of several inputs, the shape of each."""
    dtype: str = "float32"
    """Dtype of the inputs, or of each."""
    inputs: List[str] = []
    """Names of several inputs; empty: there is one."""
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
            if split.shapes != first.shapes or split.names != first.names:
                raise ConfigError(
                    f"dataset: the {name} inputs have shape {shown_shapes(split.shapes)}, and others "
                    f"{shown_shapes(first.shapes)}."
                )
        is_number = any(split.read_labels().dtype.kind == "f" for split in splits.values())
        shapes: List[List[int]] = [list(shape) for shape in first.shapes]
        return {
            "shape": shapes if first.names else shapes[0],
            "dtype": ",".join(map(str, first.dtypes)),
            "target": "number" if is_number else "class",
            "num_samples": {name: len(split) for name, split in splits.items()},
            **({"inputs": list(first.names)} if first.names else {}),
        }

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
    def gives(self) -> Gives:  # type: ignore[override]  # a class variable in other datasets
        target = ClassIndex if self.target == "class" else Number
        if self.inputs:
            return Gives(SeveralArrays, target)
        is_image = len(self.shape) == 3 and self.shape[0] in (1, 3)
        return Gives(Images if is_image else Numbers if len(self.shape) == 1 else Arrays, target)

    def open(self) -> Splits:
        """See `BaseDataset.open`."""
        splits = splits_of(self.require())
        for name, split in splits.items():
            split.require_finite("dataset" if name == "all" else f"dataset ({name})")
        if "test" in self.num_samples and "all" in splits:
            splits = {"test": splits["all"]}
        train = splits.get("train", splits.get("all", splits.get("test")))
        assert train is not None
        names = self._names(splits)
        # Folds are made of the training samples, so these are divided as a whole dataset is.
        if self.division.fold is not None:
            splits = {"all" if name == "train" else name: samples for name, samples in splits.items()}
        if "all" in splits:
            label_N = train.read_labels() if self.target == "class" else np.zeros(len(train), int)
            # Test samples are only held out together with validation samples.
            has_val = "val" in splits
            parts = self.division.divide(label_N, has_val, has_val or "test" in splits)
            if self.division.own_validation(splits.get("val")) is None:
                splits.pop("val", None)
            refuse_empty("dataset", len(parts[0]), len(parts[1]), self.val_fraction)
            held_out = {name: train.take(part.tolist()) for name, part in zip(SPLITS, parts) if len(part)}
            splits = {**held_out, **{name: samples for name, samples in splits.items() if name != "all"}}
        mean, std = input_moments(splits.get("train", train))
        val, test = splits.get("val", train), splits.get("test")
        shapes: Any = tuple(map(tuple, self.shapes))  # `Splits` names the type of a single input
        return Splits(splits.get("train", train), val, test, names, shapes if self.inputs else shapes[0], mean, std)

    @property
    def shapes(self) -> List[List[int]]:
        """Returns the shape of each input."""
        return self.shape if self.inputs else [self.shape]  # type: ignore[list-item, return-value]  # as `inputs` says

    def _names(self, splits: Mapping[str, GivenSamples]) -> List[str]:
        """Returns the names of the classes; without `class_names`, the numbers up to the largest label of any split."""
        if self.target == "number":
            return []
        label_N = np.concatenate([split.read_labels() for split in splits.values()])
        smallest, count = int(label_N.min()), int(label_N.max()) + 1
        # Samples that are only evaluated need not have every class.
        if smallest > 0 and not self.class_names and "test" not in list(splits)[:1]:
            raise DataError(
                f"dataset: labels go from {smallest} to {count - 1}, and classes count from 0. Give y - {smallest}; if "
                "class 0 has no samples, give the names of all classes: dataset.class_names=[...]."
            )
        if smallest < 0:
            raise DataError(f"dataset: labels are class indices from 0 on, and one is {smallest}.")
        if not self.class_names:
            return [str(number) for number in range(count)]
        if count > len(self.class_names):
            raise DataError(
                f"dataset.class_names has {len(self.class_names)} names, and there is a label {count - 1}. Name all."
            )
        return list(self.class_names)

    def require_order(self, network: gluon.Block) -> None:
        """Checks that named inputs are in the order in which the network takes arguments of these names.

        Raises:
            ConfigError: they are in another order.
        """
        forward = getattr(network, "hybrid_forward", network.forward)
        taken = [name for name in inspect.signature(forward).parameters if name in self.inputs]
        if len(taken) == len(self.inputs) and taken != self.inputs:
            raise ConfigError(
                f"dataset gives the inputs {', '.join(self.inputs)}, and the network takes {', '.join(taken)}. Give "
                "the dict in the order of the network."
            )

    def note_on_values(self) -> str:
        """Returns a sentence if the targets are numbers that look like classes: a few whole numbers from 0 on; else
        ""."""
        if self.target != "number" or not self.is_given:
            return ""
        value_N = np.concatenate([split.read_labels() for split in splits_of(self.require()).values()])
        distinct = np.unique(value_N)
        if not 2 <= len(distinct) <= MAX_CLASS_LIKE or distinct[0] < 0 or (distinct % 1).any():
            return ""
        return (
            f"float targets are values to predict (task=regression), and these ({value_N.dtype}) hold only the "
            f"{len(distinct)} whole numbers {_listed(distinct)}. For classes, give integers: y.astype(int)."
        )

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
        texts = ["x".join(map(str, shape)) or "one number" for shape in self.shapes]
        inputs = " and ".join(f"{name} ({text})" for name, text in zip(self.inputs, texts)) or texts[0]
        treatment = "standardised" if signature.mean else "as they are"
        text = f"inputs of {inputs} ({self.dtype}) enter the network {treatment}"
        if self.target == "class":
            return text
        note = self.note_on_values()
        text += f"; {note.rstrip('.')}" if note else ""
        return f"{text}; {target_remark(signature, splits.val.read_labels())}"  # type: ignore[attr-defined]

    def build_loader(  # type: ignore[override]  # of its own samples
        self, source: GivenSamples, signature: Signature, options: LoaderOptions
    ) -> BatchLoader:
        return GivenLoader(source, signature, options)

    def open_inputs(
        self, names: Sequence[str], signature: Signature, skip_unreadable: bool, unreadable: Dict[int, str]
    ) -> Tuple[GivenSamples, Sequence[str]]:
        raise ConfigError(
            "predict: this run was trained on arrays, so it reads no files. Give arrays in Python: "
            "mxtrain.load(PATH).predict(x)."
        )

    def samples_from(self, value: Any, signature: Signature) -> GivenSamples:
        """See `BaseDataset.samples_from`, and `inputs_of`."""
        return inputs_of(value, self)


class GivenLoader(BatchLoader):
    """Loads batches of `GivenSamples`."""

    def __init__(self, source: GivenSamples, signature: Signature, options: LoaderOptions) -> None:
        super().__init__(len(source), options)
        self._source, self._encode = source, options.encode
        count = len(source.shapes)
        self._scales = list(zip(signature.mean or [0.0] * count, signature.std or [1.0] * count))

    def _read_share(self, share_B: np.ndarray, index_B: np.ndarray, epoch: int) -> Tuple[HostArrays, HostArrays]:
        inputs = tuple(
            _standardised(array_B, *scale) for array_B, scale in zip(self._source.read(share_B), self._scales)
        )
        if not self._source.has_targets:
            return inputs, ()
        target_B = self._source.read_labels()[share_B]
        return inputs, (target_B.astype(np.float32),) if self._encode is None else self._encode(target_B)


def _standardised(array_B: np.ndarray, mean: float, std: float) -> np.ndarray:
    array_B = array_B.astype(np.float32)
    return array_B if (mean, std) == (0.0, 1.0) else (array_B - np.float32(mean)) / np.float32(std)


def inputs_of(value: Any, dataset: GivenDataset) -> GivenSamples:
    """Converts arrays to samples to predict for.

    Args:
        value: an array (N, ...), one sample (...), or a list of samples; for several inputs, a tuple or dict of these,
            or a list of tuples or dicts with the inputs of one sample.
        dataset: the dataset of the run.

    Raises:
        ConfigError: the inputs have another shape or dtype than those of the run.
        DataError: an input is not finite.
    """
    if not dataset.inputs:
        return GivenSamples([_one_input(value, dataset, dataset.shapes[0], dataset.dtype)], None)
    names = dataset.inputs
    if isinstance(value, list) and all(isinstance(one, (tuple, Mapping)) for one in value):
        samples = [named_arrays(one) for one in value]
        odd = next((sample for sample in samples if sorted(sample) != sorted(names)), None)
        value = {name: [sample[name] for sample in samples] for name in names} if odd is None else odd
    columns = dict(zip(map(str, range(len(value))), value)) if isinstance(value, (tuple, list)) else value
    if not isinstance(columns, Mapping) or sorted(columns) != sorted(names):
        found = list(columns) if isinstance(columns, Mapping) else type(value).__name__
        raise ConfigError(
            f"predict: this run was trained on the inputs {', '.join(names)}, and got {found}. Give a "
            f"{'tuple of arrays in this order' if names[0] == '0' else 'dict of arrays with these names'}."
        )
    arrays = [
        _one_input(columns[name], dataset, shape, dtype, f"input {name}, ")
        for name, shape, dtype in zip(names, dataset.shapes, dataset.dtype.split(","))
    ]
    if len({len(array) for array in arrays}) > 1:
        raise ConfigError(f"predict: the inputs have {', '.join(str(len(one)) for one in arrays)} samples.")
    return GivenSamples(arrays, None, names=names)


def _one_input(value: Any, dataset: GivenDataset, shape: Sequence[int], dtype: str, location: str = "") -> np.ndarray:
    object_name = dataset.object
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
            f"predict: {location}the inputs are {kinds}. This run was trained on arrays ({object_name}): give numbers "
            f"of shape (N{''.join(f', {size}' for size in shape)}), or one sample of {tuple(shape)}."
        )
    is_byte = array.dtype.kind != "f" and bool(((array >= 0) & (array <= 255)).all())
    if dtype == "uint8" and not is_byte:
        raise ConfigError(
            f"predict: {location}the inputs are {array.dtype}, and this run was trained on uint8, which it "
            "standardises. Give whole numbers from 0 to 255."
        )
    wrong_N = ~np.isfinite(array).all(axis=tuple(range(1, array.ndim)))
    if wrong_N.any():
        raise DataError(
            f"predict: {location}input {int(np.argmax(wrong_N))} has a number that is not finite (NaN or infinite)."
        )
    return array


def _listed(numbers: np.ndarray) -> str:
    texts = [f"{number:g}" for number in numbers]
    return f"{', '.join(texts[:-1])} and {texts[-1]}" if len(texts) < 6 else f"{texts[0]}, {texts[1]}, ..., {texts[-1]}"


def input_moments(samples: GivenSamples) -> Tuple[List[float], List[float]]:
    """Returns mean and standard deviation of the numbers of each uint8 input, and 0 and 1 for other inputs; empty lists
    if none is uint8."""
    if np.uint8 not in samples.dtypes:
        return [], []
    means, stds = [], []
    for index, dtype in enumerate(samples.dtypes):
        # Integer sums are exact, so that the result does not depend on the size of the parts.
        total, square, count = 0, 0, 1
        if dtype == np.uint8:
            count = len(samples) * math.prod(samples.shapes[index])
            for begin in range(0, len(samples), 1024):
                part = samples.read(np.arange(begin, min(begin + 1024, len(samples))))[index].astype(np.int64)
                total, square = total + int(part.sum()), square + int((part * part).sum())
        mean = total / count
        means.append(mean)
        stds.append(max(square / count - mean * mean, 1e-6) ** 0.5 if dtype == np.uint8 else 1.0)
    return means, stds
