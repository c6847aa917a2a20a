"""Our own operators compute what MXNet's compute, and draw what they should."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from mxtrain.engine.backend import autograd, mx, native_operators, nd
from mxtrain.errors import DivergenceError
from mxtrain.model.networks import fused
from mxtrain.training import snapshot

pytestmark = pytest.mark.skipif(native_operators().path is None, reason=native_operators().why)
TOLERANCE = {"float32": 2e-5, "float64": 1e-10}
SHORT = np.dtype([("bfloat16", np.uint16)])
"""MXNet's own name for it."""
TOKENS, TEXTS, HEADS, WIDTH = 150, 3, 4, 16


def arrays(dtype, *shapes):
    rng = np.random.RandomState(0)
    made = [nd.array(rng.randn(*shape), dtype=dtype) for shape in shapes]
    for one in made:
        one.attach_grad()
    return made


def with_gradients(function, given, head):
    """[output, gradients of `given`...]"""
    with autograd.record():
        made = function(*given)
    made.backward(head)
    return [made.asnumpy(), *(one.grad.asnumpy() for one in given)]


def drawn(seed=3):
    mx.random.seed(seed)
    with autograd.train_mode():
        return fused.dropout_seed(nd, nd.ones((1,)))


def plain_attention(qkv, lengths):
    query, key, value = (
        one.reshape((TOKENS, TEXTS * HEADS, WIDTH)).transpose((1, 0, 2)) for one in nd.split(qkv, 3, axis=2)
    )
    is_padding = np.arange(TOKENS)[None, :] >= np.array(lengths)[:, None]
    mask = nd.array(np.repeat(np.where(is_padding, -1e4, 0), HEADS, axis=0)[:, None, :], dtype=qkv.dtype)
    weight = nd.softmax(nd.broadcast_add(nd.batch_dot(query * WIDTH**-0.5, key, transpose_b=True), mask))
    return nd.batch_dot(weight, value).transpose((1, 0, 2)).reshape((TOKENS, TEXTS, HEADS * WIDTH))


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_attention_is_softmax_of_products(dtype):
    """Covers more tokens than one block of rows has, and texts of all lengths."""
    lengths = [TOKENS + 5, 70, 1]
    (qkv,), (head,) = arrays(dtype, (TOKENS, TEXTS, 3 * HEADS * WIDTH)), arrays(dtype, (TOKENS, TEXTS, HEADS * WIDTH))
    wanted = with_gradients(lambda qkv: plain_attention(qkv, lengths), [qkv], head)
    made = with_gradients(lambda qkv: fused.attention(nd, qkv, nd.array(lengths), HEADS, 0.0), [qkv], head)
    for one, other in zip(made, wanted):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=TOLERANCE[dtype])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("p", [0.0, 0.3])
def test_causal_attention_is_attention_to_each_beginning(dtype, p):
    """Each token's context is that of the text cut behind it; with dropout, of the same draws."""
    lengths = [TOKENS, 70, 1]
    (qkv,), (head,) = arrays(dtype, (TOKENS, TEXTS, 3 * HEADS * WIDTH)), arrays(dtype, (TOKENS, TEXTS, HEADS * WIDTH))
    draw = [drawn().astype(dtype)] if p else []

    def attention(qkv, causal):
        length = nd.array(lengths, dtype=dtype)
        return nd._internal._mxtrain_attention(qkv, length, *draw, num_heads=HEADS, p=p, causal=causal)[0]

    def prefixes(qkv):
        rows = []
        for place in range(TOKENS):
            count = nd.array(np.minimum(lengths, place + 1), dtype=dtype)
            whole = nd._internal._mxtrain_attention(qkv, count, *draw, num_heads=HEADS, p=p)[0]
            rows.append(whole[place])
        return nd.stack(*rows)

    wanted, found = (with_gradients(function, [qkv], head) for function in (prefixes, lambda qkv: attention(qkv, 1)))
    for one, other in zip(found, wanted):
        np.testing.assert_allclose(one, other, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * np.abs(other).max())


