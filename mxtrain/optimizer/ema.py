"""An exponential moving average of the parameters, kept on the device."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Callable, Dict, Iterator, Mapping, Optional, Tuple, Union

from mxtrain.checkpoint import require_same_arrays
from mxtrain.engine.backend import nd, same_device_runs

if TYPE_CHECKING:
    import numpy as np

    from mxtrain.types.annotations import Json, JsonObject

# One fused call takes at most this many arrays (the operator's own limit is 60).
ARRAYS_PER_CALL = 45


class ExponentialMovingAverage:
    """average = d * average + (1 - d) * value after every step, with d = min(decay, (1 + step) / (10 + step)).

    Batch-norm statistics are averaged like weights, so that the averaged network is consistent.
    Source: the warm-up of d is tf.train.ExponentialMovingAverage's `num_updates`.

    Args:
        decay: d after the warm-up.
        values: structural name -> NDArray, the live parameters.
        publish: called after `values` were written to.
    """

    def __init__(self, decay: float, values: Mapping[str, nd.NDArray], publish: Callable[[], None]):
        self._decay, self._publish = decay, publish
        self._values = dict(values)
        self.arrays: Dict[str, nd.NDArray] = {name: value.copy() for name, value in values.items()}
        names = list(self.arrays)
        runs = same_device_runs(list(self.arrays.values()), ARRAYS_PER_CALL)
        self._chunks = [[names[index] for index in run] for run in runs]

    def update(self, step: int) -> None:
        """Updates the average with the values after step number `step` (from 1)."""
        # Without the warm-up the average would keep the random initial weights for about 1 / (1 - decay) steps.
        decay = min(self._decay, (1 + step) / (10 + step))
        for chunk in self._chunks:
            averages = [self.arrays[name] for name in chunk]
            pairs = [array for name in chunk for array in (self.arrays[name], self._values[name])]
            # SGD's w - lr * (r * g + wd * w) with g = value, lr = 1, r = -(1 - d), wd = 1 - d is the average, fused.
            nd.multi_sgd_update(
                *pairs,
                out=averages,
                num_weights=len(chunk),
                lrs=[1.0] * len(chunk),
                wds=[1 - decay] * len(chunk),
                rescale_grad=-(1 - decay),
            )

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Replaces the parameters by their averages within the context, and restores them bit for bit afterwards."""
        # A copy and not a swap of arrays: executors are bound to the arrays of the parameters.
        live = {name: value.copy() for name, value in self._values.items()}
        self._write(self.arrays)
        try:
            yield
        finally:
            self._write(live)

    def save_state(self) -> Tuple[Mapping[str, nd.NDArray], Mapping[str, Json]]:
        """See `Stateful`."""
        return self.arrays, {}

    def load_state(self, arrays: Mapping[str, np.ndarray], values: JsonObject, source: str) -> None:
        """See `Stateful`."""
        require_same_arrays(self.arrays, arrays, f"the moving average in {source}")
        for name, array in self.arrays.items():
            array[:] = arrays[name]

    def _write(self, source: Mapping[str, nd.NDArray]) -> None:
        for name, value in self._values.items():
            source[name].copyto(value)
        # Replicas hold copies of the parameters, which follow only when they are told.
        self._publish()


class NoAverage:
    """Null object if no moving average is requested."""

    arrays: Dict[str, nd.NDArray] = {}

    def update(self, step: int) -> None:
        pass

    @contextmanager
    def applied(self) -> Iterator[None]:
        yield

    def save_state(self) -> Tuple[Mapping[str, nd.NDArray], Mapping[str, Json]]:
        return {}, {}

    def load_state(self, arrays: Mapping[str, np.ndarray], values: JsonObject, source: str) -> None:
        pass


Average = Union[ExponentialMovingAverage, NoAverage]


def build_average(decay: Optional[float], values: Mapping[str, nd.NDArray], publish: Callable[[], None]) -> Average:
    """Builds the moving average for `trainer.ema_decay`; `NoAverage` if it is None."""
    return NoAverage() if decay is None else ExponentialMovingAverage(decay, values, publish)
