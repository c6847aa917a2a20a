"""Gradients of the rows of a batch alone: what is trained is what the dense computation trains."""

from __future__ import annotations

import re
from typing import Any, List

import numpy as np
import pytest
from id_networks import (
    FIELDS,
    NUMBERS,
    ROWS,
    SHAPES,
    Scorer,
    batch,
    build_network,
    build_step,
    train_shares,
    values,
)
from in_threads import Rendezvous, ThreadStore

from mxtrain.engine.backend import autograd, gluon, nd
from mxtrain.engine.native import Library
from mxtrain.errors import DataError
from mxtrain.kvstore.world import World
from mxtrain.metric.meter import Meter
from mxtrain.model.graph.id_inputs import make_sparse
from mxtrain.model.networks.embedding_table import EmbeddingTable
from mxtrain.model.parameters import distinct_parameters
from mxtrain.optimizer import optimizers
from mxtrain.optimizer.spec import RowwiseOptimizer
from mxtrain.parallel.objective import Objective
from mxtrain.parallel.spec import Data, Hybrid, Single
from mxtrain.training.snapshot import copy_gradients
from mxtrain.types import Batch

ROWWISE = [
    kind for kind in vars(optimizers).values() if getattr(kind, "rowwise", False) and kind is not RowwiseOptimizer
]
ADAM = (optimizers.Adam, optimizers.AdamW)


def train(step: Any, steps: int = 4, sizes: Any = (8, 5, 8, 1)) -> Any:
    for number in range(1, steps + 1):
        step(batch(number, sizes[number - 1]), 0.1 / number, number)
    return step


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_plain_dense_loop_of_gluons_gives_the_same_weights(momentum: float) -> None:
    network = Scorer(prefix="plain_")
    network.initialize()
    for name, parameter in distinct_parameters(network).items():
        parameter.set_data(distinct_parameters(build_network(False))[name].data())
    trainer = gluon.Trainer(network.collect_params(), "sgd", {"momentum": momentum, "wd": 0.01})
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    step = build_step(optimizers.SGD(momentum=momentum, wd=0.01))
    for number, size in enumerate((8, 5, 8, 1), 1):
        given = batch(number, size)
        with autograd.record():
            found = loss(network(*given.inputs), given.targets[0])
        found.backward()
        trainer.set_learning_rate(0.1)
        trainer.step(size)
        step(given, 0.1, number)
    for name, parameter in distinct_parameters(network).items():
        np.testing.assert_allclose(step.strategy.values[name].asnumpy(), parameter.data().asnumpy(), rtol=0, atol=2e-7)


@pytest.mark.parametrize(
    "kind, own",
    [*((kind, True) for kind in ROWWISE), *((kind, False) for kind in ADAM)],
    ids=lambda value: value.__name__ if isinstance(value, type) else {True: "", False: "without_own_operator"}[value],
)
def test_exact_updates_are_the_dense_ones_bit_for_bit(kind: Any, own: bool, monkeypatch: Any) -> None:
    """Untouched rows decay and go on by their momentum, a piece of the table at a time."""
    monkeypatch.setattr("mxtrain.optimizer.rows.ELEMENTS_AT_ONCE", 7 * 4)  # 7 rows, of which the last piece has 5
    if not own:
        monkeypatch.setattr("mxtrain.optimizer.native_update.native_operators", lambda: Library(None))
    spec = kind(wd=0.0 if kind is optimizers.GroupAdaGrad else 0.01, clip_gradient=0.05)
    if kind is optimizers.GroupAdaGrad:  # matrices only
        networks = []
        for sparse in (True, False):
            network = build_network(sparse)
            for name, parameter in network.collect_params().items():
                if name.endswith("bias"):
                    parameter.lr_mult, parameter.grad_req = 0.0, "null"
            networks.append(network)
    else:
        networks = [None, None]
    sparse, dense = (
        values(train(build_step(spec, sparse=is_sparse, network=network)))
        for is_sparse, network in zip((True, False), networks)
    )
    assert sorted(sparse) == sorted(dense)
    for name in dense:
        np.testing.assert_array_equal(sparse[name], dense[name], err_msg=name)


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_one_pass_of_sgd_gives_the_bits_of_an_update_of_copies(
    momentum: float, lazy: bool, clip: Any, monkeypatch: Any
) -> None:
    """The operator first multiplies gradients that are clipped by their norm."""
    spec = optimizers.SGD(momentum=momentum, wd=0.01)
    own = values(train(build_step(spec, lazy=lazy, clip=clip)))
    asked: List[bool] = []
    target = "mxtrain.optimizer.native_update.NativeUpdate.update_rows"
    monkeypatch.setattr(target, lambda *given: asked.append(given[-1]))
    copies = values(train(build_step(spec, lazy=lazy, clip=clip)))
    assert asked == [lazy] * 8, "two tables in four steps"
    for name, array in copies.items():
        np.testing.assert_array_equal(own[name], array, err_msg=name)


