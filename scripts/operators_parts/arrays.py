"""Operators on shapes, indices, sums and matrices."""

from __future__ import annotations

from typing import Any, Callable, List

import numpy as np
import scipy.special

from operators_parts.entry import Entry, table

SHAPES = {
    "reshape": (lambda F, x: F.reshape(x, shape=(0, -1)), lambda x: x.reshape(len(x), -1)),
    "reshape(-4)": (lambda F, x: F.reshape(x, shape=(0, -4, 2, 2, 0)), lambda x: x.reshape(-1, 2, 2, 6)),
    "Flatten": (lambda F, x: F.Flatten(x), lambda x: x.reshape(len(x), 24)),
    "expand_dims": (lambda F, x: F.expand_dims(x, axis=1), lambda x: x[:, None]),
    "squeeze": (lambda F, x: F.squeeze(F.expand_dims(x, axis=1), axis=1), lambda x: x),
    "transpose": (lambda F, x: F.transpose(x, axes=(2, 0, 1)), lambda x: x.transpose(2, 0, 1)),
    "SwapAxis": (lambda F, x: F.SwapAxis(x, dim1=0, dim2=2), lambda x: x.swapaxes(0, 2)),
    "tile": (lambda F, x: F.tile(x, reps=(1, 2, 3)), lambda x: np.tile(x, (1, 2, 3))),
    "repeat": (lambda F, x: F.repeat(x, repeats=2, axis=1), lambda x: x.repeat(2, 1)),
    "reverse": (lambda F, x: F.reverse(x, axis=1), lambda x: x[:, ::-1]),
    "slice": (
        lambda F, x: F.slice(x, begin=(None, 1, 5), end=(None, 3, None), step=(None, 1, -2)),
        lambda x: x[:, 1:3, 5::-2],
    ),
    "slice_axis": (lambda F, x: F.slice_axis(x, axis=1, begin=1, end=-1), lambda x: x[:, 1:-1]),
    "slice_like": (lambda F, x: F.slice_like(x, F.zeros((1, 2, 3)), axes=(1, 2)), lambda x: x[:, :2, :3]),
    "split": (lambda F, x: list(F.split(x, num_outputs=2, axis=1)), lambda x: np.split(x, 2, 1)),
    "split_v2": (lambda F, x: list(F.split_v2(x, (1, 3), axis=1)), lambda x: np.split(x, (1, 3), 1)),
    "stack": (lambda F, x: F.stack(x, 2 * x, axis=1), lambda x: np.stack([x, 2 * x], 1)),
    "concat": (lambda F, x: F.concat(x, 2 * x, dim=1), lambda x: np.concatenate([x, 2 * x], 1)),
    "broadcast_to": (
        lambda F, x: F.broadcast_to(F.expand_dims(x, 1), shape=(0, 2, 0, 0)),
        lambda x: np.stack([x, x], 1),
    ),
    "broadcast_axis": (
        lambda F, x: F.broadcast_axis(F.expand_dims(x, 1), axis=1, size=2),
        lambda x: np.stack([x, x], 1),
    ),
    "broadcast_like": (
        lambda F, x: F.broadcast_like(F.slice_axis(x, axis=1, begin=0, end=1), x),
        lambda x: np.broadcast_to(x[:, :1], x.shape),
    ),
    "diag": (lambda F, x: F.diag(x, axis1=1, axis2=2), lambda x: np.diagonal(x, axis1=1, axis2=2)),
    "sort": (lambda F, x: F.sort(x, axis=1), lambda x: np.sort(x, 1)),
    "topk(value)": (lambda F, x: F.topk(x, axis=2, k=2, ret_typ="value"), lambda x: -np.sort(-x, 2)[..., :2]),
    "pick": (lambda F, x: F.pick(x, F.argmax(x, axis=2), axis=2), lambda x: x.max(2)),
    "cumsum": (lambda F, x: F.cumsum(x, axis=1), lambda x: x.cumsum(1)),
    "BlockGrad": (lambda F, x: x + F.BlockGrad(x), None),
}
IMAGE_SHAPES = {
    "depth_to_space": (
        lambda F, x: F.depth_to_space(x, block_size=2),
        lambda x: x.reshape(-1, 2, 2, 4, 3, 2).transpose(0, 3, 4, 1, 5, 2).reshape(-1, 4, 6, 4),
    ),
    "space_to_depth": (
        lambda F, x: F.space_to_depth(F.tile(x, reps=(1, 1, 2, 1)), block_size=2),
        lambda x: np.tile(x, (1, 1, 2, 1))
        .reshape(-1, 16, 3, 2, 1, 2)
        .transpose(0, 3, 5, 1, 2, 4)
        .reshape(-1, 64, 3, 1),
    ),
    "pad(constant)": (
        lambda F, x: F.Pad(x, mode="constant", pad_width=(0, 0, 0, 0, 1, 2, 2, 1), constant_value=3),
        lambda x: np.pad(x, ((0, 0), (0, 0), (1, 2), (2, 1)), constant_values=3),
    ),
    "pad(edge)": (
        lambda F, x: F.Pad(x, mode="edge", pad_width=(0, 0, 0, 0, 1, 2, 2, 1)),
        lambda x: np.pad(x, ((0, 0), (0, 0), (1, 2), (2, 1)), "edge"),
    ),
    "pad(reflect)": (
        lambda F, x: F.Pad(x, mode="reflect", pad_width=(0, 0, 0, 0, 1, 2, 1, 1)),
        lambda x: np.pad(x, ((0, 0), (0, 0), (1, 2), (1, 1)), "reflect"),
    ),
    "concat of images": (lambda F, x: F.concat(x, x * 2, dim=1), lambda x: np.concatenate([x, 2 * x], 1)),
    "UpSampling(nearest)": (
        lambda F, x: F.UpSampling(x, scale=2, sample_type="nearest"),
        lambda x: x.repeat(2, 2).repeat(2, 3),
    ),
}


