"""Loads a trained network from a checkpoint, for evaluation and prediction."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Mapping

from mxtrain.amp.spec import FULL
from mxtrain.checkpoint import Checkpoint
from mxtrain.checkpoint.average import weights_to_use
from mxtrain.config.groups import Description
from mxtrain.data.signature import Signature
from mxtrain.data.spec import samples_per_step
from mxtrain.errors import ConfigError
from mxtrain.model.lora import merge
from mxtrain.parallel.base import Strategy
from mxtrain.parallel.objective import Objective
from mxtrain.parallel.spec import Single
from mxtrain.runtime.memory import trim_memory
from mxtrain.training import snapshot
from mxtrain.training.evaluate import Evaluator
from mxtrain.training.network import build_network
from mxtrain.training.objective import build_evaluator

if TYPE_CHECKING:
    import numpy as np
    from mxnet import Context, gluon


@dataclass(frozen=True)
class Trained:
    """A network with a checkpoint's weights on a device."""

    evaluator: Evaluator
    strategy: Strategy
    description: Description
    signature: Signature
    device: Context


def load_trained(
    checkpoint: Checkpoint, description: Description, signature: Signature, fuse: bool = False, exported: bool = False
) -> Trained:
    """Loads the network of `description` with the weights that validation used.

    Args:
        checkpoint: checkpoint, written with any strategy and any number of devices.
        description: description of the run, possibly with another dataset or placement.
        signature: signature of the checkpoint.
        fuse: True to fuse operators, see `FusedInference`.
        exported: leave out the parts that `export` leaves out, such as class centres; see `TaskExport`.

    Raises:
        CheckpointError: the checkpoint does not fit the description.
        ConfigError: with `fuse`: the network is not in float32 on one CPU.
    """
    weights: Mapping[str, np.ndarray] = merge(weights_to_use(checkpoint), description.model.lora)
    description = replace(description, model=description.model.for_trained_weights())
    if exported:
        form = description.task.export_form()
        weights, description = form.exported_weights(weights), replace(description, task=form.exported_task())
    devices = description.parallel.resolve_devices()  # [replica][stage]
    device = devices[0][0]
    is_one_cpu = sum(map(len, devices)) == 1 and device.device_type == "cpu"
    if fuse and not (is_one_cpu and description.amp.dtype == FULL.dtype):
        raise ConfigError("fuse=true needs one CPU and float32. Type parallel=single parallel.devices=cpu:1 amp=off.")
    # learns=False allocates no gradients. With it, and with mapped checkpoints, `eval` of GPT-2 small needs 973 MiB
    # instead of 2,574 MiB.
    network = build_network(description, signature, device, learns=False)
    objective = Objective(
        network,
        None,  # type: ignore[arg-type]  # it only predicts
        None,  # type: ignore[arg-type]
        description.task.training_shapes(description, signature),
        samples_per_step(description.dataset),
        description.amp,
        predict_shape=signature.shape,
        state_shapes=description.model.state_shapes,
        global_batch_size=description.dataset.eval_batch_size,
        fuse=fuse,
    )
    strategy = description.parallel.build(objective, 1)
    snapshot.set_parameters(strategy, weights, str(checkpoint.path))
    trim_memory()  # initial values were drawn in arrays of their own, and files were read
    return Trained(build_evaluator(description, strategy, signature), strategy, description, signature, device)


def load_network(
    checkpoint: Checkpoint, description: Description, signature: Signature, exported: bool = False
) -> gluon.Block:
    """Loads only the network, in float32 on one device of the description's type, with the weights that validation
    used.

    Args:
        checkpoint, description, signature, exported: see `load_trained`.

    Raises:
        CheckpointError: the checkpoint does not fit the description.
    """
    device = description.parallel.resolve_devices()[0][0]
    alone = replace(description, parallel=Single(devices=f"{device.device_type}:1"), amp=FULL)
    return load_trained(checkpoint, alone, signature, exported=exported).strategy.gather()
