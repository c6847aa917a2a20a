"""Further outputs that a user's loss declares: weights of samples, and parts that are only logged."""

import json

import numpy as np
import pytest

import mxtrain
from mxtrain.engine.backend import gluon, nd
from mxtrain.errors import ConfigError, LossWeightError, MxtrainError
from mxtrain.loss.blocks import IndexLabelLoss
from mxtrain.loss.custom import declared_outputs
from mxtrain.loss.distillation_blocks import DistillationLoss, OutputsOnly
from mxtrain.metric.meter import LossWeights, Meter

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4)).astype("float32")
Y = (X.sum(axis=1) > 0).astype(int)


class WithSize(gluon.HybridBlock):
    """Cross entropy and the size of the scores."""

    def __init__(self):
        super().__init__()
        self.loss = gluon.loss.SoftmaxCrossEntropyLoss()

    def hybrid_forward(self, F, scores, label):
        return self.loss(scores, label), 0.5 * F.square(scores).mean(axis=1)


class Parts(WithSize):
    parts = ("size",)


class Distance(WithSize):
    """Its part is 0, where the derivative of the square root is infinite."""

    parts = ("distance",)

    def hybrid_forward(self, F, scores, label):
        return self.loss(scores, label), F.sqrt((scores * 0).sum(axis=1))


class Weighted(WithSize):
    weighted = True


class Both(WithSize):
    weighted, parts = True, ("size", "constant")

    def hybrid_forward(self, F, scores, label):
        loss, size = super().hybrid_forward(F, scores, label)
        weight = 1 + label
        return weight * loss, weight, weight * size, F.ones_like(size)


class NoWeight(WithSize):
    weighted = True

    def hybrid_forward(self, F, scores, label):
        loss, size = super().hybrid_forward(F, scores, label)
        return loss, F.zeros_like(size)


def train(loss, folder, *overrides, x=X, y=Y):
    network = gluon.nn.HybridSequential()
    network.add(gluon.nn.Dense(8, activation="relu"), gluon.nn.Dense(2))
    return mxtrain.train(
        "trainer.max_epochs=1",
        "logger=[jsonl]",
        *overrides,
        model=network,
        dataset=((x, y), (x, y)),
        loss=loss,
        dir=folder,
    )


def test_a_second_output_must_be_declared(tmp_path) -> None:
    with pytest.raises(MxtrainError, match="returns 2 arrays, and declares 1: the loss. .*weighted = True .*parts ="):
        train(WithSize(), tmp_path)
    with pytest.raises(MxtrainError, match="returns 2 arrays, and declares 4: the loss, the weight .*, size, constant"):
        block = WithSize()
        block.weighted, block.parts = True, ("size", "constant")
        train(block, tmp_path)


@pytest.mark.parametrize("alpha", [0.0, 0.25])
@pytest.mark.parametrize("kind", [Parts, Weighted, Both])
def test_wrapping_losses_declare_and_return_inner_outputs(kind, alpha) -> None:
    inner = kind()
    inner.least_weight, inner.zero_weight_is_error = 2.0, True
    declares = LossWeights(inner.__class__ is not Parts, 2.0, getattr(inner, "parts", ()), True)
    assert LossWeights.from_loss(OutputsOnly(inner, 1, 1)) == declares
    around = DistillationLoss(inner, "scores", 1, 0, alpha, 1.0, 0.0)
    weighted = declares.are_given and alpha > 0
    assert LossWeights.from_loss(around) == LossWeights(
        weighted, 2.0 if weighted else 0.0, declares.parts if alpha else (), weighted
    )
    scores, teacher, label = nd.array(X[:5, :2]), nd.array(X[:5, 2:]), nd.array(Y[:5])
    expected = [array.asnumpy() for array in inner(scores, label)]
    found = around(scores, label, teacher)
    log_q, log_p = (array.log_softmax().asnumpy() for array in (scores, teacher))
    soft = (1 - alpha) * (np.exp(log_p) * (log_p - log_q)).sum(axis=1)
    if alpha:
        soft = soft * (expected[1] if weighted else 1)
        np.testing.assert_allclose(found[0].asnumpy(), alpha * expected[0] + soft, rtol=1e-3, atol=2e-5)
        for one, other in zip(found[1:], expected[1:]):
            np.testing.assert_array_equal(one.asnumpy(), other)
    else:
        np.testing.assert_allclose(found.asnumpy(), soft, rtol=1e-3, atol=2e-5)


def test_declarations_are_found_below_all_wrappers() -> None:
    block = Both()
    block.parts = ["size", "constant"]
    assert declared_outputs(IndexLabelLoss(IndexLabelLoss(block))) == (True, ("size", "constant"))
    assert declared_outputs(gluon.loss.L2Loss()) == (False, ())


