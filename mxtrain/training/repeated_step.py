"""Repeats a step of a run on one device: forward pass, loss and gradients, with statistics per layer.

The same repetition names the layer and writes the bundle, so a healthy run has no cost.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Dict, List, Mapping, Sequence

import numpy as np

from mxtrain.amp.spec import FULL
from mxtrain.checkpoint import Checkpoint
from mxtrain.config.groups import Description
from mxtrain.data.signature import Signature
from mxtrain.data.spec import open_splits
from mxtrain.engine.backend import autograd, mx, nd
from mxtrain.errors import CheckpointError, ConfigError, DataError
from mxtrain.kvstore.world import ALONE, World
from mxtrain.model.parameters import distinct_parameters
from mxtrain.parallel.stage import as_list
from mxtrain.training.batch_size import with_fixed_batch_size
from mxtrain.training.loaders import build_data
from mxtrain.training.network import build_network
from mxtrain.training.nonfinite import LayerStatistics, layer_statistics, statistics_of
from mxtrain.training.objective import build_objective
from mxtrain.training.replay_bundle import ReplayBundle, StepReference
from mxtrain.training.step import seed_of_step
from mxtrain.training.teacher import teachers_of
from mxtrain.types import Batch

if TYPE_CHECKING:
    from mxtrain.types.annotations import Json, JsonObject


@dataclass(frozen=True)
class RepeatedStep:
    """The result of a repeated step.

    Attributes:
        layers: statistics of the outputs of each layer, in the order of computation.
        gradients: statistics of gradients with non-finite values.
        loss: sum(loss) / sum(weight) of the batch.
        verdict: what became non-finite first, in a clause.
        remarks: how the repeated step differs from that of the run.
    """

    layers: List[LayerStatistics]
    gradients: List[LayerStatistics]
    loss: float
    verdict: str
    remarks: List[str]

    def to_json(self) -> Dict[str, Json]:
        """Returns the result as JSON values."""
        return asdict(self)


def repeat_step(
    bundle: ReplayBundle, description: Description, signature: Signature, weights: Mapping[str, np.ndarray]
) -> RepeatedStep:
    """Repeats the step of a bundle.

    Args:
        bundle: the step.
        description: description of the run, on one device.
        signature: signature of the network.
        weights: structural name -> weight.

    Raises:
        ConfigError: the batch does not fit the network.
        CheckpointError: the weights do not fit it.
    """
    remarks = []
    if description.amp.dtype != FULL.dtype:
        remarks.append(f"the run computed in {description.amp.dtype}, and this step in {FULL.dtype}")
    model = description.model.for_resumed_weights().model_copy(update={"weights": None})
    description = replace(description, model=model, amp=FULL)
    ((device, *_), *_) = description.parallel.resolve_devices()
    network = build_network(description, signature, device)
    objective = build_objective(description, network, signature)
    set_weights(distinct_parameters(network), weights, str(bundle.path))
    facts = bundle.facts
    inputs = [nd.array(array, ctx=device, dtype=array.dtype) for array in bundle.inputs]
    targets = [nd.array(array, ctx=device, dtype=array.dtype) for array in bundle.targets]
    # A network that carries state begins with zeros: the state of the run is not kept.
    states = [nd.zeros((facts["samples"], *shape), ctx=device) for shape in objective.state_shapes]
    if states:
        remarks.append("the state that the network carries from batch to batch is 0")
    # Random numbers, such as those of dropout, depend on seed, step and rank only, so they are those of the run.
    mx.random.seed(seed_of_step(description.trainer.seed, facts["step"], facts["rank"]))
    try:
        with autograd.record():
            layers, outputs = layer_statistics(network, [*inputs, *states])
            outputs = outputs[: len(outputs) - len(states)]
            losses = as_list(objective.loss(*outputs, *targets))
            total = losses[0].sum()
        total.backward()
        gradients = gradient_statistics(network)
    except mx.base.MXNetError as error:
        raise ConfigError(f"{bundle.path}: the batch does not fit the network: {str(error).splitlines()[-1]}") from None
    weight = losses[1].sum().asscalar() if objective.meter.weighted else facts["samples"]
    loss = float(total.asscalar()) / max(float(weight), 1e-12)
    return RepeatedStep(layers, gradients, loss, verdict_of(bundle.inputs, layers, loss, gradients), remarks)


def batch_of_step(
    checkpoint: Checkpoint, description: Description, signature: Signature, step: int, world: World = ALONE
) -> Batch:
    """Reads the training batch of a step that comes after a checkpoint.

    Args:
        checkpoint: says how far the run was.
        description: description of the run, on one device.
        signature: signature of the network.
        step: number of the step.
        world: the worker whose share is read.

    Raises:
        ConfigError: samples depend on the weights.
        DataError, LoaderError: the data cannot be read.
    """
    ((device, *_), *_) = description.parallel.resolve_devices()
    # As batch_size=auto was fixed when the run began.
    description = with_fixed_batch_size(description, checkpoint.state["run"]["batch_size"])
    splits = open_splits(description.dataset)
    teacher = teachers_of(description, signature, device).get("distillation")
    loader = build_data(description, splits, signature, device, world, teacher).train
    if loader.states:
        raise ConfigError(
            f"{checkpoint.path}: the samples of the run depend on its weights, so the batch of step {step} cannot be "
            "read again."
        )
    train = checkpoint.state["train"]
    epoch, number = divmod(train["epoch"] * len(loader) + train["epoch_step"] + step - 1 - checkpoint.step, len(loader))
    with closing(loader.epoch(epoch, number)) as batches:
        for batch in batches:
            return batch
    raise DataError(f"there is no batch of step {step}.")


def read_step_again(
    reference: StepReference, checkpoint: Checkpoint, description: Description, signature: Signature
) -> ReplayBundle:
    """Reads the batch of a step, and returns it as a bundle whose weights are in the checkpoint.

    Raises:
        ConfigError: samples depend on the weights, or the worker has no sample in this batch.
        DataError, LoaderError: the data cannot be read.
    """
    world = World(reference.rank, reference.workers)
    batch = batch_of_step(checkpoint, description, signature, reference.step, world)
    if not batch.size:
        raise ConfigError(f"worker {reference.rank} had no sample in step {reference.step}.")
    inputs, targets = ([array.asnumpy() for array in arrays] for arrays in (batch.inputs, batch.targets))
    facts: JsonObject = {
        "step": reference.step,
        "rank": reference.rank,
        "workers": reference.workers,
        "reason": reference.reason,
        "samples": batch.size,
        "batch_size": batch.size,
    }
    return ReplayBundle(checkpoint.path, facts, inputs, targets, {})


def set_weights(parameters: Mapping[str, object], weights: Mapping[str, np.ndarray], source: str) -> None:
    """Writes weights into a network. Raises: CheckpointError: names or shapes differ."""
    shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}  # type: ignore[attr-defined]
    stored = {name: tuple(array.shape) for name, array in weights.items()}
    wrong = [name for name in sorted({*shapes, *stored}) if shapes.get(name) != stored.get(name)]
    if wrong:
        raise CheckpointError(f"{source} is of another network: '{wrong[0]}' is {stored.get(wrong[0], 'missing')}.")
    for name, parameter in parameters.items():
        parameter.set_data(nd.array(weights[name], dtype=weights[name].dtype))  # type: ignore[attr-defined]


def gradient_statistics(network: object) -> List[LayerStatistics]:
    """Returns the statistics of the gradients that have non-finite values."""
    statistics = []
    for name, parameter in distinct_parameters(network).items():  # type: ignore[arg-type]
        if parameter.grad_req == "null":
            continue
        one = statistics_of(name, "", [parameter.grad().tostype("default")])
        if one.nonfinite:
            statistics.append(one)
    return statistics


def verdict_of(
    inputs: Sequence[np.ndarray], layers: Sequence[LayerStatistics], loss: float, gradients: Sequence[LayerStatistics]
) -> str:
    """Returns what became non-finite first, in a clause."""
    if not all(np.isfinite(array).all() for array in inputs):
        return "the input batch itself is non-finite"
    bad = next((one for one in layers if one.nonfinite), None)
    if bad is not None:
        return f"the first layer with a non-finite output is '{bad.name}' ({bad.kind})"
    if not np.isfinite(loss):
        return "every layer's output is finite: the loss function overflowed"
    if gradients:
        return f"outputs and loss are finite; gradients are not, e.g. that of '{gradients[0].name}'"
    return "outputs, loss and gradients are finite"
