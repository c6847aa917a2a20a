"""Calls of mxtrain's native operators (mxtrain/engine/native) in networks. Imports MXNet.

MXNet does not tell an operator of a library whether the network trains. The operators read it from the seed of their
dropout, which MXNet's own Dropout draws.

Nor does MXNet tell such an operator that its gradient must be added to an existing array: the operator overwrites the
array, and a part of the sum is lost. MXNet asks for an addition in two cases. First, if the gradients of a parameter
are summed over several calls (grad_req); parameters therefore pass through an identity, which can add. Second, if a sum
of gradients has at least MXNET_EXEC_INPLACE_GRAD_SUM_CAP (8) parts; the first part is written, and all others are
added. In `norm` the residual's part is the first one, because the gradient through `x`, which is computed from the
residual, comes later.
Source: MXNet 1.9.1, src/executor/graph_executor.cc (AggregateGradient), inplace_addto_detect_pass.cc.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional, Sequence, Tuple

from mxtrain.engine.backend import nd
from mxtrain.model.graph.mxnet_workarounds import dropout

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, OperatorModule

SEED_BITS = 64
"""The bits of the seed of one dropout; mxtrain/engine/native/common.h writes the same number."""


def dropout_seed(F: OperatorModule, like: Array) -> Array:
    """Returns the random bits of a dropout (64,): ones in inference mode, zeros and twos in training mode."""
    # A symbol has no device: its arrays are made where the graph runs.
    options = {"ctx": like.context} if F is nd else {}
    # The seed follows from MXNet's own generator, so a resumed run drops the same numbers.
    return F.BlockGrad(dropout(F, F.ones(shape=(SEED_BITS,), **options), 0.5))


def norm(
    F: OperatorModule, x: Array, residual: Optional[Array], gamma: Array, beta: Array, dropout: float, epsilon: float
) -> Array:
    """Computes norm(dropout(x) + residual) over the last axis of (..., U); nothing else may read `x`.

    Args:
        residual: like `x`, which must be computed from it, else its gradient is lost; or None.
        gamma, beta: (U,).
        dropout: probability.
        epsilon: added to the variance.
    """
    inputs = [x, *([] if residual is None else [residual]), F.identity(gamma), F.identity(beta)]
    if dropout:
        inputs.append(dropout_seed(F, x))
    return F._internal._mxtrain_norm(*inputs, residual=int(residual is not None), p=dropout, eps=epsilon)[0]


def gelu(F: OperatorModule, x: Array) -> Array:
    """Computes GELU in its tanh form; nothing else may read `x`."""
    return F._internal._mxtrain_gelu(x)


def attention(
    F: OperatorModule, qkv: Array, length_B: Optional[Array], num_heads: int, dropout: float, causal: bool = False
) -> Array:
    """Computes multi-head self-attention; nothing else may read `qkv`.

    Args:
        qkv: queries, keys and values of all heads, (T, B, 3 * U).
        length_B: length of each text, (B,); later positions are masked. None = no text is padded.
        causal: True if a token attends only to itself and earlier tokens.

    Returns:
        (T, B, U).
    """
    inputs = [qkv, *([] if length_B is None else [F.BlockGrad(length_B)]), *([dropout_seed(F, qkv)] if dropout else [])]
    options = {**({"causal": 1} if causal else {}), **({"padded": 0} if length_B is None else {})}
    return F._internal._mxtrain_attention(*inputs, num_heads=num_heads, p=dropout, **options)[0]


def cross_attention(
    F: OperatorModule, query_TBU: Array, key_value: Array, length_B: Array, num_heads: int, dropout: float
) -> Array:
    """Computes multi-head cross-attention; nothing else may read `query_TBU` or `key_value`.

    Args:
        query_TBU: queries of all heads.
        key_value: keys and values of all heads, (S, B, 2 * U).
        length_B: length of each text in `key_value`, (B,); later positions are masked.
        dropout: probability.

    Returns:
        (T, B, U).
    """
    inputs = [query_TBU, key_value, F.BlockGrad(length_B), *([dropout_seed(F, query_TBU)] if dropout else [])]
    return F._internal._mxtrain_cross_attention(*inputs, num_heads=num_heads, p=dropout)[0]


def attention_step(F: OperatorModule, qkv_1RU: Array, memory: Sequence[Array], num_heads: int) -> Tuple[Array, ...]:
    """Computes the attention of the next token of each row to itself and earlier tokens; it has no gradient.

    Args:
        qkv_1RU: queries, keys and values of all heads, (1, R, 3 * U).
        memory: keys and values of the tokens before, (R, N, T, D) each; empty if there are none.

    Returns:
        Contexts (1, R, U), and keys and values including the new token, (R, N, T + 1, D).
    """
    options = {} if memory else {"first": 1}
    outputs = F._internal._mxtrain_attention_step(qkv_1RU, *memory, num_heads=num_heads, **options)
    return outputs[0], outputs[1], outputs[2]


def source_attention_step(
    F: OperatorModule, query_1RU: Array, key: Array, value: Array, length_A: Array, num_heads: int
) -> Array:
    """Computes the attention of one token of each row to the source of its sentence; it has no gradient.

    Args:
        query_1RU: queries of all heads; R / A rows after one another are of one sentence.
        key: keys of the sources, (A, N, S, D).
        value: values of the sources, (A, N, S, D).
        length_A: length of each source; later positions are masked.

    Returns:
        (1, R, U).
    """
    return F._internal._mxtrain_source_attention_step(query_1RU, key, value, length_A, num_heads=num_heads)[0]


def cross_entropy(F: OperatorModule, score: Array, label: Array, num_classes: int) -> Tuple[Array, Array]:
    """Computes -log p of the labels for p = softmax(scores), and the mean of -log p over all classes.

    Nothing else may read `score`.

    Args:
        score: (..., num_classes).
        label: (...); both results are 0 where it is -1.

    Returns:
        (...) each; float32 for bfloat16 scores.
    """
    loss, mean, _ = F._internal._mxtrain_cross_entropy(score, F.BlockGrad(label), classes=num_classes)
    return loss, mean


def roi_align(
    F: OperatorModule,
    maps: Sequence[Array],
    row_Q5: Array,
    count: int,
    side: int,
    sizes: Sequence[Tuple[int, int]],
    strides: Sequence[int],
) -> Array:
    """Computes RoIAlign (B count, C, side, side), with 2x2 samples per cell; each region is read from one map.
    At most six other operators may read a map, see the module docstring.

    Args:
        maps: (B, C, h, w) each.
        row_Q5: of regions, those of an image one after the other: place of a map in `maps`, left, top, right, bottom.
        count: number of regions per image.
        side: number of cells along each side of a region.
        sizes: height and width of each map.
        strides: pixels from one place of each map to the next.
    """
    heights, widths = zip(*sizes)
    return F._internal._mxtrain_roi_align(
        *maps,
        row_Q5,
        maps=len(maps),
        count=count,
        side=side,
        heights=heights,
        widths=widths,
        scales=tuple(1.0 / stride for stride in strides),
    )


def non_max_suppression(
    F: OperatorModule, row_BT5: Array, candidates: int, keep: int, iou: float, min_score: float
) -> Array:
    """Applies non-maximum suppression; returns the first `keep` remaining boxes of each image, (B, keep, 5).

    Missing rows are -1. There is no gradient.

    Args:
        row_BT5: score, left, top, right, bottom; the highest scores first.
        candidates: T.
        iou: a box is suppressed if its intersection over union with a kept box is larger.
        min_score: boxes whose score is not above this are dropped.
    """
    return F._internal._mxtrain_suppression(row_BT5, candidates=candidates, keep=keep, iou=iou, least=min_score)