@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_attention_to_another_text_is_that_to_itself_with_the_same_queries(dtype, p):
    """Compares with a text of twice as many tokens, whose keys and values are its own and whose queries are those of
    the other text."""
    count, sources = TOKENS // 2, TOKENS
    units, lengths, draw = HEADS * WIDTH, [sources + 5, 70, 1], [drawn().astype(dtype)] if p else []
    given = arrays(dtype, (count, TEXTS, units), (sources, TEXTS, 2 * units))
    (head,) = arrays(dtype, (count, TEXTS, units))
    length = nd.array(lengths, dtype=dtype)

    def cross(query, key_value):
        return nd._internal._mxtrain_cross_attention(query, key_value, length, *draw, num_heads=HEADS, p=p)[0]

    def by_self(query, key_value):
        queries = nd.concat(query, nd.zeros((sources - count, TEXTS, units), dtype=dtype), dim=0)
        packed = nd.concat(queries, key_value, dim=2)
        return nd._internal._mxtrain_attention(packed, length, *draw, num_heads=HEADS, p=p)[0][:count]

    wanted, found = (with_gradients(function, given, head) for function in (by_self, cross))
    for one, other in zip(found, wanted):
        np.testing.assert_allclose(one, other, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * np.abs(other).max())


def plain_heads(query, key, value, lengths, heads, causal):
    """Attention by MXNet's operators: queries (T, B, U), keys and values (S, B, U)."""
    count, sources, width = len(query), len(key), query.shape[2] // heads
    query, key, value = (one.reshape((len(one), -1, width)).transpose((1, 0, 2)) for one in (query, key, value))
    is_hidden = np.arange(sources) >= np.repeat(lengths, heads)[:, None, None]
    if causal:
        is_hidden = is_hidden | (np.arange(sources) > np.arange(count)[:, None])
    mask = nd.array(np.where(np.broadcast_to(is_hidden, (len(query), count, sources)), -1e9, 0), dtype=query.dtype)
    weight = nd.softmax(nd.batch_dot(query * width**-0.5, key, transpose_b=True) + mask)
    return nd.batch_dot(weight, value).transpose((1, 0, 2)).reshape((count, -1, heads * width))


ODD_SIZES = [(1, 1, 1, 1), (2, 3, 1, 7), (128, 2, 3, 5), (129, 1, 2, 1), (257, 3, 2, 33)]
"""Tokens, texts, heads and units of a head: about the ends of blocks of rows, and no multiples of a vector."""


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("sizes", ODD_SIZES)
def test_attention_accepts_any_size_and_offset(dtype, sizes):
    """A text without tokens, and one with more than there are, look at all."""
    tokens, texts, heads, width = sizes
    units, lengths = heads * width, [0, tokens + 3, 1][:texts]
    (whole,), (head,) = arrays(dtype, (tokens + 1, texts, 3 * units)), arrays(dtype, (tokens, texts, units))
    for causal in (False, True):

        def plain(whole, causal=causal):
            seen = [length or tokens for length in lengths]
            return plain_heads(*nd.split(whole[1:], 3, axis=2), seen, heads, causal)

        def own(whole, causal=causal):
            return fused.attention(nd, whole[1:], nd.array(lengths), heads, 0.0, causal)

        wanted, found = (with_gradients(function, [whole], head) for function in (plain, own))
        for one, other in zip(found, wanted):
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("sources", [1, 6, 130])
@pytest.mark.parametrize("sizes", ODD_SIZES)
def test_attention_to_another_text_takes_any_sizes(dtype, sizes, sources):
    tokens, texts, heads, width = sizes
    units, lengths = heads * width, [min(5, sources), sources + 3, 0][:texts]
    given = arrays(dtype, (tokens, texts, units), (sources, texts, 2 * units))
    (head,) = arrays(dtype, (tokens, texts, units))

    def plain(query, key_value):
        seen = [length or sources for length in lengths]
        return plain_heads(query, *nd.split(key_value, 2, axis=2), seen, heads, False)

    wanted = with_gradients(plain, given, head)
    found = with_gradients(lambda *two: fused.cross_attention(nd, *two, nd.array(lengths), heads, 0.0), given, head)
    for one, other in zip(found, wanted):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("shapes", [[(3, 2, 8), (4, 2, 8)], [(3, 2, 8), (4, 3, 16)], [(3, 2, 9), (4, 2, 18)]])
def test_attention_refuses_wrong_arguments(shapes):
    with pytest.raises(mx.MXNetError):
        nd._internal._mxtrain_cross_attention(*map(nd.ones, shapes), nd.array([4, 4]), num_heads=2)[0].wait_to_read()


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_attention_of_one_token_after_the_other_is_causal_attention(dtype):
    """Keys and values are kept as they are."""
    tokens, rows, heads, width = 5, 3, 2, 7
    (qkv,) = arrays(dtype, (tokens, rows, 3 * heads * width))
    wanted = plain_heads(*nd.split(qkv, 3, axis=2), [tokens] * rows, heads, True).asnumpy()
    memory = []
    for place in range(tokens):
        context, *memory = fused.attention_step(nd, qkv[place : place + 1], memory, heads)
        np.testing.assert_allclose(context.asnumpy()[0], wanted[place], rtol=1e-3, atol=TOLERANCE[dtype])
    for which, kept in zip((1, 2), memory):
        packed = qkv.asnumpy().reshape(tokens, rows, 3, heads, width)[:, :, which]
        np.testing.assert_array_equal(kept.asnumpy(), packed.transpose(1, 2, 0, 3))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("beams", [1, 3])
