"""Writes Python objects given to `Run.predict` to files, so that they are decoded and preprocessed like any file."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Sequence

import numpy as np

from mxtrain.data.given_samples import as_array
from mxtrain.data.table.cell_text import text_of
from mxtrain.errors import ConfigError
from mxtrain.files.durable import encode_json
from mxtrain.types import Shape

if TYPE_CHECKING:
    from PIL import Image

TEXTS = ("text",)
"""Sample types whose inputs may be given as strings."""
_MODES = ("1", "L", "LA", "I;16", "P", "PA", "RGB", "RGBA")
"""Modes of Pillow that a PNG file holds unchanged."""


READS: Dict[str, str] = {
    "images": "images (PIL.Image, or uint8 arrays of height x width x channels) and paths of images",
    "text": "strings of one line, dicts for questions with their context, and paths (pathlib.Path)",
    **dict.fromkeys(("numbers", "features", "interactions"), "dicts from column to value and paths of tables"),
}
"""Inputs of `Run.predict` by sample type; of all others, only paths."""


def inputs_in(value: Any, sample_type: str, shape: Shape) -> List[Any]:
    """Returns the inputs of `Run.predict` as a list: those of a list, tuple or batch of images, or a single one.

    Args:
        value: argument of `Run.predict`.
        sample_type: sample type of the run's dataset.
        shape: shape of the network's input.
    """
    if sample_type == "images" and (isinstance(value, np.ndarray) or hasattr(value, "asnumpy")):
        return images_of(as_array(value), shape[-2:])
    return list(value) if isinstance(value, (list, tuple)) else [value]


def images_of(array: np.ndarray, size: Sequence[int]) -> List[np.ndarray]:
    """Returns the images of an array: those of a batch, (N, H, W) or (N, H, W, C), or the array itself.

    An array of three axes is one image (H, W, C) if its last axis has 1, 3 or 4 elements, unless its last two axes are
    the size of the network's input.

    Args:
        array: any array.
        size: (H, W) of the network's input.
    """
    is_image = array.shape[-1:] in ((1,), (3,), (4,)) and array.shape[1:] != tuple(size)
    is_batch = array.ndim == 4 or (array.ndim == 3 and not is_image)
    return list(array) if is_batch else [array]


def refuse_wrong_kind(inputs: Sequence[Any], sample_type: str, task: str) -> None:
    """Checks that the task reads inputs of these types.

    Args:
        inputs: inputs of `Run.predict`.
        sample_type: sample type of the run's dataset.
        task: name of the task, for messages.

    Raises:
        ConfigError: it does not; the message names the first such input and the allowed types.
    """
    for number, one in enumerate(inputs):
        is_path = isinstance(one, os.PathLike) or (isinstance(one, str) and sample_type not in TEXTS)
        kind = "text" if isinstance(one, str) else "rows" if isinstance(one, Mapping) else "image"
        allowed = {"images": ("image",), "text": ("text", "rows")}.get(sample_type)
        allowed = allowed or (("rows",) if sample_type in READS else () if sample_type else ("image", "rows"))
        if not is_path and kind not in allowed:
            shown = (
                f"an array of {one.dtype} with shape {one.shape}"
                if isinstance(one, np.ndarray)
                else f"of type {type(one).__name__}"
            )
            raise ConfigError(
                f"predict: input {number} is {shown}. A run of task={task} reads "
                f"{READS.get(sample_type, 'paths of files')}."
            )


def write_inputs(inputs: Sequence[Any], folder: Path) -> List[str]:
    """Writes inputs of one type to files and returns their paths: one file per image, or one for all texts or dicts.

    Args:
        inputs: strings; or dicts from column to value; or images: `PIL.Image`, or uint8 arrays (H, W), (H, W, 1),
            (H, W, 3) or (H, W, 4).
        folder: existing empty folder.

    Raises:
        ConfigError: an input has another type, or the types are mixed.
    """
    if all(isinstance(one, str) for one in inputs):
        return [_write_texts(inputs, folder / "inputs.txt")]
    if all(isinstance(one, Mapping) for one in inputs):
        return [_write_rows(inputs, folder)]
    return [_write_image(one, number, folder / f"{number:08d}.png") for number, one in enumerate(inputs)]


def _write_texts(texts: Sequence[str], path: Path) -> str:
    lines = []
    for number, text in enumerate(texts):
        text = text.lstrip("\ufeff")  # a reader would remove it as a byte order mark
        if not text.strip() or "\n" in text or "\r" in text:
            what = "a text of several lines" if text.strip() else "empty"
            raise ConfigError(f"predict: input {number} is {what}. Give one line of text for each input.")
        try:
            lines.append(text.encode("utf-8") + b"\n")
        except UnicodeEncodeError as error:
            raise ConfigError(f"predict: input {number} is no valid Unicode: {error.reason}.") from None
    path.write_bytes(b"".join(lines))
    return str(path)


def _write_rows(rows: Sequence[Mapping[str, Any]], folder: Path) -> str:
    """Writes rows as CSV; as JSONL if there is a context or a list among the values."""
    plain = [_plain_row(row, number) for number, row in enumerate(rows)]
    names = list(plain[0])
    for number, row in enumerate(plain):
        if set(row) != set(names) or not names:
            raise ConfigError(
                f"predict: input {number} has the keys {list(row)}, and input 0 has {names}. Give equal ones."
            )
    if "context" in names or any(isinstance(value, list) for row in plain for value in row.values()):
        path = folder / "inputs.jsonl"
        path.write_bytes(b"".join(encode_json(row) + b"\n" for row in plain))
        return str(path)
    path = folder / "inputs.csv"
    table = io.StringIO()
    writer = csv.writer(table)
    writer.writerow(names)
    writer.writerows([["" if row[name] is None else row[name] for name in names] for row in plain])
    path.write_bytes(table.getvalue().encode("utf-8"))
    return str(path)


def _plain_row(row: Mapping[str, Any], number: int) -> Dict[str, Any]:
    return {str(name): _plain(value, f"input {number}, {name!r}") for name, value in row.items()}


def _plain(value: Any, place: str) -> Any:
    """Converts a value to a JSON type; NaN becomes a missing value."""
    if isinstance(value, (list, tuple)):
        return [_plain(one, place) for one in value]
    value = text_of(value)
    if value is None or isinstance(value, (str, int, float)):
        return value
    raise ConfigError(
        f"predict: {place} is of type {type(value).__name__}. Allowed are strings, numbers, None, and lists of these."
    )


def _write_image(one: Any, number: int, path: Path) -> str:
    from PIL import Image, ImageOps

    if isinstance(one, np.ndarray):
        one = _image_of(one, number)
    if not isinstance(one, Image.Image):
        raise ConfigError(
            f"predict: input {number} is of type {type(one).__name__}. Allowed are paths, images (PIL.Image, or uint8 "
            "arrays of height x width x channels), strings for tasks that read texts, and dicts for rows of tables."
        )
    upright = ImageOps.exif_transpose(one)  # PNG files of Pillow do not keep the orientation
    if upright.mode == "CMYK":
        upright = upright.convert("RGB")
    if upright.mode not in _MODES:
        raise ConfigError(
            f"predict: input {number} is an image of mode {upright.mode}. Convert it to one of {', '.join(_MODES)}."
        )
    upright.save(path, compress_level=1)  # lossless; the file is temporary, so speed matters more than size
    return str(path)


def _image_of(array: np.ndarray, number: int) -> Image.Image:
    from PIL import Image

    shape = array.shape[:2] if array.ndim == 3 and array.shape[2] == 1 else array.shape
    if array.dtype != np.uint8 or not (len(shape) == 2 or (len(shape) == 3 and shape[2] in (3, 4))) or 0 in shape:
        raise ConfigError(
            f"predict: input {number} is an array of {array.dtype} with shape {array.shape}. Allowed are uint8 images "
            "of shape (height, width), (height, width, 1), (height, width, 3) or (height, width, 4)."
        )
    return Image.fromarray(array.reshape(shape))
