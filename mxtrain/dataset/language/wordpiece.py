"""WordPiece: vocabularies, read or trained, and texts as tokens. `tokenizers` is imported only where text is read.

Legend: N samples, B batch, T tokens.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Iterable, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from mxtrain.dataset.loading.regular_files import read_text
from mxtrain.errors import DataError
from mxtrain.files.cache import read_cached, write_cached

if TYPE_CHECKING:
    from mxtrain.annotations import Json, JsonObject

PAD, UNKNOWN, CLS, SEP, MASK = SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""Tokens that every vocabulary must have."""

Pair = Tuple[str, Optional[str]]
"""One text, or two that belong together."""


@dataclass(frozen=True)
class TokenizerConfig:
    """Settings of the tokenizer, which a checkpoint carries.

    Attributes:
        vocab: tokens in the order of their indices.
        lowercase: whether texts are lowercased, and accents removed.
        max_length: tokens of the longest sample, special ones included.
        mask_fraction: share of tokens that masked-LM predicts; 0 for classification.
    """

    vocab: Tuple[str, ...]
    lowercase: bool
    max_length: int
    mask_fraction: float = 0.0

    @property
    def num_masked(self) -> int:
        """Positions to predict in a sample of `max_length` tokens."""
        return num_masked(self.max_length, self.mask_fraction)

    def to_json(self) -> Mapping[str, Json]:
        """The plain values that a checkpoint holds."""
        return {**asdict(self), "vocab": list(self.vocab)}

    @classmethod
    def from_json(cls, values: JsonObject) -> TokenizerConfig:
        """The inverse of `to_json`."""
        return cls(**{**values, "vocab": tuple(values["vocab"])})

    def index(self, token: str) -> int:
        """The index of a special token."""
        return self.vocab.index(token)

    def encode(self, pairs: Sequence[Pair], special: bool = True) -> List[Tuple[List[int], List[int]]]:
        """(tokens, token types) of each sample.

        Args:
            pairs: texts.
            special: `[CLS] text [SEP]` or `[CLS] text [SEP] text [SEP]`, cut to `max_length` where the longer text
                is long; else the bare tokens of the first text, however many.
        """
        tokenizer = _tokenizer(self.vocab, self.lowercase)
        if special:
            tokenizer.enable_truncation(self.max_length)  # "longest_first", as in the published BERT
        given: Any = [first if second is None else (first, second) for first, second in pairs]
        found = tokenizer.encode_batch(given, add_special_tokens=special)
        return [(one.ids, one.type_ids) for one in found]

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of some tokens, for people; padding is left out."""
        words = (self.vocab[token] for token in tokens)
        return " ".join(word for word in words if word != PAD).replace(" ##", "")


def num_masked(length: int, fraction: float) -> int:
    """The number of tokens to predict, of `length`: at least one."""
    return max(1, int(length * fraction + 0.5)) if fraction else 0


def require_tokenizers() -> Any:
    """Imports the library `tokenizers`, and returns it.

    Raises:
        DataError: it is not installed.
    """
    try:
        import tokenizers
    except ImportError as error:
        raise DataError(f"Text needs the package tokenizers ({error}): pip install tokenizers") from error
    return tokenizers


def _tokenizer(vocab: Sequence[str], lowercase: bool) -> Any:
    tokenizers = require_tokenizers()
    index = {token: number for number, token in enumerate(vocab)}
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(index, unk_token=UNKNOWN))
    made.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=lowercase)
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    made.post_processor = tokenizers.processors.BertProcessing((SEP, index[SEP]), (CLS, index[CLS]))
    return made


def read_vocab(path: str) -> Tuple[str, ...]:
    """The tokens of a vocabulary file: one a line (BERT's `vocab.txt`), or GluonNLP's JSON with `idx_to_token`.

    Raises:
        DataError: it cannot be read, repeats a token or lacks a special one.
    """
    try:
        text = read_text(path)
        vocab = json.loads(text)["idx_to_token"] if text.startswith("{") else text.splitlines()
        if not isinstance(vocab, list) or not all(isinstance(token, str) for token in vocab):
            raise ValueError("idx_to_token must be a list of texts")
    except (DataError, ValueError, KeyError, RecursionError) as error:
        raise DataError(
            f"dataset.vocab={path} is no vocabulary ({type(error).__name__}: {error}). Give BERT's vocab.txt, or "
            "dataset.vocab=null for one that is made of the texts."
        ) from error
    missing = [token for token in SPECIAL if token not in vocab]
    if missing or len(set(vocab)) != len(vocab):
        wrong = f"lacks {', '.join(missing)}" if missing else "has a token twice"
        raise DataError(f"dataset.vocab={path} {wrong}: a vocabulary has {', '.join(SPECIAL)} and each token once.")
    return tuple(vocab)


def train_vocab(texts: Sequence[str], size: int, lowercase: bool) -> Tuple[str, ...]:
    """A WordPiece vocabulary of at most `size` tokens, a function of the texts alone; kept in the user's cache."""
    tokenizers = require_tokenizers()
    digest = hashlib.sha256(json.dumps([size, lowercase, tokenizers.__version__]).encode())
    for text in texts:
        digest.update(hashlib.sha256(text.encode()).digest())
    name = f"{digest.hexdigest()[:32]}.txt"
    kept = read_cached("vocabularies", name)
    if kept is not None:
        return tuple(kept.decode().split("\n"))
    vocab = _train_vocab(tokenizers, texts, size, lowercase)
    write_cached("vocabularies", name, "\n".join(vocab).encode())
    return vocab


def _train_vocab(tokenizers: Any, texts: Sequence[str], size: int, lowercase: bool) -> Tuple[str, ...]:
    made = _tokenizer(SPECIAL, lowercase)
    words = {
        word for text in texts for word, _ in made.pre_tokenizer.pre_tokenize_str(made.normalizer.normalize_str(text))
    }
    letters = sorted({letter for word in words for letter in word})
    # The library numbers letters inside words in the order of a hash table, which differs from run to run, and breaks
    # ties between pairs by these numbers. Naming them all beforehand fixes the order.
    fixed = [*SPECIAL, *letters, *(f"##{letter}" for letter in letters)]
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=max(size, len(fixed)), min_frequency=2, special_tokens=fixed, show_progress=False,
        limit_alphabet=len(letters),
    )  # fmt: skip
    made.train_from_iterator(texts, trainer)
    index: Mapping[str, int] = made.get_vocab(with_added_tokens=True)
    return tuple(sorted(index, key=index.__getitem__))


