"""One suite over every optimizer: it is MXNet's, it learns, and its whole state survives a checkpoint."""

import inspect

import numpy as np
import pytest

from mxtrain.engine import native
from mxtrain.engine.backend import autograd, gluon, mx, nd
from mxtrain.errors import CheckpointError, ConfigError
from mxtrain.model.parameters import distinct_parameters
from mxtrain.optimizer import native_update, optimizers
from mxtrain.optimizer.spec import Optimizer
from mxtrain.optimizer.updater import Updater, group_similar_sizes

ALL = [c for _, c in inspect.getmembers(optimizers, inspect.isclass) if issubclass(c, Optimizer) and c.mxnet_name]
SHAPES = {"dense.weight": (3, 4), "dense.bias": (3,), "output.weight": (2, 3)}


MATRICES = {name: shape for name, shape in SHAPES.items() if len(shape) == 2}


def weights(shapes=SHAPES):
    rng = np.random.RandomState(0)
    return {name: nd.array(rng.randn(*shape)) for name, shape in shapes.items()}


def gradients(step, shapes):
    rng = np.random.RandomState(100 + step)
    return [nd.array(rng.randn(*shape)) for shape in shapes]


def updater(spec, values, multipliers=None):
    return Updater(spec.build(steps_per_epoch=4), values, multipliers or dict.fromkeys(values, (1.0, 1.0)))


def run(one, steps, lr=0.05):
    for step in steps:
        mx.random.seed(step)
        one.update(gradients(step, [weight.shape for weight in one._weights]), lr)


def test_every_optimizer_of_mxnet_has_an_option():
    registry = mx.optimizer.Optimizer.opt_registry.items()  # other packages register theirs, too
    registered = {name for name, kind in registry if kind.__module__.startswith("mxnet.")} - {"test", "ccsgd"}
    assert {c.mxnet_name for c in ALL} == registered


@pytest.mark.parametrize("kind", ALL, ids=lambda c: c.mxnet_name)
def test_state_survives_a_checkpoint_bit_for_bit(kind):
    spec = kind(wd=0.0 if kind is optimizers.GroupAdaGrad else 0.01)
    shapes = MATRICES if kind is optimizers.GroupAdaGrad else SHAPES
    values = weights(shapes)
    whole = updater(spec, values)
    run(whole, range(1, 7))

    first_values = weights(shapes)
    first = updater(spec, first_values)
    run(first, range(1, 4))
    arrays = {name: array.asnumpy() for name, array in first.arrays().items()}
    numbers = first.numbers()
    later_values = {name: nd.array(value.asnumpy()) for name, value in first_values.items()}
    later = updater(spec, later_values)
    later.restore(arrays, numbers)
    run(later, range(4, 7))

    for name in shapes:
        np.testing.assert_array_equal(values[name].asnumpy(), later_values[name].asnumpy())
    assert any((values[name].asnumpy() != weights()[name].asnumpy()).any() for name in shapes)


THEIRS = [c for c in ALL if c.mxnet_name not in ("dcasgd", "nadam", "sgld", "groupadagrad", "lars")]


@pytest.mark.parametrize("kind", THEIRS, ids=lambda c: c.mxnet_name)
def test_updates_equal_gluon_trainer(kind):
    """The same updates as gluon.Trainer makes, with weight decay on all parameters."""
    spec = kind(lr=0.05, wd=0.01)
    net = gluon.nn.Dense(3, in_units=4)
    net.initialize(mx.init.Normal(1.0))
    start = {name: p.data().asnumpy() for name, p in distinct_parameters(net).items()}
    trainer = gluon.Trainer(net.collect_params(), spec.build(4))
    data = nd.array(np.random.RandomState(0).randn(5, 4))
    ours = {name: nd.array(value) for name, value in start.items()}
    mine = updater(spec, ours)
    for _ in range(3):
        with autograd.record():
            loss = (net(data) ** 2).mean()
        loss.backward()
        grads = [nd.array(p.grad().asnumpy()) for p in distinct_parameters(net).values()]
        trainer.step(1)
        mine.update(grads, 0.05)
    for name, parameter in distinct_parameters(net).items():
        np.testing.assert_allclose(parameter.data().asnumpy(), ours[name].asnumpy(), rtol=2e-6, atol=1e-7)


DIVIDED = [c for c in ALL if c.mxnet_name not in ("groupadagrad", "lbsgd")]


