"""Tables of the colours of classes, for masks that have colours in place of numbers.

Legend: H height, W width, K colours.
"""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.loading.dataset_files import exists, read_text
from mxtrain.data.loading.opening import open_image
from mxtrain.errors import DataError
from mxtrain.files.json_text import JsonTextError, parse_json
from mxtrain.files.text_lines import split_lines
from mxtrain.files.text_numbers import parse_integer

if TYPE_CHECKING:
    from PIL import Image

Color = Tuple[int, int, int]
TABLES = ("labelmap.txt", "class_dict.csv", "colors.csv", "colors.txt", "colors.json")
"""Files of the root that may be a table of colours: of CVAT and Datumaro, of CamVid on Kaggle, and others."""
_FORMS = "name,red,green,blue (CSV), name:red,green,blue (CVAT's labelmap.txt), or JSON {name: [red, green, blue]}"
_MAX_SHOWN = 3


@dataclass(frozen=True)
class MaskColors:
    """Colours in masks and the values that they stand for.

    Attributes:
        value_of: red, green, blue -> value.
    """

    value_of: Dict[Color, int]

    def read(self, content: bytes) -> Image.Image:
        """Decodes a mask file with colours to an image of values.

        Raises:
            ValueError: the file is a JPEG, is transparent, or has another colour. Pillow raises further exceptions.
        """
        from PIL import Image

        image = open_image(content)
        if image.format in ("JPEG", "MPO"):
            raise ValueError("JPEG changes colours: save masks as PNG")
        rgba_HWC = np.asarray(image.convert("RGBA")).astype(np.int64)
        if (rgba_HWC[..., 3] < 255).any():
            raise ValueError("it has transparent pixels: a mask has one colour a pixel")
        code_HW = (rgba_HWC[..., 0] << 16) | (rgba_HWC[..., 1] << 8) | rgba_HWC[..., 2]
        code_K = np.array(sorted((red << 16) | (green << 8) | blue for red, green, blue in self.value_of))
        value_K = np.array([self.value_of[_color(code)] for code in code_K.tolist()])
        index_HW = np.searchsorted(code_K, code_HW).clip(max=len(code_K) - 1)
        is_other_HW = code_K[index_HW] != code_HW
        if is_other_HW.any():
            others = [_color(code) for code in np.unique(code_HW[is_other_HW])[:_MAX_SHOWN].tolist()]
            raise ValueError(
                f"{int(is_other_HW.sum()):,} pixels have colours that the table has not, such as "
                f"{', '.join(map(str, others))}"
            )
        return Image.fromarray(value_K[index_HW].astype(np.uint8))


def _color(code: int) -> Color:
    return code >> 16, code >> 8 & 255, code & 255


def find_table(root: Path) -> Optional[Path]:
    """Returns the table of colours in a folder; None if there is none."""
    return next((root / name for name in TABLES if exists(root / name)), None)


def read_table(path: Path) -> Dict[str, Color]:
    """Reads a table: class name -> colour, in the order of the file.

    Raises:
        DataError: it is of no known form, or a name or a colour occurs twice.
    """
    text = read_text(path)
    rows = _json_rows(path, text) if path.suffix.lower() == ".json" else _text_rows(path, text)
    colors: Dict[str, Color] = {}
    names: Dict[Color, str] = {}
    for location, name, cells in rows:
        numbers = [parse_integer(str(cell), 0, 255) for cell in cells]
        if not name or len(numbers) != 3 or None in numbers:
            raise DataError(f"{location}: a class has a name and three numbers from 0 to 255: {_FORMS}.")
        color: Any = tuple(numbers)
        if name in colors or color in names:
            what = f"the class '{name}'" if name in colors else f"the colour of '{names[color]}'"
            raise DataError(f"{location} has {what} for the second time. Give each class a colour of its own.")
        colors[name], names[color] = color, name
    if len(colors) < 2:
        raise DataError(f"'{path}' must have at least two classes, the background too: {_FORMS}.")
    return colors


def _text_rows(path: Path, text: str) -> List[Tuple[str, str, Sequence[str]]]:
    """Returns (location, name, cells of the colour) for each row of a CSV file or of a labelmap."""
    rows: List[Tuple[str, str, Sequence[str]]] = []
    for line, row in enumerate(split_lines(text), 1):
        location = f"'{path}', line {line}"
        labelled = re.match(r"([^:]*):([\d, ]+)(?::|$)", row)
        if not row.strip() or row.startswith("#"):
            continue
        if labelled is not None:
            rows.append((location, labelled[1].strip(), labelled[2].split(",")))
            continue
        cells = [cell.strip() for cell in next(csv.reader(io.StringIO(row)))]
        if not rows and len(cells) > 3 and not any(cell.isdigit() for cell in cells[1:4]):
            continue  # the header
        rows.append((location, cells[0], cells[1:4]))
    return rows


def _json_rows(path: Path, text: str) -> List[Tuple[str, str, Sequence[Any]]]:
    """Returns the rows of a JSON object of lists, or of texts such as "#ff0000"."""
    try:
        content = parse_json(text)
    except JsonTextError as error:
        raise DataError(f"'{path}' {error}.") from error
    if not isinstance(content, dict):
        raise DataError(f"'{path}' must be an object: {_FORMS}.")
    rows: List[Tuple[str, str, Sequence[Any]]] = []
    for name, value in content.items():
        if isinstance(value, str) and re.fullmatch("#?[0-9a-fA-F]{6}", value):
            value = list(bytes.fromhex(value.lstrip("#")))
        rows.append((f"'{path}'", name, value if isinstance(value, list) else []))
    return rows
