"""Builds tokenizers of all kinds: trains them, reads them from files, and restores them from checkpoints."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import logging
from typing import TYPE_CHECKING, Any, Dict, List, Literal, NamedTuple, Optional, Protocol, Sequence

import numpy as np

from mxtrain.data.loading.dataset_files import read_bytes
from mxtrain.data.loading.randomness import bits
from mxtrain.errors import CheckpointError, DataError
from mxtrain.files.cache import read_cached, write_cached
from mxtrain.text.draws import TextDraw
from mxtrain.text.tokenizing.base import MAX_FILE_BYTES, BaseTokenizer, require_tokenizers
from mxtrain.text.tokenizing.library import TokenizerFile, train_bpe
from mxtrain.text.tokenizing.plain import Characters, Words, train_characters, train_words
from mxtrain.text.tokenizing.sentence_piece import (
    SentencePiece,
    require_sentencepiece,
    train_sentencepiece,
)
from mxtrain.text.tokenizing.wordpiece import WordPiece, read_vocab, train_wordpiece

if TYPE_CHECKING:
    from mxtrain.types.annotations import JsonObject

MAX_NAMED = 8
"""Maximum number of lost characters that a message lists."""
log = logging.getLogger(__name__)

TokenizerKind = Literal["auto", "wordpiece", "bpe", "unigram", "sentencepiece_bpe", "words", "characters"]
WITH_DIGITS = ("bpe", "unigram", "sentencepiece_bpe")
"""Kinds that can be trained to make a token of each digit."""
MAX_TRAINED_BYTES = 32 << 20
"""Maximum size of the texts that subword vocabularies are trained on; larger data is sampled by a hash of text
indices."""
MAX_SENTENCEPIECE_BYTES = 8 << 20
"""The same for sentencepiece, whose training needs about 20 bytes of memory per byte of text."""


class TokenizerSettings(NamedTuple):
    """Tokenizer settings of a description.

    Attributes:
        kind: kind of a trained tokenizer; auto = WordPiece. The kind of a given file follows from its content, except
            for words.
        vocab: vocabulary file; None = train one.
        size: largest number of tokens of a trained vocabulary.
        lowercase: True to lowercase texts; a tokenizer.json and a sentencepiece model have a setting of their own.
        individual_digits: True to make each digit a token, in a trained vocabulary.
    """

    kind: str = "auto"
    vocab: Optional[str] = None
    size: int = 4000
    lowercase: bool = True
    individual_digits: bool = False


class TrainingTexts(Protocol):
    """Texts to train a vocabulary on, in order; possibly more than fit into memory."""

    def num_bytes(self) -> np.ndarray:
        """Returns the number of UTF-8 bytes of each text, (N,)."""

    def texts(self, index_N: Optional[np.ndarray] = None) -> Any:
        """Returns an iterator over all texts, or over those with ascending indices `index_N`."""

    def digest(self) -> str:
        """Returns a hash of the texts and their order."""


class TextsInMemory:
    """`TrainingTexts` in a list."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts

    def num_bytes(self) -> np.ndarray:
        """See `TrainingTexts`."""
        return np.array([len(text.encode("utf-8", "surrogatepass")) for text in self._texts], np.int64)

    def texts(self, index_N: Optional[np.ndarray] = None) -> Any:
        """See `TrainingTexts`."""
        return iter(self._texts if index_N is None else [self._texts[index] for index in index_N])

    def digest(self) -> str:
        """See `TrainingTexts`."""
        sha256 = hashlib.sha256()
        for text in self._texts:
            sha256.update(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest())
        return sha256.hexdigest()


