"""One step of a network that writes token by token, as one operator of MXNet. Imports MXNet.

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
    """(F, token, place, fixed, moving, beams), of symbols and a number -> scores, and what moves."""

FLAGS = (("forward_bulk_size", 1000),)
"""All operators of a step are handed to the engine at once, without waiting for one of them."""


class StepNetwork:
    """Base of networks whose steps can be traced, and so be exported."""

    def trace_step(
        self, F: Any, token: Any, place: Any, fixed: List[Any], moving: List[Any], beams: int
    ) -> Tuple[Any, List[Any]]:  # fmt: skip
        """Scores (R, V) of the tokens that follow, and what moves, as symbols or arrays.

        Args:
            F: MXNet's operators of symbols or arrays.
            token: the last token of each row, (R,).
            place: what `trace_place` returns.
            fixed: arrays of the samples, see `trace_start`.
            moving: arrays of the rows; empty where a network remembers nothing before its first step.
            beams: rows of a sample.
        """
        raise NotImplementedError

    def trace_place(self, F: Any, place_1: Any, num_places: int, constants: Dict[str, np.ndarray]) -> Any:
        """What a step takes of the place.

        Args:
            F: MXNet's operators of symbols.
            place_1: how many tokens were read before, float32.
            num_places: places are below it.
            constants: values of further variables, by name; may be extended.
        """
        return place_1

    def trace_start(self, F: Any, *inputs: Any) -> List[Any]:
        """Returns the fixed arrays of samples; none for a network without a source."""
        return []


class TracedStep:
    """A step that is traced once for each number of arrays and of beams (rows of a sentence), and then called with
    arrays of any size.

    Operators called one by one from Python take longer than a small network computes.

    Args:
        network: whose parameters the step reads.
        trace: the step.
    """

    def __init__(self, network: gluon.Block, trace: Trace):
        self._network, self._trace = network, trace
        self._known: Dict[Tuple[int, int, int], Tuple[Any, List[str], Any]] = {}

    def __call__(
        self, token_R: NDArray, place: NDArray, fixed: List[NDArray], moving: List[NDArray]
    ) -> Tuple[NDArray, List[NDArray]]:  # fmt: skip
        """Scores (R, V) of the tokens that follow, and what moves, as it is behind them.

        Args:
            token_R: the last token of each row.
            place: what the step is given of the place.
            fixed: arrays of the samples, each of which has R / their number of rows.
            moving: arrays of the rows.
        """
        beams = len(token_R) // len(fixed[0]) if fixed else 1
        key = (len(fixed), len(moving), beams)
        if key not in self._known:
            self._known[key] = self._build(*key)
        operator, names, parameters = self._known[key]
        device = token_R.context
        given = {"token": token_R, "place": place}
        given.update((_name("fixed", number), array) for number, array in enumerate(fixed))
        given.update((_name("moving", number), array) for number, array in enumerate(moving))
        arrays = (given[name] if name in given else parameters[name].data(device) for name in names)
        score_RV, *after = operator(*arrays)
        return score_RV, after

    def _build(self, num_fixed: int, num_moving: int, beams: int) -> Tuple[Any, List[str], Any]:
        fixed, moving = (
            [mx.sym.var(_name(kind, number)) for number in range(count)]
            for kind, count in (("fixed", num_fixed), ("moving", num_moving))
        )
        score, after = self._trace(mx.sym, mx.sym.var("token"), mx.sym.var("place"), fixed, moving, beams)
        graph: symbol.Symbol = mx.sym.Group([score, *after])
        return nd.CachedOp(graph, FLAGS), graph.list_inputs(), self._network.collect_params()


def _name(kind: str, number: int) -> str:
    return f"{kind}{number}"


def read(F: Any, parameter: gluon.Parameter, beside: Any) -> Any:
    """Returns a parameter as a symbol, or as the array on the device where `beside` is."""
    return parameter.var() if F is mx.sym else parameter.data(beside.context)
