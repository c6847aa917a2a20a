"""Sources of texts, and the masking of their tokens.

Legend: N samples, B batch, T tokens, M masked positions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, List, Optional, Protocol, Sequence, Tuple

import numpy as np

from mxtrain.data.checking.checks import Checks
from mxtrain.data.checking.problems import DataLocations
from mxtrain.data.loading.randomness import uniform
from mxtrain.text.draws import TextDraw
from mxtrain.text.encoded import EncodedPairs, EncodedPieces, EncodedSamples, encode_texts
from mxtrain.text.text_checks import ParagraphChecks, TextChecks
from mxtrain.text.tokenizing.config import TokenizerConfig, num_masked
from mxtrain.text.tokenizing.kinds import TextsInMemory, TrainingTexts

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

UNKNOWN_LABEL = -1
Pair = Tuple[str, Optional[str]]
"""One text and None, or two texts that belong together."""


class TextSource(Protocol):
    """Texts of one split."""

    def encode(self, tokenizer_config: TokenizerConfig) -> EncodedSamples:
        """Returns all samples as tokens."""

    def training_texts(self) -> TrainingTexts:
        """Returns the texts from which a vocabulary is built."""


class LabelledTexts:
    """Texts with one class or number each.

    Args:
        pairs: one sample each.
        label_N: class indices, or the numbers to predict; None if unknown.
        locations: source location of each, for messages.
        weight_N: weight of each; None = all count equally.
    """

    def __init__(
        self,
        pairs: Sequence[Pair],
        label_N: Optional[ArrayLike] = None,
        locations: Optional[DataLocations] = None,
        weight_N: Optional[np.ndarray] = None,
    ) -> None:
        self.pairs, self.locations, self.weight_N = pairs, locations, weight_N
        unknown = np.full(len(pairs), UNKNOWN_LABEL)
        label_N = np.asarray(unknown if label_N is None else label_N)
        self.label_N = label_N.astype(np.float32 if label_N.dtype.kind == "f" else np.int32)

    def __len__(self) -> int:
        return len(self.pairs)

    def take(self, indices: Sequence[int]) -> LabelledTexts:
        """Returns some of the samples; those beyond the end are left out."""
        kept = [index for index in indices if index < len(self)]
        locations = self.locations and self.locations.take(kept)
        weight_N = None if self.weight_N is None else self.weight_N[kept]
        return LabelledTexts([self.pairs[index] for index in kept], self.label_N[kept], locations, weight_N)

    def read_weights(self) -> Optional[np.ndarray]:
        """Returns the weight of each text; None = all count equally."""
        return self.weight_N

    def checks(self) -> Checks:
        """Returns the checks that `data check` runs on each sample."""
        return TextChecks(self, self.locations)

    def read_labels(self) -> np.ndarray:
        """Returns the class of each text, or the number to predict."""
        return self.label_N

    def encode(self, tokenizer_config: TokenizerConfig) -> EncodedSamples:
        """See `TextSource`."""
        texts = [[first for first, _ in self.pairs]]
        if any(second is not None for _, second in self.pairs):
            texts.append([second or "" for _, second in self.pairs])
        rows = [encode_texts(tokenizer_config.tokenizer, column) for column in texts]
        return EncodedPairs(rows, self.label_N, tokenizer_config)

    def training_texts(self) -> TrainingTexts:
        """See `TextSource`."""
        return TextsInMemory([text for pair in self.pairs for text in pair if text is not None])


class PlainTexts:
    """Documents, divided into samples of `max_length` tokens.

    Args:
        documents: paragraphs of each document. A sample may span paragraphs, never documents.
        locations: source location of each paragraph, for messages.
    """

    def __init__(self, documents: Sequence[Sequence[str]], locations: Optional[DataLocations] = None) -> None:
        self.documents, self.locations = documents, locations

    @property
    def num_paragraphs(self) -> int:
        """Returns the number of paragraphs."""
        return sum(map(len, self.documents))

    def part(self, kept: np.ndarray) -> PlainTexts:
        """Returns some of the paragraphs, ascending; documents without any are left out."""
        flat = [(number, text) for number, texts in enumerate(self.documents) for text in texts]
        parts: Dict[int, List[str]] = {}
        for index in kept:
            number, text = flat[index]
            parts.setdefault(number, []).append(text)
        return PlainTexts(list(parts.values()), self.locations and self.locations.take(kept))

    def checks(self) -> Checks:
        """Returns the checks that `data check` runs on each paragraph."""
        return ParagraphChecks([text for texts in self.documents for text in texts], self.locations)

    def __len__(self) -> int:
        return len(self.documents)

    def take(self, indices: Sequence[int]) -> PlainTexts:
        """Returns some of the documents; those beyond the end are left out."""
        return PlainTexts([self.documents[index] for index in indices if index < len(self)])

    def encode(self, tokenizer_config: TokenizerConfig) -> EncodedSamples:
        """See `TextSource`."""
        rows = encode_texts(tokenizer_config.tokenizer, [text for texts in self.documents for text in texts])
        document_P = np.repeat(np.arange(len(self.documents)), list(map(len, self.documents)))
        return EncodedPieces(rows, None, document_P, tokenizer_config)

    def training_texts(self) -> TrainingTexts:
        """See `TextSource`."""
        return TextsInMemory([text for texts in self.documents for text in texts])


def mask_tokens(
    token_BT: np.ndarray,
    length_B: np.ndarray,
    index_B: np.ndarray,
    tokenizer_config: TokenizerConfig,
    *,
    seed: int,
    epoch: int,
) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Masks some tokens of each sample, as a function of (seed, epoch, sample index).

    Of the chosen tokens, 80% become [MASK], 10% a random token, and 10% are unchanged. Source: section 3.1 of
    https://arxiv.org/abs/1810.04805, resampled in each epoch as in https://arxiv.org/abs/1907.11692, section 4.1.

    Args:
        token_BT: tokens, int32, padded.
        length_B: number of tokens of each sample.
        index_B: indices of the samples in their dataset.
        tokenizer_config: vocabulary and fraction of masked tokens.
        seed: seed of the run.
        epoch: epoch, from 0.

    Returns:
        Tokens (B, T), positions (B, M) int32, and labels (B, M) float32: the original tokens, or -1 if a sample has
        fewer than M masked tokens.
    """
    batch, length = token_BT.shape
    tokenizer = tokenizer_config.tokenizer
    special, mask = np.array(tokenizer.special.ids), tokenizer.require("mask", "masked language modeling")
    num_positions = num_masked(length, tokenizer_config.mask_fraction)
    # A draw is a function of the sample and the position in it, so masking does not depend on the batch.
    position_BT = index_B[:, None] * (1 << 20) + np.arange(length)
    order_BT, kind_BT, token_draw_BT = (
        uniform(seed, epoch, position_BT.ravel(), stream).reshape(batch, length)
        for stream in (TextDraw.MASK_CHOICE, TextDraw.MASK_KIND, TextDraw.MASK_TOKEN)
    )
    is_ordinary_BT = ~np.isin(token_BT, special)
    # 2 is above every draw, so special tokens come last.
    position_BM = np.argsort(np.where(is_ordinary_BT, order_BT, 2.0), axis=1, kind="stable")[:, :num_positions]
    num_masked_B = np.array([num_masked(int(size), tokenizer_config.mask_fraction) for size in length_B])
    # A short sample uses only the first of the M positions.
    is_used_BM = np.arange(num_positions) < np.minimum(num_masked_B, is_ordinary_BT.sum(axis=1))[:, None]
    row_B1 = np.arange(batch)[:, None]
    original_BM = token_BT[row_B1, position_BM]
    label_BM = np.where(is_used_BM, original_BM, UNKNOWN_LABEL).astype(np.float32)
    ordinary = np.setdiff1d(np.arange(tokenizer.size), special)
    random_BM = ordinary[(token_draw_BT[row_B1, position_BM] * len(ordinary)).astype(np.int64)]
    kind_BM = kind_BT[row_B1, position_BM]
    replacement_BM = np.where(kind_BM < 0.8, mask, np.where(kind_BM < 0.9, random_BM, original_BM))
    masked_BT = token_BT.copy()
    masked_BT[row_B1, position_BM] = np.where(is_used_BM, replacement_BM, original_BM)
    return masked_BT, np.where(is_used_BM, position_BM, 0).astype(np.int32), label_BM