def _sum(name: str, **options: Any) -> Callable[..., Any]:
    return lambda F, x: getattr(F, name)(x, **options)


def _softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    return scipy.special.softmax(x, axis)


SUMS = {
    "sum": (_sum("sum", axis=1), lambda x: x.sum(1)),
    "sum(exclude)": (_sum("sum", axis=0, exclude=True), lambda x: x.sum((1, 2))),
    "mean": (_sum("mean", axis=(1, 2), keepdims=True), lambda x: x.mean((1, 2), keepdims=True)),
    "max": (_sum("max", axis=1), lambda x: x.max(1)),
    "min": (_sum("min", axis=2), lambda x: x.min(2)),
    "prod": (_sum("prod", axis=1), lambda x: x.prod(1)),
    "nansum": (_sum("nansum", axis=1), lambda x: x.sum(1)),
    "nanprod": (_sum("nanprod", axis=1), lambda x: x.prod(1)),
    "norm(2)": (_sum("norm", axis=1), lambda x: np.sqrt((x * x).sum(1))),
    "norm(1)": (_sum("norm", ord=1, axis=1), lambda x: abs(x).sum(1)),
    "moments": (lambda F, x: list(F.moments(x, axes=(1, 2))), lambda x: [x.mean((1, 2)), x.var((1, 2))]),
    "L2Normalization(instance)": (
        lambda F, x: F.L2Normalization(x),
        lambda x: x / np.sqrt((x * x).sum((1, 2), keepdims=True) + 1e-10),
    ),
    "L2Normalization(channel)": (
        lambda F, x: F.L2Normalization(x, mode="channel"),
        lambda x: x / np.sqrt((x * x).sum(1, keepdims=True) + 1e-10),
    ),
    "L2Normalization(spatial)": (
        lambda F, x: F.L2Normalization(x, mode="spatial"),
        lambda x: x / np.sqrt((x * x).sum(2, keepdims=True) + 1e-10),
    ),
    "softmax": (lambda F, x: F.softmax(x), _softmax),
    "softmax(axis=1)": (lambda F, x: F.softmax(x, axis=1, temperature=0.5), lambda x: _softmax(2 * x, 1)),
    "log_softmax": (lambda F, x: F.log_softmax(x), lambda x: np.log(_softmax(x))),
    "log_softmax(axis=1)": (lambda F, x: F.log_softmax(x, axis=1), lambda x: np.log(_softmax(x, 1))),
    "softmin": (lambda F, x: F.softmin(x), lambda x: _softmax(-x)),
    "SoftmaxActivation(channel)": (lambda F, x: F.SoftmaxActivation(x, mode="channel"), lambda x: _softmax(x, 1)),
    "argmax": (lambda F, x: F.argmax(x, axis=1), lambda x: x.argmax(1) * 1.0),
    "argmin": (lambda F, x: F.argmin(x, axis=1), lambda x: x.argmin(1) * 1.0),
    "argsort": (lambda F, x: F.argsort(x, axis=1), lambda x: x.argsort(1) * 1.0),
}


