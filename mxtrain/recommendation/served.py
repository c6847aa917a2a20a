"""Reads users and histories that clients of `mxtrain serve` send. Imports no MXNet."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Dict, Mapping, Optional, Sequence, Union

import numpy as np

from mxtrain.data.exported_folder import targets_in
from mxtrain.errors import DamagedCheckpoint
from mxtrain.files.json_form import require_form
from mxtrain.recommendation.exported_sequences import HISTORY, ExportedSequences, HistoryRequest
from mxtrain.recommendation.exported_users import ExportedRecommender, UserRequest
from mxtrain.recommendation.kinds import NextItem, UserHistories
from mxtrain.recommendation.signature import RecommendationSignature
from mxtrain.serving.errors import RequestError
from mxtrain.serving.protocol import parse_json
from mxtrain.serving.readers import JSON_TYPE, BodyLimits, ReadBody
from mxtrain.types import shapes_of

if TYPE_CHECKING:
    from mxtrain.data.exported_folder import ExportedFolder
    from mxtrain.types.annotations import JsonForm

MAX_SIZE = 1 << 20
"""Largest size of an input for one sample."""
RANKS = ([2], [2, 2], [1, 2], [1, 2, 2, 1])
"""Dimensions of the inputs of networks that recommend: ids of users and candidates in one array, perhaps numbers; or
users and candidates, perhaps histories and their lengths."""
KINDS = ("category", "hashed", "number")
"""Kinds of columns with features."""
FORM: Dict[str, JsonForm] = {
    "signature": {**RecommendationSignature.form, "shape": [[int]]},
    "facts": {"max_history": int, "split_seed": int, "missing?": [str], "decimal?": str, "*": object},
    "*": object,
}
"""Form of what is read of a signature.json."""


class UserReader:
    """Reads a user and the items that the user has, and recommends further items.

    Args:
        folder: exported folder, whose signature was checked.

    Raises:
        ValueError: features in the folder do not fit its signature.
    """

    kind = "json"
    media_types = (JSON_TYPE,)
    columns = ()

    def __init__(self, folder: ExportedFolder) -> None:
        # Messages must not tell clients the ids of other users. The example names a single one.
        self._network = ExportedRecommender(folder, suggests=False)
        catalog = folder.signature["signature"]["catalog"]
        self.example = json.dumps({"user": catalog["users"][0], "history": catalog["items"][:2]}, ensure_ascii=False)

    def read(self, body: bytes, media_type: str, limits: BodyLimits) -> ReadBody:
        """See `BodyReader.read`."""
        try:
            request = self._network.request(parse_json(body), "the body")
        except ValueError as error:
            raise RequestError(400, f"{str(error)[:300]}.") from error
        rest = self._network.inputs(request, self._network.all_items(), limits.max_rows)
        return ReadBody(next(rest), request, rest)

    def describe(
        self, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray], about: Optional[UserRequest]
    ) -> Optional[Dict[str, Any]]:
        """Returns the user and the highest-scoring items that the user does not have."""
        if about is None:
            return None
        score_I = next(iter(outputs.values())).ravel()[: len(self._network.catalog.items)]
        if len(score_I) < len(self._network.catalog.items):
            raise RequestError(422, "the network has no score for some items.")
        return self._network.recommended(about, score_I)


def make_user_reader(folder: ExportedFolder, inputs: Sequence[Any]) -> Optional[UserReader]:
    """Returns the reader for a network that recommends; None for others.

    Raises:
        ValueError: the signature or a file with features is damaged.
    """
    if [len(spec.dims) for spec in inputs] not in RANKS or "Preference" not in targets_in(folder.signature):
        return None
    require_form(folder.signature, FORM)
    try:
        signature = RecommendationSignature.from_json(folder.signature["signature"])
    except DamagedCheckpoint as error:
        raise ValueError(str(error)) from error
    sides = [side for side in (signature.user_columns, signature.item_columns) if side is not None]
    if any(column.kind not in KINDS for side in sides for column in side.columns):
        raise ValueError(f"the kinds of columns with features are {', '.join(KINDS)}")
    sizes = [size for spec in inputs for size in spec.dims[1:] if not isinstance(size, str)]
    if any(not 0 < size <= MAX_SIZE for size in sizes):
        raise ValueError(f"an input of the network has more than {MAX_SIZE:,} numbers for a sample")
    longest = inputs[2].dims[1] if len(inputs) > 2 else MAX_SIZE
    max_history = folder.signature["facts"]["max_history"]
    if not 0 < max_history <= (MAX_SIZE if isinstance(longest, str) else longest):
        raise ValueError(f"max_history is {max_history}")
    return UserReader(folder)


SEQUENCE_FORM: Dict[str, JsonForm] = {
    "signature": {**RecommendationSignature.form, "shape": [[int]]},
    "facts": {"exclude_seen": bool, "*": object},
    "outputs": [{"name": str, "*": object}],
    "*": object,
}
"""Form of what is read of the signature.json of a network of sequences."""


class SequenceReader:
    """Reads the items of a user so far, and recommends next ones.

    Args:
        folder: exported folder, whose signature was checked.
    """

    kind = "json"
    media_types = (JSON_TYPE,)
    columns = ()

    def __init__(self, folder: ExportedFolder) -> None:
        self._network = ExportedSequences(folder.signature, suggests=False)
        self.example = json.dumps({HISTORY: self._network.catalog.items[:2]}, ensure_ascii=False)

    def read(self, body: bytes, media_type: str, limits: BodyLimits) -> ReadBody:
        """See `BodyReader.read`."""
        try:
            request = self._network.request(parse_json(body), "the body", "")
        except ValueError as error:
            raise RequestError(400, f"{str(error)[:300]}.") from error
        return ReadBody(self._network.inputs(request), request)

    def describe(
        self, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray], about: Optional[HistoryRequest]
    ) -> Optional[Dict[str, Any]]:
        """Returns the user, if the client named one, and the highest-scoring next items."""
        if about is None:
            return None
        score_I = outputs[self._network.output].ravel()
        if len(score_I) != len(self._network.catalog.items):
            raise RequestError(422, "the network has not one score for each item.")
        found = self._network.recommended(about, score_I)
        return found if about.name else {"items": found["items"]}


def make_sequence_reader(folder: ExportedFolder, inputs: Sequence[Any]) -> SequenceReader:
    """Returns the reader for a network of sequences.

    Raises:
        ValueError: the signature is damaged.
    """
    require_form(folder.signature, SEQUENCE_FORM)
    try:
        signature = RecommendationSignature.from_json(folder.signature["signature"])
    except DamagedCheckpoint as error:
        raise ValueError(str(error)) from error
    width = shapes_of(signature.shape)[0][0]
    sizes = [list(spec.dims[1:]) for spec in inputs]
    if sizes[1:] != [[]] or len(sizes[0]) != 1 or (sizes[0][0] != width and not isinstance(sizes[0][0], str)):
        raise ValueError("the history is not that of the network's inputs")
    if not 0 < width <= MAX_SIZE:
        raise ValueError(f"the network reads {width:,} items of a history")
    if not folder.signature["outputs"]:
        raise ValueError("the network has no output")
    return SequenceReader(folder)


def make_reader(folder: ExportedFolder, inputs: Sequence[Any]) -> Optional[Union[UserReader, SequenceReader]]:
    """Returns the reader for a network of users or of sequences; None for others.

    Raises:
        ValueError: the signature or a file with features is damaged.
    """
    make = make_sequence_reader if NextItem.__name__ in targets_in(folder.signature) else make_user_reader
    return make(folder, inputs)


READERS = {UserHistories.name: make_reader}
"""Readers for `mxtrain.serving.readers`, by the name of a kind of samples."""
