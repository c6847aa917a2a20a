"""Losses defined by the user: named by `_target_` in the configuration, or passed to the Python API."""

from __future__ import annotations

import os
import sys
import traceback
from typing import TYPE_CHECKING, Any, ClassVar, Dict, List, Optional, Tuple, Type

from mxtrain.config.placeholders import GLUON_ATTRIBUTES, Given, plain_attributes
from mxtrain.config.specs import call_target
from mxtrain.config.wrapped import Wrapped
from mxtrain.errors import ConfigError
from mxtrain.loss.losses import UserLoss
from mxtrain.types import Spec

if TYPE_CHECKING:
    import numpy as np
    from mxnet import gluon

    from mxtrain.types.annotations import LossBlock

LIBRARIES = ("mxtrain", "mxnet", "numpy")
"""Packages whose files are not the user's code."""


class CustomLoss(Wrapped, UserLoss):
    """Wraps a Gluon loss class, or a function that returns a loss block: (scores (B, K), labels) -> loss (B,).

    Labels are class indices (B,), as in Gluon's losses. If `dense_labels` is true, they are probabilities (B, K):
    one-hot, smoothed or mixed. For masked tokens, labels are indices (B, M), for segmentation (B, H, W); the loss must
    ignore positions with the label -1.
    """

    @classmethod
    def with_target(cls) -> Type[Spec]:
        return UserLoss

    @property
    def name(self) -> str:
        """Returns the import path of the user's class or function."""
        return f"{self.target.__module__}.{getattr(self.target, '__qualname__', self.target)}"

    def build(self, num_classes: int, training: bool) -> gluon.Block:
        if self.dense_labels:
            return super().build(num_classes, training)
        from mxtrain.loss.blocks import IndexLabelLoss

        return IndexLabelLoss(self.block())

    def refuse_smoothing(self, target: str, remedy: str = "Type loss.label_smoothing=0.") -> None:
        """Rejects label smoothing for a loss that reads indices, which cannot be smoothed.

        Args:
            target: kind of the indices for the message, e.g. "class".
            remedy: sentence that says what to type.

        Raises:
            ConfigError: `label_smoothing` is not 0.
        """
        if self.label_smoothing:
            raise ConfigError(
                f"loss.label_smoothing={self.label_smoothing}: {self.name} is given {target} indices, which cannot be "
                f"smoothed. {remedy}"
            )

    def refuse_counting_ignored(self, ignored: str, option: str) -> None:
        """Rejects Gluon's losses for targets in which -1 means "ignore": they read -1 as the last class.

        Args:
            ignored: positions that have the label -1, e.g. "ignored pixels".
            option: option of the group `loss` to suggest.

        Raises:
            ConfigError: the loss is one of Gluon's.
        """
        if self.name.startswith("mxnet.gluon.loss."):
            raise ConfigError(f"loss: {self.name} would count {ignored}, whose label is -1. Type loss={option}.")

    def block(self) -> gluon.Block:
        """Calls the user's class or function with its arguments."""
        return stop_extra_gradients(call_target(self.target, self.arguments, "loss"))

    def _explanation(self, score_shape: Tuple[int, ...], target_shape: Optional[Tuple[int, ...]]) -> Tuple[str, str]:
        """Returns the start of error messages, which names the inputs of the loss, and the remedy if the loss fails."""
        given = f"loss: {self.name} is given scores"
        if target_shape is not None:
            scores_text = f"(B, {', '.join(map(str, score_shape[1:]))})"
            labels_text = f"(B, {', '.join(map(str, target_shape[1:]))})"
            return f"{given} {scores_text} and class indices {labels_text}", "Write one that takes these."
        if self.dense_labels:
            remedy = "Type loss.dense_labels=false if it takes class indices."
            return f"{given} (B, K) and probabilities (B, K)", remedy
        remedy = "Type loss.dense_labels=true if it takes probabilities (one-hot)."
        return f"{given} (B, K) and class indices (B,)", remedy

    def check(
        self,
        block: LossBlock,
        score_shape: Tuple[int, ...],
        target_shape: Optional[Tuple[int, ...]] = None,
        num_outputs: int = 1,
    ) -> bool:
        """Runs the loss forward and backward on zeros before training, to find wrong shapes and gradients early.

        Args:
            block: the block that `build` returned.
            score_shape: shape of each array that the network returns, batch first.
            target_shape: shape of the target; by default `score_shape` without its last axis.
            num_outputs: number of arrays that the network returns.

        Returns:
            True if the loss declares that it returns the weights of the samples.

        Raises:
            ConfigError: the loss fails, does not return what it declares, or ignores its head gradient.
        """
        context, remedy = self._explanation(score_shape, target_shape)
        try:
            shapes, gradients = _run_on_zeros(block, score_shape, target_shape or score_shape[:-1], num_outputs)
        except Exception as error:  # whatever the user's code raises
            reason = ([line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__])[-1]
            reason = reason.rstrip(".")
            location = "" if _may_be_shape_error(error) else location_in_user_code(error)
            if location:
                raise ConfigError(f"{context}, and fails: {type(error).__name__}: {reason} ({location}).") from error
            raise ConfigError(f"{context}, and fails: {reason}. {remedy}") from error
        if not shapes or any(shape != score_shape[:1] for shape in shapes):
            returned = " and ".join(map(str, shapes))
            raise ConfigError(
                f"{context}, and for {score_shape[0]} samples returns the shape {returned}. It must return one value "
                "per sample, (B,): end it with .mean(axis=1), not .mean()."
            )
        weighted, parts = declared_outputs(block)
        if len(shapes) != 1 + weighted + len(parts):
            wanted = ", ".join(["the loss", *(["the weight of each sample"] if weighted else []), *parts])
            raise ConfigError(
                f"loss: {self.name} returns {len(shapes)} arrays, and declares {1 + weighted + len(parts)}: {wanted}. "
                "Declare further arrays as attributes of the class: weighted = True if the second one is the weight "
                'of each sample (the loss of a batch is then sum(loss) / sum(weight)), and parts = ("NAME", ...) for '
                "those that are only logged."
            )
        once, twice = gradients
        if once.any() and abs(twice - 2 * once).max() > 1e-3 * abs(once).max():
            raise ConfigError(
                f"loss: {self.name} ignores its head gradient, as SoftmaxOutput and MakeLoss do: it cannot be "
                "weighted, nor divided by the size of a batch that several devices share. Write it with log_softmax "
                "and pick."
            )
        return weighted


