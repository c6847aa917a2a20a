"""Recommends the next item of a history with an exported network. Exported folders have a copy of this module.

Legend: H items of a history, I all items.
"""

from __future__ import annotations

import json
from typing import Any, Dict, Iterator, List, NamedTuple, Tuple

import numpy as np

from mxtrain.data.exported_folder import ExportedFolder, json_lines_of
from mxtrain.data.table.cell_text import text_of
from mxtrain.errors import did_you_mean
from mxtrain.recommendation.exported_users import ExportedCatalog, top_items
from mxtrain.recommendation.padded_histories import pad_histories

READS_JSON_LINES = True
"""Files in .json may hold lines of JSON as well, besides arrays of the network."""
KEYS = USER, HISTORY = "user", "history"
"""Keys of a line of JSON, of which the user is only repeated."""


class HistoryRequest(NamedTuple):
    """A history to continue.

    Attributes:
        name: name of the user.
        item_H: numbers of the items, oldest first.
    """

    name: str
    item_H: np.ndarray


def describe_input(signature: Dict[str, Any]) -> str:
    """Returns the content of files that `predict` reads, as a sentence."""
    items = ", ".join(f'"{one}"' for one in signature["signature"]["catalog"]["items"][:2])
    return f'lines of JSON with the items of a user so far, oldest first, such as {{"history": [{items}]}}'


def predict(folder: ExportedFolder, content: bytes, name: str) -> Iterator[Dict[str, Any]]:
    """Yields the highest-scoring next items of each history.

    Args:
        folder: exported folder.
        content: lines of JSON with a history and perhaps a user, whose name is repeated.
        name: name of the file.

    Raises:
        ValueError: a key is missing, a history is empty, or an item is unknown.
    """
    network = ExportedSequences(folder.signature)
    for line, row in json_lines_of(content, name):
        request = network.request(row, f"{name}:{line}", str(line))
        score_I = folder.run(network.inputs(request))[network.output].ravel()
        yield {"file": f"{name}:{line}", **network.recommended(request, score_I)}


def examples(signature: Dict[str, Any]) -> List[Tuple[str, bytes]]:
    """Returns names and contents of files for the proof of an export: a history longer than the network reads."""
    items, width = signature["signature"]["catalog"]["items"], signature["signature"]["shape"][0][0]
    history = [items[number * 7 % len(items)] for number in range(width + 2)]
    return [("proof.jsonl", (json.dumps({HISTORY: history}, ensure_ascii=False) + "\n").encode())]


def parse_history(row: Any, items: ExportedCatalog, location: str, default_name: str) -> HistoryRequest:
    """Returns the history of a JSON object.

    Args:
        row: the object.
        items: the known items.
        location: source location, for messages.
        default_name: name of the user, if the object has none.

    Raises:
        ValueError: a key is wrong, the history is empty, or an item is unknown.
    """
    if not isinstance(row, dict) or not isinstance(row.get(HISTORY), list):
        raise ValueError(f'{location} is no JSON object such as {{"history": ["...", ...]}}')
    for key in row:
        if key not in KEYS:
            near = did_you_mean(key[:100], KEYS)
            raise ValueError(f"{location}: there is no key {key[:100]!r}.{near}".rstrip("."))
    if not row[HISTORY]:
        raise ValueError(f"{location}: the history is empty, and the network needs at least one item")
    item_H = np.array([items.number("item", one, location) for one in row[HISTORY]], np.int32)
    user = text_of(row.get(USER))
    return HistoryRequest(user if isinstance(user, str) else default_name, item_H)


class ExportedSequences:
    """Inputs and outputs of an exported network.

    Args:
        signature: content of signature.json.
        suggests: see `ExportedCatalog`.

    Attributes:
        catalog: the items.
        output: name of the scores.
    """

    def __init__(self, signature: Dict[str, Any], suggests: bool = True) -> None:
        values = signature["signature"]
        self.catalog = ExportedCatalog({**values["catalog"], "users": []}, suggests)
        self._titles: List[str] = values.get("item_titles") or []
        self.output = signature["outputs"][0]["name"]
        self._inputs, self._width = signature["inputs"], int(values["shape"][0][0])
        self._excludes_seen = bool((signature.get("facts") or {}).get("exclude_seen"))

    def request(self, row: Any, location: str, default_name: str) -> HistoryRequest:
        """See `parse_history`."""
        return parse_history(row, self.catalog, location, default_name)

    def inputs(self, request: HistoryRequest) -> Dict[str, np.ndarray]:
        """Returns the inputs of the network for a history, (1, ...) each."""
        arrays = pad_histories([request.item_H], self._width)
        return {spec["name"]: array.astype(spec["dtype"]) for spec, array in zip(self._inputs, arrays)}

    def recommended(self, request: HistoryRequest, score_I: np.ndarray) -> Dict[str, Any]:
        """Returns the user and the highest-scoring next items.

        Args:
            request: the history.
            score_I: scores of all items.
        """
        score_I = score_I.astype(np.float32)
        if self._excludes_seen:
            score_I[request.item_H] = -np.inf
        return {"user": request.name, "items": top_items(self.catalog.items, score_I, self._titles)}