def test_lazy_updates_change_only_touched_rows() -> None:
    """Adam: against NumPy, row by row; untouched rows and their moments stay."""
    step = build_step(optimizers.Adam(wd=0.01), lazy=True)
    weight, mean, variance = (
        values(step)[name].astype(np.float64)
        for name in ("second.weight", "state second.weight:0", "state second.weight:1")
    )
    start = weight.copy()
    for number in range(1, 4):
        given = batch(number)
        touched = np.unique(given.inputs[0].asnumpy())
        step(given, 0.1, number)
        gradient = copy_gradients(step.strategy)["second.weight"].astype(np.float64)[touched] + 0.01 * weight[touched]
        mean[touched] = 0.9 * mean[touched] + 0.1 * gradient
        variance[touched] = 0.999 * variance[touched] + 0.001 * gradient**2
        rate = 0.1 * np.sqrt(1 - 0.999**number) / (1 - 0.9**number)
        weight[touched] -= rate * mean[touched] / (np.sqrt(variance[touched]) + 1e-8)
    found = values(step)
    np.testing.assert_allclose(found["second.weight"], weight, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found["state second.weight:1"], variance, rtol=1e-4, atol=1e-9)
    still = np.setdiff1d(np.arange(ROWS), [0, 3, 4, 7, 11, 20, 38, 39])
    np.testing.assert_array_equal(found["second.weight"][still], start[still].astype(np.float32))
    assert not found["state second.weight:0"][still].any()


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(
    "placement, parts, clip",
    [
        (None, 3, None),
        (Data(devices="cpu:2"), 1, 0.05),
        (Data(devices="cpu:2"), 2, None),
        (Hybrid(devices="cpu:4", microbatches=2, cut_before=["out"]), 1, 0.05),
    ],
    ids=["accumulation", "replicas", "both", "hybrid"],
)
def test_placements_equal_one_device(placement: Any, parts: int, clip: Any, lazy: bool) -> None:
    """In float64; the reference is dense where updates are exact."""
    spec = optimizers.Adam(wd=0.01)
    sizes = (8, 8, 4, 8)
    given: Any = {"clip": clip, "dtype": "float64"}

    def cast(step: Any) -> Any:
        for number, size in enumerate(sizes, 1):
            step(batch(number, size).cast("float64"), 0.05, number)
        return values(step)

    found = cast(build_step(spec, lazy=lazy, placement=placement, parts=parts, **given))
    wanted = cast(build_step(spec, sparse=lazy, lazy=lazy, **given))
    for name in wanted:
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("lazy", [False, True])
def test_workers_equal_one_worker(lazy: bool) -> None:
    """Each reads rows that the other does not; the second has no sample of the third batch, and both end with the same
    bits. The sum of two has no order, so these are those of one worker with two replicas."""
    rendezvous, sizes = Rendezvous(2), (8, 5, 1, 8)

    def work(world: World) -> Any:
        step = build_step(optimizers.Adam(wd=0.01), lazy=lazy, store=ThreadStore(world, rendezvous))
        train_shares(step, world, sizes)
        return values(step)

    found = rendezvous.run(work)
    alone = build_step(optimizers.Adam(wd=0.01), lazy=lazy, placement=Data(devices="cpu:2"))
    wanted = values(train(alone, sizes=sizes))
    for name in wanted:
        np.testing.assert_array_equal(found[0][name], found[1][name], err_msg=name)
        np.testing.assert_array_equal(found[0][name], wanted[name], err_msg=name)


def test_no_array_but_the_table_and_its_state_has_all_rows() -> None:
    step = train(build_step(optimizers.Adam()), steps=1)
    network = step.strategy.objective.network
    parameters = network.collect_params().values()
    held = [array for one in parameters for array in (*one.list_data(), *one.list_grad())]
    assert len(held) == 12 and all(len(array) != ROWS for array in held)
    assert step.strategy.values["second.weight"].shape == (ROWS, 4)


