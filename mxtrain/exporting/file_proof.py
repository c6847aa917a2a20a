"""Proves that an exported folder reads files as the trained run does.

The module of which the folder has a copy reads the files of a few samples, and files that are made for the proof. Its
inputs must be equal to those of the run's loader. The outputs for equal inputs are proven by `proof`.

Inputs are compared, not predictions: a small difference may not change four classes. Files of samples are not stored in
the folder, because photographs would be published with it; `export check` reads files of noise that were made for the
proof.
"""

from __future__ import annotations

import importlib
import io
import os
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Dict, List, Mapping, Optional, Tuple

import numpy as np

from mxtrain.config.libraries import require_library
from mxtrain.data.checking.checks import content_location_of
from mxtrain.errors import DataError, LoaderError, MxtrainError, NotProven
from mxtrain.exporting.proof import Sampled, first_batch
from mxtrain.exporting.standalone import (
    MAX_ERROR,
    MAX_GIVEN_BYTES,
    UnrunExport,
    first_inputs,
    input_errors,
    read_regular,
)
from mxtrain.files.temporary import temporary_root
from mxtrain.training.loaders import build_loader

if TYPE_CHECKING:
    from mxtrain.data.checking.problems import DataLocation
    from mxtrain.data.exported_folder import ExportedFolder
    from mxtrain.data.spec import Samples
    from mxtrain.exporting.network import TracedNetwork
    from mxtrain.training.trained import Trained

NUM_FILES = 4
"""Number of samples that are read from their files."""
MAX_LINE_FILE = 1 << 28
"""Largest size in bytes of a table of which a few rows are read."""
PARQUET = ".parquet"
NO_HEADER = re.compile(rb"(?:\xef\xbb\xbf)?(?:sep=.)?\s*")
"""Lines before the header of a table."""


