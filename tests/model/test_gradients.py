"""Every operator that our networks, Gluon's layers and losses and GluonCV's classifiers reach: its gradient against
finite differences in float64, in training and in prediction, in both precisions, imperative and hybridized."""

import itertools

import numpy as np
import pytest
from gradients import FLOAT32_ONLY, IN_FLOAT32, Case, wrong

from mxtrain.engine.backend import gluon, nd

nn, contrib = gluon.nn, gluon.contrib
ACTIVATIONS = [
    *(
        Case(f"Activation {kind}", lambda kind=kind: nn.Activation(kind), [(3, 8)])
        for kind in ("relu", "sigmoid", "tanh", "softrelu", "softsign")
    ),
    *(
        Case(f"Activation {kind} 4d", lambda kind=kind: nn.Activation(kind), [(2, 16, 3, 3)])
        for kind in ("relu", "sigmoid", "tanh", "softrelu", "softsign")
    ),
    Case("LeakyReLU", lambda: nn.LeakyReLU(0.1), [(3, 8)], **FLOAT32_ONLY),
    Case("LeakyReLU 4d", lambda: nn.LeakyReLU(0.1), [(2, 16, 1, 2)], step=5e-3, tolerance=FLOAT32_ONLY["tolerance"]),
    Case("PReLU", lambda: nn.PReLU(), [(3, 8)], **FLOAT32_ONLY),
    Case(
        "PReLU channels",
        lambda: nn.PReLU(in_channels=4),
        [(2, 4, 3, 3)],
        step=3e-3,
        tolerance=FLOAT32_ONLY["tolerance"],
    ),
    Case("ELU", lambda: nn.ELU(0.7), [(3, 8)]),
    Case("SELU", lambda: nn.SELU(), [(3, 8)]),
    Case("GELU", lambda: nn.GELU(), [(3, 8)], **FLOAT32_ONLY),
    Case("GELU 4d", lambda: nn.GELU(), [(2, 16, 3, 3)], **FLOAT32_ONLY),
    Case("Swish", lambda: nn.Swish(1.5), [(3, 8)]),
    Case("hard_sigmoid", lambda: nd.hard_sigmoid, [(3, 8)]),
    Case("erf", lambda: nd.erf, [(3, 8)], **FLOAT32_ONLY),
    *(
        Case(
            f"{name} {options}",
            lambda name=name, options=options: lambda x: getattr(nd, name)(x, **options),
            [(3, 4, 5)],
        )
        for name in ("softmax", "log_softmax", "softmin")
        for options in ({}, {"axis": 1}, {"axis": 0}, {"temperature": 2.5}, {"axis": 1, "temperature": 0.5})
    ),
    Case(
        "softmax of lengths",
        lambda: lambda x: nd.softmax(x, nd.array([2, 5, 1], dtype="int32"), axis=-1, use_length=True),
        [(3, 5)],
    ),
    Case("SoftmaxActivation", lambda: lambda x: nd.SoftmaxActivation(x), [(3, 5)], **IN_FLOAT32),
    Case(
        "SoftmaxActivation channel",
        lambda: lambda x: nd.SoftmaxActivation(x, mode="channel"),
        [(2, 3, 2, 2)],
        **IN_FLOAT32,
    ),
]