@pytest.mark.parametrize("kind", DIVIDED, ids=lambda c: c.mxnet_name)
def test_zero_gradient_keeps_weights_finite(kind):
    """A unit that never fires has one; MXNet's own Adamax divides 0 by 0."""
    values = weights()
    one = updater(kind(), values)
    for step in range(1, 3):
        mx.random.seed(step)
        one.update([nd.zeros(shape) for shape in SHAPES.values()], 0.01)
    assert all(np.isfinite(value.asnumpy()).all() for value in values.values())


@pytest.mark.parametrize("kind", [*ALL, optimizers.AdamW], ids=lambda c: c.__name__)
def test_the_layout_of_a_weight_changes_no_bit(kind):
    """oneDNN keeps a convolution's weight in its own layout after inference, until it is updated: then operators that
    update in place find it elsewhere than they write it."""
    shapes = {"dense.weight": (64, 64)} if kind is optimizers.GroupAdaGrad else {"convolution.weight": (64, 32, 3, 3)}
    found = []
    for infers in (False, True):
        values = weights(shapes)
        one = updater(kind(wd=0.0 if kind is optimizers.GroupAdaGrad else 0.1), values)
        for step in range(1, 4):
            (weight,) = values.values()
            if infers and len(weight.shape) == 4:
                nd.Convolution(
                    nd.ones((2, 32, 8, 8)), weight, num_filter=64, kernel=(3, 3), no_bias=True
                ).wait_to_read()
            elif infers:
                nd.FullyConnected(nd.ones((2, 64)), weight, num_hidden=64, no_bias=True).wait_to_read()
            run(one, [step])
        found.append([array.asnumpy() for array in (*values.values(), *one.arrays().values())])
    for plain, laid_out in zip(*found):
        np.testing.assert_array_equal(plain, laid_out)


def test_dcasgd_with_momentum_does_not_raise():
    values = weights()
    one = updater(optimizers.DCASGD(momentum=0.9), values)
    run(one, range(1, 4))
    assert np.isfinite(values["dense.weight"].asnumpy()).all()


def test_multipliers_reach_lr_and_wd():
    values = weights()
    before = {name: value.asnumpy() for name, value in values.items()}
    multipliers = {"dense.weight": (0.0, 1.0), "dense.bias": (1.0, 0.0), "output.weight": (2.0, 1.0)}
    one = updater(optimizers.SGD(wd=0.5, momentum=0.0), values, multipliers)
    one.update([nd.zeros(shape) for shape in SHAPES.values()], 0.1)
    np.testing.assert_array_equal(values["dense.weight"].asnumpy(), before["dense.weight"])
    np.testing.assert_array_equal(values["dense.bias"].asnumpy(), before["dense.bias"])
    np.testing.assert_allclose(values["output.weight"].asnumpy(), before["output.weight"] * (1 - 0.2 * 0.5), rtol=1e-6)


def test_state_of_another_optimizer_is_refused():
    adam = updater(optimizers.Adam(), weights())
    sgd = updater(optimizers.SGD(), weights())
    with pytest.raises(CheckpointError, match="does not fit"):
        sgd.restore({name: a.asnumpy() for name, a in adam.arrays().items()}, adam.numbers())


def test_groupadagrad_names_untrainable_parameters():
    with pytest.raises(ConfigError, match="dense.bias"):
        updater(optimizers.GroupAdaGrad(), weights())


def test_nadam_follows_its_paper_for_every_parameter():
    values = weights()
    expected = {name: value.asnumpy().astype(np.float64) for name, value in values.items()}
    one = updater(optimizers.Nadam(lr=0.05), values)
    run(one, range(1, 5))
    momenta = [0.9 * (1 - 0.5 * 0.96 ** (0.004 * t)) for t in range(0, 7)]
    for position, name in enumerate(SHAPES):
        mean = variance = 0.0
        for t in range(1, 5):
            grad = gradients(t, SHAPES.values())[position].asnumpy().astype(np.float64)
            mean, variance = 0.9 * mean + 0.1 * grad, 0.999 * variance + 0.001 * grad**2
            mean_hat = mean / (1 - np.prod(momenta[1 : t + 2]))
            grad_hat = grad / (1 - np.prod(momenta[1 : t + 1]))
            direction = (1 - momenta[t]) * grad_hat + momenta[t + 1] * mean_hat
            expected[name] -= 0.05 * direction / (np.sqrt(variance / (1 - 0.999**t)) + 1e-8)
        np.testing.assert_allclose(values[name].asnumpy(), expected[name], rtol=1e-4)


