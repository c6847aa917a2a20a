"""Recommends items to users, and scores pairs of users and items, with an exported network. Exported folders have a
copy of this module.

The folder holds the features of users and items as arrays, which were encoded at export; with the tables themselves, it
would need a reader for each of their formats. The features of users are in a separate file, which may be deleted.
Errors for unknown users do not suggest similar ids, because a client could discover ids that way.

Legend: B rows of candidates, C candidates of a row, H items of a history, I all items, N items to score.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.exported_folder import ExportedFolder, json_lines_of
from mxtrain.data.features.exported_rows import RowEncoder, check_cells, input_sizes, read_table
from mxtrain.data.loading.uniform_hash import uniform_rows
from mxtrain.data.table.cell_text import known_spelling, text_of
from mxtrain.errors import did_you_mean
from mxtrain.recommendation.fields import RecommenderFields
from mxtrain.recommendation.joined_rows import IDS, NUMBERS, Features, JoinedRows, features_file, join_rows
from mxtrain.recommendation.user_items import HISTORY, with_lowest_keys

READS_JSON_LINES = True
"""Files in .json may hold lines of JSON as well, besides arrays of the network."""
TOP = 3
"""Number of recommended items."""
SCORES_AT_ONCE = 1 << 14
"""Candidates that are scored together."""
KEYS = USER, ITEMS, FEATURES = "user", "history", "features"
"""Keys of a line of JSON."""
EMPTY = np.zeros(0)
"""Stands for an array that the folder does not have."""
MAX_COMPARED = 10_000
"""Largest number of ids for which an error suggests the nearest one; the search takes some microseconds per id."""


def describe_input(signature: Dict[str, Any]) -> str:
    """Returns the content of files that `predict` reads, as a sentence."""
    values = signature["signature"]
    user, items = values["catalog"]["users"][0], ", ".join(f'"{one}"' for one in values["catalog"]["items"][:2])
    sentence = f'lines of JSON with a user and the items that the user has, such as {{"user": "{user}", '
    sentence += f'"history": [{items}]}}'
    sentence += "" if _reads_history(signature) else "; or a .csv file with the columns user and item"
    names = ", ".join(f'"{column["name"]}": "..."' for column in values.get("user_columns") or ())
    if names:
        file = features_file(USER)
        sentence += f'. In a line of JSON, "features": {{{names}}} replaces what {file} says of the user'
    return sentence


def predict(folder: ExportedFolder, content: bytes, name: str) -> Iterator[Dict[str, Any]]:
    """Yields recommendations, or for tables the score of each pair: the rating if ratings were learned.

    Args:
        folder: exported folder.
        content: content of the file: a table with the columns user and item if its name ends in .csv or .tsv; otherwise
            lines of JSON with user, history and perhaps features of the user. Items of the history are not recommended,
            and are input of networks that read histories.
        name: name of the file.

    Raises:
        ValueError: a column or a key is missing, an id is unknown, or features in the folder do not fit.
    """
    network = ExportedRecommender(folder)
    yield from (_pairs if name.lower().endswith((".csv", ".tsv")) else _users)(network, content, name)


class ExportedCatalog:
    """Numbers of users and items by their ids.

    Args:
        state: `catalog` of a signature.
        suggests: True if messages about unknown ids name the nearest known one.
    """

    def __init__(self, state: Dict[str, Any], suggests: bool = True) -> None:
        self.items: List[str] = state["items"]
        self._suggests = suggests
        self._numbers = {side: {one: k for k, one in enumerate(state[f"{side}s"])} for side in ("user", "item")}

    @property
    def num_users(self) -> int:
        """Number of users."""
        return len(self._numbers["user"])

    def number(self, side: str, name: Any, location: str) -> int:
        """Returns the number of a user or item.

        Args:
            side: "user" or "item".
            name: its id; a number is taken as text.
            location: source location, for the message.

        Raises:
            ValueError: the id is unknown.
        """
        numbers, cell = self._numbers[side], text_of(name)
        text = known_spelling(cell, numbers) if isinstance(cell, str) else ""
        if text not in numbers:
            near = did_you_mean(text[:100], numbers) if self._suggests and len(numbers) <= MAX_COMPARED else ""
            raise ValueError(f"{location}: there is no {side} {text[:100]!r}.{near}".rstrip("."))
        return numbers[text]


class UserRequest(NamedTuple):
    """A user to recommend items to.

    Attributes:
        name: id of the user.
        user: number of the user.
        has_H: numbers of the items that the user has, ascending.
        joined: features of the user and of all items; None for networks that read no features.
    """

    name: str
    user: int
    has_H: np.ndarray
    joined: Optional[JoinedRows]


class ExportedRecommender:
    """Scores items for users with an exported network.

    Args:
        folder: exported folder.
        suggests: see `ExportedCatalog`.

    Attributes:
        folder: exported folder.
        catalog: users and items.

    Raises:
        ValueError: features in the folder do not fit its signature, or those of the items are missing.
    """

    def __init__(self, folder: ExportedFolder, suggests: bool = True) -> None:
        values = folder.signature["signature"]
        self.folder = folder
        self.catalog = ExportedCatalog(values["catalog"], suggests)
        self._titles: List[str] = values.get("item_titles") or []
        self._columns: Dict[str, List[Dict[str, Any]]] = {
            side: values.get(f"{side}_columns") or [] for side in ("user", "item")
        }
        (user_sizes, user_numbers), (item_sizes, item_numbers) = map(input_sizes, self._columns.values())
        fields = RecommenderFields(
            (self.catalog.num_users, *user_sizes), (len(self.catalog.items), *item_sizes), user_numbers, item_numbers
        )
        self._fields, self._inputs = fields, folder.signature["inputs"]
        self._num_candidates = _num_candidates(values["shape"], self._inputs, fields)
        self._joined: Optional[JoinedRows] = None
        self._lacks_users = False
        if len(self._inputs[0]["shape"]) == 2:  # ids of users and items in one array
            users, items = (self._features(side) for side in ("user", "item"))
            if items is None and self._columns["item"]:
                raise ValueError(f"{features_file('item')} is missing, which holds the features of items")
            self._lacks_users = users is None and bool(user_sizes or user_numbers)
            if self._lacks_users:  # lines have features instead
                count = self.catalog.num_users
                users = np.zeros((count, len(user_sizes)), np.int32), np.zeros((count, user_numbers), np.float32)
            self._joined = join_rows(fields, users, items)

    def _features(self, side: str) -> Optional[Features]:
        """Returns the features of all users or items; None if the folder has none."""
        columns = self._columns[side]
        arrays = self.folder.read_arrays(features_file(side)) if columns else {}
        if not arrays:
            return None
        sizes, num_numbers = input_sizes(columns)
        count = self.catalog.num_users if side == "user" else len(self.catalog.items)
        id_EF, number_EM = arrays.get(IDS, EMPTY), arrays.get(NUMBERS, EMPTY)
        fits = (id_EF.shape, number_EM.shape) == ((count, len(sizes)), (count, num_numbers))
        if fits and (id_EF.dtype, number_EM.dtype) == (np.int32, np.float32):
            first_F = np.cumsum([0, *sizes])[:-1]
            # The file may be a stranger's: an id beyond its field would select the vector of another field.
            if ((id_EF >= first_F) & (id_EF < first_F + sizes)).all() and np.isfinite(number_EM).all():
                return id_EF, number_EM
        raise ValueError(f"{features_file(side)} does not hold the features of {count:,} {side}s in the signature")

    def request(self, row: Any, location: str) -> UserRequest:
        """Returns the user of a JSON object with user, history and perhaps features.

        Args:
            row: the object.
            location: source location, for messages.

        Raises:
            ValueError: a key is wrong, an id is unknown, or a feature is missing or no number.
        """
        if not isinstance(row, dict) or not {USER, ITEMS} <= set(row) or not isinstance(row[ITEMS], list):
            raise ValueError(f'{location} is no JSON object such as {{"user": "...", "history": ["...", ...]}}')
        for key in row:
            if key not in KEYS:
                near = did_you_mean(key[:100], KEYS)
                raise ValueError(f"{location}: there is no key {key[:100]!r}.{near}".rstrip("."))
        user = self.catalog.number("user", row[USER], location)
        item_H = [self.catalog.number("item", one, location) for one in row[ITEMS]]
        has_H = np.unique(np.array(item_H, np.int64))
        return UserRequest(str(row[USER]), user, has_H, self._joined_for(user, row.get(FEATURES), location))

    def pair(self, cells: Dict[str, str], location: str) -> Tuple[UserRequest, int]:
        """Returns the user and the number of the item of a row of a table."""
        user, item = (self.catalog.number(side, cells[side], location) for side in ("user", "item"))
        return UserRequest(cells["user"], user, np.zeros(0, np.int64), self._joined_for(user, None, location)), item

    def _joined_for(self, user: int, features: Any, location: str) -> Optional[JoinedRows]:
        columns = self._columns["user"]
        names = [column["name"] for column in columns]
        if features is None:
            if self._lacks_users:
                raise ValueError(
                    f"{location}: the folder has no {features_file('user')}, so a line of JSON needs the "
                    f'features of its user: "features": {{...}} with {", ".join(names)}'
                )
            return self._joined
        if self._joined is None or not columns:
            raise ValueError(f"{location}: this network reads no features of users")
        _check_features(features, names, location)
        ids, numbers = RowEncoder(self.folder.signature, columns).encode(features, location)
        if not np.isfinite(numbers).all():
            raise ValueError(f"{location}: a feature is not finite")
        first = self._fields.user_sizes[0]
        user_UV, user_UM = self._joined.user_UV, self._joined.user_UM
        row_1V = np.array([[user, *(first + one for one in ids)]], user_UV.dtype)
        # The rows of all other users are not read: the row of this user is repeated without being copied.
        return self._joined._replace(
            user_UV=np.broadcast_to(row_1V, user_UV.shape),
            user_UM=np.broadcast_to(np.array([numbers], user_UM.dtype), user_UM.shape),
        )

    def inputs(self, request: UserRequest, item_N: np.ndarray, max_rows: int) -> Iterator[Dict[str, np.ndarray]]:
        """Yields inputs of the network for some items, as rows of candidates; the last row is padded.

        Args:
            request: the user.
            item_N: numbers of the items.
            max_rows: largest number of rows at a time.
        """
        num_candidates = self._num_candidates
        if isinstance(self._inputs[1 if request.joined is None else 0]["shape"][1], str):
            num_candidates = min(num_candidates, len(item_N))
        item_RC = np.pad(item_N, (0, -len(item_N) % num_candidates)).reshape(-1, num_candidates)
        history = _history(self.folder.signature, request) if _reads_history(self.folder.signature) else []
        for begin in range(0, len(item_RC), max_rows):
            item_BC = item_RC[begin : begin + max_rows]
            user_B = np.full(len(item_BC), request.user)
            first = [user_B, item_BC] if request.joined is None else request.joined.inputs(user_B, item_BC)
            arrays = [*first, *(np.repeat(one, len(item_BC), axis=0) for one in history)]
            yield {one["name"]: array.astype(one["dtype"]) for one, array in zip(self._inputs, arrays)}

    def scores(self, request: UserRequest, item_N: np.ndarray) -> np.ndarray:
        """Returns the scores of some items for a user, (N,)."""
        is_open = isinstance(self._inputs[0]["shape"][0], str)
        max_rows = max(SCORES_AT_ONCE // self._num_candidates, 1) if is_open else 1
        scores = [self.folder.run(one)["output"].ravel() for one in self.inputs(request, item_N, max_rows)]
        return np.concatenate(scores)[: len(item_N)].astype(np.float32)

    def all_items(self) -> np.ndarray:
        """Returns the numbers of all items."""
        return np.arange(len(self.catalog.items))

    def recommended(self, request: UserRequest, score_I: np.ndarray) -> Dict[str, Any]:
        """Returns the user and the highest-scoring items that the user does not have.

        Args:
            request: the user.
            score_I: scores of all items.
        """
        score_I = score_I.copy()
        score_I[request.has_H] = -np.inf
        return {"user": request.name, "items": top_items(self.catalog.items, score_I, self._titles)}


def top_items(
    items: Sequence[str], score_I: np.ndarray, titles: Sequence[str] = (), count: int = TOP
) -> List[Dict[str, Any]]:
    """Returns the highest-scoring items, best first; ties in the order of the catalog.

    Args:
        items: ids of all items.
        score_I: their scores; minus infinity for items that are not recommended.
        titles: their titles; empty if there are none.
        count: number of items; a user who has nearly all items gets fewer.
    """
    best = [int(k) for k in np.argsort(-score_I, kind="stable")[:count] if score_I[k] > -np.inf]
    return [
        {"item": items[k], **({"title": titles[k]} if titles else {}), "score": round(float(score_I[k]), 6)}
        for k in best
    ]


def _users(network: ExportedRecommender, content: bytes, name: str) -> Iterator[Dict[str, Any]]:
    """Yields the highest-scoring items that are not in the history, for each line of JSON."""
    for line, row in json_lines_of(content, name):
        location = f"{name}:{line}"
        request = network.request(row, location)
        yield {"file": location, **network.recommended(request, network.scores(request, network.all_items()))}


def _pairs(network: ExportedRecommender, content: bytes, name: str) -> Iterator[Dict[str, Any]]:
    """Yields the score of each pair of a table."""
    signature = network.folder.signature
    if _reads_history(signature):
        raise ValueError(f"{name}: this network reads histories. Give {describe_input(signature)}")
    form = ".tsv" if name.lower().endswith(".tsv") else ".csv"
    for location, cells in read_table(content, name, form, ("user", "item")):
        request, item = network.pair(cells, location)
        (score,) = network.scores(request, np.array([item]))
        yield {"file": location, "user": cells["user"], "item": cells["item"], "score": round(float(score), 6)}


def _num_candidates(shapes: Any, inputs: List[Dict[str, Any]], fields: RecommenderFields) -> int:
    """Returns the number of candidates of a row: that of the network's input, or that of training if it is open.

    Args:
        shapes: `shape` of the signature.
        inputs: inputs of the network.
        fields: fields of users and items.
    """
    number = 0 if len(inputs[0]["shape"]) == 2 else 1
    size = inputs[number]["shape"][1]
    size = size if isinstance(size, int) else shapes[number][0]
    count = size if number else (size - len(fields.user_sizes)) // len(fields.item_sizes)
    if not 1 <= count <= SCORES_AT_ONCE:
        raise ValueError(f"the network scores {count} items at once")
    return int(count)


def _check_features(features: Any, names: List[str], location: str) -> None:
    """Raises a `ValueError` if features of a line of JSON are not a value for each name."""
    if not isinstance(features, dict):
        raise ValueError(f"{location}: features must be a JSON object with {', '.join(names)}")
    for name in features:
        if name not in names:
            near = did_you_mean(name[:100], names)
            raise ValueError(f"{location}: there is no feature {name[:100]!r}.{near}".rstrip("."))
    check_cells(features, names, location, "feature")


def _reads_history(signature: Dict[str, Any]) -> bool:
    return len(signature["inputs"]) > 2


def _history(signature: Dict[str, Any], request: UserRequest) -> Tuple[np.ndarray, np.ndarray]:
    """Returns the history of a user as input of the network: items (1, H), and their number (1,)."""
    facts, has_H = signature["facts"], request.has_H
    key_1N = np.zeros((1, 0), np.float32)
    if len(has_H) > facts["max_history"]:
        key_1N = uniform_rows(facts["split_seed"], 0, np.array([request.user]), HISTORY, len(has_H))
    items = with_lowest_keys(has_H, key_1N[0], facts["max_history"])
    length = signature["inputs"][2]["shape"][1]
    item_1H = np.zeros((1, max(len(items), 1) if isinstance(length, str) else length), np.int64)
    item_1H[0, : len(items)] = items
    return item_1H, np.array([len(items)], np.float32)