ELEMENTWISE = {
    "relu": nd.relu,
    "sigmoid": nd.sigmoid,
    "softsign": nd.softsign,
    "tanh": nd.tanh,
    "exp": nd.exp,
    "abs": nd.abs,
    "square": nd.square,
    "log of square": lambda x: nd.log(x * x),
    "clip": lambda x: nd.clip(x, -1, 1.4),
    "sqrt of square": lambda x: nd.sqrt(nd.square(x)),
    "power": lambda x: nd.abs(x) ** 1.7,
    "3 ** x": lambda x: 3**x,
    "rsqrt": lambda x: nd.rsqrt(x * x),
    "cbrt": nd.cbrt,
    "expm1": nd.expm1,
    "log1p": lambda x: nd.log1p(x * x),
    "x + 2": lambda x: x + 2,
    "2 - x": lambda x: 2 - x,
    "x / 3": lambda x: x / 3,
    "2 / x": lambda x: 2 / x,
    "maximum scalar": lambda x: nd.maximum(x, 0.5),
    "minimum scalar": lambda x: nd.minimum(x, 0.5),
    "smooth_l1": lambda x: nd.smooth_l1(x, scalar=2.0),
    "where": lambda x: nd.where(x > 0, x, 3 * x),
    "transpose": lambda x: nd.transpose(x, (1, 0)),
    "swapaxes": lambda x: nd.SwapAxis(x, 0, 1),
    "tile": lambda x: nd.tile(x, (2, 3)),
    "reshape": lambda x: x.reshape((4, -1)),
    "expand_dims": lambda x: x.expand_dims(1),
    "flip": lambda x: nd.flip(x, axis=1),
    "repeat": lambda x: nd.repeat(x, 2, axis=1),
    "slice": lambda x: nd.slice(x, begin=(0, 1), end=(2, 7), step=(1, 2)),
    "slice_axis": lambda x: nd.slice_axis(x, axis=1, begin=2, end=5),
    "split": lambda x: nd.split(x, 2, axis=1),
    "sum": lambda x: nd.sum(x, axis=1),
    "mean": lambda x: nd.mean(x, axis=0),
    "max": lambda x: nd.max(x, axis=1),
    "min": lambda x: nd.min(x, axis=1),
    "prod": lambda x: nd.prod(x, axis=1),
    "norm": lambda x: nd.norm(x, axis=1),
    "norm 1": lambda x: nd.norm(x, ord=1, axis=1),
    "L2Normalization": lambda x: nd.L2Normalization(x),
    "take": lambda x: nd.take(x, nd.array([2, 0, 2])),
    "pick": lambda x: nd.pick(x, nd.array([1, 7, 3])),
    "gather_nd": lambda x: nd.gather_nd(x, nd.array([[0, 2, 0], [1, 3, 1]])),
    "stack": lambda x: nd.stack(x, x * 2, axis=1),
    "sequence mask": lambda x: nd.SequenceMask(
        x, nd.array([1, 2, 3, 1, 2, 3, 1, 2]), use_sequence_length=True, value=-1
    ),
    "add_n": lambda x: nd.add_n(x, x * x, x),
    "broadcast_to": lambda x: nd.broadcast_to(x.expand_dims(0), (2, 3, 8)),
}
PAIRS = {
    "elemwise_add": lambda x, y: x + y,
    "elemwise_sub": lambda x, y: x - y,
    "elemwise_mul": lambda x, y: x * y,
    "elemwise_div": lambda x, y: x / y,
    "maximum": nd.maximum,
    "minimum": nd.minimum,
    "concat": lambda x, y: nd.concat(x, y, dim=1),
    "broadcast_power": lambda x, y: nd.broadcast_power(nd.abs(x), y),
    "hypot": lambda x, y: nd.broadcast_hypot(x, y),
}
BROADCASTS = {
    "broadcast_add": nd.broadcast_add,
    "broadcast_sub": nd.broadcast_sub,
    "broadcast_mul": nd.broadcast_mul,
    "broadcast_div": nd.broadcast_div,
    "broadcast_maximum": nd.broadcast_maximum,
    "broadcast_minimum": nd.broadcast_minimum,
}
PLAIN = [
    *(Case(name, lambda function=function: function, [(3, 8)]) for name, function in ELEMENTWISE.items()),
    *(Case(name, lambda function=function: function, [(3, 4), (3, 4)]) for name, function in PAIRS.items()),
    *(Case(name, lambda function=function: function, [(2, 3, 4), (2, 1, 4)]) for name, function in BROADCASTS.items()),
    *(
        Case(
            f"dot {a} {b}",
            lambda a=a, b=b: lambda x, y: nd.dot(x, y, transpose_a=a, transpose_b=b),
            [(4, 3) if a else (3, 4), (5, 4) if b else (4, 5)],
        )
        for a in (False, True)
        for b in (False, True)
    ),
    *(
        Case(
            f"batch_dot {a} {b}",
            lambda a=a, b=b: lambda x, y: nd.batch_dot(x, y, transpose_a=a, transpose_b=b),
            [(2, 4, 3) if a else (2, 3, 4), (2, 5, 4) if b else (2, 4, 5)],
        )
        for a in (False, True)
        for b in (False, True)
    ),
    Case(
        "interleaved attention",
        lambda: lambda x: nd.contrib.interleaved_matmul_selfatt_qk(x, heads=2),
        [(4, 2, 12)],
        **IN_FLOAT32,
    ),
    Case(
        "interleaved values",
        lambda: lambda x, a: nd.contrib.interleaved_matmul_selfatt_valatt(x, a, heads=2),
        [(4, 2, 12), (4, 4, 4)],
        **IN_FLOAT32,
    ),
    *(
        Case(
            f"pad {mode}",
            lambda mode=mode: lambda x: nd.Pad(x, mode=mode, pad_width=(0, 0, 0, 0, 1, 2, 2, 1)),
            [(2, 2, 4, 4)],
        )
        for mode in ("constant", "edge", "reflect")
    ),
    Case("UpSampling nearest", lambda: lambda x: nd.UpSampling(x, scale=2, sample_type="nearest"), [(2, 2, 3, 3)]),
    Case("BilinearResize2D", lambda: lambda x: nd.contrib.BilinearResize2D(x, height=7, width=5), [(2, 2, 3, 4)]),
    Case(
        "BilinearResize2D smaller", lambda: lambda x: nd.contrib.BilinearResize2D(x, height=2, width=3), [(2, 2, 5, 4)]
    ),
    *(
        Case(
            f"AdaptiveAvgPooling2D {size}",
            lambda size=size: lambda x: nd.contrib.AdaptiveAvgPooling2D(x, output_size=size),
            [(2, 3, 5, 7)],
        )
        for size in (1, 2, (3, 4))
    ),
]