def test_small_arrays_are_updated_together():
    """Small ones alike; each index once, whatever the sizes."""
    sizes = [10, 100_000, 12, 3, 50_000, 1000, 11, 300]
    arrays = [nd.zeros(size) for size in sizes]
    groups = group_similar_sizes(range(len(sizes)), arrays)
    assert sorted(index for group in groups for index in group) == list(range(len(sizes)))
    found = [[sizes[index] for index in group] for group in groups]
    assert found == [[100_000], [50_000], [1000, 300], [12, 11, 10, 3]]
    assert [len(group) for group in group_similar_sizes(range(100), [nd.zeros(4)] * 100)] == [45, 45, 10]


@pytest.mark.parametrize("dtype, tolerance", [("float32", 2e-5), ("float64", 2e-5)])
@pytest.mark.parametrize("bias_correction", [True, False])
@pytest.mark.parametrize("operators", ["own", "mxnet"])
def test_adamw_follows_its_paper(dtype, tolerance, bias_correction, operators, monkeypatch):
    """In float64, too, where MXNet's operator leaves noise."""
    if operators == "mxnet":
        monkeypatch.setattr(native_update, "native_operators", lambda: native.Library(None, "a test"))
    elif native_update.native_operators().path is None:
        pytest.skip(native_update.native_operators().why)
    values = {name: value.astype(dtype) for name, value in weights().items()}
    expected = {name: value.asnumpy().astype(np.float64) for name, value in values.items()}
    multipliers = {"dense.weight": (1.0, 1.0), "dense.bias": (1.0, 0.0), "output.weight": (2.0, 1.0)}
    spec = optimizers.AdamW(wd=0.1, bias_correction=bias_correction)
    one = updater(spec, values, multipliers)
    for step in range(1, 4):
        one.update([gradient.astype(dtype) for gradient in gradients(step, SHAPES.values())], 0.05)
    for position, name in enumerate(SHAPES):
        mean = variance = 0.0
        rate, decay = 0.05 * multipliers[name][0], 0.1 * multipliers[name][1]
        for t in range(1, 4):
            grad = gradients(t, SHAPES.values())[position].asnumpy().astype(np.float64)
            mean, variance = 0.9 * mean + 0.1 * grad, 0.999 * variance + 0.001 * grad**2
            correction = np.sqrt(1 - 0.999**t) / (1 - 0.9**t) if bias_correction else 1.0
            expected[name] -= rate * (correction * mean / (np.sqrt(variance) + 1e-6) + decay * expected[name])
        np.testing.assert_allclose(values[name].asnumpy(), expected[name], rtol=tolerance, atol=tolerance)
    assert len(one.arrays()) == 6  # two moments each, which a checkpoint holds


@pytest.mark.parametrize("name", ["update", "lr_scheduler", "__class__", "_index_update_count", "lr"])
def test_a_checkpoint_sets_no_attribute_but_the_optimizers_numbers(name):
    one = updater(optimizers.SGD(), weights())
    arrays = {name: array.asnumpy() for name, array in one.arrays().items()}
    before = dict(vars(one._optimizer))
    numbers = one.numbers()
    with pytest.raises(CheckpointError, match=name):
        one.restore(arrays, {**numbers, "attributes": {**numbers["attributes"], name: 1.0}})
    assert vars(one._optimizer) == before


@pytest.mark.parametrize("kind", [optimizers.Adam, optimizers.AdamW])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_factor_scales_gradients(kind, clip):
    """Multiplied within the update, or before it: the same bits."""
    found = []
    for within in (False, True):
        values = weights()
        one = updater(kind(wd=0.1, clip_gradient=clip), values)
        if not one.accepts_factor:
            pytest.skip("our own operators are not there")
        for step in range(1, 4):
            factor, given = nd.array([0.3 * step]), gradients(step, SHAPES.values())
            if within:
                one.update(given, 0.05, factor)
            else:
                one.update([gradient * factor.asscalar() for gradient in given], 0.05)
        found.append([array.asnumpy() for array in (*values.values(), *one.arrays().values())])
    for before, during in zip(*found):
        np.testing.assert_array_equal(before, during)