@pytest.mark.parametrize(
    "parts",
    [
        "size",
        ("a", "a"),
        ("a b",),
        (1,),
        3,
        ("loss",),
        ("lr",),
        ("step",),
        ("epoch",),
        ("split",),
        ("samples_per_s",),
        ("part",),
    ],
)
def test_names_of_parts(parts) -> None:
    block = WithSize()
    block.parts = parts
    with pytest.raises(ConfigError, match="must be a tuple of different names"):
        declared_outputs(IndexLabelLoss(block))
    block.parts, block.weighted = (), 1
    with pytest.raises(ConfigError, match="weighted=1 .*True or False"):
        declared_outputs(block)


def test_a_part_has_no_name_of_a_metric(tmp_path) -> None:
    block = WithSize()
    block.parts = ("accuracy",)
    with pytest.raises(MxtrainError, match="'accuracy' has the name of a metric"):
        train(block, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("loss", [Parts, Both])
@pytest.mark.parametrize("placement", [(), ("parallel=data", "parallel.devices=cpu:2")])
def test_parts_are_logged(loss, placement, tmp_path) -> None:
    """Values of the validation against NumPy: sum(part) / sum(weight) over all batches, the last of which is short."""
    run = train(loss(), tmp_path, "dataset.batch_size=16", "dataset.eval_batch_size=16", *placement)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert all("size" in row for row in rows)
    scores = run.network(nd.array(X)).asnumpy().astype(np.float64)
    log_p = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    weight = 1 + Y if loss is Both else np.ones(len(Y))
    expected = {"loss": -log_p[np.arange(len(Y)), Y], "size": 0.5 * (scores**2).mean(axis=1)}
    for name, value in expected.items():
        assert run.metrics[f"val/{name}"] == pytest.approx((weight * value).sum() / weight.sum(), rel=1e-5)
    if loss is Both:
        assert run.metrics["val/constant"] == pytest.approx(len(Y) / weight.sum(), rel=1e-5)


@pytest.mark.slow
def test_weights_of_zero_are_an_error(tmp_path) -> None:
    with pytest.raises(MxtrainError, match="weights of .* samples sum to 0"):
        raise_cause(train(NoWeight(), tmp_path))
    meter = Meter({}, 2, LossWeights(True, zero_weight_is_error=True), training=True)
    assert meter.values(np.array([1.0, 2.0]), 3) == {"loss": 0.5} and meter.values(np.zeros(2), 0) == {"loss": 0.0}
    with pytest.raises(LossWeightError):
        meter.values(np.array([1.0, 0.0]), 3)
    assert Meter({}, 2, LossWeights(True), training=True).values(np.array([1.0, 0.0]), 3) == {"loss": 0.0}


def raise_cause(run):
    assert run.state == "failed"
    raise MxtrainError(run.cause)


@pytest.mark.slow
@pytest.mark.parametrize("split", [0, 1])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite(split, value, tmp_path) -> None:
    """The first layer drops NaN, so that no loss would show it."""
    arrays = [X.copy(), X.copy()]
    arrays[split][7, 2] = value
    network = gluon.nn.HybridSequential()
    network.add(gluon.nn.Activation("relu"), gluon.nn.Dense(2))
    name = ("train", "val")[split]
    with pytest.raises(MxtrainError, match=rf"dataset \({name}\): x of sample 7 is not finite"):
        mxtrain.train("logger=[]", model=network, dataset=((arrays[0], Y), (arrays[1], Y)), dir=tmp_path)
    run = mxtrain.train("trainer.max_epochs=1", "logger=[]", model=network, dataset=(X, Y), dir=tmp_path / "run")
    with pytest.raises(MxtrainError, match="x of sample 7 is not finite"):
        run.evaluate(dataset=(arrays[split], Y))
    with pytest.raises(MxtrainError, match="input 7"):
        run.predict(arrays[split])


def test_items_that_are_not_finite() -> None:
    from mxtrain.data.given_samples import ROWS_PER_CHECK, GivenSamples, Items
    from mxtrain.errors import DataError, LoaderError

    rows = np.zeros((ROWS_PER_CHECK + 5, 2, 2), np.float32)
    rows[ROWS_PER_CHECK + 3, 1, 0] = np.nan
    with pytest.raises(DataError, match=f"here: x of sample {ROWS_PER_CHECK + 3} is not finite"):
        GivenSamples([rows], None).require_finite("here")
    GivenSamples([rows[:-2]], None).require_finite("here")
    samples = GivenSamples(Items([(row, 0) for row in rows[-5:]]), np.zeros(5, int))
    with pytest.raises(LoaderError, match="x of sample 3 is not finite"):
        samples.read(np.array([0, 2, 3]))


def test_parts_get_no_gradient(tmp_path) -> None:
    run = train(Distance(), tmp_path)
    assert run.status["state"] == "finished" and run.metrics["val/distance"] == 0