def prove_files(
    reader: str, folder: ExportedFolder, source: Samples, sampled: Sampled, entered: Mapping[str, np.ndarray]
) -> Tuple[int, float]:
    """Compares the inputs that the folder's reader makes of files with those of the run.

    Args:
        reader: name of the module that reads files for the folder.
        folder: the folder to be written.
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
    read = getattr(module, "inputs_of_file", None)
    if read is None or sampled.index_B is None:
        return 0, 0.0
    largest, count = 0.0, 0
    for row, index in enumerate(sampled.index_B[:NUM_FILES].tolist()):
        location = _location(source, index)
        content = None if location is None else _content(location)
        if location is None or content is None:
            continue
        try:
            found: Optional[Dict[str, np.ndarray]] = read(folder, content, location.file)
        except (ValueError, ImportError) as error:
            raise NotProven(f"export: predict.py does not read {location}, which the run reads: {error}.") from error
        if found is None:
            continue
        expected = {name: array[row] for name, array in entered.items()}
        for name, difference in input_errors(found, expected).items():
            # Not `difference > MAX_ERROR`, which is False for NaN.
            if not difference <= MAX_ERROR:
                reason = f"{name} by {difference:.1e}"
                raise NotProven(f"export: predict.py reads {location} differently from the run: {reason}.")
            largest = max(largest, difference)
        count += 1
    return count, largest


def prove_examples(
    reader: str, folder: UnrunExport, trained: Trained, network: TracedNetwork
) -> List[Tuple[str, bytes, Dict[str, np.ndarray]]]:
    """Compares the inputs that the folder's reader makes of files with those of `mxtrain predict`.

    The files are made for the proof, so that the folder can contain them: files of the split may be private.

    Args:
        reader: name of the module that reads files for the folder.
        folder: the folder to be written.
        trained: the trained network.
        network: the traced network.

    Returns:
        Name, content and inputs of each file; none for tasks whose prediction reads other files than the folder.

    Raises:
        NotProven: an input differs.
    """
    module = importlib.import_module(reader)
    make = getattr(module, "examples", None)
    cases: List[Tuple[str, bytes, Dict[str, np.ndarray]]] = []
    for name, content in () if make is None else make(folder.signature):
        try:
            found = first_inputs(module, folder, content, name)
        except ValueError:  # for example, the network has a fixed length, and the recording is longer
            continue
        expected = _inputs_of_run(trained, network, name, content) if found else {}
        if not expected:
            continue
        errors = input_errors(found, expected)
        wrong = ", ".join(f"{key} by {error:.1e}" for key, error in errors.items() if not error <= MAX_ERROR)
        if wrong:
            raise NotProven(f"export: predict.py reads {name} of the proof differently from `predict`: {wrong}.")
        cases.append((name, content, {key: found[key][0].copy() for key in expected}))
    return cases


def _inputs_of_run(trained: Trained, network: TracedNetwork, name: str, content: bytes) -> Dict[str, np.ndarray]:
    """Returns the inputs for the first sample of a file as `predict` reads it; none if it reads no such files."""
    description, signature = trained.description, trained.signature
    with tempfile.TemporaryDirectory(prefix="mxtrain-proof-", dir=temporary_root()) as temporary:
        path = Path(temporary) / name
        path.write_bytes(content)
        try:
            source, _ = description.dataset.open_inputs([str(path)], signature, False, {})
        except (DataError, LoaderError, NotImplementedError):
            return {}
        loader = build_loader(description, source, signature, trained.device, in_order=True, limit_batches=1)
        arrays = first_batch(trained, loader)[1]
    return {key: array[0] for key, array in network.enter([array.asnumpy() for array in arrays]).items()}


def _location(source: Samples, index: int) -> Optional[DataLocation]:
    """Returns the source location from which a sample is read; None if it does not come from a file."""
    make = getattr(source, "checks", None)
    try:
        location: Optional[DataLocation] = None if make is None else content_location_of(make(), index)
    except (NotImplementedError, MxtrainError):
        return None
    if location is None or not location.file or not os.path.isfile(location.file):
        return None
    return location if location.record is None or location.file.lower().endswith(PARQUET) else None


def _content(location: DataLocation) -> Optional[bytes]:
    """Returns the file of a sample, or a table of its row alone; None for other forms of tables, and for files that are
    too large."""
    is_row = location.line is not None or location.record is not None
    if os.path.getsize(location.file) > (MAX_LINE_FILE if is_row else MAX_GIVEN_BYTES):
        return None
    if not is_row:
        return read_regular(location.file, MAX_GIVEN_BYTES)
    ending = os.path.splitext(location.file)[1].lower()
    if location.record is not None:
        return _parquet_row(location.file, location.record)
    if ending not in (".csv", ".tsv", ".jsonl"):
        return None
    assert location.line is not None
    content = read_regular(location.file, MAX_LINE_FILE)
    lines = content.splitlines(keepends=True)
    own = lines[location.line - 1] if location.line <= len(lines) else b""
    if ending == ".jsonl":
        return own
    # Blank lines and `sep=;` may precede the header.
    first = next((number for number, line in enumerate(lines) if not NO_HEADER.fullmatch(line)), 0)
    header = b"".join(lines[: first + 1])
    # A line with a quote too many is part of a row of several lines. In a .tsv, the first lines decide what quotes are.
    if own.count(b'"') % 2 or header.count(b'"') % 2 or (ending == ".tsv" and b'"' in own + header):
        return None
    return header + own


def _parquet_row(path: str, number: int) -> bytes:
    """Returns a Parquet file with one row of another, whose first row has the number 0."""
    parquet = require_library("pyarrow.parquet", "parquet", f"{path}: Parquet")
    table, group = parquet.ParquetFile(io.BytesIO(read_regular(path, MAX_LINE_FILE))), 0
    while number >= table.metadata.row_group(group).num_rows:
        number -= table.metadata.row_group(group).num_rows
        group += 1
    file = io.BytesIO()
    parquet.write_table(table.read_row_group(group).slice(number, 1), file)
    return file.getvalue()
