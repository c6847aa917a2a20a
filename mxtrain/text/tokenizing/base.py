"""The protocol of tokenizers: texts to token ids and back, the range of ids, and special tokens by their role.

`encode` returns bare tokens. Special tokens, truncation and padding are added when a batch is read, so that prepared
tokens serve every length and task. Truncation and padding of a tokenizer.json are switched off: they would cut a corpus
silently. A checkpoint contains what is needed to decode without the original file.

Legend: N texts, F tokens of all texts one after the other, T tokens of one text.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Callable, ClassVar, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from mxtrain.config.libraries import require_library
from mxtrain.errors import DataError

if TYPE_CHECKING:
    from mxtrain.types.annotations import Json, JsonForm

MAX_FILE_BYTES = 64 << 20
"""Maximum size of a tokenizer file. A file with a million tokens has half of this size."""
MAX_TOKENS = 1 << 24
"""Larger ids are not exact in float32 labels."""
TOKENIZER_STATE: Dict[str, JsonForm] = {
    "kind?": str,
    "vocab?": [str],
    "lowercase?": bool,
    "file?": str,
    "sha256?": str,
}
"""Schema of a tokenizer in a checkpoint; without a kind it is WordPiece."""

SPECIAL_NAMES: Dict[str, Tuple[str, ...]] = {
    "pad": ("[PAD]", "<pad>", "<|pad|>"),
    "unknown": ("[UNK]", "<unk>", "<|unk|>"),
    "bos": ("<bos>", "[BOS]", "<s>", "<|startoftext|>", "<|endoftext|>"),
    "eos": ("<eos>", "[EOS]", "</s>", "<|endoftext|>"),
    "mask": ("[MASK]", "<mask>"),
    "cls": ("[CLS]", "<cls>", "<s>"),
    "sep": ("[SEP]", "<sep>", "</s>"),
}
"""Names of special tokens in published vocabularies by role, the most common first."""
OWN_SPECIAL = ("<pad>", "<unk>", "<bos>", "<eos>", "<mask>")
"""First tokens of every vocabulary trained by mxtrain, except WordPiece, which has BERT's special tokens."""


@dataclass(frozen=True)
class SpecialTokens:
    """The ids of special tokens by role; None if a vocabulary has none.

    Attributes:
        pad: fills batches.
        unknown: replaces text that the vocabulary does not contain.
        bos, eos: the beginning and the end of a text.
        mask: replaces hidden tokens.
        cls, sep: BERT's first token, and the token after each text.
    """

    pad: Optional[int] = None
    unknown: Optional[int] = None
    bos: Optional[int] = None
    eos: Optional[int] = None
    mask: Optional[int] = None
    cls: Optional[int] = None
    sep: Optional[int] = None

    @classmethod
    def named(cls, find: Callable[[str], Optional[int]], **declared: int) -> SpecialTokens:
        """Returns the special tokens of a vocabulary, identified by their usual names.

        Args:
            find: function that returns the id of a token, or None.
            declared: ids by role that the vocabulary declares itself.
        """
        by_name = {
            role: next((index for index in map(find, names) if index is not None), None)
            for role, names in SPECIAL_NAMES.items()
        }
        return cls(**{**by_name, **declared})

    @property
    def ids(self) -> List[int]:
        """Returns the distinct ids, ascending."""
        return sorted({index for index in asdict(self).values() if index is not None})

    @property
    def first(self) -> Optional[int]:
        """Returns the token before a text that is classified: cls, otherwise bos."""
        return self.bos if self.cls is None else self.cls

    @property
    def last(self) -> Optional[int]:
        """Returns the token after each text that is classified: sep, otherwise eos."""
        return self.eos if self.sep is None else self.sep


