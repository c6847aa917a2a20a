"""Distillation: a network learns from the outputs of a trained one, its teacher. Imports no MXNet until called.

Legend: B batch, K classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, Literal, Optional, Sequence

import pydantic

from mxtrain.types import Fraction, NonNegativeFloat, PathText, PositiveFloat, Spec

if TYPE_CHECKING:
    from mxnet import gluon

    from mxtrain.annotations import LossBlock

USUAL_ALPHA = 0.1


class Distillation(Spec):
    """The loss becomes alpha * own loss + (1 - alpha) * T^2 * KL(teacher, network) of class probabilities at
    temperature T, or of numbers the squared difference instead of the divergence. Without a teacher nothing changes.

    Source: Hinton et al., "Distilling the Knowledge in a Neural Network", https://arxiv.org/abs/1503.02531.
    """

    teacher: Optional[PathText] = None
    """Run directory or checkpoint of the teacher; null: no distillation."""
    which: Literal["best", "last"] = "best"
    """The checkpoint of a run to use: its last or its best one."""
    temperature: PositiveFloat = 4.0
    """Both sides' scores are divided by it before the softmax: above 1 it shows which wrong classes are alike."""
    alpha: Optional[Fraction] = None
    """Weight of the loss of the labels; 1 - alpha that of the teacher. null: 0.1, and 0 with labels=false."""
    labels: bool = True
    """false: labels are not used in training, so samples need no right ones; alpha is then 0."""
    features: Dict[str, str] = {}
    """Layers whose outputs are to be alike: a layer of the network -> a layer of the teacher, by structural name, e.g.
    {features.6: features.13}. Maps (B, C, H, W) are compared by where they are active, so channels may differ."""
    feature_weight: NonNegativeFloat = 1.0
    """Weight of each of the pairs in `features`. Source: Zagoruyko and Komodakis, https://arxiv.org/abs/1612.03928."""
    trust_code: bool = False
    """Whether classes that only the teacher's checkpoint names may be imported and called."""

    @pydantic.model_validator(mode="after")
    def _check_used(self) -> Distillation:
        if not self.labels and self.alpha:
            raise ValueError("labels=false leaves the loss of the labels out. Leave alpha out, or type labels=true")
        return self

    def build_loss(self, own: LossBlock, kind: str, num_outputs: int, training: bool) -> LossBlock:
        """The loss of a batch whose targets end with what the teacher says of it.

        Args:
            own: the task's loss.
            kind: of the outputs, see `Task.distils`.
            num_outputs: outputs of the network that the task's loss takes; the features follow them.
            training: otherwise the loss is the task's own.
        """
        from mxtrain.loss.distillation_blocks import DistillationLoss, OutputsOnly

        if not training:
            return OutputsOnly(own, num_outputs, len(self.features)) if self.features else own
        alpha = 0.0 if not self.labels else USUAL_ALPHA if self.alpha is None else self.alpha
        return DistillationLoss(own, kind, num_outputs, len(self.features), alpha, self.temperature,
                                self.feature_weight)  # fmt: skip


def expose_layers(network: gluon.Block, layers: Sequence[str], setting: str) -> None:
    """Lets a network return the outputs of some of its layers after its own.

    Args:
        network: a HybridBlock; changed.
        layers: structural names.
        setting: that names them, for messages.

    Raises:
        ConfigError: there is no such layer, or the network cannot be traced.
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
        found: Dict[str, Any] = {}

        def keep(path: str) -> Callable[..., None]:
            return lambda block, given, output: found.update({path: output})

        # Only now: Gluon warns of blocks that have hooks when they are hybridized.
        hooks = [blocks[path].register_forward_hook(keep(path)) for path in layers]
        try:
            outputs = original(F, *inputs, **parameters)
        finally:
            for hook in hooks:
                hook.detach()
        outputs = outputs if isinstance(outputs, (list, tuple)) else (outputs,)
        missing = [path for path in layers if path not in found]
        if missing:
            raise ConfigError(f"{setting}: the network does not call its layer '{missing[0]}'.")
        return (*outputs, *(found[path] for path in layers))

    # Not a wrapper block: parameters would get other structural names.
    object.__setattr__(network, "hybrid_forward", hybrid_forward)
    network._clear_cached_op()
