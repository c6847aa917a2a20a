"""Scores pairs of users and items with an exported network. Exported folders have a copy of this module."""

from __future__ import annotations

import csv
import io
from typing import Any, Dict, Iterator

import numpy as np

from mxtrain.data.exported_folder import ExportedFolder


def predict(folder: ExportedFolder, content: bytes, name: str) -> Iterator[Dict[str, Any]]:
    """Yields the score of each pair: the rating where ratings were learned, else what items are ranked by.

    Args:
        folder: with the network.
        content: of a CSV file with the columns user and item.
        name: of the file.

    Raises:
        ValueError: it lacks a column, has an unknown id, or the network needs more than pairs.
    """
    shapes = {one["name"]: (one["shape"], one["dtype"]) for one in folder.signature["inputs"]}
    if len(shapes) != 2 or len(shapes["input0"][0]) != 1:
        raise ValueError(f"{name}: this network reads histories or features. Give its inputs as arrays, in a .npz file")
    catalog = folder.signature["signature"]["catalog"]
    numbers = {side: {one: k for k, one in enumerate(catalog[f"{side}s"])} for side in ("user", "item")}
    reader = csv.DictReader(io.StringIO(content.decode("utf-8-sig")))
    missing = [side for side in numbers if side not in (reader.fieldnames or ())]
    if missing:
        raise ValueError(f"{name} has no column '{missing[0]}'; it has {', '.join(reader.fieldnames or ())}")
    for cells in reader:
        place = f"{name}:{reader.line_num}"
        unknown = [side for side, known in numbers.items() if cells[side] not in known]
        if unknown:
            raise ValueError(f"{place}: there is no {unknown[0]} '{cells[unknown[0]]}'")
        user, item = (numbers[side][cells[side]] for side in ("user", "item"))
        count = shapes["input1"][0][1]
        given = {"input0": [user], "input1": [[item] * (1 if isinstance(count, str) else count)]}
        outputs = folder.run({key: np.array(given[key], dtype) for key, (_, dtype) in shapes.items()})
        score = float(np.ravel(outputs["output"])[0])
        yield {"file": place, "user": cells["user"], "item": cells["item"], "score": round(score, 6)}
