"""WordPiece as BERT has it: vocabularies, read or trained. `tokenizers` is imported only where text is read."""

from __future__ import annotations

import json
from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Iterable, Mapping, Sequence, Tuple

from mxtrain.data.loading.dataset_files import read_text
from mxtrain.errors import DataError
from mxtrain.files.text_lines import split_lines
from mxtrain.text.tokenizing.base import ListedVocab, SpecialTokens, require_tokenizers
from mxtrain.text.tokenizing.library import LibraryTokenizer, batches_of

if TYPE_CHECKING:
    from mxtrain.types.annotations import Json

PAD, UNKNOWN, CLS, SEP, MASK = SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""Tokens that every vocabulary of WordPiece must have."""


class WordPiece(LibraryTokenizer, ListedVocab):
    """BERT's tokenizer. Where it lowercases texts, it removes accents, too."""

    kind: ClassVar[str] = "wordpiece"

    @cached_property
    def special(self) -> SpecialTokens:
        pad, unknown, cls, sep, mask = map(self.find, SPECIAL)
        return SpecialTokens(pad=pad, unknown=unknown, cls=cls, sep=sep, mask=mask)

    def decode(self, tokens: Iterable[int], with_special: bool = False) -> str:
        words = map(self.vocab.__getitem__, self.shown(tokens, with_special))
        return " ".join(words).replace(" ##", "")

    def to_json(self) -> Mapping[str, Json]:
        return {"vocab": list(self.vocab), "lowercase": self.lowercase}  # without a kind, as it always was

    @cached_property
    def library(self) -> Any:
        tokenizers = require_tokenizers()
        tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(self.index, unk_token=UNKNOWN))
        tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=self.lowercase)
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
        return tokenizer


def read_vocab(path: str, special: Sequence[str] = SPECIAL) -> Tuple[str, ...]:
    """Returns the tokens of a vocabulary file: one a line (BERT's `vocab.txt`), or GluonNLP's JSON with `idx_to_token`.

    Args:
        path: path of the file.
        special: tokens that it must have.

    Raises:
        DataError: it cannot be read, repeats a token or lacks a special one.
    """
    try:
        text = read_text(path)
        vocab = json.loads(text)["idx_to_token"] if text.startswith("{") else split_lines(text)
        if not isinstance(vocab, list) or not all(isinstance(token, str) for token in vocab):
            raise ValueError("idx_to_token must be a list of texts")
    except (DataError, ValueError, KeyError, RecursionError) as error:
        reason = str(error) if isinstance(error, DataError) else f"{type(error).__name__}: {error}"
        raise DataError(
            f"dataset.vocab={path} is no vocabulary ({reason}). Give BERT's vocab.txt, or "
            "dataset.vocab=null for one that is made of the texts."
        ) from error
    missing = [token for token in special if token not in vocab]
    if missing or len(set(vocab)) != len(vocab):
        repeated = next((token for token, count in Counter(vocab).items() if count > 1), "")
        problem = (
            f"lacks {', '.join(missing)}"
            if missing
            else f"has the token {repeated!r:.40} twice"
            if repeated
            else "has several empty lines, each of which is a token"
        )
        raise DataError(f"dataset.vocab={path} {problem}: a vocabulary has {', '.join(special)} and each token once.")
    return tuple(vocab)


def train_wordpiece(texts: Sequence[str], size: int, lowercase: bool) -> WordPiece:
    """Trains WordPiece with at most `size` tokens. The result depends only on the arguments."""
    tokenizers = require_tokenizers()
    tokenizer = WordPiece(SPECIAL, lowercase).library
    # Normalizer and pre-tokenizer look at one character at a time, so each need be seen only once.
    alphabet = tokenizer.normalizer.normalize_str("".join(sorted(_letters_of(texts))))
    letters = sorted({letter for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(alphabet) for letter in word})
    # The library numbers letters inside words in the order of a hash table, which differs from run to run, and breaks
    # ties between pairs by these numbers. Naming them all beforehand fixes the order.
    fixed = [*SPECIAL, *letters, *(f"##{letter}" for letter in letters)]
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=max(size, len(fixed)),
        min_frequency=2,
        special_tokens=fixed,
        show_progress=False,
        limit_alphabet=len(letters),
    )
    tokenizer.train_from_iterator(batches_of(texts), trainer)
    index: Mapping[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    return WordPiece(tuple(sorted(index, key=index.__getitem__)), lowercase)


def _letters_of(texts: Iterable[str]) -> set:
    letters: set = set()
    for text in texts:
        letters.update(text)
    return letters
