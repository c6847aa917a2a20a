"""Check of a user's own loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional, Sequence, Tuple

from mxtrain.errors import ConfigError
from mxtrain.loss.custom import CustomLoss, declared_outputs

if TYPE_CHECKING:
    from mxnet import gluon

    from mxtrain.config.parts import RunParts
    from mxtrain.types.annotations import LossBlock


def validate_loss_output(
    loss: gluon.Block,
    description: RunParts,
    shapes: Sequence[Tuple[int, ...]],
    target_shape: Optional[Tuple[int, ...]] = None,
) -> LossBlock:
    """Calls a user's own loss once, and returns it with the outputs that it declares. Returns other losses as is.

    Args:
        loss: block built from `description.loss`.
        description: description of the run.
        shapes: shapes of the network's outputs for one sample.
        target_shape: shape of the target of one sample; by default that of the first output without its last axis.

    Raises:
        ConfigError: the loss does not return one value for each sample.
    """
    if isinstance(description.loss, CustomLoss):
        target = None if target_shape is None else (2, *target_shape)
        # Two samples: with one, a loss that averages over the batch would have the right shape.
        loss.weighted = loss.zero_weight_is_error = description.loss.check(loss, (2, *shapes[0]), target, len(shapes))
        loss.parts = declared_outputs(loss)[1]
        taken = [name for name in loss.parts if name in description.metric]
        if taken:
            raise ConfigError(f"loss: its part '{taken[0]}' has the name of a metric. Choose another name.")
    return loss
