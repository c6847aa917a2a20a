"""The GLUE benchmark's tasks in the files in which it publishes them.

Source: https://gluebenchmark.com/tasks; Wang et al., "GLUE", https://arxiv.org/abs/1804.07461.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Dict, List, Literal, NamedTuple, Optional, Tuple

import pydantic
from typing_extensions import Annotated

from mxtrain.data.checking.problems import (
    DataLocation,
    Findings,
    NoUsableSamples,
    call_or_report,
)
from mxtrain.data.loading.dataset_files import exists, refuse_shared
from mxtrain.data.loading.number_targets import targets_of
from mxtrain.data.loading.target_scale import require_same_scale, target_remark, with_target_scale
from mxtrain.data.signature import Signature
from mxtrain.data.spec import Splits
from mxtrain.data.table.text_rows import Column
from mxtrain.errors import DataError
from mxtrain.text.base import TextDataset
from mxtrain.text.kinds import Texts
from mxtrain.text.number_texts import build_number_texts, divide_texts
from mxtrain.text.text_files import TextTable, read_table
from mxtrain.types import OpenFraction, PathText
from mxtrain.types.kinds import ClassIndex, Gives, Number

if TYPE_CHECKING:
    from mxtrain.model.spec import Model


class TableLayout(NamedTuple):
    """Layout of the files of a task.

    Attributes:
        folder: name of the folder.
        columns: columns of the texts and of the label, by name, or by number if there is no header.
        classes: names of the classes; empty for a regression.
        val, test: names of the files, without extension; None = no test split.
    """

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
        "MNLI",
        ["sentence1", "sentence2", "gold_label"],
        ["neutral", "entailment", "contradiction"],
        "dev_matched",
        "dev_mismatched",
    ),
    "qnli": TableLayout("QNLI", ["question", "sentence", "label"], ENTAILMENT),
    "rte": TableLayout("RTE", ["sentence1", "sentence2", "label"], ENTAILMENT),
    "wnli": TableLayout("WNLI", ["sentence1", "sentence2", "label"], ["0", "1"]),
    "stsb": TableLayout("STS-B", ["sentence1", "sentence2", "score"], []),
}


class Glue(TextDataset):
    """A task of GLUE. Its test labels are not public, so the development split is used for validation."""

    @property
    def folds_by(self) -> Literal["", "samples", "columns"]:  # type: ignore[override]  # a class variable in others
        """See `BaseDataset.folds_by`: the columns of CoLA have no names."""
        return "samples" if self.task == "cola" else "columns"

    table_form: ClassVar[Optional[str]] = ".tsv"
    has_text_columns: ClassVar[bool] = True

    root: PathText = "data/glue"
    """Folder that holds the tasks' folders: CoLA, SST-2, MRPC, QQP, MNLI, QNLI, RTE, WNLI, STS-B; by default in the
    folder that MXTRAIN_DATA names, else in data/."""
    task: Literal["cola", "sst2", "mrpc", "qqp", "mnli", "qnli", "rte", "wnli", "stsb"] = "sst2"
    """The task. mnli is validated on its matched split, and tested on the mismatched one. stsb is the similarity of two
    sentences, from 0 to 5, which needs task=regression."""
    max_length: Annotated[int, pydantic.Field(ge=8)] = 128
    val_fraction: OpenFraction = 0.0
    """Not used: validation measures the development split."""

    @property
    def gives(self) -> Gives:  # type: ignore[override]  # a class variable in other datasets
        """Returns the kind of target of the chosen task."""
        return Gives(Texts, Number if self.task == "stsb" else ClassIndex)

    def infer_signature(self, splits: Splits, model: Model) -> Signature:
        signature = super().infer_signature(splits, model)
        return signature if splits.class_names else with_target_scale(signature, targets_of(splits.train))

    def check_compatible(self, signature: Signature, before: Signature, source: str) -> None:
        super().check_compatible(signature, before, source)
        require_same_scale(signature, before, source)

    def remark(self, signature: Signature, splits: Splits) -> str:
        remark = super().remark(signature, splits)
        return remark if splits.class_names else f"{remark}; {target_remark(signature, targets_of(splits.val))}"

    def text_columns(self) -> Tuple[List[Column], bool]:
        return LAYOUTS[self.task].columns[:-1], self.task != "cola"

    def examine(self, findings: Findings) -> Splits:
        """See `BaseDataset.examine`."""
        layout = LAYOUTS[self.task]
        folder = Path(self.root) / layout.folder
        names = ["train", layout.val, layout.test]
        missing = [f"{name}.tsv" for name in names if name and not exists(folder / f"{name}.tsv")]
        if missing:
            raise DataError(
                f"{folder} lacks {', '.join(missing)}. Get the task '{self.task}' from https://gluebenchmark.com/tasks "
                "and unpack it there, or name another folder by dataset.root=FOLDER."
            )
        files = {name: folder / f"{name}.tsv" for name in names if name}
        refuse_shared({name: [path] for name, path in files.items()}, findings)
        tables = {
            name: call_or_report(findings, DataLocation(str(path)), partial(self._rows, path, layout, findings))
            for name, path in files.items()
        }
        if None in tables.values():
            raise NoUsableSamples(f"{folder}: a table cannot be read.")
        train, val, test = (tables.get(name) if name else None for name in names)
        assert train is not None and val is not None
        if not layout.classes:
            self.require_libraries()
            train_texts, val_texts, test_texts = (
                None if table is None else build_number_texts(table, str(layout.columns[-1]), ".", findings)
                for table in (train, val, test)
            )
            assert train_texts is not None
            return divide_texts(self, str(folder), train_texts, val_texts, test_texts)
        return self._labelled_splits(str(folder), train, val, test, layout.classes, findings)

    def _rows(self, path: Path, layout: TableLayout, findings: Findings) -> TextTable:
        # Some published rows (QQP) end early; the benchmark's own code leaves them out.
        return read_table(
            path, layout.columns, layout.folder != "CoLA", skip_short=True, findings=findings, form=self.table_form
        )