def _rows(size: int) -> List[np.ndarray]:
    return [np.array([[4, 1, 4]] * size).reshape(size, 3)]


INDICES = [
    Entry("take", lambda F, x, i: F.take(x, i), [(5, 4)], lambda x, i: x[i.astype(int)], _rows),
    Entry("take(axis=1)", lambda F, x, i: F.take(x, i, axis=1), [(2, 5)], lambda x, i: x[:, i.astype(int)], _rows),
    Entry("take(wrap)", lambda F, x, i: F.take(x, i, mode="wrap"), [(3, 4)], lambda x, i: x[i.astype(int) % 3], _rows),
    Entry(
        "Embedding",
        lambda F, w, i: F.Embedding(i, w, input_dim=5, output_dim=4),
        [(5, 4)],
        lambda w, i: w[i.astype(int)],
        _rows,
    ),
    Entry(
        "batch_take",
        lambda F, x, i: F.batch_take(x, F.squeeze(F.slice_axis(i, axis=1, begin=0, end=1), axis=1)),
        [("N", 5)],
        lambda x, i: x[np.arange(len(x)), 4],
        _rows,
    ),
    Entry(
        "gather_nd",
        lambda F, x, i: F.gather_nd(x, F.transpose(i, axes=(1, 0))),
        [(5, 2, 5, 3)],
        lambda x, i: x[tuple(i.astype(int).T)],
        lambda n: [np.array([[4, 1, 3]] * n).reshape(n, 3)],
    ),
    Entry(
        "one_hot",
        lambda F, x, i: x * F.sum(F.one_hot(i, depth=5), axis=1),
        [("N", 5)],
        lambda x, i: x * np.eye(5)[i.astype(int)].sum(1),
        _rows,
    ),
    Entry(
        "index_copy",
        lambda F, x, y: F.contrib.index_copy(x, F.array([2, 0]) if hasattr(F, "array") else F.arange(2, 0, -2), y),
        [(4, 3), (2, 3)],
        None,
    ),
    Entry("boolean_mask", lambda F, x: F.contrib.boolean_mask(x, F.ones((3,))), [(3, 4)], lambda x: x),
    Entry(
        "SequenceMask",
        lambda F, x, n: F.SequenceMask(x, n, use_sequence_length=True, value=-1),
        [(4, "N", 3)],
        lambda x, n: np.where((np.arange(4)[:, None] < n)[..., None], x, -1.0),
        lambda n: [np.arange(n) % 4 + 1.0],
    ),
    Entry(
        "SequenceMask(lengths with a gradient)",
        lambda F, x, n: F.SequenceMask(x, n * 0.1 + 2.5, use_sequence_length=True),
        [(4, "N", 3), ("N",)],
        lambda x, n: x * (np.arange(4) < 2)[:, None, None],
    ),
    Entry(
        "SequenceLast",
        lambda F, x, n: F.SequenceLast(x, n, use_sequence_length=True),
        [(4, "N", 3)],
        lambda x, n: x[n.astype(int) - 1, np.arange(x.shape[1])],
        lambda n: [np.arange(n) % 4 + 1.0],
    ),
    Entry(
        "SequenceReverse",
        lambda F, x, n: F.SequenceReverse(x, n, use_sequence_length=True),
        [(4, "N", 3)],
        lambda x, n: np.stack([np.concatenate([x[: int(k), b][::-1], x[int(k) :, b]]) for b, k in enumerate(n)], 1)
        if len(n)
        else x,
        lambda n: [np.arange(n) % 4 + 1.0],
    ),
]


def _dots() -> List[Entry]:
    made = []
    for a in (False, True):
        for b in (False, True):
            made.append(
                Entry(
                    f"dot({a:d}, {b:d})",
                    lambda F, x, y, a=a, b=b: F.dot(x, y, transpose_a=a, transpose_b=b),
                    [(4, "N") if a else ("N", 4), (5, 4) if b else (4, 5)],
                    lambda x, y, a=a, b=b: (x.T if a else x) @ (y.T if b else y),
                )
            )
            made.append(
                Entry(
                    f"batch_dot({a:d}, {b:d})",
                    lambda F, x, y, a=a, b=b: F.batch_dot(x, y, transpose_a=a, transpose_b=b),
                    [("N", 4, 3) if a else ("N", 3, 4), ("N", 5, 4) if b else ("N", 4, 5)],
                    lambda x, y, a=a, b=b: (x.swapaxes(1, 2) if a else x) @ (y.swapaxes(1, 2) if b else y),
                )
            )
    return made