def build_tokenizer(settings: TokenizerSettings, texts: TrainingTexts) -> BaseTokenizer:
    """Reads the tokenizer of the given file, or trains one on the texts. Trained ones are cached for the user.

    Raises:
        DataError: the file is no vocabulary, or a library is not installed.
    """
    if settings.vocab is not None:
        loaded = read_tokenizer(settings, settings.vocab)
        _warn_about_lost(loaded, settings.vocab, texts)
        return loaded
    require_kind(settings)
    # Another version of a library may train another vocabulary.
    versions = [getattr(library, "__version__", "") for library in _libraries(settings.kind)]
    parts = [
        texts.digest(),
        _resolve_auto(settings.kind),
        settings.size,
        settings.lowercase,
        settings.individual_digits,
    ]
    cache_key = json.dumps([*parts, versions, MAX_TRAINED_BYTES, MAX_SENTENCEPIECE_BYTES])
    name = f"{hashlib.sha256(cache_key.encode()).hexdigest()[:32]}.json"
    cached = read_cached("vocabularies", name)
    if cached is not None:
        return tokenizer_from_json(json.loads(cached))
    trained = train_tokenizer(settings, texts)
    # A vocabulary trained here is trusted: the trial in a separate process takes 0.6 to 0.9 s.
    trained.trust()
    write_cached("vocabularies", name, json.dumps(trained.to_json()).encode())
    return trained


REMEDY_FOR_LOST = "Give a vocabulary with all bytes, or have one trained: dataset.vocab=null dataset.tokenizer=bpe."


def _warn_about_lost(tokenizer: BaseTokenizer, path: str, texts: TrainingTexts) -> None:
    """Warns if a vocabulary lacks bytes, and counts the training texts that lose characters by it."""
    if not tokenizer.lost_bytes:
        return
    losses = [lost for text in texts.texts() if (lost := tokenizer.lost(text))]
    characters = "".join(dict.fromkeys("".join(losses)))
    effect = (
        f"{len(losses):,} of the training texts lose characters without a trace, {describe_lost(characters)}; `data "
        "check` lists them"
        if losses
        else "characters that are written with them are lost; the training texts have none"
    )
    log.warning(
        "the vocabulary %s lacks %s of the 256 bytes: %s. %s", path, len(tokenizer.lost_bytes), effect, REMEDY_FOR_LOST
    )


def describe_lost(characters: str) -> str:
    """Describes distinct characters: their number, and the first few of them."""
    examples = ", ".join(map(repr, characters[:MAX_NAMED]))
    return f"{len(characters):,} different: {examples}{', ...' if len(characters) > MAX_NAMED else ''}"


def require_kind(settings: TokenizerSettings) -> None:
    """Raises a `DataError` if the library for training a kind of tokenizer is not installed."""
    _libraries(settings.kind if settings.vocab is None else "words")


def _libraries(kind: str) -> List[Any]:
    if kind in ("words", "characters"):
        return []
    return [require_sentencepiece() if "unigram" in kind or "sentencepiece" in kind else require_tokenizers()]


def _resolve_auto(kind: str) -> str:
    return "wordpiece" if kind == "auto" else kind


def train_tokenizer(settings: TokenizerSettings, texts: TrainingTexts) -> BaseTokenizer:
    """Trains a tokenizer. The result depends only on the texts and the settings."""
    kind, size, lowercase = _resolve_auto(settings.kind), settings.size, settings.lowercase
    if kind == "words":
        return train_words(texts.texts(), size, lowercase)
    if kind == "characters":
        return train_characters(texts.texts(), size, lowercase)
    uses_sentencepiece = kind in ("unigram", "sentencepiece_bpe")
    sample = sample_texts(texts, MAX_SENTENCEPIECE_BYTES if uses_sentencepiece else MAX_TRAINED_BYTES)
    if kind == "wordpiece":
        return train_wordpiece(sample, size, lowercase)
    if kind == "bpe":
        return train_bpe(sample, size, lowercase, settings.individual_digits)
    algorithm = "unigram" if kind == "unigram" else "bpe"
    return train_sentencepiece(sample, algorithm, size, lowercase, settings.individual_digits)


def sample_texts(texts: TrainingTexts, max_bytes: int) -> List[str]:
    """Returns all texts, or a pseudo-random sample of at most `max_bytes`, in order."""
    size_N = texts.num_bytes()
    if size_N.sum() <= max_bytes:
        return list(texts.texts())
    # Texts are chosen by a hash of their indices, so that all processes train the same vocabulary.
    order = np.argsort(bits(0, 0, np.arange(len(size_N)), TextDraw.VOCABULARY), kind="stable")
    count = int(np.searchsorted(np.cumsum(size_N[order]), max_bytes, side="right"))
    return list(texts.texts(np.sort(order[: max(count, 1)])))  # sorted, because stores are read sequentially


