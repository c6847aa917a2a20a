"""Operators that compute each element by itself, or from two arrays by broadcasting."""

from __future__ import annotations

from typing import List

import numpy as np
import scipy.special

from operators_parts.entry import Entry, table


def _unary(name: str):
    return lambda F, x: getattr(F, name)(x)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


UNARY = {
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": sigmoid,
    "tanh": np.tanh,
    "softsign": lambda x: x / (1 + abs(x)),
    "exp": np.exp,
    "expm1": np.expm1,
    "abs": np.abs,
    "square": np.square,
    "cbrt": np.cbrt,
    "negative": np.negative,
    "sin": np.sin,
    "cos": np.cos,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "arctan": np.arctan,
    "arcsinh": np.arcsinh,
    "degrees": np.degrees,
    "radians": np.radians,
    "erf": scipy.special.erf,
    "identity": lambda x: x,
    "hard_sigmoid": lambda x: np.clip(0.2 * x + 0.5, 0, 1),
    "sign": np.sign,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "fix": np.fix,
    "rint": np.rint,
    "zeros_like": np.zeros_like,
    "ones_like": np.ones_like,
    "logical_not": lambda x: (x == 0) * 1.0,
}
POSITIVE = {
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "reciprocal": np.reciprocal,
    "rsqrt": lambda x: x**-0.5,
    "rcbrt": lambda x: np.cbrt(x) ** -1,
    "gamma": scipy.special.gamma,
    "gammaln": scipy.special.gammaln,
    "tan": np.tan,
}
UNIT = {"arcsin": np.arcsin, "arccos": np.arccos, "arctanh": np.arctanh, "erfinv": scipy.special.erfinv}

SCALARS = {
    "x + 2": (lambda F, x: x + 2, lambda x: x + 2),
    "2 - x": (lambda F, x: 2 - x, lambda x: 2 - x),
    "x * 3": (lambda F, x: x * 3, lambda x: x * 3),
    "x / 3": (lambda F, x: x / 3, lambda x: x / 3),
    "x > 0.5": (lambda F, x: x > 0.5, lambda x: (x > 0.5) * 1.0),
    "x == x": (lambda F, x: F.broadcast_equal(x, x), lambda x: np.ones_like(x)),
    "maximum(x, 0.5)": (lambda F, x: F.maximum(x, 0.5), lambda x: np.maximum(x, 0.5)),
    "minimum(x, 0.5)": (lambda F, x: F.minimum(x, 0.5), lambda x: np.minimum(x, 0.5)),
    "clip": (lambda F, x: F.clip(x, -1, 1.4), lambda x: np.clip(x, -1, 1.4)),
    "smooth_l1": (
        lambda F, x: F.smooth_l1(x, scalar=2.0),
        lambda x: np.where(abs(x) < 0.25, 2 * x * x, abs(x) - 0.125),
    ),
    "where(x > 0, x, 3 x)": (lambda F, x: F.where(x > 0, x, 3 * x), lambda x: np.where(x > 0, x, 3 * x)),
    "quadratic": (lambda F, x: F.contrib.quadratic(x, a=2, b=3, c=1), lambda x: 2 * x * x + 3 * x + 1),
    "div_sqrt_dim": (lambda F, x: F.contrib.div_sqrt_dim(x), lambda x: x / np.sqrt(x.shape[-1])),
    "gradientmultiplier(1)": (lambda F, x: F.contrib.gradientmultiplier(x, scalar=1.0), lambda x: x),
    "cast float32": (lambda F, x: F.cast(F.cast(x, dtype="float64"), dtype="float32"), lambda x: x),
}
POSITIVE_SCALARS = {
    "2 / x": (lambda F, x: 2 / x, lambda x: 2 / x),
    "x ** 1.7": (lambda F, x: x**1.7, lambda x: x**1.7),
    "3 ** x": (lambda F, x: 3**x, lambda x: 3.0**x),
    "x % 0.7": (lambda F, x: x % 0.7, lambda x: x % 0.7),
}
ACTIVATIONS = {
    **{
        f"Activation({kind})": (lambda F, x, kind=kind: F.Activation(x, act_type=kind), reference)
        for kind, reference in {
            "relu": UNARY["relu"],
            "sigmoid": sigmoid,
            "tanh": np.tanh,
            "softrelu": lambda x: np.log1p(np.exp(x)),
            "softsign": UNARY["softsign"],
        }.items()
    },
    "LeakyReLU(leaky)": (lambda F, x: F.LeakyReLU(x, slope=0.1), lambda x: np.where(x > 0, x, 0.1 * x)),
    "LeakyReLU(elu)": (
        lambda F, x: F.LeakyReLU(x, act_type="elu", slope=0.7),
        lambda x: np.where(x > 0, x, 0.7 * np.expm1(x)),
    ),
    "LeakyReLU(selu)": (
        lambda F, x: F.LeakyReLU(x, act_type="selu"),
        lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)),
    ),
    "LeakyReLU(gelu)": (
        lambda F, x: F.LeakyReLU(x, act_type="gelu"),
        lambda x: x / 2 * (1 + scipy.special.erf(x / np.sqrt(2))),
    ),
}
PAIRS = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "power": np.power,
    "hypot": np.hypot,
    "mod": np.mod,
    "greater": lambda x, y: (x > y) * 1.0,
    "logical_and": lambda x, y: (x * y != 0) * 1.0,
}


def _pair(name: str):
    return lambda F, x, y: getattr(F, name)(x, y)


def entries() -> List[Entry]:
    """Returns the operators of this part."""
    names = {"add": "elemwise_add", "sub": "elemwise_sub", "mul": "elemwise_mul", "div": "elemwise_div"}
    plain = [("N", 8)]
    return [
        *table({name: (_unary(name), reference) for name, reference in UNARY.items()}, plain),
        *table({name: (_unary(name), f) for name, f in POSITIVE.items()}, plain, low=0.3, high=1.4),
        *table({name: (_unary(name), reference) for name, reference in UNIT.items()}, plain, low=-0.9, high=0.9),
        *table(SCALARS, plain),
        *table(POSITIVE_SCALARS, plain, low=0.3, high=1.7),
        *table(ACTIVATIONS, plain),
        *table({f"{name} of images": pair for name, pair in ACTIVATIONS.items()}, [("N", 16, 3, 2)]),
        Entry(
            "LeakyReLU(prelu)",
            lambda F, x, a: F.LeakyReLU(x, a, act_type="prelu"),
            [("N", 16, 3), (16,)],
            lambda x, a: np.where(x > 0, x, a[:, None] * x),
        ),
        *table({op: (_pair(op), PAIRS[name]) for name, op in names.items()}, [("N", 6), ("N", 6)], low=0.3),
        *table(
            {f"broadcast_{name}": (_pair(f"broadcast_{name}"), f) for name, f in PAIRS.items()},
            [("N", 3, 4), ("N", 1, 4)],
            low=0.3,
        ),
        Entry("add_n", lambda F, x, y: F.add_n(x, y, x), [("N", 5), ("N", 5)], lambda x, y: 2 * x + y),
        Entry("add of images", lambda F, x, y: x + y, [("N", 16, 3, 2)] * 2, np.add),
    ]
