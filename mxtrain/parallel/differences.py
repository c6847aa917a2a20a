"""Differences between a placement and its reference."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from mxtrain.amp.spec import FULL

if TYPE_CHECKING:
    from mxtrain.types.annotations import Json

# A tensor whose largest value is smaller than this share of the largest of all is compared with that share: a bias
# before a batch norm has a gradient of exactly 0, of which both sides compute only noise.
FLOOR = 1e-3
# A rounding to bfloat16 is 0.4 % of a value (2 ** -8), and now and then puts a ReLU's input on the other side of 0, of
# which a gradient feels percents. Two sides that compute in it, in other sums, are held to this share of the
# Euclidean norm of all gradients together: an error by a factor or a sign is far beyond it.
LOW_TOLERANCE = 0.2


@dataclass(frozen=True)
class WrongGradient:
    """A gradient that differs from the derivative of its block's value.

    Attributes:
        layer: structural name of the block; "" is the network itself, "(loss)" the loss.
        kind: class of the block.
        tensor: the parameter, or "input 0".
        error: norm of the difference divided by the norm of the gradient.
        dtype: "float64" if it was compared with finite differences, "float32" if it was compared with float64.
    """

    layer: str
    kind: str
    tensor: str
    error: float
    dtype: str


@dataclass(frozen=True)
class OwnGradients:
    """The comparison of the gradients of own blocks.

    Attributes:
        checked: structural names of the blocks that were compared.
        wrong: the wrong gradients, of the innermost blocks that have one.
        remarks: the blocks that were not compared, with the reason.
    """

    checked: Sequence[str] = ()
    wrong: Sequence[WrongGradient] = ()
    remarks: Sequence[str] = ()


@dataclass
class Difference:
    """The largest differences of one layer so far, over all its parameters and all steps.

    Attributes:
        layer: structural name.
        gradient_abs, parameter_abs: largest absolute difference.
        gradient_rel, parameter_rel: the same, over the largest absolute value of the tensor on one device.
    """

    layer: str
    gradient_abs: float = 0.0
    gradient_rel: float = 0.0
    parameter_abs: float = 0.0
    parameter_rel: float = 0.0

    @property
    def worst(self) -> float:
        """Returns the larger relative one; not a number counts as infinite."""
        return max(self.gradient_rel, self.parameter_rel)


@dataclass
class Verification:
    """The result of `verify`.

    Attributes:
        layers: the placement against the whole network on one device, both in float64, in the network's order.
        tolerance: largest relative difference that passes.
        steps: how many were compared.
        bits: in float32, or with amp, the placement against one device that adds in the same order: every bit must
            agree. Empty if there is no such order.
        remarks: what was changed for the comparison.
        low: with amp, both sides in the low precision: the length of the difference of all gradients of the first step
            together, over their length. None without amp.
        dtype: that precision, in which `bits` is compared, too.
        low_tolerance: of `low`.
        own: gradients of users' own blocks, compared with finite differences.
    """

    layers: List[Difference]
    tolerance: float
    steps: int
    bits: List[Difference] = field(default_factory=list)
    remarks: List[str] = field(default_factory=list)
    low: Optional[float] = None
    dtype: str = FULL.dtype
    low_tolerance: float = LOW_TOLERANCE
    own: OwnGradients = field(default_factory=OwnGradients)

    @property
    def worst(self) -> Difference:
        """Returns the layer that differs most."""
        return max(self.layers, key=lambda layer: layer.worst)

    @property
    def unequal(self) -> List[str]:
        """Returns the layers that must be equal bit by bit and are not."""
        return [layer.layer for layer in self.bits if layer.worst]

    @property
    def passed(self) -> bool:
        """Returns True if all is within the tolerance, and equal where it must be."""
        right = self.worst.worst <= self.tolerance and not self.unequal and not self.low_is_off
        return right and not self.own.wrong

    @property
    def low_is_off(self) -> bool:
        """Returns True if the low precision differs by more than its rounding explains."""
        return self.low is not None and not self.low <= self.low_tolerance

    def to_json(self) -> Mapping[str, Json]:
        """Returns the findings as plain values."""
        return {**asdict(self), "passed": self.passed}


def differences_of(
    expected: Mapping[str, np.ndarray], actual: Mapping[str, np.ndarray]
) -> Iterator[Tuple[str, float, float]]:
    """Yields (name, largest absolute difference, the same relative to the largest value); infinite for NaN."""
    finite = [np.abs(array[np.isfinite(array)]) for array in expected.values()]
    floor = FLOOR * max((float(array.max()) for array in finite if array.size), default=0.0)
    for name, array in expected.items():
        absolute = largest_difference(array, actual[name])
        yield name, absolute, absolute and absolute / max(float(np.abs(array).max()), floor, 1e-30)


def largest_difference(first: np.ndarray, second: np.ndarray) -> float:
    """Returns the largest absolute difference of two arrays of one shape; NaN equals NaN only, else it is infinite."""
    differs = ~((first == second) | (np.isnan(first) & np.isnan(second)))
    if not differs.any():
        return 0.0
    largest = float(np.max(np.abs(first[differs].astype(np.float64) - second[differs])))
    return largest if np.isfinite(largest) else float("inf")