def _definite(x: np.ndarray) -> np.ndarray:
    return x @ x.swapaxes(-1, -2) + 3 * np.eye(x.shape[-1])


def _definite_of(F: Any, x: Any) -> Any:
    return F.broadcast_add(F.linalg.gemm2(x, x, transpose_b=True), F.expand_dims(3 * F.one_hot(F.arange(3), 3), 0))


MATRICES = {
    "linalg.gemm": (
        lambda F, x: F.linalg.gemm(x, x, 2 * x, transpose_a=True, alpha=2, beta=3),
        lambda x: 2 * x.swapaxes(1, 2) @ x + 6 * x,
    ),
    "linalg.potri": (
        lambda F, x: F.linalg.potri(F.linalg.potrf(_definite_of(F, x))),
        lambda x: np.linalg.inv(_definite(x)),
    ),
    "linalg.makediag": (lambda F, x: F.linalg.makediag(F.linalg.extractdiag(x)), lambda x: x * np.eye(3)),
    "linalg.extracttrian": (lambda F, x: F.linalg.extracttrian(x), lambda x: x[(slice(None), *np.tril_indices(3))]),
    "linalg.maketrian": (lambda F, x: F.linalg.maketrian(F.linalg.extracttrian(x)), np.tril),
    "linalg.syevd": (lambda F, x: F.linalg.syevd(_definite_of(F, x))[1], lambda x: np.linalg.eigvalsh(_definite(x))),
    "linalg.gelqf": (
        lambda F, x: F.abs(F.linalg.gelqf(_definite_of(F, x))[1]),
        lambda x: abs(np.linalg.qr(_definite(x).swapaxes(1, 2))[1].swapaxes(1, 2)),
    ),
    "linalg.gemm2": (lambda F, x: F.linalg.gemm2(x, x, transpose_b=True, alpha=2), lambda x: 2 * x @ x.swapaxes(1, 2)),
    "linalg.syrk": (lambda F, x: F.linalg.syrk(x, alpha=2), lambda x: 2 * x @ x.swapaxes(1, 2)),
    "linalg.potrf": (lambda F, x: F.linalg.potrf(_definite_of(F, x)), lambda x: np.linalg.cholesky(_definite(x))),
    "linalg.inverse": (lambda F, x: F.linalg.inverse(_definite_of(F, x)), lambda x: np.linalg.inv(_definite(x))),
    "linalg.det": (lambda F, x: F.linalg.det(_definite_of(F, x)), lambda x: np.linalg.det(_definite(x))),
    "linalg.slogdet": (
        lambda F, x: F.linalg.slogdet(_definite_of(F, x))[1],
        lambda x: np.linalg.slogdet(_definite(x))[1],
    ),
    "linalg.sumlogdiag": (
        lambda F, x: F.linalg.sumlogdiag(_definite_of(F, x)),
        lambda x: np.log(np.diagonal(_definite(x), axis1=1, axis2=2)).sum(1),
    ),
    "linalg.extractdiag": (lambda F, x: F.linalg.extractdiag(x), lambda x: np.diagonal(x, axis1=1, axis2=2)),
    "linalg.trmm": (lambda F, x: F.linalg.trmm(x, x), lambda x: np.tril(x) @ x),
    "linalg.trsm": (
        lambda F, x: F.linalg.trsm(F.linalg.potrf(_definite_of(F, x)), x),
        lambda x: np.linalg.solve(np.linalg.cholesky(_definite(x)), x),
    ),
}


def entries() -> List[Entry]:
    """Returns the operators of this part."""
    return [
        *table({name: pair for name, pair in SHAPES.items() if name != "BlockGrad"}, [("N", 4, 6)]),
        *table(IMAGE_SHAPES, [("N", 16, 3, 2)]),
        *table(SUMS, [("N", 3, 4)]),
        *INDICES,
        *_dots(),
        *table(MATRICES, [("N", 3, 3)]),
    ]
