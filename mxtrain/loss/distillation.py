"""Knowledge distillation: a network learns from the outputs of a trained teacher. Imports no MXNet at import time.

Legend: B batch, K classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, Literal, Optional, Sequence

import pydantic

from mxtrain.types import Fraction, NonNegativeFloat, PathText, PositiveFloat, Spec

if TYPE_CHECKING:
    from mxnet import gluon

    from mxtrain.types.annotations import LossBlock

USUAL_ALPHA = 0.1


class Distillation(Spec):
    """Settings of distillation. Without a teacher the loss is unchanged.

    With one it is alpha * own loss + (1 - alpha) * T^2 * KL(teacher || network), of class probabilities at temperature
    T. For outputs that are values, the squared difference replaces T^2 * KL.

    Source: Hinton et al., "Distilling the Knowledge in a Neural Network", https://arxiv.org/abs/1503.02531.
    """

    teacher: Optional[PathText] = None
    """Run directory or checkpoint of the teacher; null: no distillation."""
    which: Literal["best", "last"] = "best"
    """The checkpoint of a run to use: its last or its best one."""
    temperature: PositiveFloat = 4.0
    """Divisor of the logits of teacher and student before the softmax: above 1, probabilities of wrong classes weigh
    more."""
    alpha: Optional[Fraction] = None
    """Weight of the loss on labels; the distillation loss has weight 1 - alpha. null: 0.1, or 0 with labels=false."""
    labels: bool = True
    """false: labels are not used in training, so samples need no right ones; alpha is then 0."""
    features: Dict[str, str] = {}
    """Layers whose outputs are to be alike: a layer of the network -> a layer of the teacher, by structural name, e.g.
    {features.6: features.13}. Maps (B, C, H, W) are compared by where they are active, so channels may differ."""
    feature_weight: NonNegativeFloat = 1.0
    """Weight of each of the pairs in `features`. Source: Zagoruyko and Komodakis, https://arxiv.org/abs/1612.03928."""
    trust_code: bool = False
    """Allow importing and calling classes that only the teacher's checkpoint names."""

    @pydantic.model_validator(mode="after")
    def _check_used(self) -> Distillation:
        if not self.labels and self.alpha:
            raise ValueError("labels=false leaves the loss of the labels out. Leave alpha out, or type labels=true")
        return self

    def build_loss(self, task_loss: LossBlock, kind: str, num_outputs: int, training: bool) -> LossBlock:
        """Builds the loss of batches whose targets end with the outputs of the teacher.

        Args:
            task_loss: the task's loss.
            kind: kind of the outputs, "scores", "score" or "values"; see `distillation_blocks`.
            num_outputs: number of outputs that the task's loss reads; the features follow them.
            training: if False, the loss is the task's own.
        """
        from mxtrain.loss.distillation_blocks import DistillationLoss, OutputsOnly

        if not training:
            return OutputsOnly(task_loss, num_outputs, len(self.features)) if self.features else task_loss
        alpha = 0.0 if not self.labels else USUAL_ALPHA if self.alpha is None else self.alpha
        return DistillationLoss(
            task_loss, kind, num_outputs, len(self.features), alpha, self.temperature, self.feature_weight
        )


def expose_layers(network: gluon.Block, layers: Sequence[str], setting: str) -> None:
    """Makes a network return the outputs of some layers after its own outputs. Changes the network in place.

    Args:
        network: a HybridBlock.
        layers: structural names of the layers.
        setting: setting that names the layers, for messages.

    Raises:
        ConfigError: there is no such layer, or the network is no HybridBlock. Calling the network raises it if the
            network does not call one of the layers.
    """
    from mxtrain.engine.backend import gluon
    from mxtrain.errors import ConfigError, did_you_mean
    from mxtrain.model.graph.trace import blocks_by_path

    if not isinstance(network, gluon.HybridBlock):
        raise ConfigError(f"{setting}: {type(network).__name__} is no HybridBlock, so its layers cannot be read.")
    blocks = {path: block for path, block in blocks_by_path(network) if path}
    for path in layers:
        if path not in blocks:
            raise ConfigError(
                f"{setting}: the network has no layer '{path}'.{did_you_mean(path, blocks)} Layers are called as in "
                "the table that a run prints."
            )
    original = network.hybrid_forward

    def hybrid_forward(F, *inputs, **parameters):
        layer_outputs: Dict[str, Any] = {}

        def keep(path: str) -> Callable[..., None]:
            return lambda block, args, output: layer_outputs.update({path: output})

        # Hooks exist only during the call: Gluon warns if a block with hooks is hybridized.
        hooks = [blocks[path].register_forward_hook(keep(path)) for path in layers]
        try:
            outputs = original(F, *inputs, **parameters)
        finally:
            for hook in hooks:
                hook.detach()
        outputs = outputs if isinstance(outputs, (list, tuple)) else (outputs,)
        missing = [path for path in layers if path not in layer_outputs]
        if missing:
            raise ConfigError(f"{setting}: the network does not call its layer '{missing[0]}'.")
        return (*outputs, *(layer_outputs[path] for path in layers))

    # Not a wrapper block, which would change the structural names of the parameters. object.__setattr__ skips Gluon's
    # own __setattr__; the cached graph of the old forward must be dropped.
    object.__setattr__(network, "hybrid_forward", hybrid_forward)
    network._clear_cached_op()