@dataclass(frozen=True)
class EncodedTexts:
    """Samples as tokens, one after the other.

    Attributes:
        token: int32 tokens of all samples.
        kind: int8 token types.
        begin_N1: where each sample begins, and the end of the last.
        label_N: class indices, or -1 each.
    """

    token: np.ndarray
    kind: np.ndarray
    begin_N1: np.ndarray
    label_N: np.ndarray

    @classmethod
    def of(cls, samples: Sequence[Tuple[List[int], List[int]]], label_N: np.ndarray) -> EncodedTexts:
        """Makes it from lists."""
        lengths = np.fromiter((len(tokens) for tokens, _ in samples), np.int64, len(samples))
        begin_N1 = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        token = np.fromiter((token for tokens, _ in samples for token in tokens), np.int32, begin_N1[-1])
        kind = np.fromiter((kind for _, kinds in samples for kind in kinds), np.int8, begin_N1[-1])
        return cls(token, kind, begin_N1, label_N)

    @property
    def length_N(self) -> np.ndarray:
        """Tokens of each sample."""
        return np.diff(self.begin_N1)

    def padded(self, index_B: np.ndarray, length: int, pad: int) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
        """tokens (B, T), token types (B, T), both int32, and lengths (B,) of some samples, padded to `length`."""
        length_B = self.length_N[index_B]
        place_T = np.arange(length)
        inside_BT = place_T < length_B[:, None]
        where_BT = np.where(inside_BT, self.begin_N1[index_B][:, None] + place_T, 0)
        token_BT = np.where(inside_BT, self.token[where_BT], pad).astype(np.int32)
        return token_BT, np.where(inside_BT, self.kind[where_BT], 0).astype(np.int32), length_B
