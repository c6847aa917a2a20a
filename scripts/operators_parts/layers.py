"""Convolution, pooling, norms, resizing, regions, recurrent operators and losses."""

from __future__ import annotations

import itertools
from typing import Any, Callable, List, Sequence

import numpy as np
import scipy.special
from numpy.lib.stride_tricks import sliding_window_view

from operators_parts.elementwise import sigmoid
from operators_parts.entry import Entry

IMAGE = {1: ("N", 16, 7), 2: ("N", 16, 5, 4), 3: ("N", 16, 3, 4, 3)}


def windows(x: np.ndarray, kernel: int, stride: int, pad: int, full: bool, fill: float) -> np.ndarray:
    """Returns the windows of pooling, (N, C, *outputs, kernel ** ndim); `fill` outside of the image."""
    ndim = x.ndim - 2
    extra = [(pad, pad + (-(size + 2 * pad - kernel) % stride if full else 0)) for size in x.shape[2:]]
    padded = np.pad(x, [(0, 0), (0, 0), *extra], constant_values=fill)
    found = sliding_window_view(padded, (kernel,) * ndim, tuple(range(2, 2 + ndim)))
    return found[(slice(None), slice(None), *(slice(None, None, stride),) * ndim)].reshape(
        *x.shape[:2], *((size + sum(side) - kernel) // stride + 1 for size, side in zip(x.shape[2:], extra)), -1
    )


def pooling(kind: str, kernel: int, stride: int, pad: int, full: bool, include: bool) -> Callable[..., Any]:
    """Returns the reference of pooling. MXNet counts the padding of an average, but not what exceeds the padding."""

    def reference(x: np.ndarray) -> np.ndarray:
        found = windows(x, kernel, stride, pad, full, -np.inf if kind == "max" else 0.0)
        if kind == "max":
            return found.max(-1)
        if kind == "lp":
            return np.sqrt((found**2).sum(-1))
        if kind == "sum":
            return found.sum(-1)
        ones = np.pad(np.ones_like(x), [(0, 0)] * 2 + [(pad, pad)] * (x.ndim - 2), constant_values=float(include))
        return found.sum(-1) / windows(ones, kernel, stride, 0, full, 0.0).sum(-1)

    return reference


def _poolings() -> List[Entry]:
    made = []
    for ndim, kind, (kernel, stride, pad, full) in itertools.product(
        IMAGE, ("max", "avg", "sum", "lp"), ((2, 2, 0, False), (2, 2, 0, True), (3, 2, 1, False), (3, 2, 1, True))
    ):
        if pad and kind in ("sum", "lp"):
            continue
        for include in (True, False) if kind == "avg" and (pad or full) else (True,):
            options = {
                "kernel": (kernel,) * ndim,
                "stride": (stride,) * ndim,
                "pad": (pad,) * ndim,
                "pool_type": kind,
                "pooling_convention": "full" if full else "valid",
                "count_include_pad": include,
                "p_value": 2,
            }
            name = f"Pooling({kind}, {ndim}d, kernel {kernel}, pad {pad}, {options['pooling_convention']}"
            made.append(
                Entry(
                    name + ("" if include else ", count_include_pad=False") + ")",
                    lambda F, x, options=options: F.Pooling(x, **options),
                    [IMAGE[ndim]],
                    pooling(kind, kernel, stride, pad, full, include),
                    low=0.1 if kind == "lp" else -2.0,
                )
            )
    for ndim, kind in itertools.product(IMAGE, ("max", "avg", "sum")):
        axes = tuple(range(2, 2 + ndim))
        made.append(
            Entry(
                f"Pooling({kind}, {ndim}d, global)",
                lambda F, x, kind=kind, ndim=ndim: F.Pooling(x, kernel=(1,) * ndim, pool_type=kind, global_pool=True),
                [IMAGE[ndim]],
                lambda x, kind=kind, axes=axes: getattr(np, {"avg": "mean"}.get(kind, kind))(x, axes, keepdims=True),
            )
        )
    return made


def convolution(stride: int, pad: int, groups: int) -> Callable[..., np.ndarray]:
    """Returns the reference of a convolution of any number of axes."""

    def reference(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
        ndim = x.ndim - 2
        kernel = w.shape[2:]
        padded = np.pad(x, [(0, 0)] * 2 + [(pad, pad)] * ndim)
        found = sliding_window_view(padded, kernel, tuple(range(2, 2 + ndim)))
        found = found[(slice(None), slice(None), *(slice(None, None, stride),) * ndim)]
        outputs = found.shape[2 : 2 + ndim]
        rows = np.moveaxis(found, 1, 1 + ndim).reshape(len(x), int(np.prod(outputs)), groups, -1)
        weights = w.reshape(groups, w.shape[0] // groups, -1)
        y = np.einsum("npgk,gok->ngop", rows, weights).reshape(len(x), w.shape[0], *outputs)
        return y + b.reshape(1, -1, *(1,) * ndim)

    return reference


def transposed(stride: int, pad: int) -> Callable[..., np.ndarray]:
    """Returns the reference of a transposed convolution."""

    def reference(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
        kernel, ndim = w.shape[2:], x.ndim - 2
        full = [(size - 1) * stride + k for size, k in zip(x.shape[2:], kernel)]
        y = np.zeros((len(x), w.shape[1], *full))
        for index in np.ndindex(*kernel):
            target = tuple(slice(i, i + (size - 1) * stride + 1, stride) for i, size in zip(index, x.shape[2:]))
            term = np.tensordot(x, w[(slice(None), slice(None), *index)], ([1], [0]))
            y[(slice(None), slice(None), *target)] += np.moveaxis(term, -1, 1)
        inside = tuple(slice(pad, size - pad) for size in full)
        return y[(slice(None), slice(None), *inside)] + b.reshape(1, -1, *(1,) * ndim)

    return reference


def _convolutions() -> List[Entry]:
    small = {1: ("N", 4, 6), 2: ("N", 4, 5, 4), 3: ("N", 4, 3, 4, 3)}
    made = []
    for ndim, (name, stride, pad, groups) in itertools.product(
        small, (("plain", 1, 1, 1), ("stride 2", 2, 1, 1), ("groups 2", 1, 1, 2), ("depthwise", 1, 1, 4))
    ):
        options = {"kernel": (3,) * ndim, "stride": (stride,) * ndim, "pad": (pad,) * ndim, "num_group": groups}
        made.append(
            Entry(
                f"Convolution({ndim}d, {name})",
                lambda F, x, w, b, options=options: F.Convolution(x, w, b, num_filter=4, **options),
                [small[ndim], (4, 4 // groups, *(3,) * ndim), (4,)],
                convolution(stride, pad, groups),
                low=-1,
                high=1,
            )
        )
    made.append(
        Entry(
            "Convolution(2d, 16 channels)",
            lambda F, x, w, b: F.Convolution(x, w, b, kernel=(1, 1), num_filter=16),
            [("N", 16, 3, 2), (16, 16, 1, 1), (16,)],
            convolution(1, 0, 1),
            low=-1,
            high=1,
        )
    )
    for ndim, stride, pad in ((1, 1, 0), (1, 2, 1), (2, 1, 0), (2, 2, 1), (3, 2, 1)):
        options = {"kernel": (3,) * ndim, "stride": (stride,) * ndim, "pad": (pad,) * ndim, "no_bias": False}
        made.append(
            Entry(
                f"Deconvolution({ndim}d, stride {stride})",
                lambda F, x, w, b, options=options: F.Deconvolution(x, w, b, num_filter=5, **options),
                [small[ndim], (4, 5, *(3,) * ndim), (5,)],
                transposed(stride, pad),
                low=-1,
                high=1,
            )
        )
    made.append(
        Entry(
            "FullyConnected",
            lambda F, x, w, b: F.FullyConnected(x, w, b, num_hidden=5),
            [("N", 2, 3), (5, 6), (5,)],
            lambda x, w, b: x.reshape(len(x), 6) @ w.T + b,
            low=-1,
            high=1,
        )
    )
    made.append(
        Entry(
            "FullyConnected(flatten=False)",
            lambda F, x, w, b: F.FullyConnected(x, w, b, num_hidden=5, flatten=False),
            [("N", 2, 3), (5, 3), (5,)],
            lambda x, w, b: x @ w.T + b,
            low=-1,
            high=1,
        )
    )
    return made


def columns(x: np.ndarray, kernel: Sequence[int], stride: Sequence[int], pad: Sequence[int]) -> np.ndarray:
    """Returns the windows of images as columns, (N, C * kernel, windows)."""
    padded = np.pad(x, [(0, 0), (0, 0), *((side, side) for side in pad)])
    found = sliding_window_view(padded, kernel, (2, 3))[:, :, :: stride[0], :: stride[1]]
    return found.transpose(0, 1, 4, 5, 2, 3).reshape(len(x), -1, found.shape[2] * found.shape[3])


def from_columns(
    y: np.ndarray, size: Sequence[int], kernel: Sequence[int], stride: Sequence[int], pad: Sequence[int]
) -> np.ndarray:
    """Returns the sum of all columns at their places in the image, without the padding."""
    channels = y.shape[1] // int(np.prod(kernel))
    padded = np.zeros((len(y), channels, *(one + 2 * side for one, side in zip(size, pad))))
    counts = [(one + 2 * side - k) // step + 1 for one, side, k, step in zip(size, pad, kernel, stride)]
    parts = y.reshape(len(y), channels, *kernel, *counts)
    for i, j in np.ndindex(*kernel):
        rows = slice(i, i + (counts[0] - 1) * stride[0] + 1, stride[0])
        padded[:, :, rows, slice(j, j + (counts[1] - 1) * stride[1] + 1, stride[1])] += parts[:, :, i, j]
    return padded[:, :, pad[0] : pad[0] + size[0], pad[1] : pad[1] + size[1]]


def _columns() -> List[Entry]:
    options = {"kernel": (3, 2), "stride": (2, 1), "pad": (1, 0)}
    return [
        Entry("im2col", lambda F, x: F.im2col(x, **options), [("N", 4, 5, 4)], lambda x: columns(x, **options)),
        Entry(
            "col2im",
            lambda F, y: F.col2im(y, output_size=(5, 4), **options),
            [("N", 24, 9)],
            lambda y: from_columns(y, (5, 4), **options),
        ),
    ]


def _looped(x: np.ndarray, s: np.ndarray, steps: int) -> List[np.ndarray]:
    outputs = []
    for step in x[:steps]:
        s = np.tanh(s + step)
        outputs.append(s)
    return [np.stack(outputs), s]


def _while(F: Any, x: Any) -> Any:
    def step(i: Any, s: Any) -> Any:
        return s, [i + 1, F.sin(s)]

    outputs, (_, last) = F.contrib.while_loop(lambda i, s: i < 3, step, [F.zeros((1,)), x], max_iterations=3)
    return [outputs if not isinstance(outputs, (list, tuple)) else outputs[0], last]


def _control_flow() -> List[Entry]:
    def body(F: Any) -> Callable[..., Any]:
        return lambda step, s: (F.tanh(s + step),) * 2

    return [
        Entry(
            "foreach",
            lambda F, x, s: list(F.contrib.foreach(body(F), x, s)),
            [(3, "N", 4), ("N", 4)],
            lambda x, s: _looped(x, s, 3),
        ),
        Entry(
            "while_loop",
            _while,
            [("N", 4)],
            lambda x: [np.stack([x, np.sin(x), np.sin(np.sin(x))]), np.sin(np.sin(np.sin(x)))],
        ),
        Entry(
            "cond(then)",
            lambda F, x: F.contrib.cond(F.max(x) > -9, lambda: F.sin(x), lambda: F.exp(x)),
            [("N", 4)],
            np.sin,
        ),
        Entry(
            "cond(else)",
            lambda F, x: F.contrib.cond(F.max(x) > 9, lambda: F.sin(x), lambda: F.exp(x)),
            [("N", 4)],
            np.exp,
        ),
    ]


def _normalised(axes: Callable[[int], Sequence[int]], epsilon: float = 1e-3) -> Callable[..., np.ndarray]:
    def reference(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
        over = tuple(axes(x.ndim))
        y = (x - x.mean(over, keepdims=True)) / np.sqrt(x.var(over, keepdims=True) + epsilon)
        shape = (1, -1, *(1,) * (x.ndim - 2)) if 1 not in over or x.ndim - 1 in over and x.ndim > 2 else (-1,)
        return y * gamma.reshape(shape) + beta.reshape(shape)

    return reference


def _group_norm(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
    parts = x.reshape(len(x), 4, -1)
    y = (parts - parts.mean(2, keepdims=True)) / np.sqrt(parts.var(2, keepdims=True) + 1e-5)
    return (y * gamma[:, None] + beta[:, None]).reshape(x.shape)


def _lrn(x: np.ndarray) -> np.ndarray:
    padded = np.pad(x * x, [(0, 0), (2, 2), (0, 0), (0, 0)])
    total = sum(padded[:, i : i + x.shape[1]] for i in range(5))
    return x / (2 + 1e-2 / 5 * total) ** 0.75


def _statistics(size: int) -> List[np.ndarray]:
    return [np.linspace(-0.5, 0.5, 16), np.linspace(0.5, 2, 16)]


def _norms() -> List[Entry]:
    made = []
    for shape in (("N", 16), ("N", 16, 3), ("N", 16, 2, 3), ("N", 16, 2, 2, 2)):
        made.append(
            Entry(
                f"BatchNorm({len(shape)}d)",
                lambda F, x, g, b, m, v: F.BatchNorm(x, g, b, m, v, fix_gamma=False),
                [shape, (16,), (16,)],
                lambda x, g, b, m, v: _normalised(lambda n: [0, *range(2, n)])(x, g, b),
                _statistics,
                tolerance=3e-3,
            )
        )
    made.append(
        Entry(
            "BatchNorm(use_global_stats)",
            lambda F, x, g, b, m, v: F.BatchNorm(x, g, b, m, v, fix_gamma=False, use_global_stats=True),
            [("N", 16, 2, 3), (16,), (16,)],
            lambda x, g, b, m, v: (
                (x - m[:, None, None]) / np.sqrt(v[:, None, None] + 1e-3) * g[:, None, None] + b[:, None, None]
            ),
            _statistics,
        )
    )
    for axis in (-1, 1):
        made.append(
            Entry(
                f"LayerNorm(axis={axis})",
                lambda F, x, g, b, axis=axis: F.LayerNorm(x, g, b, axis=axis),
                [("N", 6, 6), (6,), (6,)],
                lambda x, g, b, axis=axis: (
                    (x - x.mean(axis, keepdims=True))
                    / np.sqrt(x.var(axis, keepdims=True) + 1e-5)
                    * (g if axis == -1 else g[:, None])
                    + (b if axis == -1 else b[:, None])
                ),
            )
        )
    made.append(
        Entry(
            "InstanceNorm",
            lambda F, x, g, b: F.InstanceNorm(x, g, b),
            [("N", 16, 2, 3), (16,), (16,)],
            _normalised(lambda n: range(2, n)),
            tolerance=3e-3,
        )
    )
    made.append(
        Entry(
            "GroupNorm(4 groups)",
            lambda F, x, g, b: F.GroupNorm(x, g, b, num_groups=4),
            [("N", 16, 2, 3), (4,), (4,)],
            _group_norm,
        )
    )
    made.append(Entry("LRN", lambda F, x: F.LRN(x, nsize=5, alpha=1e-2), [("N", 16, 2, 3)], _lrn))
    return made


def _resized(size: Sequence[int]) -> Callable[[np.ndarray], np.ndarray]:
    """Bilinear resizing with aligned corners."""

    def weights(old: int, new: int) -> np.ndarray:
        at = np.arange(new) * ((old - 1) / (new - 1) if new > 1 else 0)
        return np.maximum(0, 1 - abs(at[:, None] - np.arange(old)))

    return lambda x: weights(x.shape[2], size[0]) @ x @ weights(x.shape[3], size[1]).T


def _adaptive(height: int, width: int) -> Callable[[np.ndarray], np.ndarray]:
    def weights(old: int, new: int) -> np.ndarray:
        found = np.zeros((new, old))
        for i in range(new):
            begin, end = i * old // new, -(-(i + 1) * old // new)
            found[i, begin:end] = 1 / (end - begin)
        return found

    return lambda x: weights(x.shape[2], height) @ x @ weights(x.shape[3], width).T


BOXES = np.array([[0, 0, 0, 3, 4], [0, 1, 1, 4, 2], [0, 0.5, 0.5, 3.2, 3.7]])


def _regions() -> List[Entry]:
    image = [(1, 4, 6, 5)]
    return [
        *(
            Entry(
                f"BilinearResize2D{size}",
                lambda F, x, s=size: F.contrib.BilinearResize2D(x, height=s[0], width=s[1]),
                [("N", 4, 3, 4)],
                _resized(size),
            )
            for size in ((7, 5), (2, 3), (3, 4), (1, 1))
        ),
        *(
            Entry(
                f"AdaptiveAvgPooling2D{size}",
                lambda F, x, s=size: F.contrib.AdaptiveAvgPooling2D(x, output_size=s),
                [IMAGE[2]],
                _adaptive(*size),
            )
            for size in ((1, 1), (2, 2), (3, 4), (5, 4))
        ),
        Entry(
            "ROIPooling",
            lambda F, x, r: F.ROIPooling(x, r, pooled_size=(2, 2), spatial_scale=1.0),
            image,
            None,
            lambda n: [np.round(BOXES)],
        ),
        Entry(
            "ROIAlign",
            lambda F, x, r: F.contrib.ROIAlign(x, r, pooled_size=(2, 2), spatial_scale=1.0, sample_ratio=2),
            image,
            None,
            lambda n: [BOXES],
        ),
        Entry(
            "BilinearSampler",
            lambda F, x, g: F.BilinearSampler(x, g),
            [("N", 2, 4, 3), ("N", 2, 3, 3)],
            None,
            low=-0.8,
            high=0.8,
            step=1e-3,
        ),
        Entry(
            "GridGenerator(affine)",
            lambda F, x: F.GridGenerator(x, transform_type="affine", target_shape=(3, 2)),
            [("N", 6)],
            None,
        ),
        Entry(
            "SpatialTransformer",
            lambda F, x, t: F.SpatialTransformer(
                x, t, target_shape=(3, 3), transform_type="affine", sampler_type="bilinear"
            ),
            [("N", 2, 4, 3), ("N", 6)],
            None,
            low=-0.3,
            high=0.3,
            step=1e-3,
        ),
        Entry(
            "DeformableConvolution",
            lambda F, x, o, w: F.contrib.DeformableConvolution(x, o, w, kernel=(2, 2), num_filter=2, no_bias=True),
            [("N", 2, 4, 4), ("N", 8, 3, 3), (2, 2, 2, 2)],
            None,
            low=0.1,
            high=0.4,
            step=1e-3,
        ),
        Entry(
            "Correlation",
            lambda F, x, y: F.Correlation(x, y, kernel_size=1, max_displacement=1, pad_size=1),
            [("N", 2, 3, 3)] * 2,
            None,
        ),
        Entry("box_iou", lambda F, x: F.contrib.box_iou(x, F.ones_like(x)), [("N", 4)], None, gradient=False),
    ]


def _attention() -> List[Entry]:
    def qk(x: np.ndarray) -> np.ndarray:  # (T, B, heads * 3 * size) -> (B * heads, T, T)
        t, b, _ = x.shape
        parts = x.reshape(t, b, 2, 3, -1)
        q, k = (parts[:, :, :, i].transpose(1, 2, 0, 3).reshape(b * 2, t, parts.shape[-1]) for i in (0, 1))
        return q / np.sqrt(q.shape[-1]) @ k.swapaxes(1, 2)

    def values(x: np.ndarray, a: np.ndarray) -> np.ndarray:
        t, b, _ = x.shape
        v = x.reshape(t, b, 2, 3, -1)[:, :, :, 2].transpose(1, 2, 0, 3).reshape(b * 2, t, 2)
        return (a @ v).reshape(b, 2, t, 2).transpose(2, 0, 1, 3).reshape(t, b, 4)

    return [
        Entry(
            "interleaved_matmul_selfatt_qk",
            lambda F, x: F.contrib.interleaved_matmul_selfatt_qk(x, heads=2),
            [(4, "N", 12)],
            qk,
        ),
        Entry(
            "interleaved_matmul_selfatt_valatt",
            lambda F, x, a: F.contrib.interleaved_matmul_selfatt_valatt(x, a, heads=2),
            [(4, 2, 12), (4, 4, 4)],
            values,
        ),
    ]


def recurrent(mode: str) -> Callable[..., Any]:
    """Returns the reference of one layer of the operator `RNN` with 4 units, for x (T, B, 3)."""
    gates = {"lstm": 4, "gru": 3}.get(mode, 1)

    def reference(x: np.ndarray, weight: np.ndarray, *states: np.ndarray) -> List[np.ndarray]:
        split = np.cumsum([gates * 12, gates * 16, gates * 4])
        i2h, h2h, i2h_bias, h2h_bias = np.split(weight, split)
        i2h, h2h = i2h.reshape(-1, 3), h2h.reshape(-1, 4)
        h, *c = (state[0] for state in states)
        outputs = []
        for step in x:
            a, b = step @ i2h.T + i2h_bias, h @ h2h.T + h2h_bias
            if mode == "lstm":
                i, f, g, o = np.split(a + b, 4, 1)
                c = [sigmoid(f) * c[0] + sigmoid(i) * np.tanh(g)]
                h = sigmoid(o) * np.tanh(c[0])
            elif mode == "gru":
                (r, z, n), (hr, hz, hn) = np.split(a, 3, 1), np.split(b, 3, 1)
                n, z = np.tanh(n + sigmoid(r + hr) * hn), sigmoid(z + hz)
                h = (1 - z) * n + z * h
            else:
                h = np.tanh(a + b) if mode == "rnn_tanh" else np.maximum(a + b, 0)
            outputs.append(h)
        return [np.stack(outputs), h[None], *(one[None] for one in c)]

    return reference


def _recurrents() -> List[Entry]:
    made = []
    for mode, gates in (("rnn_tanh", 1), ("rnn_relu", 1), ("lstm", 4), ("gru", 3)):
        states = [(1, "N", 4)] * (2 if mode == "lstm" else 1)
        made.append(
            Entry(
                f"RNN({mode})",
                lambda F, x, w, *s, mode=mode: F.RNN(
                    x, w, *s, state_size=4, num_layers=1, mode=mode, state_outputs=True
                ),
                [(3, "N", 3), (gates * 36,), *states],
                recurrent(mode),
                low=-1,
                high=1,
            )
        )
    return made


def _classes(size: int) -> List[np.ndarray]:
    return [np.arange(size) % 4 * 1.0]


def _ctc(x: np.ndarray, label: np.ndarray) -> np.ndarray:
    """The loss of (T, B, 4) for labels (B, 2), with blank 0: Graves et al. 2006, equations 6 to 8."""
    p_TBA = scipy.special.softmax(x, 2)
    losses = []
    for b, symbols in enumerate(label.astype(int)):
        path = [0, symbols[0], 0, symbols[1], 0]
        alpha = np.array([p_TBA[0, b, 0], p_TBA[0, b, symbols[0]], 0, 0, 0])
        for p in p_TBA[1:, b]:
            shifted = [np.concatenate([np.zeros(k), alpha[: 5 - k]]) for k in range(3)]
            skips = np.array([s > 1 and path[s] and path[s] != path[s - 2] for s in range(5)])
            alpha = (shifted[0] + shifted[1] + skips * shifted[2]) * p[path]
        losses.append(-np.log(alpha[-1] + alpha[-2]))
    return np.array(losses)


def _losses() -> List[Entry]:
    return [
        Entry(
            "softmax_cross_entropy",
            lambda F, x, y: F.softmax_cross_entropy(x, y),
            [("N", 4)],
            lambda x, y: np.array([-np.log(scipy.special.softmax(x, 1))[np.arange(len(x)), y.astype(int)].sum()]),
            _classes,
        ),
        Entry(
            "CTCLoss",
            lambda F, x, y: F.CTCLoss(x, y),
            [(5, "N", 4)],
            _ctc,
            lambda n: [np.array([[1, 2], [3, 3], [2, 1]])[:n] * 1.0],
        ),
        Entry(
            "SoftmaxOutput",
            lambda F, x, y: F.SoftmaxOutput(x, y),
            [("N", 4)],
            lambda x, y: scipy.special.softmax(x, 1),
            _classes,
            gradient=False,
        ),
        Entry(
            "LinearRegressionOutput",
            lambda F, x, y: F.LinearRegressionOutput(x, y),
            [("N", 1)],
            lambda x, y: x,
            lambda n: [np.arange(n).reshape(n, 1) * 1.0],
            gradient=False,
        ),
        Entry(
            "LogisticRegressionOutput",
            lambda F, x, y: F.LogisticRegressionOutput(x, y),
            [("N", 1)],
            lambda x, y: sigmoid(x),
            lambda n: [np.arange(n).reshape(n, 1) % 2 * 1.0],
            gradient=False,
        ),
        Entry("MakeLoss", lambda F, x: F.make_loss(x * x), [("N", 4)], lambda x: x * x, gradient=False),
    ]


def entries() -> List[Entry]:
    """Returns the operators of this part."""
    return [
        *_poolings(),
        *_convolutions(),
        *_columns(),
        *_control_flow(),
        *_norms(),
        *_regions(),
        *_attention(),
        *_recurrents(),
        *_losses(),
    ]