def test_attention_of_rows_to_the_source_they_share(dtype, beams):
    """Covers sources of all lengths; a length of 0 or beyond the maximum means no padding."""
    sources, heads, width, lengths = 6, 2, 5, [4, 9, 0, 1]
    texts, units = len(lengths), heads * width
    query, key_value = arrays(dtype, (1, texts * beams, units), (sources, texts, 2 * units))
    as_tokens = query.reshape((texts, beams, units)).transpose((1, 0, 2))
    seen = [4, 6, 6, 1]
    wanted = plain_heads(as_tokens, *nd.split(key_value, 2, axis=2), seen, heads, False).asnumpy()
    packed = key_value.reshape((sources, texts, 2, heads, width)).transpose((2, 1, 3, 0, 4))
    found = fused.source_attention_step(nd, query, packed[0], packed[1], nd.array(lengths), heads).asnumpy()
    found = found.reshape(texts, beams, units).transpose(1, 0, 2)
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=TOLERANCE[dtype])


def test_a_step_of_attention_refuses_to_be_differentiated():
    (qkv,) = arrays("float32", (1, 3, 24))
    with pytest.raises(mx.MXNetError, match="no gradient"):
        with_gradients(lambda qkv: fused.attention_step(nd, qkv, [], 2)[0], [qkv], None)


@pytest.mark.parametrize("shapes", [[(1, 3, 24)] + [(2, 2, 5, 4)] * 2, [(1, 2, 24)] + [(2, 2, 5, 3)] * 2, [(2, 2, 24)]])
def test_step_of_attention_refuses_wrong_arguments(shapes):
    with pytest.raises(mx.MXNetError):
        qkv, *memory = map(nd.ones, shapes)
        fused.attention_step(nd, qkv, memory, 2)[0].wait_to_read()


@pytest.mark.parametrize("shapes", [[(1, 3, 8)] + [(2, 2, 5, 4)] * 2, [(1, 4, 8)] + [(2, 2, 5, 3)] * 2])
def test_step_of_attention_to_sources_refuses_wrong_arguments(shapes):
    with pytest.raises(mx.MXNetError):
        fused.source_attention_step(nd, *map(nd.ones, shapes), nd.array([4, 4]), 2).wait_to_read()


def test_attention_stores_bfloat16_and_computes_in_float32():
    (qkv,), (head,) = arrays("float32", (9, 2, 48)), arrays("float32", (9, 2, 16))
    qkv[:] = nd.amp_cast(nd.amp_cast(qkv, dtype=SHORT), dtype="float32")  # so that the cast loses nothing
    head = nd.amp_cast(nd.amp_cast(head, dtype=SHORT), dtype="float32")

    def attention(qkv, in_short):
        made = fused.attention(nd, nd.amp_cast(qkv, dtype=SHORT) if in_short else qkv, nd.array([9, 4]), 2, 0.0)
        return nd.amp_cast(made, dtype="float32")

    wanted, found = (with_gradients(lambda qkv, s=in_short: attention(qkv, s), [qkv], head) for in_short in (0, 1))
    np.testing.assert_array_equal(
        found[0], nd.amp_cast(nd.amp_cast(nd.array(wanted[0]), dtype=SHORT), dtype="float32").asnumpy()
    )
    np.testing.assert_allclose(found[1], wanted[1], atol=0.01 * abs(wanted[1]).max())


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("has_residual", [False, True])
def test_norm_is_layer_norm_of_the_sum(dtype, has_residual):
    x, residual, gamma, beta = given = arrays(dtype, (4, 6, 97), (4, 6, 97), (97,), (97,))
    (head,) = arrays(dtype, (4, 6, 97))
    used = given if has_residual else [x, gamma, beta]

    def plain(*given):
        return nd.LayerNorm(given[0] + given[1] if has_residual else given[0], *given[-2:], eps=1e-5)

    def own(*given):
        return fused.norm(nd, given[0], given[1] if has_residual else None, *given[-2:], 0.0, 1e-5)

    for one, other in zip(with_gradients(own, used, head), with_gradients(plain, used, head)):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=TOLERANCE[dtype])