class GivenLoss(Given, CustomLoss):
    """Wraps a Gluon loss block; see `CustomLoss` for its arguments and result."""

    argument: ClassVar[str] = "loss"

    target: Any = None
    """Not used: the block itself was passed."""

    @classmethod
    def describe_object(cls, block: Any) -> Dict[str, Any]:
        """Returns the attributes that identify a loss in addition to its class: numbers, texts and lists of these.

        Raises:
            ConfigError: the object is not a Gluon block.
        """
        from mxtrain.engine.backend import gluon

        if not isinstance(block, gluon.Block):
            kind = "a gluon.loss.Loss or another gluon.Block of (scores, labels) -> (B,)"
            raise cls.refusal(block, kind, "loss=hinge", " mxtrain.session takes functions.")
        # `_monitor_all` does not identify the loss either, but is kept: earlier runs have recorded it.
        return {"arguments": plain_attributes(block, without=GLUON_ATTRIBUTES - {"_monitor_all"})}

    @property
    def name(self) -> str:
        return self.object

    def block(self) -> gluon.Block:
        if self.is_given:
            return stop_extra_gradients(self.require())
        from mxtrain.engine.backend import gluon

        class MissingLoss(gluon.Block):
            """Stands in for the loss of a network that only predicts; raises if it is called."""

            def forward(block, *arrays: object) -> None:
                self.require()

        return MissingLoss()

    def check(
        self,
        block: LossBlock,
        score_shape: Tuple[int, ...],
        target_shape: Optional[Tuple[int, ...]] = None,
        num_outputs: int = 1,
    ) -> bool:
        return self.is_given and super().check(block, score_shape, target_shape, num_outputs)


