"""Attention: mxtrain's operators and MXNet's interleaved products."""

from __future__ import annotations

from mxtrain.exporting.pytorch.call import Converted, TorchCall
from mxtrain.exporting.pytorch.operators.table import converts


@converts("_mxtrain_attention")
def attention(call: TorchCall) -> Converted:
    lengths = call.x(1) if call.integer("padded", 1) else "None"
    heads, causal = call.integer("num_heads", 1), bool(call.integer("causal"))
    return f"{call.helper('self_attention')}({call.x()}, {lengths}, {heads}, causal={causal})"


@converts("_mxtrain_cross_attention")
def cross_attention(call: TorchCall) -> Converted:
    name = call.helper("cross_attention")
    return f"{name}({call.x()}, {call.x(1)}, {call.x(2)}, {call.integer('num_heads', 1)})"


@converts("_contrib_interleaved_matmul_selfatt_qk")
def interleaved_scores(call: TorchCall) -> Converted:
    return f"{call.helper('interleaved_scores')}({call.x()}, {call.integer('heads', 1)})"


@converts("_contrib_interleaved_matmul_selfatt_valatt")
def interleaved_context(call: TorchCall) -> Converted:
    return f"{call.helper('interleaved_context')}({call.x()}, {call.x(1)}, {call.integer('heads', 1)})"