def numeric_and_given_slope(function, given, index):
    """Along one direction of one input, in float64."""
    (head, direction) = arrays("float64", function(*given).shape, given[index].shape)
    slopes = with_gradients(function, given, head)[1 + index]
    step = 1e-5
    above, below = ([a + s * step * direction if i == index else a for i, a in enumerate(given)] for s in (1, -1))
    numeric = ((function(*above) - function(*below)) * head).sum().asscalar() / (2 * step)
    return numeric, float((slopes * direction.asnumpy()).sum())


@pytest.mark.parametrize("index", [0, 1, 2, 3])
def test_norm_gradient_equals_finite_differences_with_dropout(index):
    given, draw = arrays("float64", (7, 30), (7, 30), (30,), (30,)), drawn()
    options = {"residual": 1, "p": 0.3, "eps": 1e-5}
    numeric, slope = numeric_and_given_slope(
        lambda *given: nd._internal._mxtrain_norm(*given, draw, **options)[0], given, index
    )
    assert slope == pytest.approx(numeric, rel=1e-6)


def test_attention_gradient_equals_finite_differences_with_dropout():
    draw, lengths = drawn(), nd.array([5, 3])
    numeric, slope = numeric_and_given_slope(
        lambda qkv: nd._internal._mxtrain_attention(qkv, lengths, draw, num_heads=2, p=0.3)[0],
        arrays("float64", (5, 2, 48)),
        0,
    )
    assert slope == pytest.approx(numeric, rel=1e-6)


@pytest.mark.parametrize("probability", [0.1, 0.5])
def test_dropout_drops_its_share_and_keeps_the_mean(probability):
    """All weights of one head are 1 / T, all values 1: each context is the sum of what was kept."""
    tokens, texts = 64, 40
    qkv = nd.concat(nd.zeros((tokens, texts, 16)), nd.ones((tokens, texts, 8)), dim=2)
    made = nd._internal._mxtrain_attention(qkv, nd.full((texts,), tokens), drawn(), num_heads=1, p=probability)[0]
    kept = made.asnumpy()[:, :, 0] * tokens * (1 - probability)
    assert np.abs(kept - kept.round()).max() < 1e-3
    assert kept.mean() / tokens == pytest.approx(1 - probability, abs=0.005)
    assert kept.std() == pytest.approx((tokens * probability * (1 - probability)) ** 0.5, rel=0.1)
    x = nd.ones((400, 64))
    normed = nd._internal._mxtrain_norm(x, nd.ones((64,)), nd.zeros((64,)), drawn(), p=probability, eps=1e-5)[0]
    dropped = normed.asnumpy() < 0
    assert dropped.mean() == pytest.approx(probability, abs=0.01)
    assert abs(np.corrcoef(dropped[:-1].ravel(), dropped[1:].ravel())[0, 1]) < 0.03
    assert dropped.mean(axis=0).std() < 2 * (probability * (1 - probability) / 400) ** 0.5


def test_dropout_depends_on_the_seed():
    (x,) = arrays("float32", (8, 16))

    def normed(draw):
        return nd._internal._mxtrain_norm(x, nd.ones((16,)), nd.zeros((16,)), draw, p=0.5, eps=1e-5)[0].asnumpy()

    np.testing.assert_array_equal(normed(drawn(1)), normed(drawn(1)))
    assert (normed(drawn(1)) != normed(drawn(2))).any()
    with autograd.predict_mode():
        inferring = fused.dropout_seed(nd, x)
    np.testing.assert_allclose(normed(inferring), nd.LayerNorm(x, nd.ones((16,)), nd.zeros((16,))).asnumpy(), atol=1e-5)


def test_empty_text_attends_to_all_tokens():
    (qkv,) = arrays("float32", (6, 2, 24))
    none, all_ = (fused.attention(nd, qkv, nd.array([given, 3]), 2, 0.0).asnumpy() for given in (0, 6))
    np.testing.assert_array_equal(none, all_)


