"""Base of datasets of documents and their summaries: lengths of both, and documents to summarize."""

from __future__ import annotations

from typing import Any, ClassVar, Dict, List, Sequence, Tuple

import pydantic
from typing_extensions import Annotated

from mxtrain.data.loading.input_files import read_each
from mxtrain.data.signature import Signature
from mxtrain.data.spec import Samples
from mxtrain.data.table.text_rows import Column
from mxtrain.text.kinds import Summaries, Texts
from mxtrain.text.translation.parallel import InMemoryPairs, LengthLimit
from mxtrain.text.translation.translation import TranslationDataset
from mxtrain.types.kinds import Gives


class SummaryDataset(TranslationDataset):
    """Base of the descriptions of documents with a summary each.

    A document of more than `max_length` tokens is cut at its end, in training and in prediction: most texts begin with
    what matters. A summary that is longer than `max_summary_length` is cut for the loss; metrics compare whole texts.
    """

    gives: ClassVar[Gives] = Gives(Texts, Summaries)
    has_text_columns: ClassVar[bool] = True
    cuts_long: ClassVar[bool] = True
    document_column: ClassVar[Tuple[Column, bool]] = ("document", True)
    """Column of documents in tables for `predict`, and True if such tables have a header."""

    max_length: Annotated[int, pydantic.Field(ge=8)] = 512
    """Maximum number of tokens of a document, including one special token; longer ones are cut at the end."""
    max_summary_length: Annotated[int, pydantic.Field(ge=8)] = 128
    """Maximum number of tokens of a summary in training, including one special token; longer ones are cut."""

    @property
    def length_limits(self) -> Sequence[LengthLimit]:
        remedy = "It is cut at its end."
        return [
            LengthLimit(self.max_length, "max_length", remedy),
            LengthLimit(self.max_summary_length, "max_summary_length", remedy),
        ]

    def text_columns(self) -> Tuple[List[Column], bool]:
        column, header = self.document_column
        return [column], header

    def open_inputs(
        self, names: Sequence[str], signature: Signature, skip_unreadable: bool, unreadable: Dict[int, str]
    ) -> Tuple[Samples, Sequence[str]]:
        """Opens the documents of the files: the lines of a text, or the rows of a table; a source location is
        `file:line`."""
        pairs, locations = [], []
        for name, rows in read_each(names, self.read_unlabelled, skip_unreadable, unreadable):
            pairs += [pair for _, pair in rows]
            locations += [f"{name}:{line}" for line, _ in rows]
        return InMemoryPairs(pairs), locations

    def samples_from(self, value: Any, signature: Signature) -> Samples:
        """Returns documents in memory to summarize: strings of one line, dicts from column to value, or a data frame of
        pandas."""
        return InMemoryPairs(self.pairs_from(value))
