"""Reads texts that clients of `mxtrain serve` send, as `predict.py` of the folder does. Imports no MXNet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Optional, Sequence

from mxtrain.data.exported_folder import MAX_CHARACTERS
from mxtrain.serving.errors import RequestError
from mxtrain.serving.readers import TSV_TYPE, BodyLimits, ReadBody, UsualAnswer
from mxtrain.text import generating
from mxtrain.text.exported_texts import Vocabulary, joined_sample, named_inputs
from mxtrain.text.kinds import Texts
from mxtrain.text.loader import LENGTH_STEP

if TYPE_CHECKING:
    from mxtrain.data.exported_folder import ExportedFolder
    from mxtrain.types.annotations import JsonForm

FACTS: Dict[str, JsonForm] = {
    "tokenizer": {**generating.VOCABULARY, "first?": int, "last?": int, "pad": int},
    "*": object,
}
"""Facts of a signature.json."""
TOKENS = "tokens"
"""Stands for a column in the counter of unseen values."""


class TextReader(UsualAnswer):
    """Reads one text, or two with a tab between them, as in training.

    Args:
        folder: exported folder, whose facts were checked.

    Raises:
        ValueError: the signature is damaged.
    """

    kind = "text"
    media_types = ("text/plain", TSV_TYPE)
    example = ""
    columns = ()

    def __init__(self, folder: ExportedFolder) -> None:
        self._folder, self._words = folder, Vocabulary(folder)
        # A pair has three special tokens.
        generating.require_between("max_length", self._words.facts["max_length"], 4, generating.MAX_LENGTH)

    def read(self, body: bytes, media_type: str, limits: BodyLimits) -> ReadBody:
        """See `BodyReader.read`."""
        try:
            text = body.decode("utf-8-sig").strip("\r\n")
        except UnicodeDecodeError as error:
            raise RequestError(400, "the text is no UTF-8.") from error
        if not text.strip():
            raise RequestError(400, "the text is empty.")
        if len(text) > MAX_CHARACTERS:
            raise RequestError(413, f"the text has {len(text):,} characters; at most {MAX_CHARACTERS:,} are read.")
        parts = text.split("\t") if media_type == TSV_TYPE else [text]
        if media_type == TSV_TYPE and len(parts) != 2:
            raise RequestError(400, f"{TSV_TYPE} must hold two texts with a tab between them.")
        texts, unknown = [self._words.encode(part) for part in parts], self._words.facts.get("unknown_token")
        unseen = {} if unknown is None else {TOKENS: sum(tokens.count(unknown) for tokens in texts)}
        inputs = named_inputs(self._folder, *joined_sample(self._words.facts, texts), LENGTH_STEP)
        return ReadBody(inputs, unseen=unseen)


def make_text_reader(folder: ExportedFolder, inputs: Sequence[Any]) -> Optional[TextReader]:
    """Returns the reader for a network of tokens, token types and lengths; None for others.

    Raises:
        ValueError: the signature is damaged.
        DataError: the tokenizer cannot be used.
    """
    if [len(spec.dims) for spec in inputs] != [2, 2, 1] or folder.signature.get("predicts") is False:
        return None
    generating.checked_facts(folder, FACTS)
    return TextReader(folder)


READERS = {Texts.name: make_text_reader}
"""Readers for `mxtrain.serving.readers`, by the name of a kind of samples."""
GENERATORS = generating.GENERATORS
