"""Report of `eval` for tabular classification: metrics of the network and of baselines, and calibration.

Legend: N samples, T training rows, D bins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, Tuple, Union

import numpy as np

from mxtrain.data.features.feature_rows import FeatureRows
from mxtrain.data.features.signature import FeatureSignature
from mxtrain.errors import DataError
from mxtrain.metric.binary import (
    CalibrationCurve,
    ExpectedCalibrationError,
    average_precision,
    roc_auc,
    sigmoid,
)
from mxtrain.task.report import Report
from mxtrain.types import Artifact, Figure, Table

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray
    from PIL import Image

    from mxtrain.data.signature import Signature
    from mxtrain.description.groups import Description
    from mxtrain.tables.task import TabularClassification
    from mxtrain.types import Batch

HEADER = ("model", "ROC AUC", "PR AUC", "log loss", "ECE")
_ROWS_AT_ONCE = 65536


class TabularReport(Report):
    """Compares the network with two baselines, and draws its calibration curve.

    The baselines are scikit-learn's logistic regression (C=1), and the constant base rate of the training rows.

    Args:
        task: task, which decodes outputs.
        description: description of the run; its dataset has the training rows.
        signature: signature of the network.
        source: evaluated split.
    """

    def __init__(
        self, task: TabularClassification, description: Description, signature: Signature, source: FeatureRows
    ) -> None:
        self._task, self._description, self._signature, self._source = task, description, signature, source
        metrics = [metric for metric in description.metric.values() if isinstance(metric, ExpectedCalibrationError)]
        self._error = metrics[0] if metrics else ExpectedCalibrationError()
        self._found: List[Tuple[Any, NDArray, NDArray]] = []

    def update(self, batch: Batch, outputs: Tuple[NDArray, ...]) -> None:
        """See `Report`."""
        assert batch.index_B is not None
        self._found.append((batch.index_B, batch.targets[0], self._task.decode(outputs, batch)))

    def artifacts(self, title: str) -> List[Artifact]:
        """See `Report`."""
        index_N = np.concatenate([index for index, _, _ in self._found])
        order = np.argsort(index_N, kind="stable")
        index_N = index_N[order]
        target_N, score_N = (
            np.concatenate([part[k].asnumpy().astype(np.float64) for part in self._found])[order] for k in (1, 2)
        )
        curve = self._error.curve(sigmoid(score_N), target_N)
        rows = [self._row("this network", score_N, target_N), *self._baselines(index_N, target_N)]
        return [
            Table("models", HEADER, rows),
            Table("calibration", ("from", "to", "samples", "mean probability", "share that is positive"),
                  [[round(low, 4), round(high, 4), count, round(mean, 4), round(share, 4)]
                   for low, high, count, mean, share in zip(*(column.tolist() for column in curve))]),
            Figure("calibration_curve", lambda max_samples: draw_calibration(curve, title)),
        ]  # fmt: skip

    def _row(self, name: str, score_N: np.ndarray, target_N: np.ndarray) -> List[Union[str, float]]:
        # -log sigmoid(x) as log(1 + exp(-x)), which cannot overflow.
        loss = float(np.logaddexp(0.0, np.where(target_N > 0, -score_N, score_N)).mean())
        values = (
            roc_auc(score_N, target_N), average_precision(score_N, target_N), loss,
            self._error.of_samples(score_N, target_N),
        )  # fmt: skip
        return [name, *(round(value, 4) for value in values)]

    def _baselines(self, index_N: np.ndarray, target_N: np.ndarray) -> List[List[Union[str, float]]]:
        try:
            train: FeatureRows = self._description.dataset.open().train  # type: ignore[assignment]  # they are rows
        except DataError as error:
            return [[f"no baseline, for the training rows cannot be read: {error}", "", "", "", ""]]
        label_N = train.read_labels()
        share = float(label_N.mean())
        rate = float(np.clip(share, 1e-12, 1 - 1e-12))
        constant = np.full(len(target_N), np.log(rate / (1 - rate)))  # the logit, because metrics take scores
        rows = [self._row(f"base rate, {share:.4g}", constant, target_N)]
        max_rows = self._task.baseline_rows
        if max_rows and 0 < label_N[:max_rows].sum() < len(label_N[:max_rows]):
            note = "" if len(train) <= max_rows else f" of {max_rows:,} rows"
            score_N = self._logistic_regression(train.take(range(min(max_rows, len(train)))), index_N)
            rows.insert(0, self._row(f"logistic regression{note}", score_N, target_N))
        return rows

    def _logistic_regression(self, train: FeatureRows, index_N: np.ndarray) -> np.ndarray:
        """Fits a logistic regression on the same numbers and one-hot ids; returns scores of the measured samples."""
        from scipy.sparse import vstack
        from sklearn.linear_model import LogisticRegression

        encoder = train.build_encoder(FeatureSignature.cast(self._signature).columns)
        x_T, x_N = (
            vstack([encoder.design(source, index[begin : begin + _ROWS_AT_ONCE])
                    for begin in range(0, max(len(index), 1), _ROWS_AT_ONCE)])
            for source, index in ((train, np.arange(len(train))), (self._source, index_N))
        )  # fmt: skip
        fitted = LogisticRegression(C=1.0, max_iter=1000).fit(x_T, train.read_labels())
        return fitted.decision_function(x_N)


def draw_calibration(curve: CalibrationCurve, title: str) -> Image.Image:
    """Draws a reliability diagram: share of positive samples over predicted probability, and a histogram of samples."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL import Image

    figure = Figure(figsize=(4.5, 5.5), dpi=110, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    top, bottom = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [3, 1]})
    largest = max(float(curve.probability_D.max(initial=0)), float(curve.share_D.max(initial=0)), 1e-3)
    limit = 1.0 if largest > 0.5 else 1.1 * largest  # otherwise all points of rare events would be in a corner
    top.plot([0, limit], [0, limit], color="lightgrey", linewidth=1)
    top.plot(curve.probability_D, curve.share_D, marker="o", markersize=4)
    top.set(ylabel="share that is positive", title=title, xlim=(0, limit), ylim=(0, limit))
    width_D = np.maximum(curve.high_D - curve.low_D, 1e-6)
    bottom.bar(curve.low_D, curve.count_D, width=width_D, align="edge", edgecolor="white")
    bottom.set(xlabel="probability", ylabel="samples")
    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
