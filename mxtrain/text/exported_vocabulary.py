"""A tokenizer as a data file of an exported folder: a tokenizer.json, or a model of sentencepiece."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Tuple

from mxtrain.text.tokenizing.base import ListedVocab, require_tokenizers
from mxtrain.text.tokenizing.library import LibraryTokenizer
from mxtrain.text.tokenizing.plain import Characters, PlainTokenizer
from mxtrain.text.tokenizing.sentence_piece import SentencePiece

if TYPE_CHECKING:
    from mxtrain.text.tokenizing.base import BaseTokenizer
    from mxtrain.text.tokenizing.config import TokenizerConfig
    from mxtrain.types.annotations import Json

SPACES = r"[\s\x1c-\x1f\x85]+"
"""White space as Python has it."""


def vocabulary_facts(config: TokenizerConfig, name: str) -> Tuple[Dict[str, Json], Dict[str, bytes]]:
    """Returns the facts that `exported_texts.Vocabulary` needs, and the content of the tokenizer file by its name.

    Args:
        config: tokenizer settings.
        name: name of the file without extension.
    """
    tokenizer = config.tokenizer
    is_model = isinstance(tokenizer, SentencePiece)
    file = f"{name}.{'model' if is_model else 'json'}"
    special = tokenizer.special
    facts: Dict[str, Json] = {
        "file": file,
        "max_length": config.max_length,
        "special": list(special.ids),
        "first": special.first,
        "last": special.last,
        "pad": special.pad or 0,
        "unknown": special.unknown or 0,
        "unknown_token": special.unknown,
        "bos": special.bos,
        "eos": special.eos,
        # BERT's normalizer lowercases by itself; these are lowercased as Python does it.
        "lowercase": isinstance(tokenizer, PlainTokenizer) and tokenizer.lowercase,
    }
    return facts, {file: tokenizer.model if isinstance(tokenizer, SentencePiece) else _json_of(tokenizer).encode()}


def _json_of(tokenizer: BaseTokenizer) -> str:
    """Returns the content of a tokenizer.json that encodes as the tokenizer does."""
    library = require_tokenizers()
    if isinstance(tokenizer, PlainTokenizer):
        tokenizer_object = _plain(library, tokenizer)
    else:
        assert isinstance(tokenizer, LibraryTokenizer)
        tokenizer_object = library.Tokenizer.from_str(tokenizer.library.to_str())
        if isinstance(tokenizer, ListedVocab):  # WordPiece
            tokenizer_object.decoder = library.decoders.WordPiece(prefix="##", cleanup=False)
    return str(tokenizer_object.to_str())


def _plain(library: Any, tokenizer: PlainTokenizer) -> Any:
    unknown = tokenizer.vocab[tokenizer.require("unknown", "an exported tokenizer")]
    tokenizer_object = library.Tokenizer(library.models.WordLevel(tokenizer.index, unk_token=unknown))
    is_by_character = isinstance(tokenizer, Characters)
    pattern, behavior = ("(?m).", "isolated") if is_by_character else (SPACES, "removed")
    tokenizer_object.pre_tokenizer = library.pre_tokenizers.Split(library.Regex(pattern), behavior)
    if is_by_character:
        tokenizer_object.decoder = library.decoders.Fuse()
    return tokenizer_object
