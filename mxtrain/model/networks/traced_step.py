"""A decoding step of an autoregressive network as a single operator. Imports MXNet.

Legend: R rows of a search, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, List, Tuple

from mxtrain.engine.backend import gluon, mx, nd

if TYPE_CHECKING:
    import numpy as np
    from mxnet import symbol
    from mxnet.ndarray import NDArray

    Trace = Callable[..., Tuple[Any, List[Any]]]
    """(F, token, place, fixed, moving, beams) -> (scores, new moving), on symbols; `beams` is a number."""

FLAGS = (("forward_bulk_size", 1000),)
"""Queues all operators of a step in the engine at once."""


class StepNetwork:
    """Base of networks whose steps can be traced, and so be exported."""

    def trace_step(
        self, F: Any, token: Any, position: Any, fixed: List[Any], moving: List[Any], beams: int
    ) -> Tuple[Any, List[Any]]:
        """Returns scores (R, V) of the next tokens and the new `moving`, as symbols or arrays.

        Args:
            F: MXNet's operators on symbols or arrays.
            token: last token of each row, (R,).
            position: position, as returned by `trace_position`.
            fixed: arrays of the samples, see `trace_start`.
            moving: state of the rows; empty if the network has no state before its first step.
            beams: number of rows of each sample.
        """
        raise NotImplementedError

    def trace_position(self, F: Any, position_1: Any, num_positions: int, constants: Dict[str, np.ndarray]) -> Any:
        """Returns the input of a step that depends on the position.

        Args:
            F: MXNet's operators on symbols.
            position_1: position of the token, from 0, (1,) float32.
            num_positions: number of positions.
            constants: name -> value of further variables; may be extended.
        """
        return position_1

    def trace_start(self, F: Any, *inputs: Any) -> List[Any]:
        """Returns the fixed arrays of samples; none for a network without a source."""
        return []


class TracedStep:
    """A decoding step that is traced once for each number of arrays and beams, and then called with arrays of any size.

    In a small network, calling the operators one by one from Python would take longer than computing them.

    Args:
        network: network with the parameters of the step.
        trace: function that computes the step.
    """

    def __init__(self, network: gluon.Block, trace: Trace):
        self._network, self._trace = network, trace
        # One graph for each number of beams: the reshapes of a graph have the number as a constant.
        self._operators: Dict[Tuple[int, int, int], Tuple[Any, List[str], Any]] = {}

    def __call__(
        self, token_R: NDArray, position: NDArray, fixed: List[NDArray], moving: List[NDArray]
    ) -> Tuple[NDArray, List[NDArray]]:
        """Computes a step; returns the scores (R, V) of the next tokens, and the new `moving`.

        Args:
            token_R: last token of each row.
            position: position, see `StepNetwork.trace_position`.
            fixed: arrays of the samples; all samples have the same number of rows.
            moving: state of the rows.
        """
        beams = len(token_R) // len(fixed[0]) if fixed else 1
        key = (len(fixed), len(moving), beams)
        if key not in self._operators:
            self._operators[key] = self._build(*key)
        operator, names, parameters = self._operators[key]
        device = token_R.context
        arrays_by_name = {"token": token_R, "place": position}
        arrays_by_name.update((_name("fixed", number), array) for number, array in enumerate(fixed))
        arrays_by_name.update((_name("moving", number), array) for number, array in enumerate(moving))
        arrays = (arrays_by_name[name] if name in arrays_by_name else parameters[name].data(device) for name in names)
        score_RV, *new_moving = operator(*arrays)
        return score_RV, new_moving

    def _build(self, num_fixed: int, num_moving: int, beams: int) -> Tuple[Any, List[str], Any]:
        fixed, moving = (
            [mx.sym.var(_name(kind, number)) for number in range(count)]
            for kind, count in (("fixed", num_fixed), ("moving", num_moving))
        )
        score, new_moving = self._trace(mx.sym, mx.sym.var("token"), mx.sym.var("place"), fixed, moving, beams)
        graph: symbol.Symbol = mx.sym.Group([score, *new_moving])
        return nd.CachedOp(graph, FLAGS), graph.list_inputs(), self._network.collect_params()


def _name(kind: str, number: int) -> str:
    return f"{kind}{number}"


def read(F: Any, parameter: gluon.Parameter, beside: Any) -> Any:
    """Returns a parameter as a symbol, or as the array on the device where `beside` is."""
    return parameter.var() if F is mx.sym else parameter.data(beside.context)
