"""Generates texts for clients of `mxtrain serve`: continuations and translations. Does not import MXNet."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Dict, Generator, Iterator, List, Optional, Sequence

import pydantic

from mxtrain.files.json_form import NUMBER, require_form
from mxtrain.serving.generators import GenerateParameters, ServedParts, TextPiece
from mxtrain.text.exported_texts import (
    TOKENIZERS,
    Vocabulary,
    continue_tokens,
    longest_translation,
    source_tokens,
    target_vocabulary,
    translate_tokens,
)
from mxtrain.text.language_modeling.sampling import Sampling
from mxtrain.text.tokenizing.library import TokenizerFile
from mxtrain.text.tokenizing.sentence_piece import SentencePiece

if TYPE_CHECKING:
    from mxtrain.data.exported_folder import ExportedFolder
    from mxtrain.text.tokenizing.base import BaseTokenizer
    from mxtrain.types.annotations import JsonForm

MAX_BEAMS = 64
MAX_LENGTH = 1 << 20
VOCABULARY: Dict[str, JsonForm] = {
    "file": str,
    "max_length": int,
    "special": [int],
    "bos?": int,
    "eos?": int,
    "lowercase": bool,
    "*": object,
}
CONTINUATION: Dict[str, JsonForm] = {
    "new_tokens": int,
    "temperature": NUMBER,
    "top_k": int,
    "top_p": NUMBER,
    "sampling_seed": int,
    "max_prompt": int,
    "longest?": int,
    "tokenizer": VOCABULARY,
    "*": object,
}
TRANSLATION: Dict[str, JsonForm] = {
    "beam_size": int,
    "length_penalty": NUMBER,
    "max_length_ratio": NUMBER,
    "max_length_offset": int,
    "max_tokens": int,
    "num_best": int,
    "longest?": int,
    "tokenizer": VOCABULARY,
    "target_tokenizer?": VOCABULARY,
    "*": object,
}
"""Schema of the facts in signature.json."""
LOCAL_DECODERS = ("BPEDecoder", "ByteFallback", "ByteLevel", "Fuse", "Metaspace", "WordPiece")
"""Decoders of the package tokenizers that decode each token, or consecutive tokens for bytes, independently of
others."""


class ContinuationParameters(GenerateParameters):
    """Parameters of continuations."""

    temperature: float = pydantic.Field(
        ge=0, le=1e6, allow_inf_nan=False, description="Scores are divided by it; 0 = always the likeliest token."
    )
    top_k: int = pydantic.Field(ge=0, lt=1 << 31, description="Draw from so many of the likeliest tokens; 0 = all.")
    top_p: float = pydantic.Field(
        gt=0, le=1, description="Draw from the likeliest tokens that together have this probability."
    )
    seed: int = pydantic.Field(ge=0, lt=1 << 63, description="Seed of the draws.")


class TranslationParameters(GenerateParameters):
    """Parameters of translations."""

    beam_size: int = pydantic.Field(ge=1, le=MAX_BEAMS, description="Beams of the search; 1 streams word by word.")


class ContinuationGenerator:
    """Continues texts with a language model, as `predict` does.

    Args:
        parts: parts of the exported folder.

    Raises:
        ValueError: the signature is damaged.
        DataError: the tokenizer cannot be used.
    """

    def __init__(self, parts: ServedParts) -> None:
        facts = checked_facts(parts, CONTINUATION)
        self._vocabulary = Vocabulary(parts)
        self._is_local = _decodes_locally(parts, self._vocabulary)
        self._max_prompt = require_between("max_prompt", facts["max_prompt"], 1, MAX_LENGTH)
        self._longest: Optional[int] = facts.get("longest")
        # Earlier exports do not state the number of positions; their own `new_tokens` is then the limit.
        max_new_tokens = self._longest - 1 if self._longest else None
        self.most_tokens: Optional[int] = max_new_tokens if "longest" in facts else facts["new_tokens"]
        self.defaults = ContinuationParameters(
            max_tokens=facts["new_tokens"],
            temperature=facts["temperature"],
            top_k=facts["top_k"],
            top_p=facts["top_p"],
            seed=facts["sampling_seed"],
        )

    def generate(self, folder: ExportedFolder, text: str, parameters: ContinuationParameters) -> Iterator[TextPiece]:
        """See `TextGenerator.generate`."""
        options, count = parameters, parameters.max_tokens
        room = self._max_prompt if self._longest is None else min(self._max_prompt, self._longest - count)
        prompt = self._vocabulary.encode(text)[-room:]
        sampling = Sampling(options.temperature, options.top_k, options.top_p, options.seed)
        written = ([token] for token in continue_tokens(folder, prompt, sampling, 0, count))
        return pieces_of(self._vocabulary, written, count, self._is_local)


class TranslationGenerator:
    """Translates sentences, as `predict` does.

    Args:
        parts: parts of the exported folder.

    Raises:
        ValueError: the signature is damaged.
        DataError: a tokenizer cannot be used.
    """

    def __init__(self, parts: ServedParts) -> None:
        facts = checked_facts(parts, TRANSLATION)
        if "encoder" not in parts.sessions:
            raise ValueError("there is no part encoder")
        self._source, self._target = Vocabulary(parts), target_vocabulary(parts)
        self._is_local = _decodes_locally(parts, self._target)
        require_between("max_length", self._source.facts["max_length"], 2, MAX_LENGTH)
        for name, minimum in (("num_best", 1), ("max_length_ratio", 0), ("max_length_offset", 0)):
            require_between(name, facts[name], minimum, MAX_LENGTH)
        for name in ("bos", "eos"):
            require_between(name, self._target.facts[name], 0, 1 << 31)
        self.most_tokens: Optional[int] = facts["max_tokens"]
        self.defaults = TranslationParameters(max_tokens=facts["max_tokens"], beam_size=facts["beam_size"])

    def generate(self, folder: ExportedFolder, text: str, parameters: TranslationParameters) -> Iterator[TextPiece]:
        """See `TextGenerator.generate`."""
        if not text.strip():
            return iter([TextPiece("", 0, "stop")])
        options, (tokens, _) = parameters, source_tokens(self._source, text)
        search = translate_tokens(folder, tokens, self._target.facts, options.beam_size, options.max_tokens)
        # The length of the source may end the text before `max_tokens` does.
        limit = longest_translation(folder, len(tokens), options.max_tokens)
        return pieces_of(self._target, search, limit, self._is_local)


def pieces_of(
    vocabulary: Vocabulary, written: Iterator[List[int]], max_tokens: int, is_local: bool = False
) -> Generator[TextPiece, None, None]:
    """Yields the text of generated tokens piece by piece. Concatenated, the pieces are the text of all tokens.

    Args:
        vocabulary: decodes tokens.
        written: tokens, as they are written.
        max_tokens: number of tokens at which writing ends.
        is_local: see `PieceDecoder`.
    """
    tokens: List[int] = []
    sent: List[str] = []
    decoder = PieceDecoder(vocabulary, is_local)
    for new_tokens in written:
        if new_tokens:
            tokens += new_tokens
            sent.append(decoder.add(new_tokens))
            yield TextPiece(sent[-1], len(new_tokens))
    text, sent_text = vocabulary.decode(tokens), "".join(sent)
    if not text.startswith(sent_text):
        raise ValueError("the tokenizer has changed text that was sent already")
    yield TextPiece(text[len(sent_text) :], 0, "length" if len(tokens) >= max_tokens else "stop")


class PieceDecoder:
    """Decodes tokens while they are written.

    The text of a token depends on those before it: on the first token for the space before a word, on unfinished bytes
    for a character. So each token is decoded behind the tokens of the last piece that was complete and visible.

    Args:
        vocabulary: decodes tokens.
        is_local: True if a token depends on no more than that (`decodes_locally`); else all tokens are decoded again.
    """

    def __init__(self, vocabulary: Vocabulary, is_local: bool) -> None:
        self._vocabulary, self._is_local = vocabulary, is_local
        self._tokens: List[int] = []
        self._num_known = 0  # tokens at the beginning that belong to the last complete piece
        self._sent = ""  # text of the tokens that was sent

    def add(self, tokens: Sequence[int]) -> str:
        """Returns the text that the next tokens make certain; may be empty."""
        self._tokens += tokens
        text = self._vocabulary.decode_certain(self._tokens)
        if not text.startswith(self._sent):
            return ""
        new, self._sent = text[len(self._sent) :], text
        # A piece of spaces is no beginning: decoders drop spaces at the beginning of a text.
        if self._is_local and new.strip() and text == self._vocabulary.decode(self._tokens):
            # Tokens are decoded again from the last visible piece on only, so that time grows linearly with the text.
            pending = self._tokens[self._num_known :]
            pending_text = self._vocabulary.decode(pending)
            if pending_text.strip() and text.endswith(pending_text):
                self._tokens, self._num_known, self._sent = pending, len(pending), pending_text
        return new


def decodes_locally(content: bytes, file: str) -> bool:
    """Returns True if the text of a token depends only on the tokens of the word and of the character before it.

    Args:
        content: content of the tokenizer's file.
        file: its name.
    """
    if file.endswith(".model"):
        return True
    decoder = json.loads(content).get("decoder")
    parts = decoder.get("decoders") or [decoder] if isinstance(decoder, dict) else []
    return all(
        isinstance(part, dict)
        and (
            part.get("type") in LOCAL_DECODERS
            or part.get("type") == "Strip"
            and part.get("stop") == 0
            or part.get("type") == "Replace"
            and len((part.get("pattern") or {}).get("String", "..")) == 1
        )
        for part in parts
    )


def checked_facts(parts: ExportedFolder, form: Dict[str, JsonForm]) -> Dict[str, Any]:
    """Returns the facts in the signature of an exported folder, after checking them and its tokenizers.

    Args:
        parts: parts of the exported folder.
        form: schema of the facts.

    Raises:
        ValueError: the facts do not match the schema.
        DataError: a tokenizer cannot be used.
    """
    facts = parts.signature.get("facts")
    require_form(facts, form, "facts")
    assert isinstance(facts, dict)
    for name in TOKENIZERS:
        if name in facts:
            file = facts[name]["file"]
            content = parts.read(file)
            is_model = file.endswith(".model")
            tokenizer: BaseTokenizer = SentencePiece(content) if is_model else TokenizerFile(content.decode())
            tokenizer.require_usable()
    return facts


def _decodes_locally(parts: ServedParts, vocabulary: Vocabulary) -> bool:
    file = str(vocabulary.facts["file"])
    return decodes_locally(parts.read(file), file)


def require_between(name: str, value: Any, low: int, high: int) -> Any:
    """Returns the value. Raises a `ValueError` if it is not from `low` to `high`."""
    if not low <= value <= high:
        raise ValueError(f"'{name}' is {value}; it must be from {low} to {high}")
    return value


GENERATORS = {"NextTokens": ContinuationGenerator, "Translations": TranslationGenerator}
"""Generators for `mxtrain.serving.generators`, by the name of a task."""
