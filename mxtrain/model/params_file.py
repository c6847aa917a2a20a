"""Reads the weights that someone else saved: any `.params` file of Gluon, GluonCV or Module."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Dict, Union

from mxtrain.errors import WeightsError
from mxtrain.files.download.transfer import WrongContent
from mxtrain.files.params_format import Damaged, parse_arrays
from mxtrain.files.regular_files import read_regular
from mxtrain.model.network_archive import is_archive, take_weights

if TYPE_CHECKING:
    import numpy as np


def without_module_prefix(name: str) -> str:
    """Returns the name of an array without the `arg:` or `aux:` that Module and `export` put before it."""
    return re.sub("^(arg|aux):", "", name)


def read_params(path: Union[str, Path]) -> Dict[str, np.ndarray]:
    """Returns the arrays of a `.params` file by name, in the file's order.

    Args:
        path: a file written by `save_parameters`, `mx.nd.save`, `Module.save_params` or `export`; or a `model.tar.gz`
            of SageMaker, of whose `.params` files the one of the last epoch is read; or an ONNX file, whose arrays
            have the names of `model=onnx`.

    Returns:
        Arrays on the host; bfloat16 as float32, all others as they were saved. Names are as in the file.

    Raises:
        WeightsError: the file is missing, damaged, truncated, or no such file; the message says which.
    """
    path = Path(path)
    if path.suffix == ".onnx":
        from mxtrain.model.onnx.reading import read_onnx_arrays

        return dict(read_onnx_arrays(str(path)))
    try:
        content = take_weights(path) if is_archive(path) else read_regular(path)
    except WrongContent as damage:
        raise WeightsError(f"The weights file {path} {damage}.") from damage
    except OSError as error:
        raise WeightsError(
            f"The weights file {path} cannot be read: {error.strerror}. Give the path of a .params file, "
            "e.g. model.weights=weights/resnet.params."
        ) from error
    try:
        arrays, names = parse_arrays(content)
    except Damaged as damage:
        raise WeightsError(f"The weights file {path} is damaged or no MXNet .params file: {damage}.") from damage
    if not names:
        raise WeightsError(
            f"The weights file {path} holds {len(arrays)} arrays without names, so they cannot be told apart. "
            "Save it with network.save_parameters(path)."
        )
    return dict(zip(names, arrays))