def stop_extra_gradients(block: gluon.Block) -> gluon.Block:
    """Returns a user's loss block, wrapped in `FirstGradientLoss` if it declares further outputs."""
    from mxtrain.engine.backend import gluon
    from mxtrain.loss.blocks import FirstGradientLoss

    has_more = getattr(block, "weighted", False) or getattr(block, "parts", ())
    return FirstGradientLoss(block) if has_more and isinstance(block, gluon.HybridBlock) else block


def declared_outputs(block: LossBlock) -> Tuple[bool, Tuple[str, ...]]:
    """Returns the attributes `weighted` and `parts` of a user's loss block, which may be wrapped.

    Raises:
        ConfigError: `weighted` is not a bool, or `parts` is not a tuple of distinct names.
    """
    own = block
    while type(own).__module__ == "mxtrain.loss.blocks" and hasattr(own, "block"):  # wrappers of losses
        own = own.block
    weighted, parts = getattr(own, "weighted", False), getattr(own, "parts", ())
    if not isinstance(weighted, bool):
        raise ConfigError(f"loss: weighted={weighted!r:.60} of {type(own).__name__} must be True or False.")
    names = tuple(parts) if isinstance(parts, (tuple, list)) else ("",)
    usable = all(isinstance(name, str) and name.isidentifier() and name not in RESERVED_NAMES for name in names)
    if not usable or len(set(names)) < len(names):
        raise ConfigError(
            f"loss: parts={parts!r:.60} of {type(own).__name__} must be a tuple of different names of letters, digits "
            f"and underscores, without {', '.join(RESERVED_NAMES)}."
        )
    return weighted, names


def _run_on_zeros(
    block: LossBlock, score_shape: Tuple[int, ...], target_shape: Tuple[int, ...], num_outputs: int
) -> Tuple[List[Tuple[int, ...]], List[np.ndarray]]:
    """Runs a loss forward and backward on zeros, with the head gradients 1 and 2.

    Returns:
        The shapes of all arrays that the loss returns, and the gradient of the scores for each head gradient.
    """
    from mxtrain.engine.backend import autograd, nd

    scores = nd.zeros(score_shape)
    scores.attach_grad()
    shapes: List[Tuple[int, ...]] = []
    gradients = []
    # The trainer scales the head gradient (batch size, sample weights, loss scale). Operators such as SoftmaxOutput
    # ignore it: their gradient does not change if the head gradient is doubled.
    for head in (1.0, 2.0):
        with autograd.record():
            outputs = block(*[scores] * num_outputs, nd.zeros(target_shape))
            loss_B, *others = outputs if isinstance(outputs, (tuple, list)) else [outputs]
        shapes = [array.shape for array in (loss_B, *others)]
        loss_B.backward(nd.full(loss_B.shape, head))
        gradients.append(scores.grad.asnumpy())
    return shapes, gradients


RESERVED_NAMES = ("loss", "lr", "step", "epoch", "split", "samples_per_s", "part")
"""Columns of metrics.jsonl, which cannot be names of parts of a loss."""


def _may_be_shape_error(error: Exception) -> bool:
    """Returns True if the error may come from labels of a shape that the loss does not support."""
    from mxtrain.engine.backend import mx

    return isinstance(error, mx.MXNetError) or "shape" in str(error)


def location_in_user_code(error: Exception) -> str:
    """Returns file and line of the innermost frame in the user's code; "" if only library code was running."""
    folders = [os.path.dirname(str(sys.modules[name].__file__)) for name in LIBRARIES if name in sys.modules]
    standard_library = os.path.dirname(os.__file__)

    def is_user_code(file: str) -> bool:
        is_standard = file.startswith(standard_library + os.sep) and "site-packages" not in file
        is_generated = file.startswith("<")  # as MXNet's operators are
        return not (is_standard or is_generated or any(file.startswith(folder + os.sep) for folder in folders))

    user_frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_user_code(frame.filename)]
    return f"{user_frames[-1].filename}:{user_frames[-1].lineno}" if user_frames else ""
