"""Tokenizers of the library `tokenizers`: tokenizer.json files, and byte-level BPE.

A trained vocabulary depends only on the texts: the initial alphabet is given in sorted order, because the library would
take it from a hash table in random order.
"""

from __future__ import annotations

import hashlib
import json
import re
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from mxtrain.errors import DataError
from mxtrain.text.tokenizing.base import (
    MAX_FILE_BYTES,
    MAX_TOKENS,
    OWN_SPECIAL,
    BaseTokenizer,
    flat_of,
    require_tokenizers,
)
from mxtrain.text.tokenizing.judging import remember_tried, require_harmless, require_tried

if TYPE_CHECKING:
    from mxtrain.types.annotations import Json

MIN_BPE = 256 + len(OWN_SPECIAL)
"""Tokens of the smallest byte-level vocabulary: all bytes, and special tokens."""
_TEXTS_AT_ONCE = 1000
_MAX_WORD = 1000
_LONG_WORD = re.compile(rf"\S{{{_MAX_WORD}}}(?=\S)")


class LibraryTokenizer(BaseTokenizer):
    """Base class of tokenizers that use the library `tokenizers`."""

    @cached_property
    def library(self) -> Any:
        """Returns the library's object. It is not modified, so threads share it."""
        raise NotImplementedError

    def encode(self, texts: Sequence[str]) -> Tuple[np.ndarray, np.ndarray]:
        encode = getattr(self.library, "encode_batch_fast", self.library.encode_batch)  # without offsets
        with library_errors("a text cannot be encoded"):
            encodings = encode(texts, add_special_tokens=False)
        return flat_of([encoding.ids for encoding in encodings])

    def offsets(self, text: str) -> Tuple[np.ndarray, np.ndarray]:
        with library_errors("a text cannot be encoded"):
            encoding = self.library.encode(text, add_special_tokens=False)
        return np.array(encoding.ids, np.int32), np.array(encoding.offsets, np.int64).reshape(-1, 2)


@contextmanager
def library_errors(action: str) -> Iterator[None]:
    """Converts errors of the library to `DataError`: plain exceptions, and panics, which are no `Exception`."""
    try:
        yield
    except BaseException as error:
        # The library raises plain Exceptions. A panic of Rust derives from BaseException, and its class has no module
        # to import it from, so it is known by its name.
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        raise DataError(f"The tokenizer's file does not fit this data, or is damaged: {action}: {error}") from error


@dataclass(frozen=True)
class TokenizerFile(LibraryTokenizer):
    """A tokenizer.json of the library, of any of its models.

    Attributes:
        text: the content of the file.
    """

    kind: ClassVar[str] = "tokenizers"

    text: str

    @cached_property
    def library(self) -> Any:
        tokenizer = parse_tokenizer(self.text)
        # The truncation and padding in the file would silently cut a corpus.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        if getattr(tokenizer.model, "dropout", None) is not None:
            tokenizer.model.dropout = None  # otherwise tokens of the same text would differ from run to run
        return tokenizer

    @cached_property
    def size(self) -> int:
        return 1 + max(self.library.get_vocab(with_added_tokens=True).values())

    def require_usable(self) -> None:
        if len(self.text) > MAX_FILE_BYTES:
            raise DataError(f"a tokenizer.json of {len(self.text):,} characters; at most {MAX_FILE_BYTES:,} are read")
        require_harmless(self.text)
        require_tokenizers()
        require_tried("tokenizers", self.text.encode())
        _ = self.library

    def trust(self) -> None:
        remember_tried("tokenizers", self.text.encode())

    @cached_property
    def lost_bytes(self) -> bytes:
        content = json.loads(self.text)
        model, vocab = content["model"], self.library.get_vocab(with_added_tokens=False)
        replaces = model.get("type", "BPE") != "BPE" or model.get("unk_token")
        if replaces or not _is_byte_level(content.get("pre_tokenizer")):
            return b""
        return bytes(byte for byte, character in enumerate(byte_characters()) if character not in vocab)

    def lost(self, text: str) -> str:
        if not self.lost_bytes:
            return ""
        normalizer = self.library.normalizer
        with library_errors("a text cannot be normalized"):
            text = text if normalizer is None else normalizer.normalize_str(text)
        kept_bytes = bytes(set(range(256)) - set(self.lost_bytes))
        if not text.encode("utf-8", "surrogatepass").translate(None, kept_bytes):
            return ""
        encoded = {character: character.encode("utf-8", "surrogatepass") for character in text}  # in order
        return "".join(character for character, code in encoded.items() if code.translate(None, kept_bytes))

    def find(self, piece: str) -> Optional[int]:
        token: Optional[int] = self.library.token_to_id(piece)
        return token

    def piece(self, token: int) -> str:
        return self.library.id_to_token(token) or ""  # ids may have gaps

    def decode(self, tokens: Iterable[int], with_special: bool = False) -> str:
        with library_errors("tokens cannot be decoded"):
            text: str = self.library.decode(self.shown(tokens, with_special), skip_special_tokens=not with_special)
        return text

    def to_json(self) -> Mapping[str, Json]:
        return {"kind": self.kind, "file": self.text, "sha256": hashlib.sha256(self.text.encode()).hexdigest()}


