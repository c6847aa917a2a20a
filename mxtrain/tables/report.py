"""Report of `eval` for tabular classification: metrics of the network and of baselines, and calibration.

Legend: N samples, T training rows, D bins, K classes (1 column for two).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, Optional, Tuple, Union

import numpy as np

from mxtrain.data.features.feature_rows import FeatureRows
from mxtrain.data.features.signature import FeatureSignature
from mxtrain.data.sample_weights import has_weights
from mxtrain.data.spec import open_splits
from mxtrain.errors import DataError
from mxtrain.metric.binary import (
    AveragePrecision,
    CalibrationCurve,
    ExpectedCalibrationError,
    RocAuc,
    confidence,
    log_odds,
)
from mxtrain.task.confusion import confusion_artifacts
from mxtrain.task.multi_label_report import curve_artifacts
from mxtrain.task.report import Report
from mxtrain.types import Artifact, Figure, Table

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray
    from PIL import Image

    from mxtrain.config.parts import RunParts
    from mxtrain.data.signature import Signature
    from mxtrain.tables.task import TabularClassification
    from mxtrain.types import Batch

HEADER = ("model", "ROC AUC", "PR AUC", "log loss", "ECE")
_ROWS_AT_ONCE = 65536


class TabularReport(Report):
    """Compares the network with two baselines, and draws its calibration curve.

    The baselines are scikit-learn's logistic regression (C=1), and the constant base rates of the training rows.

    Args:
        task: task, which decodes outputs.
        description: description of the run; its dataset has the training rows.
        signature: signature of the network.
        source: evaluated split.
    """

    def __init__(
        self, task: TabularClassification, description: RunParts, signature: Signature, source: FeatureRows
    ) -> None:
        self._task, self._description, self._signature, self._source = task, description, signature, source
        metrics = [metric for metric in description.metric.values() if isinstance(metric, ExpectedCalibrationError)]
        self._error = metrics[0] if metrics else ExpectedCalibrationError()
        self._weighted = has_weights(description.dataset)
        self._found: List[Tuple[Any, ...]] = []

    def update(self, batch: Batch, outputs: Tuple[NDArray, ...]) -> None:
        """See `Report`."""
        assert batch.index_B is not None
        self._found.append((batch.index_B, batch.targets[0], self._task.decode(outputs, batch), batch.targets[-1]))

    def artifacts(self, title: str) -> List[Artifact]:
        """See `Report`."""
        index_N = np.concatenate([part[0] for part in self._found])
        order = np.argsort(index_N, kind="stable")
        index_N = index_N[order]
        label_N, score_N, weight_N = (
            np.concatenate([part[k].asnumpy() for part in self._found])[order] for k in (1, 2, 3)
        )
        weight_N = weight_N.astype(np.float64) if self._weighted else np.ones(len(label_N))
        # Rows of weight 0 do not count, and metrics expect positive weights.
        counted_N = weight_N > 0
        index_N, label_N, score_N, weight_N = (array_N[counted_N] for array_N in (index_N, label_N, score_N, weight_N))
        label_N, names = label_N.astype(int), self._signature.class_names
        # Scores and not probabilities: in 32 bits the sigmoid of everything above 17 is 1, and ties change the AUC.
        score_NK, target_NK = as_columns(score_N.astype(np.float64), label_N)
        weights = weight_N if self._weighted else None
        curve = self._error.curve(*confidence(score_NK, target_NK), weights)
        rows = [self._row("this network", score_NK, target_NK, weights), *self._baselines(index_N, target_NK, weights)]
        several = len(names) > 2
        predicted_N = score_NK.argmax(axis=1)
        share = "share that is right" if several else "share that is positive"
        return [
            Table("models", HEADER, rows),
            *(
                confusion_artifacts(label_N, predicted_N, names, title)
                if several
                else curve_artifacts(score_NK[:, 0], label_N, title, weights)
            ),
            Table(
                "calibration",
                ("from", "to", "samples", "mean probability", share),
                [
                    [round(low, 4), round(high, 4), count, round(mean, 4), round(part, 4)]
                    for low, high, count, mean, part in zip(*(column.tolist() for column in curve))
                ],
            ),
            Figure("calibration_curve", lambda max_samples: draw_calibration(curve, title, share)),
        ]

    def _row(
        self, name: str, score_NK: np.ndarray, target_NK: np.ndarray, weight_N: Optional[np.ndarray]
    ) -> List[Union[str, float]]:
        # -log p as log(1 + exp(-odds)), which cannot overflow.
        if score_NK.shape[1] == 1:
            odds_N = np.where(target_NK[:, 0] > 0, score_NK[:, 0], -score_NK[:, 0])
        else:
            odds_N = log_odds(score_NK)[np.arange(len(score_NK)), target_NK.argmax(axis=1)]
        values = (
            RocAuc().of_classes(score_NK, target_NK, weight_N),
            AveragePrecision().of_classes(score_NK, target_NK, weight_N),
            float(np.average(np.logaddexp(0.0, -odds_N), weights=weight_N)),
            self._error.of_classes(score_NK, target_NK, weight_N),
        )
        return [name, *(round(value, 4) for value in values)]

    def _baselines(
        self, index_N: np.ndarray, target_NK: np.ndarray, weight_N: Optional[np.ndarray]
    ) -> List[List[Union[str, float]]]:
        try:
            train: FeatureRows = open_splits(self._description.dataset).train  # type: ignore[assignment]  # they are rows
        except DataError as error:
            return [[f"no baseline, for the training rows cannot be read: {error}", "", "", "", ""]]
        label_N = train.read_labels()
        weight_T = train.weights(np.arange(len(train))) if self._weighted else np.ones(len(train))
        names = self._signature.class_names
        # Scores of a constant prediction, because metrics take scores: its logit, or the logarithms of the shares.
        share_K = np.clip(np.bincount(label_N, weight_T, len(names)) / weight_T.sum(), 1e-12, 1 - 1e-12)
        constant = np.log(share_K[1:]) - np.log(share_K[:1]) if len(names) == 2 else np.log(share_K)
        base_rate = f"base rate, {np.average(label_N, weights=weight_T):.4g}" if len(names) == 2 else "base rates"
        rows = [self._row(base_rate, np.tile(constant, (len(target_NK), 1)), target_NK, weight_N)]
        max_rows = self._task.baseline_rows
        if max_rows and len(np.unique(label_N[:max_rows][weight_T[:max_rows] > 0])) == len(names):
            note = "" if len(train) <= max_rows else f" of {max_rows:,} rows"
            score_N = self._logistic_regression(train.take(range(min(max_rows, len(train)))), index_N)
            rows.insert(
                0, self._row(f"logistic regression{note}", score_N.reshape(target_NK.shape), target_NK, weight_N)
            )
        return rows

    def _logistic_regression(self, train: FeatureRows, index_N: np.ndarray) -> np.ndarray:
        """Fits a logistic regression on the same numbers and one-hot ids; returns scores of the measured samples."""
        from scipy.sparse import vstack
        from sklearn.linear_model import LogisticRegression

        encoder = train.build_encoder(FeatureSignature.cast(self._signature).columns)
        x_T, x_N = (
            vstack(
                [
                    encoder.design(source, index[begin : begin + _ROWS_AT_ONCE])
                    for begin in range(0, max(len(index), 1), _ROWS_AT_ONCE)
                ]
            )
            for source, index in ((train, np.arange(len(train))), (self._source, index_N))
        )
        weight_T = train.weights(np.arange(len(train))) if self._weighted else None
        fitted = LogisticRegression(C=1.0, max_iter=1000).fit(x_T, train.read_labels(), sample_weight=weight_T)
        return fitted.decision_function(x_N)


def as_columns(score_N: np.ndarray, label_N: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """Returns scores and targets 0 or 1 in the form of `ClassScores.by_class`, from scores (N,) or (N, K)."""
    if score_N.ndim == 1:
        return score_N[:, None], label_N[:, None].astype(np.float64)
    return score_N, (np.arange(score_N.shape[1]) == label_N[:, None]).astype(np.float64)


def draw_calibration(curve: CalibrationCurve, title: str, share: str) -> Image.Image:
    """Draws a reliability diagram: share of positive or right samples over predicted probability, and a histogram of
    samples.

    Args:
        curve: calibration curve.
        title: title of the figure.
        share: label of the share.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL import Image

    # Without pyplot, which keeps all figures and looks for a screen.
    figure = Figure(figsize=(4.5, 5.5), dpi=110, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    top, bottom = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [3, 1]})
    largest = max(float(curve.probability_D.max(initial=0)), float(curve.share_D.max(initial=0)), 1e-3)
    limit = 1.0 if largest > 0.5 else 1.1 * largest  # otherwise all points of rare events would be in a corner
    top.plot([0, limit], [0, limit], color="lightgrey", linewidth=1)
    top.plot(curve.probability_D, curve.share_D, marker="o", markersize=4)
    top.set(ylabel=share, title=title, xlim=(0, limit), ylim=(0, limit))
    width_D = np.maximum(curve.high_D - curve.low_D, 1e-6)
    bottom.bar(curve.low_D, curve.count_D, width=width_D, align="edge", edgecolor="white")
    bottom.set(xlabel="probability", ylabel="samples")
    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
