"""Files of `eval` about single samples: `predictions.csv`, the samples with the largest losses, and a page that lists
the samples of each cell of the confusion matrix."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING, List

import numpy as np

from mxtrain.cli.confusion_page import render_confusion
from mxtrain.files.durable import HashedFile, replace_file
from mxtrain.files.temporary import temporary_place
from mxtrain.task.sample_results import LOSS, PREDICTED, SAMPLE, TRUE, Cells, SampleReader, SampleResults
from mxtrain.types import Artifact, Figure, Table

if TYPE_CHECKING:
    from mxtrain.cli.eval_folder import EvaluationFolder
    from mxtrain.data.base import Samples
    from mxtrain.trained import Trained

PREDICTIONS, WORST, PAGE = "predictions.csv", "worst", "confusion.html"


class SampleFiles:
    """Collects the results of single samples in a temporary file, and writes the files.

    Args:
        trained: trained network.
        source: evaluated split.
        split: name of the split.
    """

    def __init__(self, trained: Trained, source: Samples, split: str) -> None:
        self._trained, self._source = trained, source
        self._stream = tempfile.TemporaryFile(dir=temporary_place())
        reader = SampleReader(trained.description, trained.signature, source, split, trained.evaluator.decode)
        self.results = SampleResults(reader, self._stream, trained.evaluator.losses)

    def write(self, folder: EvaluationFolder, title: str) -> None:
        """Writes all files into the folder of the evaluation.

        Args:
            folder: the folder.
            title: split and step, for captions.
        """
        self.results.finish()
        if not self.results.columns:
            return
        temporary = folder.path / f".tmp-{PREDICTIONS}"
        with HashedFile(temporary) as file:
            self.results.copy_to(file)
        os.replace(temporary, folder.path / PREDICTIONS)
        folder.note(PREDICTIONS)
        folder.write(self._worst(title))
        if self.results.confusion:
            names = list(self._trained.signature.class_names)
            page = render_confusion(self.results.confusion, self.results.listed, names, title)
            replace_file(folder.path / PAGE, page.encode("utf-8", "backslashreplace"))
            folder.note(PAGE)

    def close(self) -> None:
        """Removes the temporary file."""
        self._stream.close()

    def _worst(self, title: str) -> List[Artifact]:
        worst = self.results.worst
        table = Table(WORST, self.results.columns, [[cells[name] for name in self.results.columns] for cells in worst],
                      is_shown=False)  # fmt: skip
        if self._trained.description.dataset.sample_type != "images":
            return [table]
        return [table, Figure(WORST, lambda most: draw_worst(self._source, worst, title))]


def draw_worst(source: Samples, worst: List[Cells], title: str) -> object:
    """Draws the images with the largest losses, with two lines below each."""
    from mxtrain.task.sample_figure import draw_captioned, images_of
    from mxtrain.training.loaders import take

    sources = [take(source, [int(cells[SAMPLE])]) for cells in worst]
    images = [images_of(one)[0] for one in sources]  # type: ignore[arg-type]  # images are no pairs
    return draw_captioned(images, [captions_of(cells) for cells in worst], title)


def captions_of(cells: Cells) -> List[str]:
    """Returns two lines for an image: the true class, then prediction and loss; or its first two results."""
    loss = f"loss {cells[LOSS]:.3g}"
    if TRUE in cells:
        return [str(cells[TRUE]), f"{cells[PREDICTED]}, {loss}"]
    shown = [name for name in ("missed", "false_positives", "mean_iou", "mean_error") if name in cells]
    return [", ".join(f"{name.replace('_', ' ')} {np.round(cells[name], 3)}" for name in shown), loss]
