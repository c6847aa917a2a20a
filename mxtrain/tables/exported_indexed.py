"""Predicts for lines in libsvm or libffm format with an exported network. Exported folders have a copy of this
module."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Tuple

from mxtrain.data.exported_folder import ExportedFolder, lines_of
from mxtrain.data.features.exported_rows import predicted_row
from mxtrain.tables.indexed_lines import WrongLine, cells_of, padded_rows, parse_row


def describe_input(signature: Dict[str, Any]) -> str:
    """Returns the content of files that `predict` reads, as a sentence."""
    return "a text file in libsvm or libffm format, a line for each row: index:value ...; a target before it is ignored"


def examples(signature: Dict[str, Any]) -> List[Tuple[str, bytes]]:
    """Returns name and content of a file for the proof of an export."""
    return [("proof.txt", b"0:1 1:0.5 2:-0.25\n")]


def predict(folder: ExportedFolder, content: bytes, name: str) -> Iterator[Dict[str, Any]]:
    """Yields the rows that `mxtrain predict` writes for a file.

    Args:
        folder: exported folder.
        content: content of a libsvm or libffm file. Targets are optional.
        name: name of the file.

    Raises:
        ValueError: a line is invalid.
    """
    (column,) = folder.signature["signature"]["columns"]
    for line, text in lines_of(content, name):
        location, cells = f"{name}:{line}", cells_of(text)
        if not cells:
            continue
        try:
            row = parse_row(cells, with_target=False)
        except WrongLine as error:
            raise ValueError(f"{location}: {error}") from error
        arrays = padded_rows([(row.ids, row.values)], column["length"], column["buckets"])
        inputs = {spec["name"]: array.astype(spec["dtype"]) for spec, array in zip(folder.signature["inputs"], arrays)}
        yield {"file": location, **predicted_row(folder.signature, folder.run(inputs))}
