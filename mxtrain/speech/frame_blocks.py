"""Losses of frames as Gluon blocks. Imports MXNet.

Legend: B batch, T frames, F mel bands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mxtrain.engine.backend import gluon

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, OperatorModule


class FrameLoss(gluon.HybridBlock):
    """Frames (B, T, F), the true ones (B, T, F), how many of them count (B,), and what only metrics look at, to
    the sum over each sample's frames of the mean over bands, (B,), and how many count, (B,)."""

    weighted = True

    def __call__(self, frames_BTF: Array, right_BTF: Array, count_B: Array, *rest: Array) -> Any:
        return super().__call__(frames_BTF, right_BTF, count_B)

    def hybrid_forward(self, F: OperatorModule, frames_BTF: Array, right_BTF: Array, count_B: Array) -> Any:
        error_BT = F.mean(self.error(F, frames_BTF - right_BTF), axis=2)
        counts_BT = F.SequenceMask(error_BT, count_B, use_sequence_length=True, value=0.0, axis=1)
        return F.sum(counts_BT, axis=1), F.identity(count_B)

    def error(self, F: OperatorModule, difference_BTF: Array) -> Array:
        """Returns the error of each number."""
        raise NotImplementedError


class AbsoluteFrameLoss(FrameLoss):
    """The absolute difference."""

    def error(self, F: OperatorModule, difference_BTF: Array) -> Array:
        return F.abs(difference_BTF)


class SquaredFrameLoss(FrameLoss):
    """The squared difference."""

    def error(self, F: OperatorModule, difference_BTF: Array) -> Array:
        return F.square(difference_BTF)
