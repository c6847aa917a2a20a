"""Losses of a sample of the classes: the draw, the network, and rows of the batch alone, here and on servers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Dict, Optional, Tuple

import numpy as np
import pytest
from id_networks import step_of
from in_threads import Rendezvous, ThreadStore
from table_threads import ServedStore, Servers

from mxtrain.cli.dispatch import run
from mxtrain.data.loading.loader import BatchLoader, LoaderOptions
from mxtrain.data.signature import Signature
from mxtrain.engine.backend import autograd, gluon, mx, nd
from mxtrain.errors import EXIT_BUDGET, ConfigError, WeightsError
from mxtrain.kvstore.world import ALONE, World
from mxtrain.metric.meter import UNWEIGHTED, Meter
from mxtrain.metric.spec import Metric
from mxtrain.model.graph.id_inputs import make_sparse, tables_of
from mxtrain.model.prepare import TableOptions, initialize, prepare_network
from mxtrain.model.weights import load_weights
from mxtrain.optimizer import optimizers
from mxtrain.parallel.objective import Objective
from mxtrain.parallel.row_tables import distinct_ids
from mxtrain.parallel.spec import Data
from mxtrain.training.network import hybridize, require_tables
from mxtrain.training.step import TrainingStep
from mxtrain.types import Batch
from mxtrain.types.kinds import Takes
from mxtrain.vision.classification.lenet import LeNet
from mxtrain.vision.kinds import Identity
from mxtrain.vision.metric_learning.head import EmbeddingNetwork, IdentityLoss, SampledEmbeddingNetwork
from mxtrain.vision.metric_learning.losses import ArcFace, CosFace, SubCentreArcFace, Triplet
from mxtrain.vision.metric_learning.sampled_classes import centre_ids, draw_classes
from mxtrain.vision.metric_learning.task import MetricLearning

CLASSES, UNITS, INPUTS, DRAWN = 40, 5, 8, 6
SHAPES = ((INPUTS,), (1 + DRAWN,))
SIGNATURE = Signature((1, 8, 8), class_names=["a", "b", "c"])
pytestmark = pytest.mark.usefixtures("close_table_servers")


@pytest.mark.parametrize("num_classes, num_drawn", [(7, 1), (7, 5), (7, 7), (1000, 10), (16_000_000, 50)])
def test_classes_are_distinct(num_classes: int, num_drawn: int) -> None:
    drawn_M = draw_classes(3, 1, 2, num_classes, num_drawn)
    assert len(np.unique(drawn_M)) == num_drawn and drawn_M.min() >= 0 and drawn_M.max() < num_classes
    np.testing.assert_array_equal(drawn_M, draw_classes(3, 1, 2, num_classes, num_drawn))
    if num_drawn < num_classes:
        others = [draw_classes(4, 1, 2, num_classes, num_drawn), draw_classes(3, 2, 2, num_classes, num_drawn)]
        others.append(draw_classes(3, 1, 3, num_classes, num_drawn))
        assert all(set(other) != set(drawn_M) for other in others)


@pytest.mark.parametrize("num_drawn", [3, 5])
def test_all_classes_are_drawn_equally_often(num_drawn: int) -> None:
    """Of 7 classes in 5 parts, three parts have a single class."""
    count_K = sum(np.bincount(draw_classes(0, 0, number, 7, num_drawn), minlength=7) for number in range(2000))
    np.testing.assert_allclose(count_K / 2000, num_drawn / 7, atol=0.04)


def test_drawn_classes_are_not_evenly_spaced() -> None:
    assert len(set(np.diff(np.sort(draw_classes(0, 0, 0, 1000, 10))))) > 4


def test_ids_are_those_of_the_own_class_then_of_the_drawn_ones() -> None:
    id_BN = centre_ids(np.array([4, 0]), np.array([2, 4]), 2)
    assert id_BN.dtype == np.int32 and id_BN.tolist() == [[8, 9, 4, 5, 8, 9], [0, 1, 4, 5, 8, 9]]


@pytest.mark.parametrize("shape", [(1, 3), (5, 1), (4, 9), (3, 2, 2)])
def test_distinct_ids_of_shared_columns(shape: Tuple[int, ...]) -> None:
    rng = np.random.RandomState(0)
    for shared in (0, 1, shape[1]):
        id_BF = rng.randint(0, 9, shape)
        id_BF[:, shape[1] - shared :] = id_BF[:1, shape[1] - shared :]
        id_K, position_BF = distinct_ids(id_BF)
        np.testing.assert_array_equal(id_K, np.unique(id_BF))
        np.testing.assert_array_equal(id_K[position_BF], id_BF)
        assert position_BF.dtype == np.int32


def build_networks(num_drawn: int, sub_centres: int = 1, flip: bool = False) -> Tuple[Any, Any]:
    """A network with all classes and one with drawn ones, of the same weights."""
    rng = np.random.RandomState(1)
    weight_DP, centre_ND = rng.randn(UNITS, INPUTS), rng.randn(CLASSES * sub_centres, UNITS)
    networks = []
    for kind, given in ((EmbeddingNetwork, {}), (SampledEmbeddingNetwork, {"num_drawn": num_drawn})):
        inner = gluon.nn.Dense(UNITS, use_bias=False, in_units=INPUTS)
        networks.append(kind(inner, CLASSES, UNITS, sub_centres=sub_centres, flip=flip, **given))
        networks[-1].initialize()
        inner.weight.set_data(nd.array(weight_DP))
    networks[0].centres.set_data(nd.array(centre_ND))
    networks[1].centres.weight.set_data(nd.array(centre_ND))
    return networks[0], networks[1]


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("sub_centres", [1, 2])
def test_cosines_are_those_of_own_and_drawn_classes(hybrid: bool, sub_centres: int) -> None:
    whole, sampled = build_networks(DRAWN, sub_centres)
    if hybrid:
        sampled.hybridize()
    x, class_B, drawn_M = nd.random.normal(shape=(3, INPUTS)), np.array([5, 2, 39]), np.array([2, 7, 11, 20, 38, 39])
    embedding_BD, cosine_BN = sampled(x, nd.array(centre_ids(class_B, drawn_M, sub_centres), dtype="int32"))
    expected_BD, expected_BK = whole(x)
    np.testing.assert_allclose(embedding_BD.asnumpy(), expected_BD.asnumpy(), atol=5e-6)
    expected_BN = expected_BK.asnumpy()[np.arange(3)[:, None], np.c_[class_B, np.tile(drawn_M, (3, 1))]]
    expected_BN[[1, 2], [1, 6]] = -1e4  # they count as own classes
    np.testing.assert_allclose(cosine_BN.asnumpy(), expected_BN, atol=5e-6)
    np.testing.assert_array_equal(sampled(x).asnumpy(), embedding_BD.asnumpy())


@pytest.mark.parametrize("flip", [False, True])
def test_prediction_is_that_of_the_network_without_centres(flip: bool) -> None:
    whole, sampled = build_networks(DRAWN, flip=flip)
    x = nd.random.normal(shape=(2, 1, 2, 4))
    for one in (sampled, sampled.without_centres()):
        np.testing.assert_array_equal(one(x).asnumpy(), whole(x)[0].asnumpy())
    assert not any("centres" in name for name in sampled.without_centres()._collect_params_with_prefix())


@pytest.mark.parametrize("sub_centres", [1, 2])
@pytest.mark.parametrize("loss", [ArcFace(), CosFace()])
def test_all_classes_drawn_give_the_loss_and_gradients_of_all(loss: Any, sub_centres: int) -> None:
    x, class_B = nd.random.normal(shape=(4, INPUTS)), np.array([0, 39, 7, 7])
    drawn_M = draw_classes(0, 0, 0, CLASSES, CLASSES)
    id_BN, results = nd.array(centre_ids(class_B, drawn_M, sub_centres), dtype="int32"), []
    for network, inputs, is_sampled in zip(build_networks(CLASSES, sub_centres), ((x,), (x, id_BN)), (False, True)):
        block = IdentityLoss(loss, CLASSES, training=True, is_sampled=is_sampled)
        with autograd.record():
            loss_B = block(*network(*inputs), nd.array(class_B))
        loss_B.backward()
        centres = network.centres.weight if is_sampled else network.centres
        results.append([loss_B, network.embedding.weight.grad(), centres.grad()])
    for found, expected in zip(*results[::-1]):
        np.testing.assert_allclose(found.asnumpy(), expected.asnumpy(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("num_rows", [CLASSES, CLASSES - 1])
def test_centres_of_insightface_are_loaded(tmp_path: Path, sampled: bool, num_rows: int) -> None:
    """Centres of another number of identities are not, and the report says so."""
    network = build_networks(DRAWN)[sampled]
    centres = network.centres.weight if sampled else network.centres
    before, inner = centres.data().asnumpy(), network.embedding.weight.data().copy()
    network.embedding.backbone_names = {"weight": "fc1_weight"}
    file = tmp_path / "model-0000.params"
    nd.save(str(file), {"arg:fc1_weight": inner + 1, "arg:fc7_weight": nd.ones((num_rows, UNITS))})
    report = load_weights(network, file)
    np.testing.assert_array_equal(network.embedding.weight.data().asnumpy(), inner.asnumpy() + 1)
    name = "centres.weight" if sampled else "centres"
    if num_rows == CLASSES:
        assert (centres.data().asnumpy() == 1).all() and name in report.matched and not report.remarks
    else:
        np.testing.assert_array_equal(centres.data().asnumpy(), before)
        assert report.replaced == [name]
        said = f"'arg:fc7_weight' has 39 rows, one for each of its classes, and '{name}' has 40: it starts anew"
        assert said in str(report)
    assert not report.unused and not report.left


def test_centres_of_another_size_are_refused(tmp_path: Path) -> None:
    network, _ = build_networks(DRAWN)
    file = str(tmp_path / "a.params")
    network.embedding.backbone_names = {"weight": "fc1_weight"}
    nd.save(file, {"arg:fc1_weight": network.embedding.weight.data(), "arg:fc7_weight": nd.ones((CLASSES, UNITS + 1))})
    with pytest.raises(WeightsError, match=r"'centres' has the shape \(40, 5\), but 'arg:fc7_weight' .* \(40, 6\)"):
        load_weights(network, file)


class NamedLikeCentres(gluon.HybridBlock):
    """Has a parameter of that name, like VGG."""

    def __init__(self) -> None:
        super().__init__()
        self.fc7_weight = self.params.get("fc7_weight", shape=(CLASSES, UNITS))


def test_an_array_of_that_name_in_the_network_is_no_centre(tmp_path: Path) -> None:
    network = EmbeddingNetwork(NamedLikeCentres(), CLASSES, UNITS)
    network.initialize()
    before = network.centres.data().asnumpy()
    nd.save(str(tmp_path / "a.params"), {"fc7_weight": nd.ones((CLASSES, UNITS))})
    report = load_weights(network, tmp_path / "a.params")
    assert report.left == ["centres"] and (network.centres.data().asnumpy() == before).all()


def test_centres_of_own_files_come_first(tmp_path: Path) -> None:
    network, _ = build_networks(DRAWN)
    arrays = {"embedding.weight": network.embedding.weight.data(), "centres": nd.zeros((CLASSES, UNITS))}
    nd.save(str(tmp_path / "a.params"), {**arrays, "fc7_weight": nd.ones((CLASSES, UNITS))})
    assert load_weights(network, tmp_path / "a.params").unused == ["fc7_weight"]
    assert not network.centres.data().asnumpy().any()


def build_step(
    placement: Any = None,
    store: Any = None,
    sparse: bool = True,
    remote: bool = False,
    momentum: float = 0.9,
    weights: Optional[Path] = None,
) -> TrainingStep:
    network = SampledEmbeddingNetwork(
        gluon.nn.Dense(UNITS, in_units=INPUTS, prefix="inner_"), CLASSES, UNITS, DRAWN, prefix="net_"
    )
    if sparse:
        assert make_sparse(network, SHAPES, 1) == []
    initialize(network, "xavier", 0, mx.cpu(0), tables_of(network) if remote else ())
    if weights is not None:
        assert not load_weights(network, weights).left
    objective = Objective(
        hybridize(network),
        IdentityLoss(ArcFace(scale=8.0), CLASSES, training=True, is_sampled=True),  # type: ignore[arg-type]
        Meter({}, CLASSES),
        SHAPES,
        4,
        predict_shape=SHAPES[0],
        global_batch_size=8,
    )
    return step_of(objective, optimizers.SGD(momentum=momentum), placement, store)


def batch(number: int) -> Batch:
    rng = np.random.RandomState(number)
    class_B = rng.choice([0, 3, 4, 7, 11, 38], 8)
    id_BN = centre_ids(class_B, draw_classes(0, 0, number, CLASSES, DRAWN), 1)
    inputs = (nd.array(rng.randn(8, INPUTS)), nd.array(id_BN, dtype="int32"))
    return Batch(inputs, (nd.array(class_B),), 8)


def train(step: TrainingStep, world: World = ALONE) -> Dict[str, np.ndarray]:
    """Returns the parameters and the sums of the losses of three steps."""
    begin, end = world.share(8)
    losses = []
    for number in range(1, 4):
        share = step.strategy.look_ahead(batch(number).slice(begin, end, 8))
        losses.append(float(step(share, 0.2, number)[0].asscalar()))
    found = {name: array[:].asnumpy() for name, array in step.strategy.values.items()}
    return {**found, "loss": np.array(losses)}


def assert_close(found: Dict[str, np.ndarray], expected: Dict[str, np.ndarray]) -> None:
    assert list(found) == list(expected)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("placement", [None, Data(devices="cpu:2")])
def test_rows_of_a_batch_train_what_the_whole_table_trains(placement: Any) -> None:
    assert_close(train(build_step(placement)), train(build_step(sparse=False)))


def test_workers_with_servers_train_what_one_process_trains() -> None:
    """A worker holds rows for the classes of its samples and for the drawn ones, not for all classes."""
    rendezvous, servers = Rendezvous(2), Servers(optimizers.SGD(momentum=0.9), 2)
    held = []

    def work(world: World) -> Dict[str, np.ndarray]:
        step = build_step(store=ServedStore(servers, world, rendezvous), remote=True)
        held.append(len(step.strategy.objective.network.centres.weight.data()))
        return train(step, world)

    expected = train(build_step(sparse=False))
    found = rendezvous.run(work)
    assert not servers.raised and held == [8 + DRAWN] * 2
    for one in found:
        assert_close(one, expected)


def test_servers_get_the_centres_of_a_weights_file(tmp_path: Path) -> None:
    """The rows are released afterwards, so that no worker keeps all of them."""
    rendezvous, servers = Rendezvous(2), Servers(optimizers.SGD(momentum=0.9), 2)
    network, _ = build_networks(DRAWN)
    inner, file = network.embedding, tmp_path / "a.params"
    centre_KU = network.centres.data()
    arrays = {"embedding.weight": inner.weight.data(), "embedding.bias": nd.ones((UNITS,)), "centres.weight": centre_KU}
    nd.save(str(file), arrays)

    def work(world: World) -> Dict[str, np.ndarray]:
        step = build_step(store=ServedStore(servers, world, rendezvous), remote=True, weights=file)
        assert step.strategy.objective.network.centres.loaded is None
        np.testing.assert_array_equal(step.strategy.values["centres.weight"][:].asnumpy(), centre_KU.asnumpy())
        return train(step, world)

    expected = train(build_step(sparse=False, weights=file))
    found = rendezvous.run(work)
    assert not servers.raised
    for one in found:
        assert_close(one, expected)


def test_a_weights_file_with_other_centres_than_those_of_servers(tmp_path: Path) -> None:
    """Their number is that of the whole table, not of the rows in this process."""
    _, network = build_networks(DRAWN)
    table = network.centres
    table.make_remote(mx.cpu(0))
    inner = {"embedding.weight": network.embedding.weight.data()}
    nd.save(str(tmp_path / "a.params"), {**inner, "centres.weight": nd.ones((CLASSES - 1, UNITS))})
    with pytest.raises(WeightsError, match=r"'centres.weight' has the shape \(40, 5\), but .* \(39, 5\)"):
        load_weights(network, tmp_path / "a.params")
    assert table.loaded is None


def test_workers_with_tables_of_their_own_train_what_one_process_trains() -> None:
    rendezvous = Rendezvous(2)
    found = rendezvous.run(lambda world: train(build_step(store=ThreadStore(world, rendezvous)), world))
    expected = train(build_step(sparse=False))
    for one in found:
        assert_close(one, expected)


def test_prediction_needs_no_ids() -> None:
    x = nd.random.normal(shape=(3, INPUTS))
    sparse, dense = build_step(), build_step(sparse=False)
    np.testing.assert_array_equal(*(step.strategy.predict([x])[0].asnumpy() for step in (sparse, dense)))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_prediction_needs_no_ids_of_servers(momentum: float) -> None:
    """Also where rows are requested ahead of time, which needs updates that leave all other rows as they are."""
    x = nd.random.normal(shape=(3, INPUTS))
    rendezvous, servers = Rendezvous(1), Servers(optimizers.SGD(momentum=momentum), 2)

    def work(world: World) -> np.ndarray:
        step = build_step(store=ServedStore(servers, world, rendezvous), remote=True, momentum=momentum)
        tables: Any = step.strategy.remote
        assert tables.client.moves_all == (momentum > 0)
        train(step, world)
        return step.strategy.predict([x])[0].asnumpy()

    (found,) = rendezvous.run(work)
    expected = build_step(sparse=False, momentum=momentum)
    train(expected)
    assert not servers.raised
    np.testing.assert_allclose(found, expected.strategy.predict([x])[0].asnumpy(), rtol=1e-5, atol=1e-6)


def build_collate(training: bool = True, loss: Any = None) -> Any:
    task = MetricLearning(sampled_classes=2)
    description: Any = SimpleNamespace(trainer=SimpleNamespace(seed=5), loss=loss or ArcFace())
    return task.build_collate(description, SIGNATURE, training)


def test_all_samples_of_a_step_meet_the_same_classes() -> None:
    """Classes depend on the number of the step, and not on the worker that loads the samples."""
    collate, image, numbers = build_collate(), nd.zeros((4, 1, 8, 8)), []
    for number in (0, 1, 2, 3):
        whole = Batch((image,), (nd.array([0, 2, 1, 1]),), 4, number=number)
        id_BN = collate(whole, 1).inputs[1].asnumpy()
        assert id_BN.dtype == np.int32 and id_BN[:, 0].tolist() == [0, 2, 1, 1] and len(np.unique(id_BN[0, 1:])) == 2
        share = collate(replace(whole.slice(2, 4, 4), number=number), 1).inputs[1].asnumpy()
        np.testing.assert_array_equal(share, id_BN[2:])
        numbers.append(tuple(sorted(id_BN[0, 1:])))
    assert len(set(numbers)) > 1
    assert build_collate(training=False) is None and build_collate(loss=Triplet()) is None


class CountingLoader(BatchLoader):
    def _read_share(self, share_B: Any, index_B: Any, epoch: int) -> Any:
        return (share_B.astype(np.float32),), ()


def test_batches_are_numbered_within_their_epoch() -> None:
    found = []

    def collate(batch: Batch, epoch: int) -> Batch:
        found.append((epoch, batch.number, batch.inputs[0].asnumpy().tolist()))
        return batch

    loader = CountingLoader(5, LoaderOptions(2, collate=collate, prefetch=0))
    list(loader.epoch(3, start=1))
    assert found == [(3, 1, [2, 3]), (3, 2, [4])]


@pytest.mark.slow
def test_resumed_run_equals_one_without_a_break(train_run: Any, tmp_path: Path, capsys: Any) -> None:
    words = ("task=metric_learning", "task.sampled_classes=3", "task.embedding_size=6", "model.hidden=8")
    words += ("trainer.limit_train_batches=3", "trainer.sparse_grad=true", "logger=[]")
    _, whole = train_run(*words, "trainer.max_epochs=2")
    run_dir = f"hydra.run.dir={tmp_path / 'broken'}"
    for steps, code in (("trainer.max_steps=3", EXIT_BUDGET), ("trainer.max_steps=null", 0)):
        assert run([*words, "trainer.max_epochs=2", steps, run_dir]) == code
    hashes = [json.loads((tmp_path / name / "status.json").read_text()) for name in ("run", "broken")]
    assert hashes[0]["weights_sha256"] == hashes[1]["weights_sha256"] and hashes[1]["step"] == 6
    assert np.isnan(whole.metrics["val/loss"]) and whole.metrics["val/retrieval_map"] > 0
    assert run([*words, "task.sampled_classes=11"]) == 2
    assert "show 10 identities. Type task.sampled_classes=10, or null" in capsys.readouterr().err


@pytest.mark.slow
def test_losses_without_centres_sample_none(capsys: Any) -> None:
    assert run(["task=metric_learning", "task.sampled_classes=3", "loss=triplet", "logger=[]"]) == 2
    assert "compares images with each other, not with centres" in capsys.readouterr().err


class TargetSum(Metric):
    """Sums the first target, to see that it is the label."""

    takes: ClassVar[Takes] = Takes(Identity)

    def measure(self, F: Any, outputs: Any, targets: Any, num_classes: int) -> Any:
        assert len(outputs) == 1
        return (F.sum(targets[0]) + F.sum(outputs[0])).reshape((1,))


def test_metrics_in_training_read_no_cosines() -> None:
    task, description = MetricLearning(sampled_classes=2), SimpleNamespace(metric={"sum": TargetSum()})
    meter = task.build_meter(description, SIGNATURE, UNWEIGHTED, training=True)  # type: ignore[arg-type]
    sums = meter(nd.ones((2,)), nd.zeros((2, 5)), nd.zeros((2, 3)), nd.array([3, 4]))
    assert sums.asnumpy().tolist() == [2, 7]


def test_servers_need_a_table_of_centres() -> None:
    network, _ = build_networks(DRAWN)
    with pytest.raises(ConfigError, match=r"Type task.sampled_classes=NUMBER, which .*, or kvstore.tables=workers"):
        require_tables(network)


@pytest.mark.parametrize("sub_centres", [1, 3])
def test_as_many_classes_as_there_are_can_be_drawn(sub_centres: int) -> None:
    model = SimpleNamespace(build=lambda num_classes, input_shape: gluon.nn.Dense(num_classes))
    loss = SubCentreArcFace(sub_centres=sub_centres)
    description: Any = SimpleNamespace(loss=loss, model=model)
    task = MetricLearning(sampled_classes=3, embedding_size=4)
    network = task.build_network(description, SIGNATURE)
    assert isinstance(network, SampledEmbeddingNetwork) and network.centres.num_shared == 3 * sub_centres
    assert network.centres.num_rows == 3 * sub_centres and task.output_shapes(description, SIGNATURE) == [(4,)]
    assert task.training_shapes(description, SIGNATURE) == ((1, 8, 8), (4 * sub_centres,))
    assert task.without_centres().training_shapes(description, SIGNATURE) == (1, 8, 8)
    with pytest.raises(ConfigError, match="show 3 identities. Type task.sampled_classes=3, or null for all"):
        MetricLearning(sampled_classes=4).build_network(description, SIGNATURE)


def test_tables_are_found_by_the_inputs_of_training() -> None:
    network = SampledEmbeddingNetwork(gluon.nn.Dense(UNITS, in_units=INPUTS), CLASSES, UNITS, DRAWN)
    options = TableOptions(sparse_from=1, input_shape=SHAPES)
    given: Any = {"num_classes": UNITS, "input_shape": SHAPES[0], "seed": 0, "output_shapes": [(UNITS,)]}
    assert prepare_network(LeNet(), **given, network=network, tables=options).dense_tables == []
    assert network.centres.ids_from == 1