def test_predictions_are_the_dense_ones_for_any_size_of_a_batch() -> None:
    """More distinct ids than the network has room for; a few; and the whole network once it is gathered."""
    step = build_step(optimizers.SGD(), batch_size=2)
    dense = build_network(False)
    rng = np.random.RandomState(0)
    inputs = [nd.array(rng.randint(0, ROWS, (11, FIELDS)), dtype="int32"), nd.array(rng.randn(11, NUMBERS))]
    np.testing.assert_allclose(step.strategy.predict(inputs)[0].asnumpy(), dense(*inputs).asnumpy(), rtol=1e-6)
    few = [array[:2] for array in inputs]
    np.testing.assert_allclose(step.strategy.predict(few)[0].asnumpy(), dense(*few).asnumpy(), rtol=1e-6)
    np.testing.assert_allclose(step.strategy.gather()(*inputs).asnumpy(), dense(*inputs).asnumpy(), rtol=1e-6)


@pytest.mark.parametrize("placement, parts", [(Single(), 1), (Data(replicas=2), 1)])
def test_a_prediction_between_a_step_and_its_gradient_rows_changes_no_weight(placement: Any, parts: int) -> None:
    """The diagnosis of a non-finite loss is such a prediction: rows in the network then differ from those of the
    gradient."""
    one, other = (build_step(optimizers.Adam(), placement=placement, parts=parts) for _ in range(2))
    train(one)
    strategy, rng = other.strategy, np.random.RandomState(3)
    row_gradients, predicted = strategy.remote.gradients, []

    def after_a_prediction() -> Any:
        inputs = [nd.array(rng.randint(0, ROWS, (2, FIELDS)), dtype="int32"), nd.array(rng.randn(2, NUMBERS))]
        predicted.append(strategy.predict(inputs)[0].asnumpy())
        return row_gradients()

    strategy.remote.gradients = after_a_prediction
    train(other)
    assert len(predicted) == 4
    for name, array in values(one).items():
        np.testing.assert_array_equal(array, values(other)[name], err_msg=name)


class Picks(gluon.HybridBlock):
    """Gives as many scores as a sample has ids."""

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        with self.name_scope():
            self.table = EmbeddingTable(ROWS, 1, 0.5)

    def hybrid_forward(self, F, id_BC):
        return F.reshape(self.table(id_BC), (0, -1))


def test_a_sample_that_is_predicted_may_have_more_ids_than_one_that_is_trained_on() -> None:
    """Candidates of a recommendation: 2 in training, 15 in prediction, and no room for all of them at once."""
    network, dense = Picks(), Picks()
    assert make_sparse(network, (2,), 1) == []
    for one in (network, dense):
        one.initialize(force_reinit=True)
    dense.table.weight.set_data(network.table.weight.data())
    objective = Objective(network, lambda *_: None, Meter({}, 1), (2,), 4, predict_shape=(15,))  # type: ignore[arg-type]
    strategy = Single().build(objective, 1)
    id_BC = nd.array(np.random.RandomState(0).randint(0, ROWS, (7, 15)), dtype="int32")
    np.testing.assert_array_equal(strategy.predict([id_BC])[0].asnumpy(), dense(id_BC).asnumpy())


def test_looking_ahead_keeps_results() -> None:
    one, other = (build_step(optimizers.Adam()) for _ in range(2))
    for number in (1, 2):
        one(batch(number), 0.1, number)
        ahead = other.strategy.look_ahead(batch(number))
        assert ahead.ids is not None and ahead.slice(0, 2).ids is None
        other(ahead, 0.1, number)
    for name, array in values(one).items():
        np.testing.assert_array_equal(array, values(other)[name])


def test_a_frozen_table_is_read_and_stays() -> None:
    network = build_network(True)
    network.first.weight.lr_mult = 0.0
    step = build_step(optimizers.Adam(), network=network)
    before = values(step)
    train(step, steps=2)
    assert "first.weight" not in step.strategy.trainable
    np.testing.assert_array_equal(values(step)["first.weight"], before["first.weight"])
    assert (values(step)["second.weight"] != before["second.weight"]).any()


@pytest.mark.parametrize("id_", [ROWS, -1])
def test_an_id_without_a_row_is_refused_before_it_is_written_to(id_: int) -> None:
    step = build_step(optimizers.Adam())
    given = batch(1)
    given.inputs[0][2, 1] = id_
    with pytest.raises(DataError, match=f"holds the id {id_}, and the table has 40 rows"):
        step(given, 0.1, 1)


