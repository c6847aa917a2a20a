"""Every optimizer's numbers against its formula in NumPy, float64: changing rates, multipliers, decay, clipping."""

import functools

import numpy as np
import pytest

from mxtrain.engine.backend import mx, nd
from mxtrain.optimizer import optimizers as o
from mxtrain.optimizer.updater import Updater

SHAPES = {"dense.weight": (3, 4), "dense.bias": (3,), "norm.gamma": (5,), "norm.beta": (5,), "output.weight": (120, 80)}
"""In several groups of similar sizes, which are updated one after the other."""
MULTIPLIERS = {
    "dense.weight": (1.0, 1.0),
    "dense.bias": (2.0, 0.0),
    "norm.gamma": (1.0, 1.0),
    "norm.beta": (1.0, 0.5),
    "output.weight": (0.5, 1.0),
}
RATES = [0.05, 0.08, 0.02, 0.02, 0.04]


def clip(grad, c):
    return np.clip(grad, -c, c) if c else grad


# One step of one parameter: (state that is kept, weight, gradient, settings, rate, decay, step from 1) -> weight.
# `settings.rates` are the rates of all steps before multipliers, `settings.exempt` says whether it is a bias or norm's.


def sgd(state, w, g, s, lr, wd, t):
    state["m"] = s.momentum * state.get("m", 0) - lr * (clip(g, s.clip_gradient) + wd * w)
    return w + state["m"]


def nag(state, w, g, s, lr, wd, t):
    """Nesterov's: the gradient's step, and the momentum's, which holds this gradient already."""
    g = clip(g, s.clip_gradient) + wd * w
    state["m"] = s.momentum * state.get("m", 0) - lr * g
    return w + s.momentum * state["m"] - lr * g


def adam(state, w, g, s, lr, wd, t):
    g = clip(g + wd * w, s.clip_gradient)
    state["m"] = s.beta1 * state.get("m", 0) + (1 - s.beta1) * g
    state["v"] = s.beta2 * state.get("v", 0) + (1 - s.beta2) * g**2
    correction = np.sqrt(1 - s.beta2**t) / (1 - s.beta1**t)
    return w - lr * correction * state["m"] / (np.sqrt(state["v"]) + s.epsilon)


def adamw(state, w, g, s, lr, wd, t):
    return adam(state, w, clip(g, s.clip_gradient), s, lr, 0.0, t) - lr * wd * w


def adamax(state, w, g, s, lr, wd, t):
    g = clip(g, s.clip_gradient) + wd * w
    state["m"] = s.beta1 * state.get("m", 0) + (1 - s.beta1) * g
    state["u"] = np.maximum(s.beta2 * state.get("u", 0), np.abs(g))
    return w - lr / (1 - s.beta1**t) * state["m"] / (state["u"] + 1e-8)


def nadam(state, w, g, s, lr, wd, t):
    g = clip(g, s.clip_gradient) + wd * w
    state["m"] = s.beta1 * state.get("m", 0) + (1 - s.beta1) * g
    state["v"] = s.beta2 * state.get("v", 0) + (1 - s.beta2) * g**2
    momenta = [s.beta1 * (1 - 0.5 * 0.96 ** (k * s.schedule_decay)) for k in range(1, t + 2)]
    mean = momenta[t] * state["m"] / (1 - np.prod(momenta)) + (1 - momenta[t - 1]) * g / (1 - np.prod(momenta[:t]))
    return w - lr * mean / (np.sqrt(state["v"] / (1 - s.beta2**t)) + s.epsilon)


def adagrad(state, w, g, s, lr, wd, t):
    """Its decay is decoupled: the history holds gradients alone."""
    g = clip(g, s.clip_gradient)
    state["h"] = state.get("h", 0) + g**2
    return w - lr * (g / np.sqrt(state["h"] + s.epsilon) + wd * w)


def group_adagrad(state, w, g, s, lr, wd, t):
    g = clip(g, s.clip_gradient)
    state["h"] = state.get("h", 0) + (g**2).mean(axis=1, keepdims=True)
    return w - lr * g / np.sqrt(state["h"] + s.epsilon)


def adadelta(state, w, g, s, lr, wd, t):
    """The rate has no part in it, nor in its decay."""
    g = clip(g, s.clip_gradient)
    state["g"] = s.rho * state.get("g", 0) + (1 - s.rho) * g**2
    change = np.sqrt(state.get("d", 0) + s.epsilon) / np.sqrt(state["g"] + s.epsilon) * g
    state["d"] = s.rho * state.get("d", 0) + (1 - s.rho) * change**2
    return w - change - wd * w


