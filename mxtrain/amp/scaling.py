"""Loss scaling: multiplies the loss, so that small gradients do not underflow in float16, and divides the gradients
before the update."""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, List, Mapping, Tuple

from mxtrain.engine.backend import all_finite, nd

if TYPE_CHECKING:
    import numpy as np
    from mxnet.ndarray import NDArray

    from mxtrain.types.annotations import Json, JsonObject


class NoScaling:
    """Null object: the scale is 1, and no step is skipped."""

    scale: float = 1.0
    skips: bool = False
    """True if a step may be skipped."""

    def unscale(self, gradients: List[nd.NDArray]) -> bool:
        """Divides gradients by the scale in place. Returns False if the step must be skipped."""
        return True

    def scalars(self) -> Dict[str, float]:
        """Returns the scale and the number of skipped steps by TensorBoard tag, for loggers."""
        return {}

    def to_json(self) -> Mapping[str, Json]:
        """Returns the state as JSON values, from which a resumed run continues exactly."""
        return {}

    def restore(self, values: JsonObject) -> None:
        """Restores the state that `to_json` returned."""

    def save_state(self) -> Tuple[Mapping[str, NDArray], Mapping[str, Json]]:
        """See `Stateful`."""
        return {}, self.to_json()

    def load_state(self, arrays: Mapping[str, np.ndarray], values: JsonObject, source: str) -> None:
        """See `Stateful`."""
        if values:  # empty if the checkpoint was written in a precision without a loss scale
            self.restore(values)


class DynamicScaling(NoScaling):
    """Halves the scale and skips the step if a gradient overflows; doubles it after `growth_interval` good steps.

    The check reads the gradients summed over all replicas and workers, which are equal everywhere. So all workers skip
    the same steps without communication. The host waits for the gradients once per step, because MXNet's optimizers
    have no device-side flag that skips an update.

    Source: Micikevicius et al., "Mixed precision training", https://arxiv.org/abs/1710.03740, section 3.2.

    Args:
        scale: initial scale. A power of two changes only the exponents of the gradients, so no bits are lost.
        growth_interval: successive good steps after which the scale is doubled.
        smallest: lower limit of the scale. A network whose gradients still overflow there has diverged.
        largest: upper limit of the scale, so that it stays finite if no gradient ever overflows.
    """

    skips = True

    def __init__(self, scale: float, growth_interval: int, smallest: float = 2.0**-14, largest: float = 2.0**24):
        self.scale = scale
        self._growth_interval, self._smallest, self._largest = growth_interval, smallest, largest
        self._good_steps = self._num_skipped = 0

    def unscale(self, gradients: List[nd.NDArray]) -> bool:
        if not all_finite(gradients):
            # Halving is exact: a power of two changes exponents only, so a skipped step leaves no rounding behind.
            self.scale = max(self.scale / 2, self._smallest)
            self._good_steps = 0
            self._num_skipped += 1
            return False
        for gradient in gradients:
            nd._internal._mul_scalar(gradient, scalar=1.0 / self.scale, out=gradient)
        self._good_steps += 1
        if self._good_steps == self._growth_interval:
            self.scale = min(self.scale * 2, self._largest)
            self._good_steps = 0
        return True

    def scalars(self) -> Dict[str, float]:
        return {"train/loss_scale": self.scale, "train/skipped_steps": float(self._num_skipped)}

    def to_json(self) -> Mapping[str, Json]:
        return {"scale": self.scale, "good_steps": self._good_steps, "num_skipped": self._num_skipped}

    def restore(self, values: JsonObject) -> None:
        self.scale, self._good_steps = values["scale"], values["good_steps"]
        self._num_skipped = values["num_skipped"]
