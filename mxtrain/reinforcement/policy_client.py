"""Inference of the policy with the current weights. Imports MXNet.

Legend: E environments, O outputs of the network.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.loading.placing import as_device, copy_to
from mxtrain.engine.backend import host_view, nd
from mxtrain.reinforcement.host_graph import HostGraph, build_host_graph
from mxtrain.reinforcement.moments import RunningMoments

if TYPE_CHECKING:
    from typing import Union

    from mxnet import Context

    from mxtrain.parallel.base import Strategy

MOMENTS = ("observation_mean", "observation_variance")
"""Suffixes of the parameters that hold statistics of observations; only the acting process updates them."""


class PolicyClient:
    """Evaluates the policy network, whose weights training changes.

    Args:
        strategies: strategies with the weights; the first one predicts.
        device: device of the inputs.
    """

    def __init__(self, strategies: Sequence[Strategy], device: Union[str, Context] = "cpu:0"):
        assert strategies, "loaders that depend on the weights need a network"
        self._device = as_device(device)
        self._strategies = strategies
        self._buffer_key: Optional[Tuple[Tuple[int, ...], str]] = None
        values = strategies[0].values
        self._dtype = np.dtype(next(iter(values.values())).dtype).name
        # A network with critics or a target network has the statistics several times.
        self._moment_names: Dict[str, str] = {
            name: name.rpartition(".")[2] for name in values if name.rpartition(".")[2] in MOMENTS
        }
        self._host: Optional[HostGraph] = build_host_graph(strategies[0])

    def refresh(self) -> None:
        """Reads the current weights. Must be called whenever they have changed."""
        if self._host is not None:
            values = self._strategies[0].values
            # Weights are copied once for a roll-out: asking MXNet in each step takes longer than the network computes.
            self._host.set_parameters({name: values[name].asnumpy() for name in self._host.parameters})

    @property
    def has_moments(self) -> bool:
        """Returns True if the network normalises observations."""
        return bool(self._moment_names)

    def act(self, observation_E: np.ndarray) -> np.ndarray:
        """Evaluates the network on observations, (E, O) float32: with NumPy where possible, otherwise on the device."""
        if self._host is not None:
            return self._host(observation_E.astype(self._dtype, copy=False)).astype(np.float32, copy=False)
        outputs = self._strategies[0].predict((self._copy_to_device(observation_E),))
        return outputs[0].asnumpy().astype(np.float32, copy=False)

    def _copy_to_device(self, observation_E: np.ndarray) -> nd.NDArray:
        """Copies observations to the device.

        On a CPU they are written to the memory of an array: MXNet's copy waits for an empty operator in its engine,
        which takes as long as a small network. This is safe because `act` waits for its outputs, so nothing reads the
        array.
        """
        if self._device.device_type != "cpu" or observation_E.ndim != 2:
            return copy_to(observation_E.astype(self._dtype), self._device)
        key = (observation_E.shape, self._dtype)
        if key != self._buffer_key:
            self._buffer = nd.zeros(observation_E.shape, ctx=self._device, dtype=self._dtype)
            self._memory, self._buffer_key = host_view(self._buffer), key
        self._memory[...] = observation_E
        return self._buffer

    def publish(self, moments: RunningMoments) -> None:
        """Copies the statistics of observations to the network, if it normalizes observations."""
        if not self.has_moments:
            return
        values = dict(zip(MOMENTS, (moments.mean, moments.variance)))
        for strategy in self._strategies:
            for name, suffix in self._moment_names.items():
                value = strategy.values[name]
                array = values[suffix].reshape(value.shape)
                nd.array(array, ctx=value.context, dtype=value.dtype).copyto(value)
            strategy.publish(list(self._moment_names))
