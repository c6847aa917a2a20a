"""Inference with operators that oneDNN joins: convolution, batch norm, activation and sum become one operator.

MXNet 1.9.1 computes some of these graphs wrongly (pre-activation residual networks such as CIFAR's ResNet-20 v2:
relative error 0.3) and fails on others (grouped convolutions of SE-ResNeXt), so each shape of a batch is first computed
both ways.

It is not the default, because it changes the last bits and does not always pay. Time without over with it: MobileNetV2
4.54, CIFAR ResNet-20 v1 1.31, MobileNet 1.25, ResNet-50 1.04 to 1.19, SSD 1.04 to 1.09, DenseNet-121 0.88 (one thread,
AVX2, batch 1).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Dict, List, Sequence, Tuple

import numpy as np

from mxtrain.engine.backend import mx, nd
from mxtrain.model.graph.trace import NotTraceable, input_names, symbol_of
from mxtrain.parallel.stage import WholeNetwork, argument_flags, as_list, parameters_by_full_name

if TYPE_CHECKING:
    from mxnet import gluon

MAX_ERROR = 1e-5
"""Of an output, relative to its largest absolute value. Measured where the graph is right: up to 5e-6."""
_LOG = logging.getLogger("mxtrain")


class FusedInference(WholeNetwork):
    """A network that predicts with joined operators for batches of shapes for which these agree with the network.

    Args:
        network: on a CPU, in float32.
        num_inputs: number of its inputs.
    """

    def __init__(self, network: gluon.Block, num_inputs: int = 1):
        super().__init__(network, num_inputs)
        self._agrees: Dict[Tuple[Tuple[int, ...], ...], bool] = {}
        try:
            symbol, _ = symbol_of(network, training=False, num_inputs=num_inputs)
        except NotTraceable as error:
            _LOG.warning("fuse=true has no effect: the network cannot be traced (%s)", error)
            self._operator = None
            return
        fused = symbol.get_backend_symbol("MKLDNN")
        position = {name: number for number, name in enumerate(input_names(num_inputs))}
        parameters = parameters_by_full_name(network)
        names = fused.list_inputs()
        self._arguments = [position[name] if name in position else parameters[name] for name in names]
        self._operator = mx.nd.CachedOp(fused, [*argument_flags(names, position), ("static_alloc", True)])

    def __call__(self, replica: int, inputs: Sequence[nd.NDArray]) -> List[nd.NDArray]:
        shapes = tuple(array.shape for array in inputs)
        if self._operator is None or self._agrees.get(shapes) is False:
            return super().__call__(replica, inputs)
        if shapes in self._agrees:
            return self._joined(inputs)
        outputs = super().__call__(replica, inputs)
        try:
            error = max(map(_relative_error, self._joined(inputs), outputs))
            # Not `>`, because a NaN must count as a problem.
            problem = f"relative error {error:.1g}" if not error <= MAX_ERROR else ""
        except mx.MXNetError as failure:
            problem = str(failure).strip().splitlines()[-1]
        if problem and False not in self._agrees.values():
            _LOG.warning("fuse=true has no effect on batches of shape %s: %s", shapes, problem)
        # Kept by shape, because the wrong sums depend on MXNet's memory plan, which depends on shapes.
        self._agrees[shapes] = not problem
        return outputs

    def _joined(self, inputs: Sequence[nd.NDArray]) -> List[nd.NDArray]:
        assert self._operator is not None
        device = inputs[0].context
        return as_list(
            self._operator(
                *(
                    inputs[argument] if isinstance(argument, int) else argument.data(device)
                    for argument in self._arguments
                )
            )
        )


def _relative_error(actual: nd.NDArray, expected: nd.NDArray) -> float:
    """Returns the largest error relative to the largest absolute value; NaN if one of the arrays has a NaN."""
    actual_B, expected_B = actual.asnumpy().astype(np.float64), expected.asnumpy().astype(np.float64)
    largest = np.abs(expected_B).max(initial=0.0)
    return float(np.abs(actual_B - expected_B).max(initial=0.0) / (largest or 1.0))
