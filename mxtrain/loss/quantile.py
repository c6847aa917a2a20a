"""The quantile loss of one or several numbers.

Legend: B batch, T targets, Q quantiles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Sequence

from mxtrain.loss.spec import Loss

if TYPE_CHECKING:
    from mxnet import gluon

    from mxtrain.types.annotations import Array, OperatorModule


def pinball(F: OperatorModule, quantile: Array, value: Array, level: float) -> Any:
    """Returns max(level * e, (level - 1) * e) of the differences e of values and quantiles of equal shapes.

    Source: Koenker and Bassett, "Regression Quantiles" (1978).
    """
    error = value - quantile
    return F.maximum(error * level, error * (level - 1))


class QuantileLoss(Loss):
    """Base class of losses of quantiles."""

    def build_quantiles(self, num_targets: int, levels: Sequence[float]) -> gluon.HybridBlock:
        """Builds the block (quantiles (B, T * Q), values (B, T)) -> loss (B,): twice the mean over targets and levels.

        Args:
            num_targets: T.
            levels: levels of the quantiles, of which each target has all side by side.
        """
        from mxtrain.loss.function_block import FunctionBlock

        def compute(F: OperatorModule, quantile_BM: Array, value_BT: Array) -> Any:
            total_B1: Any = 0.0
            for target in range(num_targets):
                value_B1 = F.slice_axis(value_BT, axis=1, begin=target, end=target + 1)
                for number, level in enumerate(levels, start=target * len(levels)):
                    one_B1 = F.slice_axis(quantile_BM, axis=1, begin=number, end=number + 1)
                    total_B1 = total_B1 + pinball(F, one_B1, value_B1, level)
            return (total_B1 * (2 / (num_targets * len(levels)))).reshape((-1,))

        return FunctionBlock(compute)
