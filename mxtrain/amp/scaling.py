"""Loss scaling: gradients that float16 would round to 0 are computed larger, and made smaller before they are used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, List, Mapping, Tuple

from mxtrain.engine.backend import all_finite, nd

if TYPE_CHECKING:
    import numpy as np
    from mxnet.ndarray import NDArray

    from mxtrain.annotations import Json, JsonObject


class NoScaling:
    """The scale is 1, and every step counts."""

    scale: float = 1.0
    skips: bool = False
    """True if a step may be left out."""

    def unscale(self, gradients: List[nd.NDArray]) -> bool:
        """Makes gradients, in place, what they are without a scale; whether they can be used."""
        return True

    def scalars(self) -> Dict[str, float]:
        """The values that are worth watching, by TensorBoard tag."""
        return {}

    def to_json(self) -> Mapping[str, Json]:
        """The state from which a resumed run continues exactly."""
        return {}

    def restore(self, values: JsonObject) -> None:
        """The inverse of `to_json`."""

    def save_state(self) -> Tuple[Mapping[str, NDArray], Mapping[str, Json]]:
        """See `Stateful`."""
        return {}, self.to_json()

    def load_state(self, arrays: Mapping[str, np.ndarray], values: JsonObject, source: str) -> None:
        """See `Stateful`."""
        if values:  # a run may go on in another precision
            self.restore(values)


class DynamicScaling(NoScaling):
    """Doubles the scale after so many good steps, and halves it when a gradient overflows; that step is left out.

    What decides is the sum of all replicas' and workers' gradients, which is the same everywhere: so all leave the same
    steps out and no communication is needed. The host waits once in each step, until the gradients are there: MXNet's
    optimizers cannot be told on the device to change nothing.

    Source: Micikevicius et al., "Mixed precision training", https://arxiv.org/abs/1710.03740, section 3.2.

    Args:
        scale: to begin with. Powers of two change no bits.
        growth_interval: good steps after which it is doubled.
        smallest: of the scale; below it no gradient of a healthy network overflows, so it stays there.
        largest: of the scale, so that it stays finite while no gradient overflows.
    """

    skips = True

    def __init__(self, scale: float, growth_interval: int, smallest: float = 2.0**-14, largest: float = 2.0**24):
        self.scale = scale
        self._growth_interval, self._smallest, self._largest = growth_interval, smallest, largest
        self._good_steps = self._num_skipped = 0

    def unscale(self, gradients: List[nd.NDArray]) -> bool:
        if not all_finite(gradients):
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