def test_philox_equals_the_published_values():
    """The known answers of its authors' library (Random123, kat_vectors): philox4x32 10, all zeros."""
    words = np.array([0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8], dtype=np.uint64) / 2**32
    zeros = nd.array([0.0] * 64)  # a key of no bits
    for probability in (0.1, 0.39, 0.5, 0.61, 0.7, 0.8, 0.9):
        made = nd._internal._mxtrain_norm(
            nd.array([[1, 2, 4, 8]]), nd.ones((4,)), nd.zeros((4,)), zeros, p=probability, eps=1e-5
        )[0].asnumpy()
        kept = np.array([1, 2, 4, 8]) * (words >= probability) / (1 - probability)
        wanted = (kept - kept.mean()) / np.sqrt(kept.var() + 1e-5)
        np.testing.assert_allclose(made[0], wanted, atol=1e-4)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("clip", [None, 0.5])
def test_adamw_equals_the_algorithm(dtype, clip):
    shapes = [(3, 5), (20000,)]
    weights, grads, means, variances = (arrays(dtype, *shapes) for _ in range(4))
    variances = [one * one for one in variances]
    before = [[one.asnumpy().astype("float64") for one in group] for group in (weights, grads, means, variances)]
    options = {"beta1": 0.8, "beta2": 0.95, "epsilon": 1e-3, "rescale_grad": 2.0}
    if clip is not None:
        options["clip_gradient"] = clip
    nd._internal._mxtrain_adamw(
        *(array for one in zip(weights, grads, means, variances) for array in one),
        size=2,
        lrs=[1.5, 2.5],
        etas=[0.1, 0.2],
        wds=[0.01, 0.02],
        out=[array for one in zip(weights, means, variances) for array in one],
        **options,
    )
    for i, (w, g, m, v) in enumerate(zip(*before)):
        g = np.clip(2 * g, -clip, clip) if clip else 2 * g
        m, v = 0.8 * m + 0.2 * g, 0.95 * v + 0.05 * g * g
        rate = (0.1, 0.2)[i]
        w = w - rate * ((1.5, 2.5)[i] * m / (np.sqrt(v) + 1e-3) + (0.01, 0.02)[i] * w)
        for made, wanted in ((weights[i], w), (means[i], m), (variances[i], v)):
            np.testing.assert_allclose(made.asnumpy(), wanted, rtol=1e-4, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("momentum", [None, 0.9])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_sgd_equals_mxnet_bit_for_bit(dtype, momentum, clip):
    shapes, rates, decays = [(3, 5), (20000,)], [0.1, 0.2], [0.0, 0.02]
    weights, grads, states = (arrays(dtype, *shapes) for _ in range(3))
    options = {"rescale_grad": 0.7, **({} if clip is None else {"clip_gradient": clip})}
    own = {**options, "has_momentum": int(momentum is not None), **({} if momentum is None else {"momentum": momentum})}
    for factor in (None, 3.0):
        wanted, made = ([[one.copy() for one in group] for group in (weights, states)] for _ in range(2))
        for w, g, state, rate, wd in zip(wanted[0], grads, wanted[1], rates, decays):
            g = g if factor is None else g * factor
            if momentum is None:
                nd.multi_sgd_update(w, g, lrs=[rate], wds=[wd], num_weights=1, out=w, **options)
            else:
                rates_ = {"lrs": [rate], "wds": [wd], "momentum": momentum, "num_weights": 1}
                nd.multi_sgd_mom_update(w, g, state, out=w, **rates_, **options)
        kept = 1 if momentum is None else 2
        given = [array for w, g, state in zip(made[0], grads, made[1]) for array in (w, g, state)[: kept + 1]]
        scale = [] if factor is None else [nd.array([factor], dtype=dtype)]
        nd._internal._mxtrain_sgd(
            *given,
            *scale,
            size=2,
            lrs=rates,
            wds=decays,
            scaled=len(scale),
            **own,
            out=[array for one in zip(*made) for array in one[:kept]],
        )
        for found, right in zip([*made[0], *made[1]], [*wanted[0], *wanted[1]]):
            # MXNet's operators have their rates in float32, whatever the arrays are in.
            tolerance = 0 if dtype == "float32" else 1e-6
            np.testing.assert_allclose(found.asnumpy(), right.asnumpy(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_array_norm_is_exact_and_of_all_layouts(dtype):
    given = arrays(dtype, (3, 5), (70001,), (4, 3, 3, 3), (1,))
    wanted = sum((array.asnumpy().astype("float64") ** 2).sum() for array in given) ** 0.5
    sizes = [array.size for array in given]
    found = nd._internal._mxtrain_array_norm(*given, size=4, sizes=sizes)
    assert found.shape == (1,) and found.dtype == np.dtype(dtype)
    np.testing.assert_allclose(found.asscalar(), wanted, rtol=1e-7 if dtype == "float32" else 1e-13)
    given[1][70000] = float("nan")
    assert np.isnan(nd._internal._mxtrain_array_norm(*given, size=4, sizes=sizes).asscalar())


def test_norm_includes_all_of_a_convolution_gradient_in_onednn_layout():
    x, weight = nd.random.uniform(shape=(2, 16, 8, 8)), nd.random.uniform(shape=(32, 16, 3, 3))
    weight.attach_grad()
    with mx.autograd.record():
        made = nd.Convolution(x, weight, kernel=(3, 3), num_filter=32, no_bias=True)
    made.backward()
    found = nd._internal._mxtrain_array_norm(weight.grad, size=1, sizes=[weight.size]).asscalar()
    np.testing.assert_allclose(found, np.linalg.norm(weight.grad.asnumpy().astype("float64")), rtol=1e-6)


def test_nan_is_propagated():
    qkv = nd.ones((4, 1, 24))
    qkv[1, 0, 3] = float("nan")
    made = nd._internal._mxtrain_attention(qkv, nd.array([4]), num_heads=1, p=0.0)[0]
    assert np.isnan(made.asnumpy()[1]).all()
    x = nd.array([[1, 2, float("inf")], [1, 2, 3]])
    made = nd._internal._mxtrain_norm(x, nd.ones((3,)), nd.zeros((3,)), eps=1e-5)[0].asnumpy()
    assert np.isnan(made[0]).any() and np.isfinite(made[1]).all()


def test_wrong_calls_are_refused():
    with pytest.raises(mx.MXNetError, match="one number for each array: wds"):
        arrays_ = [nd.ones((2,)) for _ in range(4)]
        nd._internal._mxtrain_adamw(*arrays_, size=1, lrs=[1.0], etas=[1.0], wds=[])[0].wait_to_read()
    with pytest.raises(mx.MXNetError, match=r"Provided = \[2\], inferred shape=\[3\]"):
        fused.attention(nd, nd.ones((4, 3, 24)), nd.ones((2,)), 2, 0.0).wait_to_read()
    with pytest.raises(mx.MXNetError, match="lengths, labels and seeds in float32"):
        fused.attention(nd, nd.ones((4, 1, 24)), nd.ones((1,), dtype="int32"), 2, 0.0).wait_to_read()
    with pytest.raises(mx.MXNetError, match="heads must divide the units"):
        fused.attention(nd, nd.ones((4, 1, 24)), nd.ones((1,)), 3, 0.0).wait_to_read()
    with pytest.raises(mx.MXNetError, match="takes float32 and float64 only"):
        nd._internal._mxtrain_norm(nd.ones((2, 3), dtype="float16"), nd.ones((3,)), nd.ones((3,)))[0].wait_to_read()


def test_workers_with_different_operators_are_refused():
    def begin(having):
        store = SimpleNamespace(world=SimpleNamespace(size=3, rank=1), total=lambda values: np.array([having]))
        snapshot.require_same_operators(SimpleNamespace(store=store))

    begin(3.0)
    with pytest.raises(DivergenceError, match="2 of 3 workers compute with mxtrain's native operators"):
        begin(2.0)


CHANNELS, SIZES, STRIDES, COUNT, SIDE = 37, ((12, 17), (6, 9)), (4, 8), 20, 3
"""Channels fill one vector, another one, and a part of a third."""


def regions(dtype):
    """Regions of two images (2 COUNT, 5): position of a map, then edges that may lie outside of it or have no area."""
    draw = np.random.RandomState(4)
    corner = draw.uniform(-30, 70, (2 * COUNT, 2))
    edge_Q4 = np.concatenate([corner, corner + draw.uniform(-2, 50, corner.shape)], axis=1)
    return nd.array(np.column_stack([np.arange(2 * COUNT) % 2, edge_Q4]), dtype=dtype)


def plain_roi_align(row_Q5, number, one_map):
    """MXNet's, of all regions from one map."""
    image_Q1 = nd.array(np.repeat([[0], [1]], COUNT, axis=0), dtype=row_Q5.dtype)
    row_Q5 = nd.concat(image_Q1, row_Q5[:, 1:], dim=1)
    options = {"pooled_size": (SIDE, SIDE), "spatial_scale": 1 / STRIDES[number], "sample_ratio": 2}
    return nd.contrib.ROIAlign(one_map, row_Q5, **options)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_roi_align_reads_the_map_of_each_region(dtype):
    maps, row_Q5 = arrays(dtype, *((2, CHANNELS, *size) for size in SIZES)), regions(dtype)
    (head,) = arrays(dtype, (2 * COUNT, CHANNELS, SIDE, SIDE))

    def plain(*maps):
        here_Q = row_Q5[:, 0].reshape((-1, 1, 1, 1))
        first, second = (plain_roi_align(row_Q5, number, one) for number, one in enumerate(maps))
        return first * (1 - here_Q) + second * here_Q

    def own(*maps):
        return fused.roi_align(nd, maps, row_Q5, COUNT, SIDE, SIZES, STRIDES)

    found, wanted = (with_gradients(function, maps, head) for function in (own, plain))
    assert all(abs(one).max() > 0.5 for one in wanted)
    for one, other in zip(found, wanted):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=TOLERANCE[dtype])


def test_roi_align_of_non_finite_boxes_is_zero():
    row_Q5 = nd.array([[0, np.nan, 2, 9, 9], [np.nan, 0, 0, np.inf, 9], [-7, 0, 0, 8, 8], [9, 0, 0, 8, 8]])
    maps = [nd.ones((1, 3, *size)) * number for number, size in enumerate(SIZES, 1)]
    found = fused.roi_align(nd, maps, row_Q5, 4, 1, SIZES, STRIDES)[:, 0, 0, 0].asnumpy()
    np.testing.assert_array_equal(found, [0, 0, 1, 2])


def scored_boxes(dtype, batch=3, count=90):
    draw = np.random.RandomState(6)
    corner = draw.uniform(0, 60, (batch, count, 2))
    score = np.sort(draw.randn(batch, count), axis=1)[:, ::-1, None]
    box_BT5 = np.concatenate([score, corner, corner + draw.uniform(-1, 40, corner.shape)], axis=2)
    box_BT5[:, 40, 1:] = box_BT5[:, 41, 1:]
    return nd.array(box_BT5, dtype=dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("keep", [7, 90])
def test_suppression_equals_mxnet(dtype, keep):
    box_BT5 = scored_boxes(dtype)
    wanted = nd.contrib.box_nms(
        box_BT5, overlap_thresh=0.4, valid_thresh=-0.5, coord_start=1, score_index=0, id_index=-1, force_suppress=True
    )[:, :keep].asnumpy()
    found = fused.non_max_suppression(nd, box_BT5, 90, keep, 0.4, -0.5).asnumpy()
    np.testing.assert_array_equal(found, wanted)
    assert keep == 7 or 10 < (found[:, :, 1] >= 0).sum() / 3 < 60


def test_suppression_gives_no_gradient():
    box_BT5 = scored_boxes("float32")
    box_BT5.attach_grad()
    with autograd.record():
        made = fused.non_max_suppression(nd, box_BT5, 90, 20, 0.4, 0.0).sum() + box_BT5.sum()
    made.backward()
    assert (box_BT5.grad == 1).asnumpy().all()


def output_of(code: str, threads: str) -> str:
    """Returns the output of a program in a process of its own with this number of threads."""
    environment = {name: value for name, value in os.environ.items() if name not in ("MXTRAIN_OPERATORS", "CXX")}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**environment, "OMP_NUM_THREADS": threads},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_products_of_another_device_are_right_while_attention_computes():
    """Both devices' threads share OpenBLAS. Sums of small integers are exact, however they are divided."""
    code = """
import numpy as np
from mxtrain.engine.backend import mx, nd, native_operators
from mxtrain.model.networks import fused
assert native_operators().path, native_operators().why
rng = np.random.RandomState(0)
x, y = (nd.array(rng.randint(-3, 4, (384, 384)), ctx=mx.cpu(1)) for _ in range(2))
expected = x.asnumpy() @ y.asnumpy()
qkv, length = nd.array(rng.randint(-2, 3, (64, 4, 96))), nd.full((4,), 64)
alone = fused.attention(nd, qkv, length, 2, 0.0).asnumpy()
wrong = 0
for _ in range(60):
    products = [nd.dot(x, y) for _ in range(2)]
    contexts = [fused.attention(nd, qkv, length, 2, 0.0) for _ in range(6)]
    wrong += sum((one.asnumpy() != expected).any() for one in products)
    wrong += sum((one.asnumpy() != alone).any() for one in contexts)
print(wrong)
"""
    assert output_of(code, threads="2").strip() == "0"


@pytest.mark.slow
def test_numbers_do_not_depend_on_threads():
    code = """
import hashlib, numpy as np
from mxtrain.engine.backend import autograd, mx, nd, native_operators
from mxtrain.model.networks import fused
assert native_operators().path, native_operators().why
mx.random.seed(5)
rng = np.random.RandomState(0)
shapes = (40, 3, 48), (100, 33), (33,), (2, 40, 9, 9)
qkv, x, gamma, maps = given = [nd.array(rng.randn(*shape)) for shape in shapes]
row = nd.array(np.column_stack([np.zeros(60), rng.uniform(-5, 20, (60, 2)), rng.uniform(20, 50, (60, 2))]))
for one in given: one.attach_grad()
with autograd.record():
    seen = fused.roi_align(nd, [maps], row, 30, 3, [(9, 9)], [4])
    one = fused.attention(nd, qkv, nd.array([40, 3, 9]), 2, 0.2)
    other = fused.norm(nd, x, x, gamma, gamma, 0.2, 1e-5)
    loss = one.square().sum() + other.square().sum() + seen.square().sum()
loss.backward()
kept = fused.non_max_suppression(nd, nd.array(-np.sort(-rng.rand(4, 50, 5), axis=1)), 50, 20, 0.3, 0.0)
made = [one, other, seen, kept, *(one.grad for one in given)]
print(hashlib.sha256(b"".join(one.asnumpy().tobytes() for one in made)).hexdigest())
"""
    found = {output_of(code, threads) for threads in ("1", "2", "3")}
    assert len(found) == 1


CLASSES = 2500
"""More than two blocks of them."""


def numpy_cross_entropy(score, label, of_loss, of_mean):
    """Losses, means and the gradient of the scores (R, V), in float64."""
    score, of_loss, of_mean = (one.astype(np.float64) for one in (score, of_loss, of_mean))
    log_p = score - np.log(np.exp(score - score.max(axis=1, keepdims=True)).sum(axis=1, keepdims=True))
    log_p -= score.max(axis=1, keepdims=True)
    counts = label >= 0
    hit = np.eye(score.shape[1])[np.maximum(label, 0)]
    each = -(of_loss[:, None] * hit + of_mean[:, None] / score.shape[1])
    gradient = each - np.exp(log_p) * each.sum(axis=1, keepdims=True)
    return -(log_p * hit).sum(axis=1) * counts, -log_p.mean(axis=1) * counts, gradient * counts[:, None]


@pytest.mark.parametrize("dtype", [*TOLERANCE, "bfloat16"])
def test_cross_entropy_equals_log_softmax(dtype):
    rng = np.random.RandomState(0)
    label = np.array([0, -1, CLASSES - 1, 1024, 5, 1023])
    score = rng.randn(len(label), CLASSES).astype("float32")
    score[3] += 1000.0 * np.linspace(0, 1, CLASSES)  # ever larger ones, the last of which has all of the probability
    score[4] += 1000.0 * np.linspace(1, 0, CLASSES)
    of_loss, of_mean = (rng.rand(len(label)).astype("float32") for _ in range(2))
    given = nd.array(score).astype("float64" if dtype == "float64" else "float32")
    given.attach_grad()
    with autograd.record():
        own = nd.amp_cast(given, dtype=SHORT) if dtype == "bfloat16" else given
        loss, mean = fused.cross_entropy(nd, own, nd.array(label, dtype=given.dtype), CLASSES)
        total = (loss * nd.array(of_loss, dtype=given.dtype) + mean * nd.array(of_mean, dtype=given.dtype)).sum()
    total.backward()
    if dtype == "bfloat16":  # what it is told, exactly
        score = nd.amp_cast(nd.amp_cast(given, dtype=SHORT), dtype="float32").asnumpy()
    wanted = numpy_cross_entropy(score, label, of_loss, of_mean)
    limits = {"float32": 1e-5, "float64": 1e-12, "bfloat16": 1e-5}[dtype]
    for one, other in zip((loss, mean), wanted):
        np.testing.assert_allclose(one.asnumpy(), other, rtol=limits, atol=limits)
    rounding = 2**-8 if dtype == "bfloat16" else limits  # of what is handed back
    np.testing.assert_allclose(given.grad.asnumpy(), wanted[2], rtol=rounding, atol=limits)


def test_causal_attention_without_lengths_equals_full_texts():
    (qkv,), (head,) = arrays("float32", (40, TEXTS, 96)), arrays("float32", (40, TEXTS, 32))
    full = nd.full((TEXTS,), 40)
    wanted, found = (
        with_gradients(lambda qkv, length=length: fused.attention(nd, qkv, length, HEADS, 0.0, True), [qkv], head)
        for length in (full, None)
    )
    for one, other in zip(found, wanted):
        np.testing.assert_array_equal(one, other)
