"""Reads ONNX files for users: every fault is one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Mapping

from mxtrain.errors import WeightsError
from mxtrain.model.onnx.convert import Converted, convert_file
from mxtrain.model.onnx.refusals import DamagedOnnx, RefusedOnnx

if TYPE_CHECKING:
    import numpy as np

EXAMPLE = "model.file=network.onnx"
MISSING = "ONNX files are read by the package onnx. Type: pip install 'mxtrain[export]'"


def convert(path: str, *, partial: bool = False) -> Converted:
    """Converts a file.

    Args:
        path: path of the file.
        partial: see `convert_file`.

    Raises:
        ValueError: it cannot be read or converted; the message says why.
    """
    try:
        return convert_file(path, partial=partial)
    except ImportError as error:
        raise ValueError(f"file={path}: {MISSING}") from error
    except OSError as error:
        raise ValueError(f"file={path} cannot be read: {error.strerror}. Type e.g. {EXAMPLE}") from error
    except DamagedOnnx as error:
        raise ValueError(f"file={path} is damaged: {error}") from error
    except RefusedOnnx as error:
        raise ValueError(f"file={path} cannot be trained: {error}") from error


def read_onnx_arrays(path: str) -> Mapping[str, np.ndarray]:
    """Returns the arrays of a file by the names of the network's parameters.

    Raises:
        WeightsError: see `convert`.
    """
    try:
        return convert(path, partial=True).arrays
    except ValueError as error:
        raise WeightsError(f"model.weights: {error}.") from error
