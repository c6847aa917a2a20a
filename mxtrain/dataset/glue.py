"""The GLUE benchmark's tasks in the files in which it publishes them.

Source: https://gluebenchmark.com/tasks; Wang et al., "GLUE", https://arxiv.org/abs/1804.07461.
"""

from __future__ import annotations

from pathlib import Path
from typing import Dict, List, Literal, NamedTuple, Optional, Tuple

import numpy as np
import pydantic
from typing_extensions import Annotated

from mxtrain.dataset.base import Splits
from mxtrain.dataset.language.base import Row, TextDataset, pair_of
from mxtrain.dataset.language.sources import LabelledTexts
from mxtrain.dataset.language.wordpiece import require_tokenizers
from mxtrain.dataset.loading.regular_files import exists, refuse_shared
from mxtrain.dataset.loading.splitting import refuse_empty
from mxtrain.dataset.table.columns import Column, read_columns
from mxtrain.errors import DataError
from mxtrain.types import OpenFraction, PathText


class TableLayout(NamedTuple):
    """The layout of one task's files: the folder, and columns by name, or by number where there is no header."""

    folder: str
    columns: List[Column]
    classes: List[str]
    val: str = "dev"
    test: Optional[str] = None


ENTAILMENT = ["entailment", "not_entailment"]
LAYOUTS: Dict[str, TableLayout] = {
    "cola": TableLayout("CoLA", [3, 1], ["0", "1"]),
    "sst2": TableLayout("SST-2", ["sentence", "label"], ["0", "1"]),
    "mrpc": TableLayout("MRPC", ["#1 String", "#2 String", "Quality"], ["0", "1"]),
    "qqp": TableLayout("QQP", ["question1", "question2", "is_duplicate"], ["0", "1"]),
    "mnli": TableLayout(
        "MNLI", ["sentence1", "sentence2", "gold_label"], ["neutral", "entailment", "contradiction"],
        "dev_matched", "dev_mismatched",
    ),
    "qnli": TableLayout("QNLI", ["question", "sentence", "label"], ENTAILMENT),
    "rte": TableLayout("RTE", ["sentence1", "sentence2", "label"], ENTAILMENT),
    "wnli": TableLayout("WNLI", ["sentence1", "sentence2", "label"], ["0", "1"]),
    "stsb": TableLayout("STS-B", ["sentence1", "sentence2", "score"], []),
}  # fmt: skip


class Glue(TextDataset):
    """A task of GLUE. GLUE's test labels are secret: its development split is what validation measures."""

    root: PathText = "data/glue"
    """Folder that holds the tasks' folders: CoLA, SST-2, MRPC, QQP, MNLI, QNLI, RTE, WNLI, STS-B."""
    task: Literal["cola", "sst2", "mrpc", "qqp", "mnli", "qnli", "rte", "wnli", "stsb"] = "sst2"
    """The task; mnli is measured on its matched split, and at the end on the mismatched one; stsb is a regression, how
    alike two sentences are, from 0 to 5: type task=regression."""
    max_length: Annotated[int, pydantic.Field(ge=8)] = 128
    val_fraction: OpenFraction = 0.0

    @property
    def serves(self) -> Tuple[str, ...]:  # type: ignore[override]
        """The kind of the chosen task, by the name of our own task."""
        return ("regression",) if self.task == "stsb" else ("classification",)

    def text_columns(self) -> Tuple[List[Column], bool]:
        return LAYOUTS[self.task].columns[:-1], self.task != "cola"

    def open(self) -> Splits:
        """See `BaseDataset.open`."""
        layout = LAYOUTS[self.task]
        folder = Path(self.root) / layout.folder
        names = ["train", layout.val, layout.test]
        missing = [f"{name}.tsv" for name in names if name and not exists(folder / f"{name}.tsv")]
        if missing:
            raise DataError(
                f"{folder} lacks {', '.join(missing)}. Get the task '{self.task}' from https://gluebenchmark.com/tasks "
                "and unpack it there, or name another folder by dataset.root=FOLDER."
            )
        refuse_shared({name: [folder / f"{name}.tsv"] for name in names if name})
        train, val, test = (self._rows(folder / f"{name}.tsv", layout) if name else None for name in names)
        assert train is not None
        if not layout.classes:
            return self._scored_splits(train, val, test, str(folder))
        return self._labelled_splits(str(folder), train, val, test, layout.classes)

    def _scored_splits(
        self, train: List[Row], val: Optional[List[Row]], test: Optional[List[Row]], name: str
    ) -> Splits:  # fmt: skip
        require_tokenizers()
        refuse_empty(name, len(train), len(val or ()), self.val_fraction)
        found = [LabelledTexts([pair_of(row) for row in rows], _scores(rows, name)) if rows is not None else None
                 for rows in (train, val, test)]  # fmt: skip
        assert found[0] is not None and found[1] is not None
        texts = [text for row in train for text in row[:-1]]
        return Splits(found[0], found[1], found[2], [], build_tokenizer_config=lambda: self.tokenizer_config(texts))

    def _rows(self, path: Path, layout: TableLayout) -> List[Row]:
        # Some published rows (QQP) end early; the benchmark's own code leaves them out.
        return read_columns(path, layout.columns, header=layout.folder != "CoLA", skip_short=True)


def _scores(rows: List[Row], name: str) -> np.ndarray:
    try:
        return np.array([float(row[-1]) for row in rows], np.float32)
    except ValueError as error:
        raise DataError(f"{name}: a score is no number ({error}).") from None
