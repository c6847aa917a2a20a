"""Opens the inputs of a prediction in Python: paths of files, or objects that the dataset decodes in memory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, List, Mapping, Sequence, Tuple

from mxtrain.data.loading.described_paths import local_name
from mxtrain.errors import ConfigError

if TYPE_CHECKING:
    from mxtrain.data.signature import Signature
    from mxtrain.data.spec import BaseDataset, Samples


def open_given(dataset: BaseDataset, value: Any, signature: Signature) -> Tuple[Samples, Sequence[str]]:
    """Opens samples without labels, and returns the source location of each; empty for an object, which has none.

    Args:
        dataset: the dataset of the run, as `restored` returns it.
        value: one path or object, or several.
        signature: signature of the network.

    Raises:
        ConfigError: the dataset reads no such objects, or some are paths and others are not.
        DataError: a file cannot be read, or an object holds a wrong value.
    """
    objects = as_list(value)
    # For datasets of texts a string is a text itself, so only a `Path` names a file.
    path_types = (os.PathLike,) if dataset.gives.sample.has_text else (str, os.PathLike)
    are_paths = [isinstance(given, path_types) for given in objects]
    if any(are_paths) and not all(are_paths):
        raise ConfigError("predict: some inputs are paths and others are not. Predict for them separately.")
    if any(are_paths):
        return dataset.open_inputs([local_name(os.fspath(path)) for path in objects], signature, False, {})
    samples = dataset.samples_from(value, signature)
    return samples, [""] * len(samples)


def as_list(value: Any) -> List[Any]:
    """Returns the objects of a list or tuple; any other object alone."""
    return list(value) if isinstance(value, (list, tuple)) else [value]


def undecodable_input(number: int, value: Any, readable: str) -> ConfigError:
    """Returns the error for an object that a dataset does not decode.

    Args:
        number: its number among the inputs, from 0.
        value: the object.
        readable: what the dataset reads, e.g. "paths of files".
    """
    is_array = hasattr(value, "shape") and hasattr(value, "dtype")
    shown = f"an array of {value.dtype} with shape {value.shape}" if is_array else f"of type {type(value).__name__}"
    return ConfigError(f"predict: input {number} is {shown}. This run reads {readable}.")


def rows_from(value: Any, readable: str) -> List[Mapping[str, Any]]:
    """Returns rows of a table: those of a data frame of pandas, one dict from column to value, or several.

    Raises:
        ConfigError: another object was given.
    """
    if hasattr(value, "columns") and hasattr(value, "to_dict"):
        return list(value.to_dict("records"))
    rows = as_list(value)
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise undecodable_input(number, row, readable)
    return rows
