"""Tables, figures and pages about single samples of an evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, List

import numpy as np

from mxtrain.task.confusion_page import render_confusion
from mxtrain.task.sample_results import LOSS, PREDICTED, SAMPLE, TRUE, Cells, SampleResults
from mxtrain.types import Artifact, Figure, Table

if TYPE_CHECKING:
    from mxtrain.data.base import Samples
    from mxtrain.data.signature import Signature

WORST, PAGE = "worst", "confusion.html"


def worst_samples(results: SampleResults, source: Samples, sample_type: str, title: str) -> List[Artifact]:
    """Returns the samples with the largest losses as a table, and for images also as a figure.

    Args:
        results: results of all samples.
        source: evaluated split.
        sample_type: type of its samples, such as `images`.
        title: title of the figure.
    """
    worst = results.worst
    rows = [[cells[name] for name in results.columns] for cells in worst]
    table = Table(WORST, results.columns, rows, is_shown=False)
    if sample_type != "images":
        return [table]
    return [table, Figure(WORST, lambda most: draw_worst(source, worst, title))]


def sample_pages(results: SampleResults, signature: Signature, title: str) -> Dict[str, str]:
    """Returns HTML pages by file name: the confusion matrix with its samples, if the task has classes."""
    if not results.confusion:
        return {}
    return {PAGE: render_confusion(results.confusion, results.listed, list(signature.class_names), title)}


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