def rmsprop(state, w, g, s, lr, wd, t):
    g = clip(g + wd * w, s.clip_gradient)
    state["n"] = s.gamma1 * state.get("n", 0) + (1 - s.gamma1) * g**2
    if s.centered:
        state["g"] = s.gamma1 * state.get("g", 0) + (1 - s.gamma1) * g
        root = np.sqrt(state["n"] - state["g"] ** 2 + s.epsilon)
        state["m"] = s.gamma2 * state.get("m", 0) - lr * g / root
        return clip(w + state["m"], s.clip_weights)
    return clip(w - lr * g / np.sqrt(state["n"] + s.epsilon), s.clip_weights)


def ftrl(state, w, g, s, lr, wd, t):
    g, n = clip(g, s.clip_gradient), state.get("n", 0)
    state["n"] = n + g**2
    z = state["z"] = state.get("z", 0) + g - (np.sqrt(state["n"]) - np.sqrt(n)) / lr * w
    shrunk = np.sign(z) * np.maximum(np.abs(z) - s.lamda1, 0)
    return -shrunk / ((s.beta + np.sqrt(state["n"])) / lr + wd)


def ftml(state, w, g, s, lr, wd, t):
    g = clip(g + wd * w, s.clip_gradient)
    state["v"] = s.beta2 * state.get("v", 0) + (1 - s.beta2) * g**2
    d = (1 - s.beta1**t) / lr * (np.sqrt(state["v"] / (1 - s.beta2**t)) + s.epsilon)
    change = d - s.beta1 * state.get("d", 0)
    state["z"] = s.beta1 * state.get("z", 0) + (1 - s.beta1) * g - change * w
    state["d"] = d
    return -state["z"] / d


def signum(state, w, g, s, lr, wd, t):
    state["m"] = s.momentum * state.get("m", 0) - (1 - s.momentum) * (clip(g, s.clip_gradient) + wd * w)
    return (1 - lr * s.wd_lh) * w + lr * np.sign(state["m"])


def dcasgd(state, w, g, s, lr, wd, t):
    """The weights of this worker's step before stand for those of the time when the gradient was asked for."""
    g = clip(g, s.clip_gradient)
    before = state.get("w", w)
    state["m"] = s.momentum * state.get("m", 0) - lr * (g + wd * w + s.lamda * g * g * (w - before))
    state["w"] = w
    return w + state["m"]


def lamb(state, w, g, s, lr, wd, t):
    g = clip(g, s.clip_gradient)
    m = state["m"] = s.beta1 * state.get("m", 0) + (1 - s.beta1) * g
    v = state["v"] = s.beta2 * state.get("v", 0) + (1 - s.beta2) * g**2
    if s.bias_correction:
        m, v = m / (1 - s.beta1**t), v / (1 - s.beta2**t)
    step = m / (np.sqrt(v) + s.epsilon) + wd * w
    norm = np.linalg.norm(w)
    norm = max(norm, s.lower_bound) if s.lower_bound else norm
    norm = min(norm, s.upper_bound) if s.upper_bound else norm
    length = np.linalg.norm(step)
    return w - lr * (norm / length if norm and length else 1.0) * step


def lars(state, w, g, s, lr, wd, t):
    """Momentum follows the rate of the whole network, biases and norms have no rate of their own."""
    momentum = s.momentum
    if s.momentum_correction and t > 1:
        momentum *= s.rates[t - 1] / s.rates[t - 2]
    norm, length = np.linalg.norm(w), np.linalg.norm(g)
    if not s.exempt and norm > 0 and length > 0:
        lr = lr * s.eta * norm / (length + wd * norm + s.epsilon)
    state["m"] = momentum * state.get("m", 0) - lr * (clip(g, s.clip_gradient) + wd * w)
    return w + state["m"]


def lbsgd(state, w, g, s, lr, wd, t):
    """The mean of some gradients, at a rate that rises to as many times the given one."""
    state["sum"] = state.get("sum", 0) + g
    if t % s.batch_scale:
        return w
    g, state["sum"] = state["sum"] / s.batch_scale, 0
    if s.warmup_strategy == "lars":
        ratio = np.sqrt((w**2).sum() / ((g**2).sum() + wd * (w**2).sum() + 1e-18))
        return sgd(state, w, g, s, lr * np.clip(ratio, 0.01, 100), wd, t)
    done = min(t / (s.warmup_epochs * 4), 1.0) if s.warmup_epochs else 1.0
    share = {"linear": done, "power2": done**2, "sqrt": np.sqrt(done)}[s.warmup_strategy]
    return sgd(state, w, g, s, lr * (1 + (s.batch_scale - 1) * share), wd, t)