IMAGE = {1: (2, 4, 7), 2: (2, 4, 7, 6), 3: (2, 4, 5, 6, 4)}
CONVOLUTIONS = {
    "plain": {"kernel_size": 3},
    "stride, padding": {"kernel_size": 3, "strides": 2, "padding": 1},
    "dilated": {"kernel_size": 2, "dilation": 2},
    "groups": {"kernel_size": 3, "groups": 2, "padding": 1},
    "depthwise": {"kernel_size": 3, "groups": 4, "padding": 1},
    "1x1 without bias": {"kernel_size": 1, "use_bias": False},
    "activation": {"kernel_size": 2, "activation": "tanh"},
}
TRANSPOSED = {
    "plain": {"kernel_size": 3},
    "stride": {"kernel_size": 3, "strides": 2, "padding": 1},
    "output padding": {"kernel_size": 3, "strides": 2, "padding": 1, "output_padding": 1},
    "dilated": {"kernel_size": 2, "dilation": 2},
}


def each(options, ndim):
    return {
        name: (value,) * ndim if name in ("strides", "padding", "dilation", "output_padding") and ndim > 1 else value
        for name, value in options.items()
    }


LAYERS = [
    Case("Dense", lambda: nn.Dense(5), [(3, 4)]),
    Case("Dense wide", lambda: nn.Dense(32), [(16, 64)]),
    Case("Dense of images", lambda: nn.Dense(5), [(3, 2, 2, 2)]),
    Case("Dense of positions", lambda: nn.Dense(5, flatten=False), [(3, 2, 4)]),
    Case("Dense without bias", lambda: nn.Dense(5, use_bias=False), [(3, 4)]),
    Case("Dense, activation", lambda: nn.Dense(5, activation="sigmoid"), [(3, 4)]),
    *(
        Case(
            f"Conv{ndim}D {name}",
            lambda ndim=ndim, options=options: getattr(nn, f"Conv{ndim}D")(
                6 if options.get("groups") != 4 else 8, **each(options, ndim)
            ),
            [IMAGE[ndim]],
        )
        for ndim in IMAGE
        for name, options in CONVOLUTIONS.items()
    ),
    Case("Conv2D of 16 channels", lambda: nn.Conv2D(16, 3, padding=1), [(2, 16, 6, 6)]),
    Case("Conv2D depthwise of 16 channels", lambda: nn.Conv2D(16, 3, padding=1, groups=16), [(2, 16, 6, 6)]),
    Case("Conv2D 1 x 7", lambda: nn.Conv2D(8, (1, 7), padding=(0, 3)), [(2, 8, 5, 6)]),
    *(
        Case(
            f"Conv{ndim}DTranspose {name}",
            lambda ndim=ndim, options=options: getattr(nn, f"Conv{ndim}DTranspose")(6, **each(options, ndim)),
            [IMAGE[ndim]],
        )
        for ndim in (1, 2)
        for name, options in TRANSPOSED.items()
    ),
    Case("Embedding", lambda: nn.Embedding(6, 3), [np.array([[0, 5, 2], [2, 2, 1]])]),
    Case("Flatten", lambda: nn.Flatten(), [(2, 3, 2)]),
    Case("ReflectionPad2D", lambda: nn.ReflectionPad2D(2), [(2, 2, 4, 4)]),
    Case("Dropout predict", lambda: nn.Dropout(0.4), [(3, 8)], train=False),
    Case("Dropout", lambda: nn.Dropout(0.4), [(3, 8)], draws=True, step=1e-2, tolerance=FLOAT32_ONLY["tolerance"]),
    Case(
        "Dropout of axes",
        lambda: nn.Dropout(0.4, axes=(0,)),
        [(3, 8)],
        draws=True,
        step=1e-2,
        tolerance=FLOAT32_ONLY["tolerance"],
    ),
    Case("Concurrent", lambda: concurrent(), [(3, 4)]),
    Case("PixelShuffle1D", lambda: contrib.nn.PixelShuffle1D(2), [(2, 4, 3)]),
    Case("PixelShuffle2D", lambda: contrib.nn.PixelShuffle2D((2, 3)), [(2, 12, 3, 2)]),
    Case("PixelShuffle3D", lambda: contrib.nn.PixelShuffle3D((2, 1, 2)), [(2, 4, 2, 3, 2)]),
]


