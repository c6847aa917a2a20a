"""Proves that an exported folder reads files as the trained run does.

The module of which the folder has a copy reads the files of a few samples. Its inputs must be equal to those of the
run's loader. The outputs for equal inputs are proven by `proof`.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Tuple

import numpy as np

from mxtrain.data.checking.checks import content_place_of
from mxtrain.errors import MxtrainError
from mxtrain.export.proof import NotProven, Sampled
from mxtrain.export.standalone import MAX_ERROR, MAX_GIVEN_BYTES, read_regular, relative_error

if TYPE_CHECKING:
    from mxtrain.data.base import Samples
    from mxtrain.data.checking.problems import DataPlace

NUM_FILES = 4
"""Number of samples that are read from their files."""
MAX_LINE_FILE = 1 << 28
"""Largest size in bytes of a text file of which a few lines are read."""


def prove_files(
    reader: str, signature: Mapping[str, Any], source: Samples, sampled: Sampled, entered: Mapping[str, np.ndarray]
) -> Tuple[int, float]:
    """Compares the inputs that the folder's reader makes of files with those of the run.

    Args:
        reader: name of the module that reads files for the folder.
        signature: content of signature.json.
        source: samples of the split.
        sampled: first batch of the split.
        entered: inputs of the exported network for this batch, (B, ...) each.

    Returns:
        The number of files or lines, and the largest relative error. The number is 0 for samples that do not come from
        files, and for tasks whose evaluation reads more than the file, such as annotated boxes.

    Raises:
        NotProven: an input differs, or the folder cannot read a file.
    """
    module = importlib.import_module(reader)
    read, max_error = getattr(module, "inputs_of_file", None), getattr(module, "MAX_INPUT_ERROR", MAX_ERROR)
    if read is None or sampled.index_B is None:
        return 0, 0.0
    largest, count = 0.0, 0
    for row, index in enumerate(sampled.index_B[:NUM_FILES].tolist()):
        place = _place(source, index)
        content = None if place is None else _content(place)
        if place is None or content is None:
            continue
        try:
            found: Optional[Dict[str, np.ndarray]] = read(signature, content, place.file)
        except (ValueError, ImportError) as error:
            raise NotProven(f"export: predict.py does not read {place}, which the run reads: {error}.") from error
        if found is None:
            continue
        expected = {name: array[row] for name, array in entered.items()}
        for name, difference in _errors(found, expected).items():
            if not difference <= max_error:
                reason = f"{name} by {difference:.1e}"
                raise NotProven(f"export: predict.py reads {place} differently from the run: {reason}.")
            largest = max(largest, difference)
        count += 1
    return count, largest


def _place(source: Samples, index: int) -> Optional[DataPlace]:
    """Returns the source location from which a sample is read; None if it does not come from a file."""
    make = getattr(source, "checks", None)
    try:
        place: Optional[DataPlace] = None if make is None else content_place_of(make(), index)
    except (NotImplementedError, MxtrainError):
        return None
    return place if place is not None and place.file and place.record is None and os.path.isfile(place.file) else None


def _content(place: DataPlace) -> Optional[bytes]:
    """Returns the file of a sample, or the first line and the line of a sample; None for other forms of tables, and for
    files that are too large."""
    if os.path.getsize(place.file) > (MAX_GIVEN_BYTES if place.line is None else MAX_LINE_FILE):
        return None
    if place.line is None:
        return read_regular(place.file, MAX_GIVEN_BYTES)
    if not place.file.lower().endswith((".csv", ".tsv", ".jsonl")):
        return None
    content = read_regular(place.file, MAX_LINE_FILE)
    lines = content.splitlines(keepends=True)
    own = lines[place.line - 1] if place.line <= len(lines) else b""
    if b'"' in own or b'"' in lines[0]:  # a quoted cell may contain line ends
        return own if place.file.lower().endswith(".jsonl") else None
    return own if place.file.lower().endswith(".jsonl") else lines[0] + own


def _errors(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> Dict[str, float]:
    """Returns the relative error of each input. The expected arrays may be padded to the length of a batch."""
    errors: Dict[str, float] = {}
    for name, array in expected.items():
        own: List[np.ndarray] = [np.asarray(found[name])[0]] if name in found else []
        if not own or own[0].ndim != array.ndim:
            errors[name] = float("inf")
            continue
        errors[name] = relative_error(own[0], array[tuple(slice(0, size) for size in own[0].shape)])
    return errors
