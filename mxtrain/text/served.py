"""Reads texts that clients of `mxtrain serve` send. Imports no MXNet."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional, Sequence

import numpy as np

from mxtrain.files.json_form import problems_of
from mxtrain.serving.errors import RequestError
from mxtrain.serving.protocol import MAX_CHARACTERS
from mxtrain.text import generating
from mxtrain.text.encoded import EncodedPairs, encode_texts
from mxtrain.text.loader import LENGTH_STEP
from mxtrain.text.signature import TextSignature

PAIR_TYPE = "text/tab-separated-values"


class TextReader:
    """Reads one text, or two with a tab between them, as in training.

    Args:
        signature: of the checkpoint.
        inputs: `TensorSpec`s of tokens, token types and valid lengths.
    """

    kind = "text"
    media_types = ("text/plain", PAIR_TYPE)

    def __init__(self, signature: TextSignature, inputs: Sequence[Any]) -> None:
        self._config, self._inputs = signature.tokenizer_config, inputs
        length = inputs[0].dims[1]
        self._length: Optional[int] = length if isinstance(length, int) else None

    def read(self, body: bytes, media_type: str, max_pixels: int) -> Dict[str, np.ndarray]:
        """See `BodyReader.read`."""
        try:
            text = body.decode("utf-8-sig").strip("\r\n")
        except UnicodeDecodeError as error:
            raise RequestError(400, "the text is no UTF-8.") from error
        if not text.strip():
            raise RequestError(400, "the text is empty.")
        if len(text) > MAX_CHARACTERS:
            raise RequestError(413, f"the text has {len(text):,} characters; at most {MAX_CHARACTERS:,} are read.")
        parts = text.split("\t") if media_type == PAIR_TYPE else [text]
        if media_type == PAIR_TYPE and len(parts) != 2:
            raise RequestError(400, f"{PAIR_TYPE} must hold two texts with a tab between them.")
        rows = [encode_texts(self._config.tokenizer, [part]) for part in parts]
        encoded = EncodedPairs(rows, np.zeros(1, np.int32), self._config)
        length = self._length or -(-int(encoded.length_N[0]) // LENGTH_STEP) * LENGTH_STEP
        length = min(length, self._config.max_length)
        found = encoded.padded(np.zeros(1, np.int64), length)
        return {spec.name: array.astype(spec.dtype) for spec, array in zip(self._inputs, found)}

    def describe(
        self, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]
    ) -> Optional[Dict[str, Any]]:  # fmt: skip
        """See `BodyReader.describe`."""
        return None


def make_text_reader(values: Dict[str, Any], inputs: Sequence[Any]) -> Optional[TextReader]:
    """Returns the reader for a network of tokens, token types and lengths; None for others.

    Raises:
        ValueError: the signature is damaged.
    """
    if len(inputs) != 3 or [len(spec.dims) for spec in inputs] != [2, 2, 1]:
        return None
    for problem in problems_of(values["signature"], TextSignature.form):
        raise ValueError(problem)
    signature = TextSignature.from_json(values["signature"])
    return None if signature.tokenizer_config.mask_fraction else TextReader(signature, inputs)


READERS = {"TextSignature": make_text_reader}
"""Of `mxtrain.serving.readers`: by the name of a signature's class."""
GENERATORS = generating.GENERATORS
