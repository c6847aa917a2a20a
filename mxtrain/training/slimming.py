"""Removes unused channels from a trained network, and writes the smaller network as a new run.

A channel is unused if all weights that read it are 0: the network computes the same without it. It does not matter how
the weights became 0.

A run never changes the shapes of its network: optimizer state, averages, cuts and descriptions would change within a
run. The smaller network is described by `model.widths`, so it can also be trained from scratch for comparison.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Dict, List, Mapping, Tuple

import numpy as np

from mxtrain.checkpoint import Checkpoint, Snapshot
from mxtrain.checkpoint.average import MODEL, SLIM, weights_to_use, with_choices, write_folder
from mxtrain.checkpoint.folder import CHECKPOINTS, discard, scan
from mxtrain.config.groups import Description
from mxtrain.data.loading.loader import Consumer
from mxtrain.data.signature import Signature
from mxtrain.engine.backend import nd
from mxtrain.errors import ConfigError
from mxtrain.model.graph.channels import find_channels
from mxtrain.model.graph.summary import summarize
from mxtrain.model.graph.trace import NotTraceable
from mxtrain.model.lora import merge
from mxtrain.task.threshold import choices_of
from mxtrain.training.loaders import build_loader
from mxtrain.training.trained import Trained, load_trained

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

    from mxtrain.data.spec import Samples

MAX_ERROR = 1e-4
"""Largest difference of an output, relative to its largest value, between the network before and after."""
BATCHES = (1, 32)
REPEATS = 30
MAX_TIMING_S = 5.0
"""After so many seconds, one measured pass is enough: each pass of a large network may take seconds."""


@dataclass(frozen=True)
class Size:
    """Size and speed of a network.

    Attributes:
        parameters: number of learned values.
        flops: floating-point operations for one sample; 0 if unknown.
        seconds: number of samples -> shortest time of a forward pass, in seconds.
    """

    parameters: int
    flops: int
    seconds: Mapping[int, float]


@dataclass(frozen=True)
class SlimReport:
    """Result of `mxtrain.workflows.slim.slim`.

    Attributes:
        folder: the new run directory.
        widths: `model.widths` of the smaller network.
        before, after: size of the network before and after.
        error: largest relative difference of the outputs.
        channels: layer with removed channels -> number of channels before and after.
    """

    folder: Path
    widths: Mapping[str, int]
    before: Size
    after: Size
    error: float
    channels: Mapping[str, Tuple[int, int]]


def remove_channels(
    checkpoint: Checkpoint, description: Description, signature: Signature, source: Samples, folder: Path
) -> SlimReport:
    """Writes the network of a checkpoint without its unused channels as a run directory.

    Args:
        checkpoint: checkpoint of a run.
        description: description of the run, placed on one device.
        signature: signature of the checkpoint.
        source: real samples, on which the two networks are compared.
        folder: run directory to write.

    Raises:
        ConfigError: there is no unused channel, or the smaller network computes something else.
        OSError: the folder could not be written.
    """
    full = load_trained(checkpoint, description, signature)
    arrays = merge(weights_to_use(checkpoint), description.model.lora)
    description = replace(description, model=description.model.for_trained_weights())
    try:
        shapes = description.task.training_shapes(description, signature)
        channels = find_channels(full.strategy.objective.network, shapes)
    except NotTraceable as error:
        raise ConfigError(f"slim: the network cannot be traced ({error}), so no channel can be removed.") from error
    smaller, changed = channels.without(arrays, channels.removable(arrays))
    if not changed:
        raise ConfigError(
            f"slim: {checkpoint.path}: every channel is read by a weight that is not 0, so none can be removed. Train "
            "with callback=prune_channels, and type which=last if the best checkpoint was written before its end."
        )
    widths = {**description.model.widths, **changed}
    slimmed = _write(checkpoint, smaller, widths, folder)
    model = description.model.model_copy(update={"widths": widths})
    small = load_trained(slimmed, replace(description, model=model), signature)
    inputs = _inputs(full, source)
    outputs = zip(full.strategy.predict(inputs), small.strategy.predict(inputs))
    difference = float(np.max([relative_error(*pair) for pair in outputs]))  # NaN if one of them is NaN
    if not difference <= MAX_ERROR:  # not `>`, because a NaN must fail, too
        discard(slimmed.path)
        raise ConfigError(
            f"slim: the smaller network gives other numbers (relative error {difference:.1e}) than {checkpoint.path}. "
            "It was removed again."
        )
    seconds = _times([full, small], inputs)
    before, after = (_size(one, signature, times) for one, times in zip((full, small), seconds))
    return SlimReport(
        folder,
        widths,
        before,
        after,
        difference,
        {name: (channels.widths[name], width) for name, width in changed.items()},
    )


def _write(
    checkpoint: Checkpoint, arrays: Mapping[str, np.ndarray], widths: Mapping[str, int], folder: Path
) -> Checkpoint:
    """Writes the smaller network as the only checkpoint of a run directory, and opens it."""
    from mxtrain.checkpoint import open_checkpoint

    run = dict(checkpoint.state["run"])
    description = dict(run["description"])
    without = {name: None for name in ("weights", "embeddings") if name in description["model"]}
    description["model"] = {**description["model"], "widths": dict(widths), **without, "lora": {}}
    description["callback"] = {}  # without actions such as pruning
    # Thresholds and margins that a validation has chosen stay valid, because the outputs are the same.
    state = with_choices(checkpoint.state, choices_of(checkpoint.state))
    state = {name: value for name, value in state.items() if name not in ("averaged_steps", "soup")}
    state.update({"run": {**run, "description": description}, SLIM: checkpoint.step})
    snapshot = Snapshot(
        step=checkpoint.step,
        epoch=checkpoint.epoch,
        arrays={MODEL: arrays},
        state=state,
        direction=checkpoint.direction,
        monitor=checkpoint.monitor,
        metric=checkpoint.metric,
    )
    path = folder / CHECKPOINTS / f"step-{checkpoint.step:08d}"
    write_folder(snapshot, path)
    for place in scan(path.parent):
        if place.path != path:  # a checkpoint of an earlier `slim` could be selected as the best one
            discard(place.path)
    return open_checkpoint(path)


def _inputs(trained: Trained, source: Samples) -> Tuple[NDArray, ...]:
    """Returns the network inputs of the first samples."""
    description = replace(
        trained.description, dataset=trained.description.dataset.model_copy(update={"eval_batch_size": max(BATCHES)})
    )
    loader = build_loader(description, source, trained.signature, trained.device, limit_batches=1, prefetch=0)
    with closing(loader.epoch(consumer=Consumer([trained.strategy]))) as batches:
        return next(batches).inputs


def relative_error(expected: NDArray, found: NDArray) -> float:
    """Returns the largest difference of two arrays relative to the largest absolute value of `expected`; infinity if
    their shapes differ."""
    one, other = expected.asnumpy(), found.asnumpy()
    if one.shape != other.shape:
        return float("inf")
    return float(np.abs(one - other).max() / max(np.abs(one).max(), 1e-12))


def _times(both: List[Trained], inputs: Tuple[NDArray, ...]) -> List[Dict[int, float]]:
    """Measures the fastest forward pass of both networks, by number of samples.

    The networks take turns, so that other load on the machine affects both alike.
    """
    found: List[Dict[int, List[float]]] = [{} for _ in both]
    for count in BATCHES:
        part = tuple(nd.concat(*([array] * -(-count // len(array))), dim=0)[:count] for array in inputs)
        began = time.perf_counter()
        for repeat in range(REPEATS + 2):
            takes_long = time.perf_counter() - began > MAX_TIMING_S
            if takes_long and count in found[0]:
                break
            is_warm = repeat >= (1 if takes_long else 2)  # the first passes build the graph
            for trained, times in zip(both, found):
                started = time.perf_counter()
                for output in trained.strategy.predict(part):
                    output.wait_to_read()
                if is_warm:
                    times.setdefault(count, []).append(time.perf_counter() - started)
    # The minimum, because other load on the machine can only add time.
    return [{count: min(one) for count, one in times.items()} for times in found]


def _size(trained: Trained, signature: Signature, seconds: Mapping[int, float]) -> Size:
    summary = summarize(trained.strategy.objective.network, signature.shape)
    return Size(summary.parameters, summary.flops or 0, seconds)