CASES = [
    (sgd, o.SGD(wd=0.1)),
    (sgd, o.SGD(momentum=0.0, wd=0.1, clip_gradient=0.5)),
    (nag, o.NAG(wd=0.1)),
    (nag, o.NAG(wd=0.1, clip_gradient=0.5)),
    (adam, o.Adam(wd=0.1)),
    (adam, o.Adam(wd=0.1, clip_gradient=0.5, beta1=0.8, beta2=0.9)),
    (adamw, o.AdamW(wd=0.1)),
    (adamw, o.AdamW(wd=0.1, clip_gradient=0.5, beta1=0.8)),
    (adamax, o.Adamax(wd=0.1)),
    (adamax, o.Adamax(wd=0.1, clip_gradient=0.5)),
    (nadam, o.Nadam(wd=0.1)),
    (nadam, o.Nadam(wd=0.1, clip_gradient=0.5, schedule_decay=0.1)),
    (adagrad, o.AdaGrad(wd=0.1)),
    (adagrad, o.AdaGrad(wd=0.1, clip_gradient=0.5)),
    (group_adagrad, o.GroupAdaGrad()),
    (group_adagrad, o.GroupAdaGrad(clip_gradient=0.5)),
    (adadelta, o.AdaDelta(wd=0.01)),
    (adadelta, o.AdaDelta(wd=0.01, rho=0.5, clip_gradient=0.5)),
    (rmsprop, o.RMSProp(wd=0.1)),
    (rmsprop, o.RMSProp(wd=0.1, clip_gradient=0.5, clip_weights=0.8)),
    (rmsprop, o.RMSProp(centered=True, epsilon=1e-4)),
    (rmsprop, o.RMSProp(centered=True, epsilon=1e-4, wd=0.1)),
    (ftrl, o.Ftrl(wd=0.1)),
    (ftrl, o.Ftrl(wd=0.1, clip_gradient=0.5, lamda1=0.2)),
    (ftml, o.FTML(wd=0.1)),
    (ftml, o.FTML(wd=0.1, clip_gradient=0.5)),
    (signum, o.Signum(wd=0.1, wd_lh=0.2)),
    (signum, o.Signum(wd=0.1, clip_gradient=0.5, momentum=0.0)),
    (dcasgd, o.DCASGD(wd=0.1)),
    (dcasgd, o.DCASGD(wd=0.1, momentum=0.9, clip_gradient=0.5)),
    (lamb, o.LAMB(wd=0.1)),
    (lamb, o.LAMB(wd=0.1, clip_gradient=0.5, lower_bound=2.0, upper_bound=3.0)),
    (lamb, o.LAMB(bias_correction=False)),
    (lars, o.LARS(wd=0.1)),
    (lars, o.LARS(wd=0.1, eta=0.1, momentum_correction=False, clip_gradient=0.5)),
    (lars, o.LARS(wd=0.1, eta=0.1, epsilon=0.01, momentum=0.5)),
    (lars, o.LARS(momentum=0.0, eta=0.1)),
    (lbsgd, o.LBSGD(wd=0.1)),
    (lbsgd, o.LBSGD(wd=0.1, batch_scale=2)),
    (lbsgd, o.LBSGD(wd=0.1, batch_scale=2, warmup_strategy="power2", warmup_epochs=2)),
    (lbsgd, o.LBSGD(batch_scale=2, warmup_strategy="sqrt", momentum=0.0)),
    (lbsgd, o.LBSGD(batch_scale=2, warmup_strategy="lars", warmup_epochs=0)),
]


class Settings:
    """An optimizer's settings, and what a formula has to know besides."""

    def __init__(self, spec, name):
        self.__dict__.update(spec.model_dump())
        self.exempt = name.endswith(("bias", "gamma", "beta"))
        self.rates = RATES


def gradient(step, position, shape):
    return np.random.RandomState(100 * step + position).randn(*shape)


def start(shapes):
    rng = np.random.RandomState(0)
    return {name: rng.randn(*shape) for name, shape in shapes.items()}


def shapes_for(spec):
    return {n: s for n, s in SHAPES.items() if len(s) == 2} if isinstance(spec, o.GroupAdaGrad) else SHAPES


def step_all(one, step, rate, buffers):
    """One step, with gradients in the same arrays at each, as a network's are."""
    for position, buffer in enumerate(buffers):
        buffer[:] = nd.array(gradient(step, position, buffer.shape), dtype=buffer.dtype)
    one.update(buffers, rate)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("formula, spec", CASES, ids=lambda case: getattr(case, "__name__", ""))
