"""Exported parts of networks that generate token by token: `encoder` for the source, and `step`. Imports MXNet.

Legend: B batch, S tokens of the source, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, List, Mapping, Sequence, Tuple

import numpy as np

from mxtrain.engine.backend import autograd, mx, nd
from mxtrain.model.networks.traced_step import StepNetwork
from mxtrain.task.exported_part import Dims, ExportedPart, PartCase

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray
    from mxnet.symbol import Symbol

    from mxtrain.text.networks.language import Stepwise
    from mxtrain.text.translation.networks.decoding import StepDecoder

NUM_ROWS, NUM_STEPS = 3, 4
"""Size of the recorded cases that check an export: rows of the larger batch, and consecutive steps."""
SCORES = "scores"
Steps = List[PartCase]


def language_parts(network: Stepwise, token_BT: np.ndarray) -> Dict[str, ExportedPart]:
    """Returns the step of a language model; empty if the network's step cannot be traced.

    Args:
        network: network on a CPU.
        token_BT: tokens of real texts.
    """
    if not isinstance(network, StepNetwork):
        return {}
    steps = []
    # Dimensions that differ between runs become open dimensions of the graph.
    for rows in (1, NUM_ROWS):
        sample_BT = token_BT[:rows]
        moving = network.initial_state(len(sample_BT), mx.cpu())
        for position in range(min(NUM_STEPS, sample_BT.shape[1])):
            with autograd.pause(train_mode=False):
                score, after = network.step(nd.array(sample_BT[:, position], dtype="int32"), position, moving)
            steps.append(_case(sample_BT[:, position], position, [], moving, score, after))
            moving = after
    return {"step": step_part(network, steps, NUM_STEPS)}


def translation_parts(
    network: StepDecoder, source_BS: np.ndarray, length_B: np.ndarray, bos: int, num_positions: int
) -> Dict[str, ExportedPart]:
    """Returns the encoder and the step of a translation network; empty if they cannot be traced.

    Args:
        network: network on a CPU.
        source_BS: tokens of real sources.
        length_B: lengths of the sources.
        bos: first input token of the decoder.
        num_positions: maximum number of input tokens of the decoder.
    """
    if not isinstance(network, StepNetwork):
        return {}
    steps, starts = [], []
    # A second length of the source makes its length an open dimension of the graph.
    shorter = max(source_BS.shape[1] - 1, 1)
    first = [source_BS[:1, :shorter], np.minimum(length_B[:1], shorter)]
    for inputs in (first, [source_BS[:NUM_ROWS], length_B[:NUM_ROWS]]):
        names = dict(zip(("source", "lengths"), inputs))
        arrays = [nd.array(array, dtype=array.dtype) for array in inputs]
        with autograd.pause(train_mode=False):
            fixed, moving = network.initial_state(*arrays)
        starts.append((names, _named("fixed", fixed)))
        token_B = np.full(len(inputs[0]), bos, np.int32)
        for position in range(min(NUM_STEPS, num_positions)):
            with autograd.pause(train_mode=False):
                score, after = network.step(nd.array(token_B, dtype="int32"), position, fixed, moving)
            steps.append(_case(token_B, position, fixed, moving, score, after))
            token_B, moving = score.asnumpy().argmax(axis=1).astype(np.int32), after
    types = {"source": (("batch", "length"), source_BS.dtype.name), "lengths": (("batch",), length_B.dtype.name)}
    variables = [mx.sym.var(name) for name in types]
    symbol = mx.sym.Group(network.trace_start(mx.sym, *variables))
    return {
        "encoder": ExportedPart(symbol, _parameters(network), types, list(starts[0][1]), starts),
        "step": step_part(network, steps, num_positions),
    }


def step_part(network: StepNetwork, steps: Steps, num_positions: int) -> ExportedPart:
    """Returns the step as a graph.

    The cases get empty arrays for the moving state that the network does not have before its first step.

    Args:
        network: network of the step.
        steps: inputs and outputs of steps that MXNet computed.
        num_positions: see `StepNetwork.trace_position`.
    """
    last, later = steps[-2][0], steps[-1][0]
    first = steps[0][0]
    types: Dict[str, Tuple[Dims, str]] = {"token": (("batch",), "int32"), "place": ((1,), "float32")}
    for name, array in later.items():
        if name not in types:
            other = "past" if name.startswith("moving") else "length"
            shapes = (last[name].shape, array.shape) if other == "past" else (first[name].shape, array.shape)
            dims = [size if a == size else other for a, size in zip(*shapes)]
            types[name] = (("batch", *dims[1:]), array.dtype.name)
    groups = {kind: [mx.sym.var(name) for name in types if name.startswith(kind)] for kind in ("fixed", "moving")}
    constants: Dict[str, np.ndarray] = {}
    position = network.trace_position(mx.sym, mx.sym.var("place"), num_positions, constants)
    score, after = network.trace_step(mx.sym, mx.sym.var("token"), position, groups["fixed"], groups["moving"], 1)
    symbol: Symbol = mx.sym.Group([score, *after])
    read = symbol.list_inputs()
    types = {name: spec for name, spec in types.items() if name in read}
    return ExportedPart(
        symbol,
        {**_parameters(network), **constants},
        types,
        [SCORES, *(f"next_moving{k}" for k in range(len(after)))],
        [
            (
                {name: inputs[name] if name in inputs else _empty(types[name], len(inputs["token"])) for name in types},
                outputs,
            )
            for inputs, outputs in steps
        ],
    )


def _empty(spec: Tuple[Dims, str], rows: int) -> np.ndarray:
    sizes = {"batch": rows, "past": 0}
    return np.zeros([sizes[size] if isinstance(size, str) else size for size in spec[0]], spec[1])


def _case(
    token_B: np.ndarray,
    position: int,
    fixed: Sequence[NDArray],
    moving: Sequence[NDArray],
    score: NDArray,
    after: Sequence[NDArray],
) -> PartCase:
    inputs = {
        "token": token_B.astype(np.int32),
        "place": np.array([position], np.float32),
        **_named("fixed", fixed),
        **_named("moving", moving),
    }
    return inputs, {SCORES: score.asnumpy(), **_named("next_moving", after)}


def _named(kind: str, arrays: Sequence[NDArray]) -> Dict[str, np.ndarray]:
    return {f"{kind}{number}": array.asnumpy() for number, array in enumerate(arrays)}


def _parameters(network: StepNetwork) -> Mapping[str, np.ndarray]:
    block = network  # a block, too
    return {name: parameter.data().asnumpy() for name, parameter in block.collect_params().items()}  # type: ignore[attr-defined]
