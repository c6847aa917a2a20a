"""Recommends items to users, and scores pairs of users and items, with an exported network. Exported folders have a
copy of this module.

Legend: C candidates at a time, H items of a history, I all items.
"""

from __future__ import annotations

import csv
import io
from typing import Any, Dict, Iterator, List, Sequence

import numpy as np

from mxtrain.data.exported_folder import ExportedFolder, decoded_text, json_lines_of
from mxtrain.data.loading.uniform_hash import uniform_rows
from mxtrain.errors import did_you_mean
from mxtrain.recommendation.fields import RecommenderFields
from mxtrain.recommendation.joined_rows import join_rows
from mxtrain.recommendation.user_items import HISTORY, with_lowest_keys

TOP = 3
"""Number of recommended items."""
AT_ONCE = 1 << 14
"""Number of candidates per call of a network that accepts any number."""


def describe_input(signature: Dict[str, Any]) -> str:
    """Returns the content of files that `predict` reads, as a sentence."""
    catalog = signature["signature"]["catalog"]
    user, items = catalog["users"][0], ", ".join(f'"{item}"' for item in catalog["items"][:2])
    lines = f'lines of JSON with a user and the items that the user has, such as {{"user": "{user}", '
    lines += f'"history": [{items}]}}'
    return lines if _reads_history(signature) else f"{lines}; or a .csv file with the columns user and item"


def predict(folder: ExportedFolder, content: bytes, name: str) -> Iterator[Dict[str, Any]]:
    """Yields recommendations, or for tables the score of each pair: the rating if ratings were learned.

    Args:
        folder: exported folder.
        content: content of the file: a table with the columns user and item if its name ends in .csv or .tsv; otherwise
            lines of JSON with user and history. Items of the history are not recommended, and are input of networks
            that read histories.
        name: name of the file.

    Raises:
        ValueError: a column or a key is missing, or an id is unknown.
    """
    values = folder.signature["signature"]
    if values.get("user_columns") or values.get("item_columns"):
        raise ValueError(f"{name}: this network reads features of users and items, which the folder does not hold. "
                         "Give its inputs as arrays, in a .npz file")  # fmt: skip
    catalog = ExportedCatalog(values["catalog"])
    is_table = name.lower().endswith((".csv", ".tsv"))
    yield from (_pairs if is_table else _users)(folder, catalog, content, name)


class ExportedCatalog:
    """Numbers of users and items by their ids.

    Args:
        state: `catalog` of a signature.
    """

    def __init__(self, state: Dict[str, Any]) -> None:
        self.items: List[str] = state["items"]
        self._numbers = {side: {name: k for k, name in enumerate(state[f"{side}s"])} for side in ("user", "item")}

    @property
    def num_users(self) -> int:
        """Returns the number of users."""
        return len(self._numbers["user"])

    def number(self, side: str, name: Any, place: str) -> int:
        """Returns the number of a user or item.

        Args:
            side: "user" or "item".
            name: its id; a whole number is taken as text.
            place: source location, for the message.

        Raises:
            ValueError: the id is unknown.
        """
        text = str(name) if isinstance(name, (str, int)) and not isinstance(name, bool) else ""
        if text not in self._numbers[side]:
            suggestion = did_you_mean(text[:100], self._numbers[side])
            raise ValueError(f"{place}: there is no {side} {text[:100]!r}.{suggestion}".rstrip("."))
        return self._numbers[side][text]


def _users(folder: ExportedFolder, catalog: ExportedCatalog, content: bytes, name: str) -> Iterator[Dict[str, Any]]:
    """Yields the highest-scoring items that are not in the history, for each line of JSON."""
    for line, row in json_lines_of(content, name):
        place = f"{name}:{line}"
        if not isinstance(row, dict) or not {"user", "history"} <= set(row) or not isinstance(row["history"], list):
            raise ValueError(f'{place} is no line of JSON such as {{"user": "...", "history": ["...", ...]}}')
        user = catalog.number("user", row["user"], place)
        has_H = np.unique([catalog.number("item", item, place) for item in row["history"]]).astype(np.int64)
        score_I = scores_of(folder, catalog, user, np.arange(len(catalog.items)), has_H)
        score_I[has_H] = -np.inf
        best = [int(k) for k in np.argsort(-score_I, kind="stable")[:TOP] if score_I[k] > -np.inf]
        items = [{"item": catalog.items[k], "score": round(float(score_I[k]), 6)} for k in best]
        yield {"file": place, "user": str(row["user"]), "items": items}


