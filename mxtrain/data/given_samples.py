"""Samples that the Python API got as arrays, or as Gluon, PyTorch or other Python datasets.

Legend: N samples, B batch.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from mxtrain.config.placeholders import class_of
from mxtrain.errors import ConfigError, DataError, LoaderError
from mxtrain.types import Shape

SPLITS = ("train", "val", "test")
ROWS_PER_CHECK = 4096
"""Rows whose numbers are checked at once, so that the check takes little memory."""
ADVICE = (
    "dataset= takes (x, y) arrays, a dataset whose items are (x, y), or a tuple of two or three of these: train, val "
    'and test. To choose a dataset by its name, give an override: "dataset=mnist".'
)


class GivenSamples:
    """Samples of an array, or of a dataset with `__len__` and `__getitem__`, whose inputs are read on demand.

    Args:
        inputs: arrays (N, ...), one for each input of the network; or a dataset of (x, y) pairs.
        target_N: target of each sample; None: samples to predict for.
        index_N: indices into `inputs` and `target_N` of the samples of this split; None: all.
        names: names of several inputs; empty: there is one.
    """

    def __init__(
        self,
        inputs: Any,
        target_N: Optional[np.ndarray],
        index_N: Optional[np.ndarray] = None,
        names: Sequence[str] = (),
    ):
        self._inputs, self._target_N, self.names = inputs, target_N, tuple(names)
        size = len(inputs[0]) if isinstance(inputs, list) else len(inputs)
        # Splits share the caller's arrays, and differ in their indices alone.
        self._index_N = np.arange(size) if index_N is None else index_N
        first = self._read(0) if size else [np.zeros((), np.float32) for _ in self.names or ("",)]
        self.shapes: List[Shape] = [tuple(array.shape) for array in first]
        self.dtypes = [array.dtype for array in first]

    def __len__(self) -> int:
        return len(self._index_N)

    def take(self, indices: Sequence[int]) -> GivenSamples:
        """Returns the samples at `indices`, without copying them."""
        chosen = np.asarray([index for index in indices if index < len(self)], np.int64)
        return GivenSamples(self._inputs, self._target_N, self._index_N[chosen], self.names)

    def require_finite(self, location: str) -> None:
        """Checks the inputs of arrays; those of a Python dataset are checked when they are read.

        Args:
            location: argument that holds the arrays, for the message.

        Raises:
            DataError: an input has a number that is not finite. Some layers of MXNet drop NaN, so that no
                loss shows it.
        """
        for name, array_N in zip(self.names or ("",), self._inputs if isinstance(self._inputs, list) else ()):
            for begin in range(0, len(array_N), ROWS_PER_CHECK):
                index = first_nonfinite(array_N[begin : begin + ROWS_PER_CHECK])
                if index is not None:
                    called = f"x[{name!r}]" if name else "x"
                    raise DataError(f"{location}: {called} of sample {begin + index} is not finite (NaN or infinite).")

    @property
    def has_targets(self) -> bool:
        """Returns False for samples to predict for."""
        return self._target_N is not None

    def read_labels(self) -> np.ndarray:
        """Returns the target of each sample, (N,)."""
        assert self._target_N is not None
        return self._target_N[self._index_N]

    def read(self, index_B: np.ndarray) -> List[np.ndarray]:
        """Returns each input of samples, (B, ...), in its own dtype.

        Raises:
            LoaderError: a sample has another shape than the first one, or the dataset's code fails.
        """
        chosen_B = self._index_N[index_B]
        if isinstance(self._inputs, list):
            return [array_N[chosen_B] for array_N in self._inputs]
        samples = [self._read(int(index)) for index in chosen_B]
        for index, arrays in zip(chosen_B, samples):
            shapes = [array.shape for array in arrays]
            if shapes != self.shapes:
                raise LoaderError(
                    f"dataset: sample {index} has shape {shown_shapes(shapes)}, and the first one "
                    f"{shown_shapes(self.shapes)}. All must be equal."
                )
        stacked = [np.stack(arrays_B) for arrays_B in zip(*samples)]
        for array in stacked:
            wrong = first_nonfinite(array)
            if wrong is not None:
                raise LoaderError(f"dataset: x of sample {chosen_B[wrong]} is not finite (NaN or infinite).")
        return stacked

    def fetch(self, index_B: np.ndarray, *, seed: int, epoch: int, train: bool) -> Tuple[np.ndarray, ...]:
        """Returns the first input, scaled to 0 to 255, and the targets of samples, for figures."""
        input_B = self.read(index_B)[0]
        if input_B.dtype != np.uint8:
            low, high = float(input_B.min()), float(input_B.max())
            input_B = (input_B - low) * (255 / max(high - low, 1e-12))
        return input_B, self.read_labels()[index_B]

    def _read(self, index: int) -> List[np.ndarray]:
        if isinstance(self._inputs, list):
            return [np.asarray(array_N[index]) for array_N in self._inputs]
        return list(named_arrays(_parts_of(_item(self._inputs, index), index)[0]).values())


def first_nonfinite(array: np.ndarray) -> Optional[int]:
    """Returns the index of the first row with a number that is not finite; None if there is none."""
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return None
    return int(np.argmin(np.isfinite(array).reshape(len(array), -1).all(axis=1)))


def splits_of(value: Any) -> Dict[str, GivenSamples]:
    """Returns split -> samples of the argument `dataset`. A single dataset, not split yet, has the name "all".

    Raises:
        ConfigError: the object is not a dataset.
    """
    if isinstance(value, (tuple, list)) and len(value) in (2, 3) and not _is_array(value[0]) and not _is_pair(value):
        return {name: _samples_of(part, name) for name, part in zip(SPLITS, value)}
    return {"all": _samples_of(value, "")}


def _samples_of(value: Any, split: str) -> GivenSamples:
    location = f"dataset ({split})" if split else "dataset"
    if isinstance(value, (tuple, list)) and len(value) in (4, 6) and all(map(_is_array, value)):
        raise ConfigError(f"{location}: {len(value)} arrays. Give pairs: ((x, y), (x_val, y_val)).")
    names: List[str] = []
    inputs: Union[Items, List[np.ndarray]]
    if isinstance(value, (tuple, list)) and len(value) == 2 and (_is_array(value[0]) or _is_pair(value)):
        named, target_N = named_arrays(value[0]), as_array(value[1])
        inputs, names = list(named.values()), _names_of(value[0])
        for name, array in named.items():
            if array.dtype.kind not in "fiub":
                called = f"x[{name!r}]" if names else "x"
                raise ConfigError(f"{location}: {called} has the type {array.dtype}. Give an array of numbers.")
        if len({len(array) for array in inputs}) > 1:
            sizes = ", ".join(f"{name} {len(array)}" for name, array in named.items())
            raise ConfigError(f"{location}: the inputs have different numbers of samples: {sizes}.")
    elif _is_dataset(value):
        try:
            pairs = (_parts_of(_item(value, index), index) for index in range(len(value)))
            items = []
            for index, (first, target) in enumerate(pairs):
                names = _names_of(first) if not index else names
                if _names_of(first) != names:
                    raise LoaderError(f"dataset: item {index} has the inputs {_names_of(first)}, and item 0 {names}.")
                items.append(target)
        except LoaderError as error:
            raise ConfigError(str(error)) from error
        inputs, target_N = Items(value), np.asarray([as_array(target) for target in items])
    else:
        if _is_array(value):
            raise ConfigError(f"{location}={class_of(value)}: an array without targets. Give (x, y).")
        hint = " It is a loader: give its dataset." if hasattr(value, "dataset") or hasattr(value, "__iter__") else ""
        raise ConfigError(f"{location}={value!r:.60} ({class_of(value)}) is no dataset.{hint} {ADVICE}")
    # A column, as scikit-learn and pandas give it.
    if target_N.ndim == 2 and target_N.shape[1] == 1:
        target_N = target_N[:, 0]
    size = len(inputs) if isinstance(inputs, Items) else len(inputs[0])
    if not size:
        raise ConfigError(f"{location}: it contains no samples.")
    if target_N.ndim != 1 or len(target_N) != size or target_N.dtype.kind not in "fiub":
        raise ConfigError(
            f"{location}: targets are {target_N.dtype} of shape {target_N.shape}, for {size} inputs. Give one "
            "number for each: the index of a class (an integer) or a value (a float)."
        )
    if target_N.dtype.kind == "f" and not np.isfinite(target_N).all():
        raise ConfigError(f"{location}: the target of sample {int(np.argmin(np.isfinite(target_N)))} is not finite.")
    return GivenSamples(inputs, target_N if target_N.dtype.kind == "f" else target_N.astype(np.int32), names=names)


def _is_array(value: Any) -> bool:
    """Returns True for arrays of NumPy, MXNet and PyTorch, and for data frames of pandas."""
    return hasattr(value, "shape") and (hasattr(value, "dtype") or hasattr(value, "to_numpy"))


def _is_pair(value: Any) -> bool:
    """Returns True for (inputs, y) with a tuple or dict of arrays as inputs."""
    first = tuple(value[0].values()) if isinstance(value[0], Mapping) else value[0]
    is_inputs = isinstance(first, tuple) and len(first) > 0 and all(map(_is_array, first))
    return len(value) == 2 and is_inputs and _is_array(value[1])


def named_arrays(inputs: Any) -> Dict[str, np.ndarray]:
    """Returns the inputs of one sample or of all by name; those of a tuple are called 0, 1, ..., a single one "".

    A list is one array, as NumPy reads it.
    """
    if isinstance(inputs, Mapping):
        return {str(name): as_array(array) for name, array in inputs.items()}
    if isinstance(inputs, tuple) and inputs and all(map(_is_array, inputs)):
        return {str(number): as_array(array) for number, array in enumerate(inputs)}
    return {"": as_array(inputs)}


def _names_of(inputs: Any) -> List[str]:
    return [name for name in named_arrays(inputs) if name]


class Items:
    """Wraps a dataset of the caller, so that a list is not taken for an array."""

    def __init__(self, dataset: Any):
        self._dataset = dataset

    def __getitem__(self, index: int) -> Any:
        return self._dataset[index]

    def __len__(self) -> int:
        return len(self._dataset)


def shown_shapes(shapes: Sequence[Sequence[int]]) -> str:
    """Returns shapes of inputs for messages, e.g. "(4,) and (2, 3)"."""
    return " and ".join(str(tuple(shape)) for shape in shapes)


def _is_dataset(value: Any) -> bool:
    return (
        hasattr(value, "__getitem__")
        and hasattr(value, "__len__")
        and not isinstance(value, (str, Mapping))
        and not _is_array(value)
    )


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
        raise ConfigError(
            f"dataset: item {index} is a {type(item).__name__}{length}, and must be a pair (x, y); of several inputs "
            "((x1, x2), y) or ({NAME: x1, NAME: x2}, y)."
        )
    return item[0], item[1]


def as_array(value: Any) -> np.ndarray:
    """Converts an array of NumPy, MXNet or PyTorch, a number or a Pillow image to a NumPy array."""
    return value.asnumpy() if hasattr(value, "asnumpy") else np.asarray(value)
