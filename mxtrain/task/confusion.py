"""Reports the confusion matrix as a table and an image, and per-class precision, recall and F1.

Legend: N samples, K classes.
"""

from __future__ import annotations

import math
from typing import List, Sequence, Union

import numpy as np
from PIL import Image

from mxtrain.task.figure_fonts import drawable, font_of
from mxtrain.types import Artifact, Figure, Table, TextLines

MAX_SHOWN_CLASSES = 40
# Beyond this many classes the numbers in the cells of the image could not be read.
MAX_NUMBERED_CLASSES = 20


def confusion_artifacts(
    label_N: np.ndarray, predicted_N: np.ndarray, class_names: Sequence[str], title: str
) -> List[Artifact]:
    """Returns the table of classes, the most frequent confusions, and the confusion matrix as a table and an image.

    Args:
        label_N: true classes.
        predicted_N: predicted classes.
        class_names: names of the K classes.
        title: title of the image.
    """
    confusion_KK = np.zeros((len(class_names),) * 2, int)
    np.add.at(confusion_KK, (label_N, predicted_N), 1)
    rows = [[name, *row] for name, row in zip(class_names, confusion_KK.tolist())]
    worst = worst_confusions(confusion_KK, class_names)
    class_rows = per_class(confusion_KK, class_names)
    return [
        Table("per_class", ["class", "samples", "precision", "recall", "f1"], class_rows),
        TextLines("confusions", [f"{count} x {true} taken for {predicted}" for true, predicted, count in worst]),
        Table("confusion", ["true \\ predicted", *class_names], rows, is_shown=False),
        Figure("confusion", lambda max_samples: draw_confusion(confusion_KK, class_names, title)),
    ]


def per_class(confusion_KK: np.ndarray, class_names: Sequence[str]) -> List[List[Union[str, int, float]]]:
    """Returns a row [class, samples, precision, recall, f1] for each class; recall and F1 are NaN if the class has no
    samples, and the precision of a class without predictions is 0.

    The values are those of scikit-learn's `precision_recall_fscore_support`, bit for bit.
    """
    # Not computed by scikit-learn: importing it takes 115 MiB and a second, at the peak of an evaluation.
    correct_K, samples_K, predicted_K = np.diag(confusion_KK), confusion_KK.sum(axis=1), confusion_KK.sum(axis=0)
    precision_K = correct_K / np.maximum(predicted_K, 1)
    recall_K = correct_K / np.maximum(samples_K, 1)
    f1_K = 2 * correct_K / np.maximum(samples_K + predicted_K, 1)
    return [
        [name, int(n), float(p), *((float(r), float(f)) if n else (math.nan, math.nan))]
        for name, n, p, r, f in zip(class_names, samples_K, precision_K, recall_K, f1_K)
    ]


def worst_confusions(
    confusion_KK: np.ndarray, class_names: Sequence[str], count: int = 5
) -> List[List[Union[str, int]]]:
    """Returns a row [true, predicted, count] for each of the most frequent confusions, the most frequent first."""
    wrong_KK = confusion_KK.copy()
    np.fill_diagonal(wrong_KK, 0)
    order = np.argsort(-wrong_KK, axis=None, kind="stable")[:count]
    pairs = [divmod(int(cell), len(class_names)) for cell in order]
    return [[class_names[t], class_names[p], int(wrong_KK[t, p])] for t, p in pairs if wrong_KK[t, p]]


def draw_confusion(confusion_KK: np.ndarray, class_names: Sequence[str], title: str) -> Image.Image:
    """Returns the matrix as an image, each row scaled to its own sum."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.font_manager import FontProperties

    size = len(class_names)
    figure = Figure(figsize=(min(max(4.5, 0.55 * size), 16),) * 2, dpi=110, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    share_KK = confusion_KK / np.maximum(confusion_KK.sum(axis=1, keepdims=True), 1)
    axes.imshow(share_KK, cmap="Blues", vmin=0, vmax=1)
    axes.set(xlabel="predicted", ylabel="true", title=title)
    if size <= MAX_SHOWN_CLASSES:
        # A dollar sign would begin a formula.
        tick_names = [name.replace("$", r"\$") for name in drawable(class_names)]
        axes.set_xticks(range(size), tick_names, rotation=90 if max(map(len, class_names)) > 3 else 0)
        axes.set_yticks(range(size), tick_names)
        for name, *labels in zip(class_names, axes.get_xticklabels(), axes.get_yticklabels()):
            for label in labels:
                if font_of(str(name)):
                    label.set_fontproperties(FontProperties(fname=font_of(str(name)), size=label.get_fontsize()))
    if size <= MAX_NUMBERED_CLASSES:
        for true, predicted in np.argwhere(confusion_KK):
            dark = share_KK[true, predicted] > 0.5
            axes.text(
                predicted,
                true,
                confusion_KK[true, predicted],
                ha="center",
                va="center",
                color="white" if dark else "black",
                fontsize=8,
            )
    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