def concurrent():
    layer = contrib.nn.HybridConcurrent(axis=1)
    layer.add(nn.Dense(2), contrib.nn.Identity(), nn.Dense(3))
    return layer


def pooling_cases():
    for ndim, kind in itertools.product(IMAGE, ("Max", "Avg")):
        for window, ceil, pad in itertools.product(((2, 2), (3, 2)), (False, True), (0, 1)):
            if pad and window == (2, 2):
                continue  # a window would lie in the padding alone
            for include in (True, False) if kind == "Avg" and pad else (None,):
                options = {"pool_size": window[0], "strides": window[1], "padding": pad, "ceil_mode": ceil}
                if include is not None:
                    options["count_include_pad"] = include
                make = getattr(nn, f"{kind}Pool{ndim}D")
                yield Case(
                    f"{kind}Pool{ndim}D {list(options.values())}", lambda make=make, o=options: make(**o), [IMAGE[ndim]]
                )
    for ndim, kind in itertools.product(IMAGE, ("Max", "Avg")):
        yield Case(f"Global{kind}Pool{ndim}D", getattr(nn, f"Global{kind}Pool{ndim}D"), [IMAGE[ndim]])
    for kind, ceil in itertools.product(("max", "avg", "sum", "lp"), ("valid", "full")):
        options = {"kernel": (3,), "stride": (2,), "pool_type": kind, "pooling_convention": ceil}
        if kind == "lp":
            options["p_value"] = 2
        yield Case(f"Pooling {kind} {ceil}", lambda o=options: lambda x: nd.Pooling(x, **o), [IMAGE[1]])
        options = {**options, "kernel": (3, 3), "stride": (2, 2), "pad": (1, 1)}
        yield Case(f"Pooling {kind} {ceil} 2d", lambda o=options: lambda x: nd.Pooling(x, **o), [IMAGE[2]])
    yield Case("AvgPool2D of 16 channels", lambda: nn.AvgPool2D(3, 2, 1), [(2, 16, 6, 6)])
    yield Case("MaxPool2D of 16 channels", lambda: nn.MaxPool2D(3, 2, 1), [(2, 16, 6, 6)])


POOLING = list(pooling_cases())

NORM_SHAPES = {"2d": (6, 4), "3d": (3, 4, 5), "4d": (3, 4, 3, 2), "5d": (2, 4, 2, 3, 2), "16 channels": (4, 16, 3, 3)}
NORMS = [
    *(
        Case(f"BatchNorm {name} {'train' if train else 'predict'}", lambda: nn.BatchNorm(), [shape], train=train)
        for name, shape in NORM_SHAPES.items()
        for train in (True, False)
    ),
    *(
        Case(
            f"BatchNorm {options} {'train' if train else 'predict'}",
            lambda o=options: nn.BatchNorm(**o),
            [(3, 4, 3, 4)],
            train=train,
        )
        for options in (
            {"scale": False},
            {"center": False},
            {"axis": -1},
            {"use_global_stats": True},
            {"epsilon": 0.1},
            {"axis": 2},
        )
        for train in (True, False)
    ),
    Case("BatchNormReLU", lambda: nn.BatchNormReLU(), [(3, 4, 3, 2)]),
    Case("SyncBatchNorm", lambda: contrib.nn.SyncBatchNorm(in_channels=4, num_devices=1), [(3, 4, 3, 2)], **IN_FLOAT32),
    *(
        Case(f"InstanceNorm {name}", lambda: nn.InstanceNorm(scale=True), [shape], **IN_FLOAT32)
        for name, shape in NORM_SHAPES.items()
        if name != "2d"
    ),
    *(
        Case(
            f"LayerNorm {options} {shape}",
            lambda o=options: nn.LayerNorm(**o),
            [shape],
            tolerance={"float32": 2e-3, "float64": 1e-6},
        )
        for options in ({}, {"axis": 1}, {"epsilon": 0.1})
        for shape in ((3, 4), (2, 3, 8), (2, 4, 3, 2), (5, 64))
    ),
    *(
        Case(f"GroupNorm {groups} {shape}", lambda g=groups: nn.GroupNorm(g), [shape])
        for groups in (1, 2, 4)
        for shape in ((3, 4, 5), (2, 4, 3, 2))
    ),
]


ALL = [*ACTIVATIONS, *PLAIN, *LAYERS, *POOLING, *NORMS]


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_gradient_is_that_of_the_value(case):
    assert wrong(case) == {}
