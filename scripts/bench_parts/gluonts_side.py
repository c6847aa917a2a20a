"""Trains GluonTS's DeepAR on lines of JSON and measures its forecasts. Runs where gluonts[torch] is installed, without
mxtrain.

The estimator has GluonTS's defaults (2 LSTM layers of 40 units, Student's t, 100 paths), and the batches, the length
of the past and the learning rate of mxtrain's run. GluonTS reads windows in an order of its own.
"""

from __future__ import annotations

import json
import logging
import os
import time
import warnings
from typing import Any, Dict, List

import numpy as np
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from gluonts.dataset.common import ListDataset
    from gluonts.evaluation import make_evaluation_predictions
    from gluonts.torch.model.deepar import DeepAREstimator
    from lightning import Callback, seed_everything

LEVELS = [level / 10 for level in range(1, 10)]
"""Levels of the quantiles, those of mxtrain's task.quantiles."""


class Clock(Callback):  # type: ignore[misc]  # of a package without types
    """Notes the time at the end of each epoch."""

    def __init__(self) -> None:
        self.times: List[Any] = []

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        self.times.append((time.perf_counter(), time.process_time()))


def train(
    path: str, seed: int, epochs: int, batches: int, batch_size: int, horizon: int, context: int, lr: float
) -> Dict[str, Any]:
    """Returns the speed of training, without the first epoch if there are others, and the mean weighted quantile loss
    of the last `horizon` values.

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
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    seed_everything(seed, verbose=False)
    clock = Clock()
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
        trainer_kwargs={
            "max_epochs": epochs,
            "accelerator": "cpu",
            "enable_progress_bar": False,
            "logger": False,
            "callbacks": [clock],
        },
    )
    started = [(time.perf_counter(), time.process_time())]
    # The last windows are for testing, those before them for validation, which GluonTS is not given.
    predictor = estimator.train(series_without(2 * horizon))
    began, *_ = clock.times[:-1] or started
    wall_s, cpu_s = (after - before for before, after in zip(began, clock.times[-1]))
    work = max(epochs - 1, 1) * batches * batch_size
    forecasts, series = make_evaluation_predictions(series_without(0), predictor, num_samples=100)
    pairs = list(zip(forecasts, series))
    value_NH = np.stack([np.asarray(one).ravel()[-horizon:] for _, one in pairs])
    losses = []
    for level in LEVELS:
        quantile_NH = np.stack([forecast.quantile(level) for forecast, _ in pairs])
        error_NH = (value_NH - quantile_NH) * ((value_NH <= quantile_NH) - level)
        losses.append(2 * np.abs(error_NH).sum() / np.abs(value_NH).sum())
    return {"work_per_s": work / wall_s, "work_per_cpu_s": work / cpu_s, "crps": float(np.mean(losses))}
