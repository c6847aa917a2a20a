"""A field of your own: points on an arc of a circle go in, and the circle comes out. Samples, signature, dataset,
models, loss, metric and task are all here, and none of mxtrain's fields is used.

Legend: B batch, P points, U units.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Dict, List, Literal, Mapping, Optional, Sequence, Tuple, Type

import numpy as np

from mxtrain.data.loading.loader import BatchLoader, LoaderOptions
from mxtrain.data.loading.randomness import uniform_rows
from mxtrain.data.signature import REQUIRED, Signature
from mxtrain.data.spec import BaseDataset, Splits
from mxtrain.files.json_form import NUMBER
from mxtrain.loss.spec import Loss
from mxtrain.metric.spec import Metric
from mxtrain.model.spec import Model
from mxtrain.task import Task
from mxtrain.types import Batch, BatchSize, NamedInt, NonNegativeFloat, Positive
from mxtrain.types.kinds import Gives, SampleKind, Takes, TargetKind


class ArcPoints(SampleKind):
    """Points on a part of a circle (B, P, 2), and their numbers (B,)."""

    name: ClassVar[str] = "arcs"


class Circle(TargetKind):
    """Centre and radius, (B, 3)."""


class CircleDraw(NamedInt):
    """Random streams of this field, with other numbers than `mxtrain.data.loading.randomness.Draw` has."""

    CIRCLE = 30
    POINT = 31


class Arcs:
    """The samples of a split: points on half of a circle. Each is a function of its number and of the seed.

    Args:
        first: number of the first sample.
        count: of samples.
        dataset: says how many points there are, and how noisy they are.
    """

    def __init__(self, first: int, count: int, dataset: Circles) -> None:
        self._first, self._count, self._dataset = first, count, dataset

    def __len__(self) -> int:
        return self._count

    def read(self, index_B: np.ndarray) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Points (B, P, 2), the number of points (B,), and centres and radii (B, 3)."""
        number_B, seed, most = self._first + index_B, self._dataset.split_seed, self._dataset.most_points
        x_B, y_B, size_B, begin_B, share_B = uniform_rows(seed, 0, number_B, CircleDraw.CIRCLE, 5).T
        circle_B3 = np.stack([2 * x_B - 1, 2 * y_B - 1, 0.5 + size_B], axis=1)
        angle_BP, *noise_2BP = np.split(uniform_rows(seed, 0, number_B, CircleDraw.POINT, 3 * most), 3, axis=1)
        angle_BP = np.pi * (2 * begin_B[:, None] + angle_BP)
        direction_BP2 = np.stack([np.cos(angle_BP), np.sin(angle_BP)], axis=2)
        point_BP2 = circle_B3[:, None, :2] + circle_B3[:, None, 2:] * direction_BP2
        point_BP2 += self._dataset.noise * (2 * np.stack(noise_2BP, axis=2) - 1)
        count_B = 3 + (share_B * (most - 2)).astype(np.int64)
        return point_BP2.astype(np.float32), count_B.astype(np.float32), circle_B3.astype(np.float32)


class ArcLoader(BatchLoader):
    """Batches of arcs, whose coordinates are divided by the signature's scale."""

    def __init__(self, source: Arcs, signature: ArcSignature, options: LoaderOptions) -> None:
        super().__init__(len(source), options)
        self._source, self._scale = source, np.float32(signature.scale)

    def _read_share(self, share_B: np.ndarray, index_B: np.ndarray, epoch: int) -> Any:
        point_BP2, count_B, circle_B3 = self._source.read(share_B)
        return (point_BP2 / self._scale, count_B), (circle_B3,)


@dataclass(frozen=True)
class ArcSignature(Signature):
    """Arcs. A checkpoint holds the scale, so that the network is used as it was trained.

    Attributes:
        scale: standard deviation of the training points.
    """

    form: ClassVar[Dict[str, Any]] = {**Signature.form, "scale": NUMBER}
    known_names: ClassVar[Tuple[str, ...]] = ("most_points",)

    scale: float = REQUIRED

    def build_network(self, model: Model, num_classes: int, output_shapes: Sequence[Tuple[int, ...]]) -> Any:
        most_points = self.shape[0][0]  # type: ignore[index]  # of several inputs
        if isinstance(model, SetModel):
            return model.build_set(num_classes, most_points)
        return model.build_filled(num_classes, most_points=most_points)  # a function, such as `flat_network`

    def to_json(self) -> Dict[str, Any]:
        return {**super().to_json(), "scale": self.scale}


