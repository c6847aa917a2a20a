"""Builds the objective of a run and what measures it: network, loss and meter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional, Tuple

from mxtrain.config.groups import Description
from mxtrain.data.spec import samples_per_step
from mxtrain.kvstore.world import ALONE, World
from mxtrain.metric.host import HostMetric
from mxtrain.metric.meter import LossWeights
from mxtrain.parallel.base import Strategy
from mxtrain.parallel.objective import Objective
from mxtrain.training.evaluate import Evaluator
from mxtrain.training.network import hybridize

if TYPE_CHECKING:
    from mxnet import gluon

    from mxtrain.data.signature import Signature
    from mxtrain.engine.predictions import Decode
    from mxtrain.metric.meter import Meter
    from mxtrain.types.annotations import LossBlock


def build_loss(description: Description, signature: Signature, training: bool) -> Tuple[LossBlock, Meter]:
    """Builds the loss, hybridized, and the meter that sums it and the metrics up."""
    task = description.task
    loss = task.build_loss(description, signature, training)
    spec = description.distillation
    if spec.teacher is not None:
        kind = "score" if task.distils == "scores" and task.num_classes(signature) == 1 else task.distils
        loss = spec.build_loss(loss, kind, len(task.output_shapes(description, signature)), training)
    block = hybridize(loss)  # type: ignore[arg-type]  # it is a block
    meter = task.build_meter(description, signature, LossWeights.from_loss(loss), training)
    if spec.teacher is not None:
        meter.drop_unread(len(spec.features), 1 + len(spec.features) if training else 0)
    return block, meter


def build_objective(
    description: Description, network: gluon.Block, signature: Signature, world: World = ALONE
) -> Objective:
    """Builds the objective: network, loss and meter, which a strategy computes for a batch."""
    begin, end = world.share(samples_per_step(description.dataset))
    loss, meter = build_loss(description, signature, training=True)
    shape, trained = signature.shape, description.task.training_shapes(description, signature)
    predicted = None if trained == shape else shape
    return Objective(
        network,
        loss,
        meter,
        trained,
        max(end - begin, 1),
        description.amp,
        predicted,
        description.model.state_shapes,
        samples_per_step(description.dataset),
    )


def build_evaluator(
    description: Description, strategy: Strategy, signature: Signature, decode: Optional[Decode] = None
) -> Evaluator:
    """Builds the evaluator, with the loss as it is outside of training: without smoothing and auxiliary outputs.

    Args:
        description: description of the run.
        strategy: strategy with the network.
        signature: signature of the network.
        decode: function (outputs, batch) -> predictions; None = that of the task.
    """
    loss, meter = build_loss(description, signature, training=False)
    metrics = description.task.metrics(description, signature)
    on_host = {name: metric for name, metric in metrics.items() if isinstance(metric, HostMetric)}
    decode = decode or description.task.build_decode(description, signature, strategy)
    return Evaluator(strategy, loss, meter, on_host, decode)
