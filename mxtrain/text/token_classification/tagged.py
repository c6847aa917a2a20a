"""Sentences with a tag for each word, their samples, and their loader.

A sample is a sentence. A sentence with too many tokens is divided into several samples, between words. The label of a
word's first token is its tag; all other tokens have the label -1.

Legend: W words of all sentences, D distinct words, F tokens of all words, N samples, B batch, T tokens of a sample, K
tags.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, List, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.checking.checks import Checked, SourceChecks, digest_of
from mxtrain.data.checking.problems import DataLocation
from mxtrain.data.table.columns import location_of
from mxtrain.text.loader import TextLoader
from mxtrain.text.token_classification.conll_file import TaggedWords
from mxtrain.text.token_classification.tags import TagCodes, is_plain
from mxtrain.text.tokenizing.kinds import TextsInMemory
from mxtrain.text.translation.reference_text import MIN_WORDS

if TYPE_CHECKING:
    from mxtrain.data.checking.checks import Checks
    from mxtrain.data.loading.loader import LoaderOptions
    from mxtrain.text.tokenizing.base import BaseTokenizer
    from mxtrain.text.tokenizing.config import TokenizerConfig
    from mxtrain.text.tokenizing.kinds import TrainingTexts


class TaggedSentences:
    """Sentences of one split.

    Args:
        words: sentences, with tags that are in `names`, or without tags to predict for.
        names: names of the tags.
    """

    def __init__(self, words: TaggedWords, names: Sequence[str]) -> None:
        self.words, self.names = words, names

    def __len__(self) -> int:
        return len(self.words)

    def take(self, indices: Sequence[int]) -> TaggedSentences:
        """Returns the sentences with these indices; indices beyond the end are ignored."""
        return TaggedSentences(self.words.take(list(indices)), self.names)

    @property
    def tag_W(self) -> np.ndarray:
        """Returns the index of each word's tag, (W,); 0 if there are no tags."""
        number = {name: index for index, name in enumerate(self.names)}
        if not self.words.tags:
            return np.zeros(sum(map(len, self.words.sentences)), np.int32)
        return np.array([number[tag] for tags in self.words.tags for tag in tags], np.int32)

    def checks(self) -> Checks:
        """Returns the checks that `data check` runs on each sentence."""
        return _SentenceChecks(self)

    def encode(self, tokenizer_config: TokenizerConfig) -> EncodedTags:
        """Returns all samples as tokens."""
        return EncodedTags(self.words.sentences, self.tag_W, tokenizer_config)

    def training_texts(self) -> TrainingTexts:
        """See `TextSource`."""
        return TextsInMemory([" ".join(words) for words in self.words.sentences])


class _SentenceChecks(SourceChecks):
    def location(self, index: int) -> DataLocation:
        words = self._source.words
        return location_of(words.files[index], words.lines[index][0]) if words.lines else DataLocation(record=index)

    def texts(self, index: int) -> Sequence[str]:
        return [" ".join(self._source.words.sentences[index])]

    def check(self, index: int) -> Checked:
        """See `Checks`. Short sentences may occur any number of times."""
        words, tags = self._source.words.sentences[index], self._source.words.tags[index]
        texts = [text.encode("utf-8", "surrogatepass") for text in (*words, *tags)]
        digest = b"" if len(words) < MIN_WORDS else digest_of(*texts)
        number = {name: number for number, name in enumerate(self._source.names)}
        return Checked((), digest, sorted({number[tag] for tag in tags}))