def _is_byte_level(pre_tokenizer: Any) -> bool:
    """Returns True if a tokenizer.json splits texts into bytes."""
    if not isinstance(pre_tokenizer, dict):
        return False
    return pre_tokenizer.get("type") == "ByteLevel" or any(map(_is_byte_level, pre_tokenizer.get("pretokenizers", ())))


def byte_characters() -> List[str]:
    """Returns the character that represents each byte in a byte-level vocabulary: itself if it is printable, else one
    from U+0100 on. Source: Radford et al., GPT-2, `bytes_to_unicode`."""
    seen = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in seen else chr(next(others)) for byte in range(256)]


def parse_tokenizer(text: str) -> Any:
    """Returns the library's tokenizer for the content of a tokenizer.json.

    Raises:
        DataError: the content is invalid, or its ids are too large.
    """
    tokenizers = require_tokenizers()
    try:
        tokenizer = tokenizers.Tokenizer.from_str(text)
        ids = tokenizer.get_vocab(with_added_tokens=True).values()
    except BaseException as error:  # a panic in the library is not an Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise DataError(f"no tokenizer.json: {error}") from error
    # A label is a float32, which is exact up to 2^24.
    if not ids or max(ids) >= MAX_TOKENS:
        raise DataError(f"a tokenizer.json with ids up to {max(ids, default=-1):,}; {MAX_TOKENS - 1:,} is the highest")
    return tokenizer


def train_bpe(texts: Sequence[str], size: int, lowercase: bool, individual_digits: bool) -> TokenizerFile:
    """Trains byte-level BPE with at most `size` tokens. The result depends only on the arguments.

    Args:
        texts: training texts.
        size: maximum number of tokens, at least `MIN_BPE`.
        lowercase: True to lowercase texts and remove accents.
        individual_digits: True to make each digit a token.
    """
    tokenizers = require_tokenizers()
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    normalizers = tokenizers.normalizers
    if lowercase:
        steps = [normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents()]
        tokenizer.normalizer = normalizers.Sequence(steps)
    pre_tokenizers = tokenizers.pre_tokenizers
    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = (
        pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), by_bytes])
        if individual_digits
        else by_bytes
    )
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,
        special_tokens=list(OWN_SPECIAL),
        show_progress=False,
        # All bytes are in the vocabulary, so that no text has an unknown character.
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(batches_of(texts), trainer)
    return TokenizerFile(_canonical(tokenizer.to_str()))


def _canonical(text: str) -> str:
    """Returns a tokenizer.json with its vocabulary sorted by id, because the library writes it in hash order."""
    content = json.loads(text)
    vocab = content["model"]["vocab"]
    content["model"]["vocab"] = dict(sorted(vocab.items(), key=lambda item: item[1]))
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def batches_of(texts: Sequence[str]) -> Iterator[List[str]]:
    """Yields lists of texts, which the library reads fastest; long words are divided."""
    for begin in range(0, len(texts), _TEXTS_AT_ONCE):
        yield [part for text in texts[begin : begin + _TEXTS_AT_ONCE] for part in _divided(text)]


def _divided(text: str) -> List[str]:
    """Splits a text such that no word has more than `_MAX_WORD` characters, because the library's training time grows
    with the square of the longest word."""
    if len(text) <= _MAX_WORD or not _LONG_WORD.search(text):
        return [text]
    pieces, end = [], 0
    for match in _LONG_WORD.finditer(text):
        pieces.append(text[end : match.end()])
        end = match.end()
    return [*pieces, text[end:]]