def read_tokenizer(settings: TokenizerSettings, path: str) -> BaseTokenizer:
    """Reads a tokenizer from a file.

    The file is a tokenizer.json, a sentencepiece model, BERT's vocab.txt or GluonNLP's JSON; for kind=words one of the
    last two.

    Raises:
        DataError: the file has another format, or another kind than the settings.
    """
    if settings.kind == "words":
        return Words(read_vocab(path, ("<unk>",)), settings.lowercase)
    tokenizer: Optional[BaseTokenizer] = None
    try:
        if path.endswith(".model"):
            tokenizer = SentencePiece(read_bytes(path, MAX_FILE_BYTES))
            tokenizer.require_usable()
        elif path.endswith(".json") and _is_tokenizer_json(content := read_bytes(path, MAX_FILE_BYTES)):
            tokenizer = TokenizerFile(content.decode("utf-8-sig"))
            tokenizer.require_usable()
    except (DataError, UnicodeDecodeError) as error:
        raise DataError(
            f"dataset.vocab={path} is no vocabulary ({error}). Give a tokenizer.json, a .model of sentencepiece or "
            "BERT's vocab.txt, or dataset.vocab=null for one that is made of the texts."
        ) from error
    tokenizer = tokenizer or WordPiece(read_vocab(path), settings.lowercase)
    kind_of_setting = {
        "wordpiece": "wordpiece",
        "bpe": "tokenizers",
        "unigram": "sentencepiece",
        "sentencepiece_bpe": "sentencepiece",
        "auto": tokenizer.kind,
    }.get(settings.kind)
    if kind_of_setting != tokenizer.kind:
        raise DataError(
            f"dataset.vocab={path} is a file of {tokenizer.kind}, and dataset.tokenizer={settings.kind} was given. "
            "Leave dataset.tokenizer out: the file says what it is."
        )
    return tokenizer


def _is_tokenizer_json(content: bytes) -> bool:
    """Returns True for a Hugging Face tokenizer.json, False for a vocabulary of GluonNLP, which also ends in .json."""
    try:
        parsed = json.loads(content)
    except (ValueError, RecursionError):
        return True  # reading it as a tokenizer.json will raise a helpful error
    return not (isinstance(parsed, dict) and "idx_to_token" in parsed)


def tokenizer_from_json(values: JsonObject) -> BaseTokenizer:
    """Restores a tokenizer from `BaseTokenizer.to_json`. The values are untrusted input.

    Raises:
        CheckpointError: the kind is unknown, the values are damaged, or a library is not installed.
    """
    kind = values.get("kind") or WordPiece.kind
    restore = _RESTORE.get(kind)
    if restore is None:
        raise CheckpointError(f"The checkpoint's tokenizer is of the kind '{kind}', which this version does not know.")
    try:
        return restore(values)
    except (KeyError, binascii.Error, UnicodeError, DataError) as error:
        raise CheckpointError(f"The checkpoint's tokenizer ({kind}) cannot be used: {error}.") from error


def _restore_file(values: JsonObject) -> TokenizerFile:
    _require_digest(values["file"].encode(), values["sha256"])
    tokenizer = TokenizerFile(values["file"])
    tokenizer.require_usable()
    return tokenizer


def _restore_model(values: JsonObject) -> SentencePiece:
    model = base64.b64decode(values["file"], validate=True)
    _require_digest(model, values["sha256"])
    tokenizer = SentencePiece(model)
    tokenizer.require_usable()
    return tokenizer


def _require_digest(content: bytes, sha256: str) -> None:
    if hashlib.sha256(content).hexdigest() != sha256:
        raise DataError("its file does not have the checksum that is stored beside it")


_RESTORE: Dict[str, Any] = {
    "wordpiece": lambda values: WordPiece(tuple(values["vocab"]), values["lowercase"]),
    "words": lambda values: Words(tuple(values["vocab"]), values["lowercase"]),
    "characters": lambda values: Characters(tuple(values["vocab"]), values["lowercase"]),
    "tokenizers": _restore_file,
    "sentencepiece": _restore_model,
}