def _pairs(folder: ExportedFolder, catalog: ExportedCatalog, content: bytes, name: str) -> Iterator[Dict[str, Any]]:
    """Yields the score of each pair of a table."""
    if _reads_history(folder.signature):
        raise ValueError(f"{name}: this network reads histories. Give {describe_input(folder.signature)}")
    delimiter = "\t" if name.lower().endswith(".tsv") else ","
    reader = csv.DictReader(io.StringIO(decoded_text(content, name)), delimiter=delimiter)
    missing = [side for side in ("user", "item") if side not in (reader.fieldnames or ())]
    if missing:
        raise ValueError(f"{name} has no column '{missing[0]}'; it has {', '.join(reader.fieldnames or ())}")
    for cells in reader:
        place = f"{name}:{reader.line_num}"
        user, item = (catalog.number(side, cells[side], place) for side in ("user", "item"))
        (score,) = scores_of(folder, catalog, user, np.array([item]), np.zeros(0, np.int64))
        yield {"file": place, "user": cells["user"], "item": cells["item"], "score": round(float(score), 6)}


def scores_of(
    folder: ExportedFolder, catalog: ExportedCatalog, user: int, item_N: np.ndarray, history_H: np.ndarray
) -> np.ndarray:  # fmt: skip
    """Returns the scores of some items for a user, (N,).

    Args:
        folder: exported folder.
        catalog: its catalog.
        user: number of the user.
        item_N: numbers of the items.
        history_H: numbers of the items that the user has, ascending.
    """
    inputs = folder.signature["inputs"]
    joined = join_rows(RecommenderFields((catalog.num_users,), (len(catalog.items),)), None, None)
    history = _history(folder.signature, user, history_H) if len(inputs) > 2 else []
    is_joined = len(inputs[0]["shape"]) == 2
    size = inputs[0]["shape"][1] if is_joined else inputs[1]["shape"][1]
    at_once = AT_ONCE if isinstance(size, str) else size - is_joined
    parts = []
    for begin in range(0, len(item_N), at_once):
        item_1C = item_N[None, begin : begin + at_once]
        count = item_1C.shape[1]
        if not isinstance(size, str):
            item_1C = np.pad(item_1C, ((0, 0), (0, at_once - count)))
        first = joined.inputs(np.array([user]), item_1C) if is_joined else [np.array([user]), item_1C]
        named_inputs = {spec["name"]: array.astype(spec["dtype"]) for spec, array in zip(inputs, [*first, *history])}
        parts.append(folder.run(named_inputs)["output"][0, :count])
    return np.concatenate(parts).astype(np.float32)


def _reads_history(signature: Dict[str, Any]) -> bool:
    return len(signature["inputs"]) > 2


def _history(signature: Dict[str, Any], user: int, owned_H: np.ndarray) -> Sequence[np.ndarray]:
    """Returns the history of a user as input of the network: items (1, H), and their number (1,)."""
    facts = signature["facts"]
    key_1N = np.zeros((1, 0), np.float32)
    if len(owned_H) > facts["max_history"]:
        key_1N = uniform_rows(facts["split_seed"], 0, np.array([user]), HISTORY, len(owned_H))
    items = with_lowest_keys(owned_H, key_1N[0], facts["max_history"])
    length = signature["inputs"][2]["shape"][1]
    item_1H = np.zeros((1, max(len(items), 1) if isinstance(length, str) else length), np.int64)
    item_1H[0, : len(items)] = items
    return item_1H, np.array([len(items)], np.float32)