class EncodedTags:
    """Sentences as samples of tokens.

    Attributes:
        length_N: number of tokens of each sample, including special tokens.
        label_N: -1 for each sample; not used, because labels belong to tokens.
        sentence_N: index of the sentence of each sample.

    Args:
        sentences: words.
        tag_W: tags of all words.
        config: special tokens and the length.
    """

    def __init__(self, sentences: Sequence[Sequence[str]], tag_W: np.ndarray, config: TokenizerConfig) -> None:
        special = config.tokenizer.special
        self._first, self._last, self._pad = special.first, special.last, special.pad or 0
        num_special = (self._first is not None) + (self._last is not None)
        room = config.max_length - num_special
        words = [word for sentence in sentences for word in sentence]
        self._token_F, count_W = encode_words(config.tokenizer, words, room)
        begin_W = np.concatenate([np.zeros(1, np.int64), np.cumsum(count_W)])
        self._label_F = np.full(len(self._token_F), -1, np.int32)
        self._label_F[begin_W[:-1]] = tag_W
        pieces = _pieces([len(sentence) for sentence in sentences], begin_W, room)
        piece_N3 = np.array(pieces, np.int64).reshape(-1, 3)
        self.sentence_N, self._begin_N = piece_N3[:, 0], begin_W[piece_N3[:, 1]]
        self.length_N = (begin_W[piece_N3[:, 2]] - self._begin_N + num_special).astype(np.int32)
        self.label_N = np.broadcast_to(np.int32(-1), len(self.length_N))

    def padded(self, index_B: np.ndarray, length: int) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
        """See `EncodedSamples`."""
        inside_BT, where = self._inside(index_B, length)
        length_B = self.length_N[index_B]
        token_BT = np.full((len(index_B), length), self._pad, np.int32)
        token_BT[inside_BT] = self._token_F[where]
        if self._first is not None:
            token_BT[:, 0] = self._first
        if self._last is not None:
            token_BT[np.arange(len(index_B)), length_B - 1] = self._last
        return token_BT, np.zeros_like(token_BT), length_B

    def labels(self, index_B: np.ndarray, length: int) -> np.ndarray:
        """Returns the tags (B, T) of some samples, float32."""
        inside_BT, where = self._inside(index_B, length)
        label_BT = np.full((len(index_B), length), -1, np.float32)
        label_BT[inside_BT] = self._label_F[where]
        return label_BT

    def _inside(self, index_B: np.ndarray, length: int) -> Tuple[np.ndarray, np.ndarray]:
        """Returns a mask of the tokens of words, (B, T), and their indices."""
        position_T, begin = np.arange(length), int(self._first is not None)
        end_B1 = (self.length_N[index_B] - (self._last is not None))[:, None]
        inside_BT = (position_T >= begin) & (position_T < end_B1)
        return inside_BT, (self._begin_N[index_B][:, None] + position_T - begin)[inside_BT]


def encode_words(tokenizer: BaseTokenizer, words: Sequence[str], room: int) -> Tuple[np.ndarray, np.ndarray]:
    """Encodes words independently of each other.

    Returns:
        The tokens (F,) of all words, at most `room` of each, and the number of tokens of each word, (W,). A word that
        the tokenizer drops has one unknown token.
    """
    word_number = {word: number for number, word in enumerate(dict.fromkeys(words))}
    token_F, count_D = tokenizer.encode(list(word_number))
    begin_D = np.cumsum(count_D) - count_D
    unknown = tokenizer.special.unknown
    token_F = np.append(token_F, (tokenizer.special.pad or 0) if unknown is None else unknown).astype(np.int32)
    begin_D = np.where(count_D > 0, begin_D, len(token_F) - 1)
    # A word that the tokenizer drops keeps one token, the unknown one: else no metric would count it.
    count_D = np.clip(count_D, 1, room)
    number_W = np.fromiter((word_number[word] for word in words), np.int64, len(words))
    count_W = count_D[number_W]
    shift_W = begin_D[number_W] - (np.cumsum(count_W) - count_W)
    return token_F[np.arange(count_W.sum()) + np.repeat(shift_W, count_W)], count_W


def _pieces(counts: Sequence[int], begin_W: np.ndarray, room: int) -> List[Tuple[int, int, int]]:
    """Returns sentence, first word and end of the words of each sample."""
    pieces, first = [], 0
    for sentence, count in enumerate(counts):
        end = first + count
        while first < end:
            limit = int(np.searchsorted(begin_W, begin_W[first] + room, side="right")) - 1
            pieces.append((sentence, first, min(limit, end)))
            first = pieces[-1][2]
    return pieces


class TagLoader(TextLoader):
    """Loads batches of sentences with tags. `Batch.meta` holds the index of each sample's sentence, followed by the
    code of each tag (see `TagCodes`) if tags describe entities.

    Args:
        source: sentences.
        tokenizer_config, options, batches_per_pool: see `TextLoader`.
    """

    _encoded: EncodedTags

    def __init__(
        self,
        source: TaggedSentences,
        tokenizer_config: TokenizerConfig,
        options: LoaderOptions,
        batches_per_pool: int = 1,
    ) -> None:
        super().__init__(source, tokenizer_config, options, batches_per_pool)
        names = source.names
        self._code_K = np.zeros(0, np.int64) if is_plain(names) else TagCodes(names).code_K

    def _read(
        self, index_B: np.ndarray, length: int, epoch: int
    ) -> Tuple[np.ndarray, np.ndarray, np.ndarray, Optional[np.ndarray], np.ndarray]:
        token_BT, kind_BT, length_B = self._encoded.padded(index_B, length)
        return token_BT, kind_BT, length_B.astype(np.float32), None, self._encoded.labels(index_B, length)

    def _meta(self, index_B: np.ndarray) -> np.ndarray:
        # The codes are the same for all samples; metrics see only the metadata of a batch, and no names of tags.
        code_BK = np.broadcast_to(self._code_K, (len(index_B), len(self._code_K)))
        return np.concatenate([self._encoded.sentence_N[index_B][:, None], code_BK], axis=1)
