"""Tables, figures and pages about single samples of an evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Dict, List, Type

import numpy as np

from mxtrain.task.confusion_page import render_confusion
from mxtrain.task.sample_results import LOSS, PREDICTED, SAMPLE, TRUE, Cells, SampleResults
from mxtrain.types import Artifact, Figure, Table
from mxtrain.types.kinds import Images, SampleKind

if TYPE_CHECKING:
    from mxtrain.data.signature import Signature
    from mxtrain.data.spec import Source

    Take = Callable[[int], Source]
    """Function (index of a sample) -> a source with this sample alone."""

WORST, PAGE = "worst", "confusion.html"


def worst_samples(results: SampleResults, take: Take, sample: Type[SampleKind], title: str) -> List[Artifact]:
    """Returns the samples with the largest losses as a table, and for images also as a figure.

    Args:
        results: results of all samples.
        take: reads a sample of the split.
        sample: kind of the samples.
        title: title of the figure.
    """
    worst = results.worst
    rows = [[cells[name] for name in results.columns] for cells in worst]
    table = Table(WORST, results.columns, rows, is_shown=False)
    if not issubclass(sample, Images):
        return [table]
    return [table, Figure(WORST, lambda most: draw_worst(take, worst, title))]


def sample_pages(results: SampleResults, signature: Signature, title: str) -> Dict[str, str]:
    """Returns HTML pages by file name: the confusion matrix with its samples, if the task has classes."""
    if not results.confusion:
        return {}
    return {PAGE: render_confusion(results.confusion, results.listed, list(signature.class_names), title)}


def draw_worst(take: Take, worst: List[Cells], title: str) -> object:
    """Draws the images with the largest losses, with two lines below each."""
    from mxtrain.task.sample_figure import draw_captioned, images_of

    images = [images_of(take(int(cells[SAMPLE])))[0] for cells in worst]
    return draw_captioned(images, [captions_of(cells) for cells in worst], list(map(is_wrong, worst)), title)


def is_wrong(cells: Cells) -> bool:
    """Returns True if the predicted class is not the true one; numbers, boxes and masks are not right or wrong."""
    return isinstance(cells.get(TRUE), str) and cells[TRUE] != cells[PREDICTED]


def captions_of(cells: Cells) -> List[str]:
    """Returns two lines for an image: the true class, then prediction and loss; or its first two results."""
    loss = f"loss {cells[LOSS]:.3g}"
    if TRUE in cells:
        return [str(cells[TRUE]), f"{cells[PREDICTED]}, {loss}"]
    shown = [name for name in ("missed", "false_positives", "mean_iou", "mean_error") if name in cells]
    return [", ".join(f"{name.replace('_', ' ')} {np.round(cells[name], 3)}" for name in shown), loss]
