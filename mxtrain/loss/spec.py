"""Settings of the groups `loss` and `distillation`. Imports no MXNet at import time.

Legend: B batch, K classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, ClassVar, Dict, Literal, Optional, Sequence, Tuple

import pydantic

from mxtrain.errors import ConfigError
from mxtrain.types import Fraction, NonNegativeFloat, OpenFraction, PathText, PositiveFloat, Spec
from mxtrain.types.kinds import ClassIndex, Takes

if TYPE_CHECKING:
    from mxnet import gluon

    from mxtrain.types.annotations import Array, LossBlock

USUAL_ALPHA = 0.1
PADDING_SCORE = -1e9
"""Score of padding before a softmax in float32: its exponential is exactly 0."""


class Loss(Spec):
    """Base class of the losses of class scores against class indices or class probabilities."""

    label_smoothing: OpenFraction = 0.0
    """Share of the target spread evenly over all classes while training. Source: arXiv 1512.00567, section 7."""

    gluon_name: ClassVar[str] = ""
    """Name of the class in mxnet.gluon.loss that computes the loss from dense targets."""
    signed_target: ClassVar[bool] = False
    """If true, targets are -1 and 1 instead of 0 and 1."""
    takes: ClassVar[Takes] = Takes(ClassIndex)
    """Kinds of targets that the loss accepts; empty = any."""
    needs: ClassVar[Tuple[str, ...]] = ()
    """Requirements of `mxtrain.task.needs` beside those of the task."""
    passes: ClassVar[int] = 1
    """Default number of passes over a roll-out in reinforcement learning, before a new one is collected."""

    def require_unsmoothed(self, reason: str = "") -> None:
        """Rejects label smoothing for targets that cannot be smoothed.

        Args:
            reason: clause that says why, for the message.

        Raises:
            ConfigError: `label_smoothing` is not 0.
        """
        if self.label_smoothing:
            clause = reason or f"{type(self).__name__} smooths nothing"
            raise ConfigError(f"loss.label_smoothing={self.label_smoothing}: {clause}. Type loss.label_smoothing=0.")

    def build(self, num_classes: int, training: bool) -> gluon.Block:
        """Builds the loss block: (scores (B, K), labels) -> loss (B,).

        Args:
            num_classes: K.
            training: if True, labels are smoothed and may be probabilities (B, K); else they are indices (B,).
        """
        from mxtrain.loss.blocks import DenseTargetLoss

        smoothing = self.label_smoothing if training else 0.0
        return DenseTargetLoss(self.block(), num_classes, smoothing, self.signed_target)

    def block(self) -> gluon.Block:
        """Builds the Gluon loss of dense targets: (scores (B, K), targets (B, K)) -> loss (B,)."""
        from mxtrain.engine.backend import gluon

        return getattr(gluon.loss, self.gluon_name)(**self.model_dump(exclude={"label_smoothing"}))


class FunctionLoss(Loss):
    """Base class of losses that are functions of arrays: subclasses define `compute`."""

    weighted: ClassVar[bool] = False
    """If true, `compute` also returns the weight of each sample, (B,). The loss of a batch is then sum(loss) /
    sum(weight) over the global batch."""
    least_weight: ClassVar[float] = 0.0
    """Lower bound on the sum of the weights of a global batch."""
    compute: ClassVar[Callable[..., Any]]
    """Function (mx.nd or mx.sym, *arrays) -> loss (B,), or loss (B,) and weight (B,). `label_smoothing` is 0 in
    validation."""

    def used(self, *arrays: Array) -> Sequence[Array]:
        """Returns the arrays of `compute` among all outputs of the network and all targets."""
        return arrays

    def build(self, num_classes: int, training: bool) -> gluon.HybridBlock:
        """Builds the loss block: (*outputs, *targets) -> what `compute` returns."""
        from mxtrain.loss.function_block import FunctionBlock

        # Validation losses are not smoothed, so runs with other settings compare.
        loss = self if training else self.model_copy(update={"label_smoothing": 0.0})
        return FunctionBlock(loss.compute, loss.used, self.weighted, self.least_weight)


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
    """Divisor of the logits of teacher and student before the softmax: above 1, the probabilities of wrong classes have
    more weight."""
    alpha: Optional[Fraction] = None
    """Weight of the loss on labels; the distillation loss has weight 1 - alpha. null: 0.1, or 0 with labels=false."""
    labels: bool = True
    """false: labels are not used in training, so they need not be correct; alpha is then 0."""
    features: Dict[str, str] = {}
    """Layers whose outputs the network learns from the teacher: its layer -> the teacher's, by structural name, e.g.
    {features.6: features.13}. Maps (B, C, H, W) are compared as attention maps, so numbers of channels may differ."""
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
