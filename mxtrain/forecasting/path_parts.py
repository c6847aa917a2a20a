"""Exported parts of networks whose forecasts are sampled: `encoder` for the past, and `step`. Imports MXNet."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

import numpy as np

from mxtrain.engine.backend import autograd, mx, nd
from mxtrain.forecasting.sampled_paths import RAW, START, STEP_INPUT, input_name, state_name
from mxtrain.task.exported_part import Dims, ExportedPart, PartCase

NUM_ROWS, NUM_STEPS = 3, 2
"""Rows of the larger batch, and consecutive steps, of the recorded cases that check an export."""


def path_parts(network: Any, arrays: Sequence[np.ndarray], width: int) -> Dict[str, ExportedPart]:
    """Returns the encoder and the step of a network.

    Args:
        network: a `DeepARNetwork` on a CPU.
        arrays: inputs of the encoder for real samples, (B, ...) each.
        width: number of inputs of a step.
    """
    starts: List[PartCase] = []
    steps: List[PartCase] = []
    draws = np.random.RandomState(0)
    for rows in (1, NUM_ROWS):
        own = [array[:rows] for array in arrays]
        with autograd.pause(train_mode=False):
            found = network.start(nd, *(nd.array(array, dtype=array.dtype) for array in own))
        names = [*START, *(state_name(number) for number in range(len(found) - len(START)))]
        inputs = {input_name(number): array for number, array in enumerate(own)}
        starts.append((inputs, {name: array.asnumpy() for name, array in zip(names, found)}))
        states = found[len(START) :]
        for _ in range(NUM_STEPS):
            x_BI = draws.randn(len(own[0]), width).astype(np.float32)
            entered = {STEP_INPUT: x_BI, **{state_name(k): state.asnumpy() for k, state in enumerate(states)}}
            with autograd.pause(train_mode=False):
                raw, *states = network.step(nd, nd.array(x_BI), states)
            after = {f"next_{state_name(k)}": state.asnumpy() for k, state in enumerate(states)}
            steps.append((entered, {RAW: raw.asnumpy(), **after}))
    parameters = {name: one.data().asnumpy() for name, one in network.collect_params().items()}
    encoder = network.start(mx.sym, *map(mx.sym.var, starts[0][0]))
    first, *states_of = steps[0][0]
    step = network.step(mx.sym, mx.sym.var(first), [mx.sym.var(name) for name in states_of])
    return {
        "encoder": _part(encoder, parameters, starts),
        "step": _part(step, parameters, steps),
    }


def _part(outputs: Sequence[Any], parameters: Dict[str, np.ndarray], cases: List[PartCase]) -> ExportedPart:
    inputs: Dict[str, Tuple[Dims, str]] = {
        name: (("batch", *array.shape[1:]), array.dtype.name) for name, array in cases[0][0].items()
    }
    return ExportedPart(mx.sym.Group(list(outputs)), parameters, inputs, list(cases[0][1]), cases)
