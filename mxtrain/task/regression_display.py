"""Rows, files, tables and figures of predicted numbers.

Legend: N samples, T targets, P numbers of a prediction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, Sequence

import numpy as np

from mxtrain.data.loading.samples import Source
from mxtrain.task.prediction_format import PredictionFormat
from mxtrain.types import Shapes, Table, shapes_of

if TYPE_CHECKING:
    from PIL import Image

    from mxtrain.types.annotations import Json, JsonObject


class RegressionFormat(PredictionFormat):
    """Rows and files of the predictions of `Regression`."""

    def cells(self, row: JsonObject) -> Dict[str, Json]:
        """Returns columns value, low, high, quantile_0.05 and so on; of several targets NAME, NAME_low, ..."""
        if "values" not in row:
            return flat_cells(dict(row), "value", "")
        cells = {name: value for name, value in row.items() if name != "values"}
        for name, numbers in row["values"].items():
            cells.update(flat_cells(numbers, name, f"{name}_"))
        return cells


def flat_cells(row: JsonObject, name: str, prefix: str) -> Dict[str, Json]:
    """Returns the columns of the numbers of a target.

    Args:
        row: the numbers; other keys stay.
        name: column of the value.
        prefix: beginning of the other columns.
    """
    cells: Dict[str, Json] = {}
    for key, value in row.items():
        if key == "quantiles":
            cells.update({f"{prefix}quantile_{level}": quantile for level, quantile in value.items()})
        else:
            cells[name if key == "value" else f"{prefix}{key}" if key in ("low", "high") else key] = value
    return cells


def shown_targets(
    names: Sequence[str],
    has_intervals: bool,
    samples: Sequence[str],
    predictions: Sequence[np.ndarray],
    targets: np.ndarray,
) -> Table:
    """Returns a table of samples with targets, predictions and intervals.

    Args:
        names: names of the targets; "" for the only one.
        has_intervals: True if predictions end with bounds.
        samples: name of each sample.
        predictions: predictions (T, P) of each sample.
        targets: targets of each sample.
    """
    header = ["sample"]
    for name in names:
        header += [name or "target", "predicted", *(["interval"] if has_intervals else [])]
    rows = []
    for sample, number_TP, target_T in zip(samples, predictions, targets):
        row = [sample]
        for number_P, target in zip(number_TP.tolist(), np.ravel(target_T).tolist()):
            row += [f"{target:.4g}", f"{number_P[0]:.4g}"]
            row += [f"{number_P[-2]:.4g} to {number_P[-1]:.4g}"] if has_intervals else []
        rows.append(row)
    return Table("samples", header, rows)


def is_image(shape: Shapes) -> bool:
    """Returns True if a sample with inputs of these shapes can be drawn as an image."""
    shapes = shapes_of(shape)
    return len(shapes) == 1 and len(shapes[0]) == 3 and shapes[0][0] in (1, 3)


def draw_numbers(
    source: Source, predictions: Sequence[np.ndarray], targets: np.ndarray, max_samples: int
) -> Image.Image:
    """Draws images, with the targets and the predictions under each.

    Args:
        source: the images.
        predictions: predicted values of each image, (T,).
        targets: targets of each image, (N,) or (N, T).
        max_samples: largest number of images to draw.
    """
    from mxtrain.task.sample_figure import draw_captioned, images_of

    captions = [
        [", ".join(f"{value:.4g}" for value in values.ravel().tolist()) for values in pair]
        for pair in zip(targets, predictions)
    ]
    images = list(images_of(source))[:max_samples]
    return draw_captioned(images, captions[:max_samples], [False] * len(images), "")
