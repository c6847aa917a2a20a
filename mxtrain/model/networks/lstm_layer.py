"""Parameters and computation of one LSTM layer, for the blocks of the fields.

Legend: T steps, B batch, I inputs, U units.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Sequence, Tuple

from mxtrain.engine.backend import gluon, mx

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, OperatorModule


def add_lstm_parameters(block: gluon.HybridBlock, width: int, units: int) -> None:
    """Adds the parameters of an LSTM layer to a block, with gates in MXNet's order: input, forget, candidate, output.

    Args:
        block: the block, within its name scope.
        width: I.
        units: U.
    """
    block.i2h_weight = block.params.get("i2h_weight", shape=(4 * units, width))
    block.h2h_weight = block.params.get("h2h_weight", shape=(4 * units, units))
    # Gates that forget begin open. Source: Jozefowicz et al., ICML 2015.
    block.i2h_bias = block.params.get("i2h_bias", shape=(4 * units,), init=mx.init.LSTMBias(1.0))
    block.h2h_bias = block.params.get("h2h_bias", shape=(4 * units,), init="zeros")


def run_lstm(
    F: OperatorModule, x_TBI: Array, state_BU: Array, cell_BU: Array, parameters: Sequence[Array], units: int
) -> Tuple[Array, Array, Array]:
    """Computes an LSTM layer from a state.

    Args:
        F: module of operators.
        x_TBI: inputs.
        state_BU: state before the first step.
        cell_BU: cell before the first step.
        parameters: i2h_weight (4U, I), h2h_weight (4U, U), i2h_bias (4U,) and h2h_bias (4U,).
        units: U.

    Returns:
        The states of all steps (T, B, U), and the state and the cell after the last step (B, U).
    """
    flat = [F.reshape(parameter, shape=(-1,)) for parameter in parameters]
    x_TBU, state_1BU, cell_1BU = F.RNN(
        x_TBI,
        F.concat(*flat, dim=0),
        F.expand_dims(state_BU, axis=0),
        F.expand_dims(cell_BU, axis=0),
        state_size=units,
        # One layer per operator: on a CPU, MXNet silently ignores dropout between layers, and its float64 gradients
        # of several layers are wrong.
        num_layers=1,
        mode="lstm",
        state_outputs=True,
    )
    return x_TBU, F.reshape(state_1BU, shape=(-3, 0)), F.reshape(cell_1BU, shape=(-3, 0))
