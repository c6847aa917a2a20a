"""Sources of texts that are stored as records: labelled texts of tables, and paragraphs of documents.

Only a few bytes per sample are in memory: labels, lengths and record indices.

Legend: N samples, P paragraphs, R records of a store.
"""

from __future__ import annotations

from collections.abc import Sequence as AbstractSequence
from typing import TYPE_CHECKING, Any, List, Optional, Sequence, Union

import numpy as np

from mxtrain.text.encoded import EncodedPairs, EncodedPieces, EncodedSamples, run_starts
from mxtrain.text.stored import TEXT, JoinedTexts, StoredColumn, column_name, prepare_tokens
from mxtrain.text.text_checks import ParagraphChecks, TextChecks

if TYPE_CHECKING:
    from mxtrain.data.checking.checks import Checks
    from mxtrain.data.checking.problems import DataLocations
    from mxtrain.data.corpus.shards import Shards
    from mxtrain.text.sources import Pair
    from mxtrain.text.tokenizing.config import TokenizerConfig
    from mxtrain.text.tokenizing.kinds import TrainingTexts


class StoredPairs(AbstractSequence):
    """Texts of records, or pairs of them, read on access."""

    def __init__(self, columns: Sequence[StoredColumn]) -> None:
        self._columns = columns

    def __len__(self) -> int:
        return len(self._columns[0])

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        texts = [column[index % len(self)] for column in self._columns]
        pair: Pair = (texts[0], texts[1] if len(texts) > 1 else None)
        return pair


class StoredTexts:
    """Texts with one class or number each, like `LabelledTexts`.

    Args:
        shards: the store.
        num_columns: number of text columns: 1, or 2 for pairs.
        what: name of the data, for progress messages.
        label_N: class indices, or numbers to predict.
        row_N: record of each sample; None = all in order.
        record_locations: source location of each record of the store.
    """

    def __init__(
        self,
        shards: Shards,
        num_columns: int,
        what: str,
        label_N: np.ndarray,
        row_N: Optional[np.ndarray],
        record_locations: DataLocations,
    ) -> None:
        self.shards, self._num_columns, self._what, self._row_N = shards, num_columns, what, row_N
        self.label_N, self._record_locations = label_N, record_locations
        self.weight_N: Optional[np.ndarray] = None
        """Weight of each sample; None = all count equally."""

    def __len__(self) -> int:
        return len(self.label_N)

    @property
    def locations(self) -> DataLocations:
        """Returns the source location of each sample."""
        return self._record_locations if self._row_N is None else self._record_locations.take(self._row_N)

    @property
    def pairs(self) -> StoredPairs:
        """Returns the texts themselves."""
        return StoredPairs(self._columns())

    def _columns(self) -> List[StoredColumn]:
        return [StoredColumn(self.shards, column_name(number), self._row_N) for number in range(self._num_columns)]

    def take(self, indices: Union[Sequence[int], np.ndarray]) -> StoredTexts:
        """Returns some of the samples; those beyond the end are left out."""
        kept = np.asarray(indices, np.int64)
        kept = kept[kept < len(self)]
        row_N = kept if self._row_N is None else self._row_N[kept]
        taken = StoredTexts(
            self.shards, self._num_columns, self._what, self.label_N[kept], row_N, self._record_locations
        )
        taken.weight_N = None if self.weight_N is None else self.weight_N[kept]
        return taken

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
        tokens = prepare_tokens(self.shards, self._num_columns, tokenizer_config.tokenizer, self._what)
        texts = [tokens.ragged(column_name(number)) for number in range(self._num_columns)]
        return EncodedPairs(texts, self.label_N, tokenizer_config, self._row_N)

    def training_texts(self) -> TrainingTexts:
        """See `TextSource`."""
        return JoinedTexts(self._columns())


class StoredDocuments:
    """Paragraphs of documents, like `PlainTexts`.

    Args:
        shards: the store; `group` is the document of each paragraph.
        what: name of the data, for progress messages.
        row_P: records of these paragraphs, ascending; None = all.
        record_locations: source location of each record of the store.
    """

    def __init__(self, shards: Shards, what: str, row_P: Optional[np.ndarray], record_locations: DataLocations) -> None:
        self.shards, self._what, self.row_P, self._record_locations = shards, what, row_P, record_locations

    @property
    def locations(self) -> DataLocations:
        """Returns the source location of each paragraph."""
        return self._record_locations if self.row_P is None else self._record_locations.take(self.row_P)

    @property
    def _document_P(self) -> np.ndarray:
        """Returns the document of each paragraph; not cached, because there may be millions."""
        group_R = self.shards.array("group")
        return group_R if self.row_P is None else group_R[self.row_P]

    @property
    def num_paragraphs(self) -> int:
        """Returns the number of paragraphs."""
        return len(self.shards) if self.row_P is None else len(self.row_P)

    def __len__(self) -> int:
        return int(np.count_nonzero(run_starts(self._document_P)))

    @property
    def paragraphs(self) -> StoredColumn:
        """Returns the texts themselves."""
        return StoredColumn(self.shards, TEXT, self.row_P)

    @property
    def documents(self) -> List[List[str]]:
        """Returns all texts by document, in memory."""
        documents: List[List[str]] = []
        for is_new, text in zip(run_starts(self._document_P), self.paragraphs.texts()):
            documents += [[]] if is_new else []
            documents[-1].append(text)
        return documents

    def take(self, indices: Sequence[int]) -> StoredDocuments:
        """Returns some of the documents; those beyond the end are left out."""
        numbers = np.cumsum(run_starts(self._document_P)) - 1
        return self.part(np.flatnonzero(np.isin(numbers, indices)))

    def part(self, kept: np.ndarray) -> StoredDocuments:
        """Returns some of the paragraphs, ascending."""
        # int32, because a corpus has millions of paragraphs and int64 takes twice the memory.
        row_P = kept.astype(np.int32) if self.row_P is None else self.row_P[kept]
        return StoredDocuments(self.shards, self._what, row_P, self._record_locations)

    def checks(self) -> Checks:
        """Returns the checks that `data check` runs on each paragraph."""
        return ParagraphChecks(self.paragraphs, self.locations)

    def encode(self, tokenizer_config: TokenizerConfig) -> EncodedSamples:
        """See `TextSource`."""
        tokens = prepare_tokens(self.shards, 1, tokenizer_config.tokenizer, self._what)
        return EncodedPieces(tokens.ragged(TEXT), self.row_P, self._document_P, tokenizer_config)

    def training_texts(self) -> TrainingTexts:
        """See `TextSource`."""
        return self.paragraphs