def test_too_large_batch_names_the_setting() -> None:
    step = build_step(optimizers.Adam(), batch_size=1)
    with pytest.raises(DataError, match="distinct ids.*room for 3.*trainer.sparse_grad=false"):
        step(batch(1), 0.1, 1)


class Odd(gluon.HybridBlock):
    """Does something with ids that positions cannot stand for."""

    def __init__(self, use: Any, **kwargs: Any):
        super().__init__(**kwargs)
        self._use = use
        with self.name_scope():
            self.table, self.plain = EmbeddingTable(ROWS, 3), gluon.nn.Embedding(ROWS, 3)

    def hybrid_forward(self, F, id_BF, number_BN):
        return self._use(self, F, id_BF, number_BN)


ODD = {
    "casts": (
        lambda n, F, i, x: F.sum(n.table(i), axis=1) + F.sum(F.cast(i, "float32"), axis=1, keepdims=True),
        "used by Cast of the network",
    ),
    "adds": (lambda n, F, i, x: F.sum(n.table(i + 1), axis=1), "not one input of the network"),
    "looks up elsewhere": (lambda n, F, i, x: F.sum(n.table(i) + n.plain(i), axis=1), "looked up in .*embedding0_w"),
    "compares with another input": (
        lambda n, F, i, x: F.sum(n.table(i), axis=1) + F.broadcast_equal(i, F.slice_axis(x, axis=1, begin=0, end=1)),
        "used by broadcast_equal of the network",
    ),
    "compares with a number": (
        lambda n, F, i, x: F.sum(n.table(i), axis=1) + F.broadcast_equal(i, F.zeros((1, 1))),
        "used by broadcast_equal of the network",
    ),
    "two inputs": (lambda n, F, i, x: F.sum(n.table(i), axis=1) + F.sum(n.table(x), axis=1), "not one input"),
}


@pytest.mark.parametrize("name", ODD)
def test_ids_that_are_more_than_looked_up_keep_the_table_dense(name: str) -> None:
    use, reason = ODD[name]
    network = Odd(use)
    (said,) = make_sparse(network, SHAPES, 1)
    assert re.search(reason, said), said
    assert network.table.ids_from is None and network.table.weight.grad_req == "write"


def test_ids_may_be_moved_about_and_compared() -> None:
    def use(n: Any, F: Any, i: Any, x: Any) -> Any:
        user, item = F.split(i, num_outputs=3, squeeze_axis=True)[0], F.slice_axis(i, axis=1, begin=1, end=3)
        is_same = F.broadcast_equal(item, F.expand_dims(user, 1))
        return (
            F.sum(is_same, axis=1, keepdims=True)
            + F.sum(n.table(F.expand_dims(user, 1)), axis=1)
            + F.sum(n.table(F.reshape(item, (-1, 2))), axis=1)
        )

    network = Odd(use)
    assert make_sparse(network, SHAPES, 1) == [] and network.table.ids_from == 0


@pytest.mark.parametrize(
    "min_size, num_samples, is_sparse",
    [(ROWS * 7, 0, True), (ROWS * 7 + 1, 0, False), (1, 1, True), (1, 2, False)],
)
def test_tables_much_larger_than_a_batch_are_sparse(
    min_size: int, num_samples: int, is_sparse: bool, monkeypatch: Any
) -> None:
    """Tables of the same ids count together: none is sparse without the others."""
    monkeypatch.setattr("mxtrain.model.graph.id_inputs.ROWS_PER_ID", 13)  # times 3 ids of a sample: 39 of 40 rows
    network = Scorer()
    assert make_sparse(network, SHAPES, min_size, num_samples) == []
    assert [table.ids_from for table in (network.first, network.second)] == [0 if is_sparse else None] * 2


def test_a_worker_without_samples_takes_part() -> None:
    step = build_step(optimizers.Adam())
    before = values(step)
    step(Batch((), (), 0, 8), 0.1, 1)
    np.testing.assert_array_equal(values(step)["second.weight"], before["second.weight"])


@pytest.mark.parametrize("lazy", [False, True])
def test_steps_keep_no_state_of_copies(lazy: bool) -> None:
    """Copies and views of rows are others in each step: an update that is kept for the next one is of whole arrays."""
    step = build_step(optimizers.SGD(momentum=0.9), lazy=lazy)
    kept = []
    for number in range(1, 5):
        step(batch(number), 0.1, number)
        kept.append(len(getattr(step.updater._optimizer, "_bound", ())))
    assert kept[-1] == kept[0], kept