def test_follows_its_formula(formula, spec, dtype):
    shapes = shapes_for(spec)
    expected = start(shapes)
    values = {name: nd.array(value, dtype=dtype) for name, value in expected.items()}
    one = Updater(spec.build(steps_per_epoch=4), values, {name: MULTIPLIERS[name] for name in shapes})
    buffers = [nd.zeros(shape, dtype=dtype) for shape in shapes.values()]
    states = {name: {} for name in shapes}
    for step, rate in enumerate(RATES, start=1):
        step_all(one, step, rate, buffers)
        for position, (name, shape) in enumerate(shapes.items()):
            lr_mult, wd_mult = MULTIPLIERS[name]
            expected[name] = formula(
                states[name],
                expected[name],
                gradient(step, position, shape),
                Settings(spec, name),
                rate * lr_mult,
                spec.wd * wd_mult,
                step,
            )
            scale = np.abs(expected[name]).max()
            # Without a C++ compiler, MXNet's operators update: their float32 is off by 2.1e-6 of the largest weight.
            np.testing.assert_allclose(
                values[name].asnumpy(), expected[name], rtol=0, atol=3e-6 * step * scale, err_msg=f"{name}, step {step}"
            )


def test_every_optimizer_has_a_formula():
    kinds = {kind for kind in vars(o).values() if isinstance(kind, type) and issubclass(kind, o.Optimizer)}
    assert kinds - {o.Optimizer, o.RowwiseOptimizer, o.SGLD} == {type(spec) for _, spec in CASES}  # SGLD draws


def test_sgld_is_half_a_step_of_sgd_and_noise_of_the_rates_variance():
    spec, shape = o.SGLD(wd=0.1), (200, 200)
    values = {"weight": nd.array(start({"weight": shape})["weight"])}
    before = values["weight"].asnumpy().astype(np.float64)
    mx.random.seed(3)
    Updater(spec.build(4), values, {"weight": (1.0, 1.0)}).update([nd.ones(shape)], 0.04)
    noise = values["weight"].asnumpy() - (before - 0.02 * (1 + 0.1 * before))
    assert abs(noise.mean()) < 0.003 and noise.std() == pytest.approx(0.2, rel=0.02)


ALL = [*dict.fromkeys(type(spec) for _, spec in CASES), o.SGLD]
KINDS = [functools.partial(kind, wd=0.0 if kind is o.GroupAdaGrad else 0.1) for kind in ALL]


@pytest.mark.parametrize("build", KINDS, ids=lambda build: build.func.__name__)
def test_parameters_without_rate_do_not_move(build):
    """Neither weights nor state move, also with momentum and decay; training continues as if the steps at rate 0 had
    not been."""
    spec = build()
    shapes = shapes_for(spec)
    still = "dense.weight"
    multipliers = {name: (0.0 if name == still else 1.0, 1.0) for name in shapes}
    ends = []
    for rates in ([0.05, 0.08, 0.02], [0.05, 0.0, 0.08, 0.0, 0.0, 0.02]):
        values = {name: nd.array(value) for name, value in start(shapes).items()}
        one = Updater(spec.build(4), values, multipliers)
        buffers = [nd.zeros(shape) for shape in shapes.values()]
        moving = 0
        for rate in rates:
            before = {name: value.asnumpy() for name, value in values.items()}
            moving += rate > 0
            mx.random.seed(moving)
            step_all(one, moving, rate, buffers)
            for name, value in values.items():
                assert np.isfinite(value.asnumpy()).all()
                if not rate or name == still:
                    np.testing.assert_array_equal(value.asnumpy(), before[name])
        assert not any(name.startswith(still) for name in one.arrays())
        ends.append([*values.values(), *one.arrays().values()])
        assert one.numbers()["update_counts"] == {name: 0 if name == still else 3 for name in shapes}
    for one, other in zip(*ends):
        np.testing.assert_array_equal(one.asnumpy(), other.asnumpy())


@pytest.mark.parametrize("spec", [o.LBSGD(batch_scale=2, wd=0.1), o.LBSGD(batch_scale=3), o.LARS(wd=0.1, eta=0.1)])
@pytest.mark.parametrize("at", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_run_that_is_continued_equals_the_unbroken_one(spec, at, dtype):
    """Also where a gradient waits for others, and where the rate has just changed."""
    whole, broken = ({name: nd.array(value, dtype=dtype) for name, value in start(SHAPES).items()} for _ in range(2))
    one, two = (Updater(spec.build(4), values, MULTIPLIERS) for values in (whole, broken))
    buffers = [nd.zeros(shape, dtype=dtype) for shape in SHAPES.values()]
    for step, rate in enumerate(RATES, start=1):
        step_all(one, step, rate, buffers)
        step_all(two, step, rate, buffers)
        if step == at:
            arrays, numbers = {n: array.asnumpy() for n, array in two.arrays().items()}, two.numbers()
            two = Updater(spec.build(4), broken, MULTIPLIERS)
            two.restore(arrays, numbers)
    for name in SHAPES:
        np.testing.assert_array_equal(whole[name].asnumpy(), broken[name].asnumpy())
