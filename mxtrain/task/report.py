"""What `eval` shows and writes: metrics, confusion matrix (table and picture), per-class precision, recall and F1."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any, List, Mapping, Sequence

import numpy as np

from mxtrain.files.durable import replace_file, write_json_atomic
from mxtrain.logger.fonts import drawable, font_of

MAX_SHOWN_CLASSES = 40
# Beyond this many classes the numbers in the cells of the picture could not be read.
MAX_NUMBERED_CLASSES = 20


@dataclass(frozen=True)
class Report:
    """The measurements of one split.

    Attributes:
        values: loss, metrics, samples_per_s.
        probability_NK: class probabilities.
        label_N: true classes.
        part: e.g. "2 of 6 batches" where that is all that was measured.
    """

    split: str
    step: int
    values: Mapping[str, float]
    probability_NK: np.ndarray
    label_N: np.ndarray
    class_names: Sequence[str]
    part: str = ""

    def confusion_KK(self) -> np.ndarray:
        """Counts; rows are true classes, columns predicted ones."""
        from sklearn.metrics import confusion_matrix

        return confusion_matrix(
            self.label_N, self.probability_NK.argmax(axis=1), labels=np.arange(len(self.class_names))
        )

    def per_class(self) -> List[List[Any]]:
        """[class, samples, precision, recall, f1] for each class."""
        from sklearn.metrics import precision_recall_fscore_support

        precision, recall, f1, support = precision_recall_fscore_support(
            self.label_N, self.probability_NK.argmax(axis=1), labels=np.arange(len(self.class_names)), zero_division=0
        )
        return [
            [name, int(n), float(p), float(r), float(f)]
            for name, n, p, r, f in zip(self.class_names, support, precision, recall, f1)
        ]

    def show(self, folder: Path) -> None:
        """Prints the values, the per-class table, the most frequent confusions and where the files are."""
        from rich.console import Console
        from rich.table import Table

        console = Console(highlight=False)
        table = Table("class", "samples", "precision", "recall", "f1", box=None, pad_edge=False)
        rows = self.per_class()
        for name, samples, *rates in rows[:MAX_SHOWN_CLASSES]:
            table.add_row(name, str(samples), *(f"{rate:.4f}" for rate in rates))
        console.print(table)
        if len(rows) > MAX_SHOWN_CLASSES:
            console.print(f"... and {len(rows) - MAX_SHOWN_CLASSES} more classes in per_class.csv")
        for true, predicted, count in self.worst_confusions():
            console.print(f"{count} x {true} taken for {predicted}", soft_wrap=True)
        shown = "  ".join(f"{name} {value:.4f}" for name, value in self.values.items() if name != "samples_per_s")
        of_part = f"{self.part} only, " if self.part else ""
        console.print(f"\n{self.split}: {shown}  ({of_part}{len(self.label_N)} samples, step {self.step}, "
                      f"{self.values['samples_per_s']:.0f} samples/s)", soft_wrap=True)  # fmt: skip
        console.print(f"written to {folder}", soft_wrap=True)

    def worst_confusions(self, count: int = 5) -> List[List[Any]]:
        """[true, predicted, count] of the most frequent confusions."""
        wrong_KK = self.confusion_KK()
        np.fill_diagonal(wrong_KK, 0)
        order = np.argsort(-wrong_KK, axis=None, kind="stable")[:count]
        pairs = [divmod(int(cell), len(self.class_names)) for cell in order]
        return [[self.class_names[t], self.class_names[p], int(wrong_KK[t, p])] for t, p in pairs if wrong_KK[t, p]]


def write_report(report: Report, folder: Path) -> None:
    """Writes metrics.json, confusion.csv, confusion.png and per_class.csv."""
    folder.mkdir(parents=True, exist_ok=True)
    values = {
        "split": report.split, "part": report.part, "step": report.step, "samples": len(report.label_N),
        **report.values,
    }  # fmt: skip
    write_json_atomic(folder / "metrics.json", values)
    write_table(folder / "per_class.csv", [["class", "samples", "precision", "recall", "f1"], *report.per_class()])
    confusion_KK = report.confusion_KK()
    counted = [[name, *row] for name, row in zip(report.class_names, confusion_KK.tolist())]
    write_table(folder / "confusion.csv", [["true \\ predicted", *report.class_names], *counted])
    draw_confusion(confusion_KK, report.class_names, f"{report.split}, step {report.step}", folder / "confusion.png")


def write_table(path: Path, rows: Sequence[Sequence[Any]]) -> None:
    """Replaces a CSV file."""
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    replace_file(path, text.getvalue().encode("utf-8", "surrogateescape"))


def draw_confusion(confusion_KK: np.ndarray, class_names: Sequence[str], title: str, path: Path) -> None:
    """The matrix as a picture, each row scaled to its own sum."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.font_manager import FontProperties

    size = len(class_names)
    figure = Figure(figsize=(min(max(4.5, 0.55 * size), 16),) * 2, dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    share_KK = confusion_KK / np.maximum(confusion_KK.sum(axis=1, keepdims=True), 1)
    axes.imshow(share_KK, cmap="Blues", vmin=0, vmax=1)
    axes.set(xlabel="predicted", ylabel="true", title=title)
    if size <= MAX_SHOWN_CLASSES:
        # A dollar sign would begin a formula.
        shown = [name.replace("$", r"\$") for name in drawable(class_names)]
        axes.set_xticks(range(size), shown, rotation=90 if max(map(len, class_names)) > 3 else 0)
        axes.set_yticks(range(size), shown)
        for name, *labels in zip(class_names, axes.get_xticklabels(), axes.get_yticklabels()):
            for label in labels:
                if font_of(str(name)):
                    label.set_fontproperties(FontProperties(fname=font_of(str(name)), size=label.get_size()))
    if size <= MAX_NUMBERED_CLASSES:
        for true, predicted in np.argwhere(confusion_KK):
            dark = share_KK[true, predicted] > 0.5
            axes.text(predicted, true, confusion_KK[true, predicted], ha="center", va="center",
                      color="white" if dark else "black", fontsize=8)  # fmt: skip
    picture = io.BytesIO()
    figure.savefig(picture)
    replace_file(path, picture.getvalue())
