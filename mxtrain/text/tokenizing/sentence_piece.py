"""sentencepiece: models from files, and unigram or BPE models that mxtrain trains.

Training always uses eight threads, because the result depends on their number, and at most 8 MiB of text, chosen by a
hash of each text's number.
"""

from __future__ import annotations

import base64
import hashlib
import io
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Iterable, Mapping, Optional, Sequence, Tuple

import numpy as np

from mxtrain.config.libraries import require_library
from mxtrain.errors import DataError
from mxtrain.runtime.cores import usable_cores
from mxtrain.text.tokenizing.base import (
    MAX_FILE_BYTES,
    OWN_SPECIAL,
    BaseTokenizer,
    SpecialTokens,
    flat_of,
)
from mxtrain.text.tokenizing.judging import (
    remember_tried,
    require_harmless_model,
    require_tried,
)

if TYPE_CHECKING:
    from mxtrain.types.annotations import Json

_TRAINING_THREADS = 8
"""Fixed, because sums are divided among threads: another number of threads could train another vocabulary."""
_MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class SentencePiece(BaseTokenizer):
    """A model of sentencepiece, of any algorithm.

    Attributes:
        model: the content of its file, a serialized protocol buffer.
    """

    kind: ClassVar[str] = "sentencepiece"

    model: bytes

    @cached_property
    def _processor(self) -> Any:
        return parse_model(self.model)

    def require_usable(self) -> None:
        if len(self.model) > MAX_FILE_BYTES:
            raise DataError(f"a model of {len(self.model):,} bytes; at most {MAX_FILE_BYTES:,} are read")
        require_harmless_model(self.model)
        require_sentencepiece()
        require_tried("sentencepiece", self.model)
        _ = self._processor

    def trust(self) -> None:
        remember_tried("sentencepiece", self.model)

    @property
    def size(self) -> int:
        return int(self._processor.get_piece_size())

    @cached_property
    def special(self) -> SpecialTokens:
        model = self._processor
        ids = {"pad": model.pad_id(), "unknown": model.unk_id(), "bos": model.bos_id(), "eos": model.eos_id()}
        return SpecialTokens.named(self.find, **{role: index for role, index in ids.items() if index >= 0})

    def find(self, piece: str) -> Optional[int]:
        index = int(self._processor.piece_to_id(piece))  # the id of the unknown token if there is no such piece
        return index if self._processor.id_to_piece(index) == piece else None

    def piece(self, token: int) -> str:
        piece: str = self._processor.id_to_piece(int(token))  # sentencepiece rejects NumPy integers
        return piece

    def encode(self, texts: Sequence[str]) -> Tuple[np.ndarray, np.ndarray]:
        # Unlike in training, the number of threads changes nothing but the time.
        return flat_of(self._processor.encode(list(texts), out_type=int, num_threads=usable_cores()))

    def offsets(self, text: str) -> Tuple[np.ndarray, np.ndarray]:
        pieces = self._processor.encode(text, out_type="immutable_proto").pieces
        span_T2 = np.array([(piece.begin, piece.end) for piece in pieces], np.int64).reshape(-1, 2)
        return np.array([piece.id for piece in pieces], np.int32), span_T2

    def decode(self, tokens: Iterable[int], with_special: bool = False) -> str:
        text: str = self._processor.decode(self.shown(tokens, with_special))
        return text

    def to_json(self) -> Mapping[str, Json]:
        file = base64.b64encode(self.model).decode()
        return {"kind": self.kind, "file": file, "sha256": hashlib.sha256(self.model).hexdigest()}


def require_sentencepiece() -> Any:
    """Returns the library; raises a DataError if it is not installed."""
    with warnings.catch_warnings():
        # Its import creates SWIG types with a DeprecationWarning. If warnings are errors, these types stay NULL, the
        # import succeeds, and the first model crashes.
        warnings.filterwarnings("ignore", "builtin type [sS]wig", DeprecationWarning)
        return require_library("sentencepiece", "sentencepiece", "A tokenizer of sentencepiece")


def parse_model(model: bytes) -> Any:
    """Parses the content of a model file; returns the library's processor.

    Raises:
        DataError: the content is no model.
    """
    library = require_sentencepiece()
    try:
        processor = library.SentencePieceProcessor()
        if not processor.LoadFromSerializedProto(model) or processor.get_piece_size() < 1:
            raise ValueError("it has no pieces")
    except (RuntimeError, OSError, ValueError, TypeError) as error:
        raise DataError(f"no model of sentencepiece: {error}") from error
    return processor


def train_sentencepiece(
    texts: Sequence[str], algorithm: str, size: int, lowercase: bool, individual_digits: bool
) -> SentencePiece:
    """Trains a model with at most `size` tokens. The result depends only on the arguments.

    Args:
        texts: training texts.
        algorithm: unigram or bpe.
        size: maximum number of tokens.
        lowercase: True to lowercase texts.
        individual_digits: True to make each digit a token.

    Raises:
        DataError: the texts are too few, or have more characters than the vocabulary has room for.
    """
    library = require_sentencepiece()
    written = io.BytesIO()
    try:
        library.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=written,
            model_type=algorithm,
            vocab_size=size,
            # Small corpora may have fewer pieces than asked for.
            hard_vocab_limit=False,
            split_digits=individual_digits,
            num_threads=_TRAINING_THREADS,
            # sentencepiece skips longer texts without an error; its own limit is 4,192 bytes.
            max_sentence_length=_MAX_BYTES,
            # A shuffled or sampled input would make the vocabulary depend on a random generator.
            shuffle_input_sentence=False,
            input_sentence_size=0,
            normalization_rule_name="nmt_nfkc_cf" if lowercase else "nmt_nfkc",
            minloglevel=2,
            byte_fallback=False,
            pad_id=0,
            unk_id=1,
            bos_id=2,
            eos_id=3,
            pad_piece=OWN_SPECIAL[0],
            unk_piece=OWN_SPECIAL[1],
            bos_piece=OWN_SPECIAL[2],
            eos_piece=OWN_SPECIAL[3],
            control_symbols=[OWN_SPECIAL[4]],
        )
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[-1]
        raise DataError(
            f"sentencepiece makes no vocabulary of dataset.vocab_size={size} of these texts: {reason} Choose another "
            "dataset.vocab_size, or dataset.tokenizer=bpe, which knows every character."
        ) from error
    return SentencePiece(written.getvalue())