class BaseTokenizer:
    """Base class of tokenizers. They are compared by content, and are thread-safe.

    Checkpoints store `to_json`, which is sufficient to encode and decode; loading it runs no code.
    """

    kind: ClassVar[str] = ""

    @property
    def size(self) -> int:
        """Returns the number of ids; ids are from 0 to `size - 1`."""
        raise NotImplementedError

    @cached_property
    def special(self) -> SpecialTokens:
        """Returns the special tokens by role."""
        return SpecialTokens.named(self.find)

    @property
    def lost_bytes(self) -> bytes:
        """Returns the UTF-8 bytes that the tokenizer drops without an unknown token in their place."""
        return b""

    def lost(self, text: str) -> str:
        """Returns the distinct characters of a text that contain `lost_bytes`, in order."""
        return ""

    def find(self, piece: str) -> Optional[int]:
        """Returns the id of a token as the vocabulary writes it, or None."""
        raise NotImplementedError

    def piece(self, token: int) -> str:
        """Returns a token as the vocabulary writes it."""
        raise NotImplementedError

    def encode(self, texts: Sequence[str]) -> Tuple[np.ndarray, np.ndarray]:
        """Returns the tokens of texts, without special ones.

        Returns:
            token_F int32, and length_N int64: how many of them each text has.
        """
        raise NotImplementedError

    def offsets(self, text: str) -> Tuple[np.ndarray, np.ndarray]:
        """Returns the tokens of one text, int32 (T,), and their positions in it, int64 (T, 2): [first character,
        end)."""
        raise NotImplementedError

    def decode(self, tokens: Iterable[int], with_special: bool = False) -> str:
        """Returns the text of some tokens.

        Args:
            tokens: ids.
            with_special: write special tokens, too, except padding.
        """
        raise NotImplementedError

    def to_json(self) -> Mapping[str, Json]:
        """Returns the plain values that a checkpoint holds, in the form of `TOKENIZER_STATE`."""
        raise NotImplementedError

    def require_usable(self) -> None:
        """Raises a `DataError` if the tokenizer is damaged, e.g. if its file is no tokenizer."""

    def trust(self) -> None:
        """Marks the tokenizer as trained by mxtrain, so that `require_usable` need not try it."""

    def tokens(self, text: str) -> List[int]:
        """Returns the tokens of one text, without special ones."""
        return self.encode([text])[0].tolist()

    def require(self, role: str, needed_by: str) -> int:
        """Returns the special token of a role.

        Raises:
            DataError: there is none.
        """
        token: Optional[int] = getattr(self.special, role)
        if token is None:
            raise DataError(
                f"{needed_by} needs a special token '{role}', and the vocabulary has none of "
                f"{', '.join(SPECIAL_NAMES[role])}. Give another file, or have one trained: dataset.vocab=null "
                "dataset.tokenizer=bpe."
            )
        return token

    @cached_property
    def digest(self) -> str:
        """Returns the SHA-256 of `to_json`."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()

    def shown(self, tokens: Iterable[int], with_special: bool) -> List[int]:
        """Returns the given tokens without padding, and without other special tokens unless `with_special`."""
        hidden = {self.special.pad} if with_special else set(self.special.ids)
        return [int(token) for token in tokens if int(token) not in hidden]


@dataclass(frozen=True)
class ListedVocab(BaseTokenizer):
    """Base of tokenizers whose tokens are a list.

    Attributes:
        vocab: tokens in the order of their ids.
        lowercase: True if texts are lowercased.
    """

    vocab: Tuple[str, ...]
    lowercase: bool

    @property
    def size(self) -> int:
        return len(self.vocab)

    @cached_property
    def index(self) -> Dict[str, int]:
        """Returns the id of each token."""
        return {token: number for number, token in enumerate(self.vocab)}

    def find(self, piece: str) -> Optional[int]:
        return self.index.get(piece)

    def piece(self, token: int) -> str:
        return self.vocab[token]


def flat_of(rows: Sequence[Sequence[int]]) -> Tuple[np.ndarray, np.ndarray]:
    """Returns the concatenated tokens `token_F` and the lengths `length_N` of lists of tokens."""
    length_N = np.fromiter(map(len, rows), np.int64, len(rows))
    token_F = np.fromiter((token for row in rows for token in row), np.int32, int(length_N.sum()))
    return token_F, length_N


def require_tokenizers() -> Any:
    """Returns the library `tokenizers`; raises a DataError if it is not installed."""
    return require_library("tokenizers", "tokenizers", "Text")
