"""Builds the objective of a run (network, loss and meter) and its evaluator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional, Tuple

from mxtrain.config.groups import Description
from mxtrain.data.sample_weights import has_weights
from mxtrain.data.spec import samples_per_step
from mxtrain.kvstore.world import ALONE, World
from mxtrain.loss.blocks import SampleWeightLoss
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
    """Builds the hybridized loss, and the meter that sums loss and metrics over batches."""
    task = description.task
    loss = task.build_loss(description, signature, training)
    spec = description.distillation
    num_teacher_arrays = 1 + len(spec.features) if spec.teacher is not None and training else 0
    if spec.teacher is not None:
        kind = "score" if task.distils == "scores" and task.num_classes(signature) == 1 else task.distils
        loss = spec.build_loss(loss, kind, len(task.output_shapes(description, signature)), training)
    if has_weights(description.dataset):
        loss = SampleWeightLoss(loss, num_teacher_arrays)
    block = hybridize(loss)  # type: ignore[arg-type]  # it is a block
    meter = task.build_meter(description, signature, LossWeights.from_loss(loss), training)
    if spec.teacher is not None:
        meter.drop_unread(len(spec.features), num_teacher_arrays)
    return block, meter


def build_objective(
    description: Description, network: gluon.Block, signature: Signature, world: World = ALONE
) -> Objective:
    """Builds the objective: network, loss and meter, which a strategy computes for a batch."""
    global_batch_size = samples_per_step(description.dataset)
    begin, end = world.share(global_batch_size)
    loss, meter = build_loss(description, signature, training=True)
    training_shapes = description.task.training_shapes(description, signature)
    return Objective(
        network,
        loss,
        meter,
        input_shape=training_shapes,
        batch_size=max(end - begin, 1),  # also without samples, stages are balanced for at least one
        precision=description.amp,
        predict_shape=None if training_shapes == signature.shape else signature.shape,
        state_shapes=description.model.state_shapes,
        global_batch_size=global_batch_size,
    )


def build_evaluator(
    description: Description, strategy: Strategy, signature: Signature, decode: Optional[Decode] = None
) -> Evaluator:
    """Builds the evaluator. Its loss is that of evaluations, without label smoothing and auxiliary outputs.

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
    return Evaluator(strategy, loss, meter, on_host, decode, has_weights(description.dataset))