class Circles(BaseDataset):
    """Arcs of circles, which are made when they are read."""

    gives: ClassVar[Gives] = Gives(ArcPoints, Circle)
    signature_class: ClassVar[Type[Signature]] = ArcSignature

    batch_size: BatchSize = 32
    num_train: Positive = 1024
    """Samples to train on."""
    num_val: Positive = 256
    """Samples to validate with, and as many to test with."""
    most_points: Positive = 12
    """Points of a sample; it has at least 3."""
    noise: NonNegativeFloat = 0.02
    """The largest distance of a coordinate from the circle."""

    def open(self) -> Splits:
        ends = (0, self.num_train, self.num_train + self.num_val, self.num_train + 2 * self.num_val)
        train, val, test = (Arcs(begin, end - begin, self) for begin, end in zip(ends, ends[1:]))
        return Splits(train, val, test, class_names=[])

    def infer_signature(self, splits: Splits, model: Model) -> ArcSignature:
        assert isinstance(splits.train, Arcs)
        point_BP2 = splits.train.read(np.arange(len(splits.train)))[0]
        return ArcSignature(((self.most_points, 2), ()), scale=float(point_BP2.std()))

    def build_loader(  # type: ignore[override]  # of its own samples
        self, source: Arcs, signature: Signature, options: LoaderOptions
    ) -> BatchLoader:
        return ArcLoader(source, ArcSignature.cast(signature), options)


class SetModel(Model):
    """Base of networks for sets of points."""

    takes: ClassVar[Takes] = Takes(ArcPoints, Circle)

    def build_set(self, num_classes: int, most_points: int) -> Any:
        """The network, uninitialised: points (B, P, 2) and their numbers (B,) to (B, num_classes)."""
        raise NotImplementedError


class DeepSet(SetModel):
    """Dense layers on each point, their mean over the points, and dense layers on that.

    Source: Zaheer et al., "Deep Sets", https://arxiv.org/abs/1703.06114.
    """

    units: Positive = 64
    """Width of the layers."""

    def build_set(self, num_classes: int, most_points: int) -> Any:
        from mxnet import gluon
        from mxnet.gluon import nn

        class DeepSetNetwork(gluon.HybridBlock):
            def __init__(self, units: int) -> None:
                super().__init__()
                with self.name_scope():
                    self.points, self.output = nn.HybridSequential(), nn.HybridSequential()
                    for _ in range(2):
                        self.points.add(nn.Dense(units, activation="relu", flatten=False))
                    self.output.add(nn.Dense(units, activation="relu"), nn.Dense(num_classes))

            def hybrid_forward(self, F: Any, point_BP2: Any, count_B: Any) -> Any:
                hidden_PBU = F.swapaxes(self.points(point_BP2), 0, 1)
                hidden_PBU = F.SequenceMask(hidden_PBU, count_B, use_sequence_length=True)
                return self.output(F.broadcast_div(F.sum(hidden_PBU, axis=0), F.expand_dims(count_B, 1)))

        return DeepSetNetwork(self.units)


def flat_network(num_classes: int, most_points: int) -> Any:
    """A network that is no class of this field: it sees the first three points. Both arguments are filled in."""
    from mxnet import gluon
    from mxnet.gluon import nn

    assert most_points >= 3

    class FlatNetwork(gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            with self.name_scope():
                self.dense = nn.Dense(num_classes)

        def hybrid_forward(self, F: Any, point_BP2: Any, count_B: Any) -> Any:
            return F.broadcast_add(self.dense(F.slice_axis(point_BP2, 1, 0, 3)), 0 * F.expand_dims(count_B, 1))

    return FlatNetwork()


class CircleL1(Loss):
    """Mean absolute difference of centre and radius."""

    takes: ClassVar[Takes] = Takes(Circle)

    def build(self, num_classes: int, training: bool) -> Any:
        from mxnet import gluon

        return gluon.loss.L1Loss()


class RadiusError(Metric):
    """Mean absolute difference of radii."""

    direction: ClassVar[Literal["max", "min"]] = "min"
    takes: ClassVar[Takes] = Takes(Circle)

    def sums(self, F: Any, found_B3: Any, circle_B3: Any, num_classes: int) -> Any:
        return F.sum(F.abs(F.slice_axis(found_B3 - circle_B3, 1, 2, 3))).reshape((1,))


class CircleFitting(Task):
    """The centre and the radius of a circle, from points on a part of it."""

    name: ClassVar[str] = "circle_fitting"
    takes: ClassVar[Takes] = Takes(Circle)

    def num_classes(self, signature: Signature) -> int:
        return 3

    def output_names(self, signature: Signature) -> Sequence[str]:
        return ("x", "y", "radius")

    def output_shapes(self, description: Any, signature: Signature) -> List[Tuple[int, ...]]:
        return [(3,)]

    def decode(self, outputs: Tuple[Any, ...], batch: Batch) -> Any:
        return outputs[0]

    def row(self, signature: Signature, prediction: np.ndarray, top_k: Optional[int]) -> Mapping[str, Any]:
        return dict(zip(self.output_names(signature), np.round(prediction, 4).tolist()))
