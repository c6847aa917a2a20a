"""A field of its own: windows of a time series go in, and the values that follow come out.

Import MXNet inside of functions only, so that `--help` and checks of the configuration need not load it.

Legend: B batch, T past steps, H future steps, N samples, W waves.
"""

from __future__ import annotations

from typing import Any, ClassVar, List, Literal, Mapping, Sequence, Tuple

import numpy as np

from mxtrain.data.loading.loader import BatchLoader, LoaderOptions
from mxtrain.data.loading.randomness import uniform_rows
from mxtrain.data.signature import Signature
from mxtrain.data.spec import BaseDataset, Splits
from mxtrain.loss.losses import Loss
from mxtrain.metric.metrics import Metric
from mxtrain.model.spec import Model
from mxtrain.task import Task
from mxtrain.types import Batch, BatchSize, NamedInt, NonNegativeFloat, Positive
from mxtrain.types.kinds import Gives, SampleKind, Takes, TargetKind


class Window(SampleKind):
    """The last values of a series, (B, T)."""

    name: ClassVar[str] = "windows"


class Future(TargetKind):
    """The values that follow a window, (B, H)."""


class SeriesDraw(NamedInt):
    """Random streams of this field, with other numbers than `mxtrain.data.loading.randomness.Draw` has."""

    WAVE = 40
    NOISE = 41


class Series:
    """Samples of a split: sums of sine waves with noise. Each is a function of its number and of the seed.

    Args:
        first: number of the first sample.
        count: number of samples.
        dataset: their length and noise.
    """

    def __init__(self, first: int, count: int, dataset: Waves) -> None:
        self._first, self._count, self._dataset = first, count, dataset

    def __len__(self) -> int:
        return self._count

    def read(self, index_B: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
        """Returns windows (B, T) and the values that follow (B, H)."""
        dataset, number_B = self._dataset, self._first + index_B
        length, waves = dataset.past + dataset.future, dataset.waves
        draw_B3W = uniform_rows(dataset.split_seed, 0, number_B, SeriesDraw.WAVE, 3 * waves).reshape(-1, 3, waves)
        period_BW, phase_BW, size_BW = 4 + 28 * draw_B3W[:, 0], draw_B3W[:, 1], draw_B3W[:, 2]
        step_T = np.arange(length)
        angle_BWT = 2 * np.pi * (step_T / period_BW[:, :, None] + phase_BW[:, :, None])
        value_BT = (size_BW[:, :, None] * np.sin(angle_BWT)).sum(axis=1)
        noise_BT = uniform_rows(dataset.split_seed, 0, number_B, SeriesDraw.NOISE, length)
        value_BT = (value_BT + dataset.noise * (2 * noise_BT - 1)).astype(np.float32)
        return value_BT[:, : dataset.past], value_BT[:, dataset.past :]


class SeriesLoader(BatchLoader):
    """Batches of windows and of the values that follow them."""

    def __init__(self, source: Series, options: LoaderOptions) -> None:
        super().__init__(len(source), options)
        self._source = source

    def _read_share(self, share_B: np.ndarray, index_B: np.ndarray, epoch: int) -> Any:
        past_BT, future_BH = self._source.read(share_B)
        return (past_BT,), (future_BH,)


class Waves(BaseDataset):
    """Sums of sine waves with noise, which are computed when they are read."""

    gives: ClassVar[Gives] = Gives(Window, Future)

    batch_size: BatchSize = 32
    num_train: Positive = 1024
    """Samples to train on."""
    num_val: Positive = 256
    """Samples to validate with, and as many to test with."""
    past: Positive = 48
    """Steps that the network sees."""
    future: Positive = 8
    """Steps that it predicts."""
    waves: Positive = 2
    """Number of sine waves of a series."""
    noise: NonNegativeFloat = 0.05
    """Largest distance of a value from the sum of the waves."""

    def open(self) -> Splits:
        ends = (0, self.num_train, self.num_train + self.num_val, self.num_train + 2 * self.num_val)
        train, val, test = (Series(begin, end - begin, self) for begin, end in zip(ends, ends[1:]))
        # The names of the predicted values are kept in checkpoints, and say how many there are.
        return Splits(train, val, test, class_names=[f"t+{step}" for step in range(1, self.future + 1)])

    def infer_signature(self, splits: Splits, model: Model) -> Signature:
        return Signature(((self.past,),), class_names=splits.class_names)

    def build_loader(  # type: ignore[override]  # of its own samples
        self, source: Series, signature: Signature, options: LoaderOptions
    ) -> BatchLoader:
        return SeriesLoader(source, options)


class WindowMLP(Model):
    """Two dense layers on the whole window, added to its last value."""

    takes: ClassVar[Takes] = Takes(Window, Future)

    units: Positive = 64
    """Width of the hidden layer."""

    def build(self, num_classes: int, input_shape: Tuple[int, ...]) -> Any:
        from mxnet import gluon
        from mxnet.gluon import nn

        class WindowNetwork(gluon.HybridBlock):
            def __init__(self, units: int) -> None:
                super().__init__()
                with self.name_scope():
                    self.hidden, self.output = nn.Dense(units, activation="relu"), nn.Dense(num_classes)

            def hybrid_forward(self, F: Any, past_BT: Any) -> Any:
                last_B1 = F.slice_axis(past_BT, axis=1, begin=-1, end=None)
                return F.broadcast_add(self.output(self.hidden(past_BT)), last_B1)

        return WindowNetwork(self.units)


class ForecastL1(Loss):
    """Mean absolute difference of predicted and true values."""

    takes: ClassVar[Takes] = Takes(Future)

    def build(self, num_classes: int, training: bool) -> Any:
        from mxnet import gluon

        return gluon.loss.L1Loss()


class ForecastError(Metric):
    """Mean absolute difference of predicted and true values."""

    direction: ClassVar[Literal["max", "min"]] = "min"
    takes: ClassVar[Takes] = Takes(Future)

    def sums(self, F: Any, found_BH: Any, true_BH: Any, num_classes: int) -> Any:
        return F.sum(F.mean(F.abs(found_BH - true_BH), axis=1)).reshape((1,))


class Forecasting(Task):
    """Predicts the values that follow a window."""

    name: ClassVar[str] = "waves"
    takes: ClassVar[Takes] = Takes(Future)

    def num_classes(self, signature: Signature) -> int:
        return len(signature.class_names)

    def output_names(self, signature: Signature) -> Sequence[str]:
        return signature.class_names

    def output_shapes(self, description: Any, signature: Signature) -> List[Tuple[int, ...]]:
        return [(len(signature.class_names),)]

    def decode(self, outputs: Tuple[Any, ...], batch: Batch) -> Any:
        return outputs[0]

    def row(self, signature: Signature, prediction: np.ndarray, top_k: int) -> Mapping[str, Any]:
        return dict(zip(signature.class_names, np.round(prediction, 4).tolist()))
