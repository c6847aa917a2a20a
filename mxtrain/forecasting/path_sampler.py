"""Samples paths with a trained network.

Legend: B batch, P past steps, H steps to predict, K facts of a step, I inputs of a step, N paths, R raw outputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, Sequence, Tuple

import numpy as np

from mxtrain.forecasting.sampled_paths import PathSettings, PathStart, forecast_paths
from mxtrain.task.decoding_network import DecodingNetwork

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

    from mxtrain.forecasting.forecasters import DeepAR
    from mxtrain.forecasting.signature import SeriesSignature
    from mxtrain.parallel.base import Strategy
    from mxtrain.types import Batch


class PathSampler:
    """Predicts mean and quantiles of each step, (B, H, 1 + Q), for the series of a batch.

    Args:
        model: description of the network.
        signature: signature of the network.
        strategy: holds the weights.
        levels: levels of the quantiles.
    """

    def __init__(self, model: DeepAR, signature: SeriesSignature, strategy: Strategy, levels: Sequence[float]) -> None:
        sizes = signature.sizes
        self._past = sizes.past
        self.settings = path_settings(model, signature, levels)
        self.network = DecodingNetwork(lambda: model.build_quantiles(len(levels), sizes), model.widths, strategy)

    def __call__(self, outputs: Tuple[NDArray, ...], batch: Batch) -> NDArray:
        from mxtrain.engine.backend import autograd, nd

        network, device = self.network.current(), self.network.device
        inputs = [array.as_in_context(device) for array in batch.inputs[:-2]]

        def step(x_NI: np.ndarray, states: Sequence[Any]) -> Tuple[np.ndarray, List[NDArray]]:
            raw_NR, *after = network.step(nd, nd.array(x_NI, ctx=device, dtype="float32"), states)
            return raw_NR.asnumpy(), after

        with autograd.pause(train_mode=False):
            scaled_BP, item_BE, scale_B1, *states = network.start(nd, *inputs)
            start = PathStart(
                scaled_BP.asnumpy(),
                inputs[1].asnumpy(),
                inputs[2].asnumpy()[:, self._past :],
                item_BE.asnumpy(),
                scale_B1.asnumpy(),
                states,
            )
            found = forecast_paths(start, step, self.settings, lambda state, count: nd.repeat(state, count, axis=0))
        return nd.array(found, ctx=device, dtype="float32")


def path_settings(model: DeepAR, signature: SeriesSignature, levels: Sequence[float]) -> PathSettings:
    """Returns how the paths of a model are drawn."""
    return PathSettings(
        signature.season,
        signature.window.horizon,
        model.distribution,
        model.num_paths,
        model.sampling_seed,
        list(levels),
    )
