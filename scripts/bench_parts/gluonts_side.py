"""Trains GluonTS's DeepAR on lines of JSON and measures its forecasts. Runs where gluonts[torch] is installed, without
mxtrain.

The estimator has GluonTS's defaults (2 LSTM layers of 40 units, Student's t, 100 paths), and the batches, the length
of the past and the learning rate of mxtrain's run. GluonTS reads windows in an order of its own.
"""

from __future__ import annotations

import json
import logging
import time
import warnings
from typing import Any, Dict

import numpy as np

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from gluonts.dataset.common import ListDataset
    from gluonts.evaluation import make_evaluation_predictions
    from gluonts.torch.model.deepar import DeepAREstimator
    from lightning import seed_everything

LEVELS = [level / 10 for level in range(1, 10)]
"""Levels of the quantiles, those of mxtrain's task.quantiles."""


def train(
    path: str, seed: int, epochs: int, batches: int, batch_size: int, horizon: int, context: int, lr: float
) -> Dict[str, Any]:
    """Returns the samples/s of training, and the mean weighted quantile loss of the last `horizon` values.

    Args:
        path: lines of JSON with start, target and one category.
        seed: of weights, windows and paths.
        epochs, batches: number of epochs, and of batches of each.
        batch_size: windows of a batch.
        horizon, context: steps that are predicted, and that the network sees before them.
        lr: learning rate.
    """
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    seed_everything(seed, verbose=False)
    with open(path, encoding="utf-8") as stream:
        lines = [json.loads(line) for line in stream]

    def series_without(count: int) -> Any:
        return ListDataset(
            [
                {
                    "start": line["start"],
                    "target": line["target"][: len(line["target"]) - count],
                    "feat_static_cat": line["cat"],
                }
                for line in lines
            ],
            freq="h",
        )

    estimator = DeepAREstimator(
        freq="h",
        prediction_length=horizon,
        context_length=context,
        lr=lr,
        batch_size=batch_size,
        num_batches_per_epoch=batches,
        num_feat_static_cat=1,
        cardinality=[len(lines)],
        trainer_kwargs={"max_epochs": epochs, "accelerator": "cpu", "enable_progress_bar": False, "logger": False},
    )
    start = time.perf_counter()
    # The last windows are for testing, those before them for validation, which GluonTS is not given.
    predictor = estimator.train(series_without(2 * horizon))
    seconds = time.perf_counter() - start
    forecasts, series = make_evaluation_predictions(series_without(0), predictor, num_samples=100)
    pairs = list(zip(forecasts, series))
    value_NH = np.stack([np.asarray(one).ravel()[-horizon:] for _, one in pairs])
    losses = []
    for level in LEVELS:
        quantile_NH = np.stack([forecast.quantile(level) for forecast, _ in pairs])
        error_NH = (value_NH - quantile_NH) * ((value_NH <= quantile_NH) - level)
        losses.append(2 * np.abs(error_NH).sum() / np.abs(value_NH).sum())
    return {"samples_per_s": epochs * batches * batch_size / seconds, "crps": float(np.mean(losses))}
