"""ONNX conversions of attention: mxtrain's operators (engine/native/attention.cc) and MXNet's interleaved products.

Legend: B batch, T query tokens, S key tokens, N heads, D units of a head, U = N D.
"""

from __future__ import annotations

from typing import List, Optional, Sequence

from mxtrain.exporting.converters.table import converts
from mxtrain.exporting.graph import OperatorCall

HIDDEN = -1e9
"""Added to scores of what is not looked at: its weight is exactly 0 in float32."""


def _heads(call: OperatorCall, index: int, parts: int) -> List[str]:
    """Splits (T, B, parts U), e.g. queries, keys and values, into one tensor (B, N, T, D) per part."""
    heads = call.integer("num_heads", 1)
    width = call.dims(index)[2][0] // parts // heads
    split = call.transpose(call.reshape(call.x(index), 0, 0, parts, heads, width), 2, 1, 3, 0, 4)
    pieces = call.add_several("Split", [split], parts, axis=0) if parts > 1 else [split]
    return [call.squeeze(one, 0) for one in pieces]


def _context(call: OperatorCall, query: str, key: str, value: str, hidden: Sequence[str], width: int) -> str:
    """Computes scaled dot-product attention, (B, N, T, D).

    Args:
        call: the operator.
        query, key, value: tensors (B, N, T or S, D).
        hidden: boolean masks that broadcast to (B, N, T, S); True hides a position.
        width: D.
    """
    scaled = call.add("Mul", [query, call.constant(width**-0.5)])
    score = call.add("MatMul", [scaled, call.transpose(key, 0, 1, 3, 2)])
    for one in hidden:
        shift = call.add("Mul", [call.cast(one, "float32"), call.constant(HIDDEN, "float32")])
        score = call.add("Add", [score, shift])
    return call.add("MatMul", [call.add("Softmax", [score], axis=-1), value])


def _joined(call: OperatorCall, context: str, units: int) -> str:
    """Merges the heads of (B, N, T, D) into (T, B, U)."""
    return call.reshape(call.transpose(context, 2, 0, 1, 3), 0, 0, units)


def _behind(call: OperatorCall, positions: str, lengths: Optional[int]) -> List[str]:
    """Returns the mask of the positions after the end of each sequence, (B, 1, 1, S); [] without lengths."""
    if lengths is None:
        return []
    length = call.reshape(call.as_ints(lengths), -1, 1, 1, 1)
    return [call.add("GreaterOrEqual", [call.reshape(positions, 1, 1, 1, -1), length])]


@converts("_mxtrain_attention")
def attention(call: OperatorCall) -> Sequence[str]:
    units = call.dims()[2][0] // 3
    query, key, value = _heads(call, 0, 3)
    positions = call.range_of(call.x(), 0)
    hidden = _behind(call, positions, 1 if call.integer("padded", 1) else None)
    if call.integer("causal"):
        hidden.append(call.add("Greater", [call.reshape(positions, 1, 1, 1, -1), call.reshape(positions, 1, 1, -1, 1)]))
    context = _context(call, query, key, value, hidden, units // call.integer("num_heads", 1))
    return [_joined(call, context, units)]


@converts("_mxtrain_cross_attention")
def cross_attention(call: OperatorCall) -> Sequence[str]:
    units = call.dims()[2][0]
    (query,), (key, value) = _heads(call, 0, 1), _heads(call, 1, 2)
    hidden = _behind(call, call.range_of(call.x(1), 0), 2)
    return [_joined(call, _context(call, query, key, value, hidden, units // call.integer("num_heads", 1)), units)]


@converts("_mxtrain_attention_step")
def attention_step(call: OperatorCall) -> Sequence[str]:
    """Converts a decoding step: self-attention of one token with cached keys and values.

    The outputs are the context, and the cached keys and values with those of the token appended.
    """
    units = call.dims()[2][0] // 3
    heads = call.integer("num_heads", 1)
    query, key, value = _heads(call, 0, 3)
    if not call.integer("first"):
        key, value = (call.add("Concat", [call.x(index), one], axis=2) for index, one in ((1, key), (2, value)))
    context = _context(call, query, key, value, [], units // heads)
    return [_joined(call, context, units), key, value]


@converts("_mxtrain_source_attention_step")
def source_attention_step(call: OperatorCall) -> Sequence[str]:
    """Converts a decoding step: attention of one token per beam row to the encoded source of its text."""
    units, heads = call.dims()[2][0], call.integer("num_heads", 1)
    width = units // heads
    # (1, R, U) -> (A, N, K, D) for A texts: the K beam rows of a text are adjacent.
    sources = call.size(call.x(1), 0)
    shape = call.add("Concat", [sources, call.ints(-1), call.ints(heads), call.ints(width)], axis=0)
    query = call.transpose(call.add("Reshape", [call.x(), shape]), 0, 2, 1, 3)
    hidden = _behind(call, call.range_of(call.x(1), 2), 3)
    context = _context(call, query, call.x(1), call.x(2), hidden, width)
    return [call.reshape(call.transpose(context, 0, 2, 1, 3), 1, -1, units)]


def _interleaved(call: OperatorCall) -> List[str]:
    """Splits GluonNLP's interleaved (T, B, 3 U), with query, key and value side by side per head, into three
    (B, N, T, D)."""
    heads = call.integer("heads", 1)
    width = call.dims()[2][0] // 3 // heads
    parts = call.add_several("Split", [call.reshape(call.x(), 0, 0, heads, 3, width)], 3, axis=3)
    return [call.transpose(call.squeeze(part, 3), 1, 2, 0, 3) for part in parts]


@converts("_contrib_interleaved_matmul_selfatt_qk")
def interleaved_scores(call: OperatorCall) -> str:
    width = call.dims()[2][0] // 3 // call.integer("heads", 1)
    query, key, _ = _interleaved(call)
    scaled = call.add("Mul", [query, call.constant(width**-0.5)])
    return call.to_shape(call.add("MatMul", [scaled, call.transpose(key, 0, 1, 3, 2)]), [], call.out_dims())


@converts("_contrib_interleaved_matmul_selfatt_valatt")
def interleaved_context(call: OperatorCall) -> str:
    heads, units = call.integer("heads", 1), call.dims()[2][0] // 3
    _, _, value = _interleaved(call)
    # MXNet's weights have batch and heads in one axis, (B N, T, S).
    sizes = [call.ints(-1), call.ints(heads), call.size(call.x(1), 1), call.size(call.x(1), 2)]
    weight = call.add("Reshape", [call.x(1), call.add("Concat", sizes, axis=0)])
    return call.reshape(call.transpose(call.add("MatMul", [weight, value]), 2, 0, 1, 3), 0, 0, units)
