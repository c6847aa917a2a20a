"""`verify` passes what is right, and names the layer where a placement computes something else."""

from __future__ import annotations

import json
from typing import Any, ClassVar, Dict

import numpy as np
import pytest
from low_precision import needs_bfloat16

from mxtrain.cli.dispatch import run
from mxtrain.data.loading.loader import Consumer
from mxtrain.data.spec import open_splits
from mxtrain.kvstore.mxnet_store import MXNetStore
from mxtrain.kvstore.world import ALONE
from mxtrain.optimizer.updater import Updater
from mxtrain.parallel.grid import Grid
from mxtrain.parallel.layout import Layout
from mxtrain.parallel.spec import Data
from mxtrain.parallel.statistics import MovingStatistics
from mxtrain.parallel.tape import HeadGradients
from mxtrain.terminal.progress import WorkProgress
from mxtrain.training.loaders import build_data
from mxtrain.training.step import TrainingStep
from mxtrain.training.verification import Sides, batches, use_exact_leaky_relu, verify
from mxtrain.types import Batch

SMALL = ("model=mlp", "model.hidden=[12,8]", "dataset.batch_size=32")


pytestmark = pytest.mark.usefixtures("own_cache")


class Scaled(Data):
    """Data parallelism whose second replica scales the gradient of one parameter."""

    parameter: ClassVar[str]
    factor: ClassVar[float]

    def build(self, objective, grad_accumulation, workers=None):
        strategy = super().build(objective, grad_accumulation)
        right = strategy.forward_backward

        def wrong(*arguments):
            sums = right(*arguments)
            for reduction in strategy.reductions:
                if reduction.name == self.parameter:
                    reduction.replicas[1][:] *= self.factor
            return sums

        strategy.forward_backward = wrong
        return strategy


class Broken(Scaled):
    """Counts a gradient twice."""

    parameter: ClassVar[str] = "features.3.weight"
    factor: ClassVar[float] = 2


class Rounded(Scaled):
    """Loses the last bits of a gradient."""

    parameter: ClassVar[str] = "output.bias"
    factor: ClassVar[float] = 1 + 3e-7


@pytest.mark.slow
@pytest.mark.parametrize(
    "placement",
    [
        ("parallel=data",),
        pytest.param(("parallel=data", "kvstore=device"), marks=pytest.mark.zoo),
        ("parallel=data", "parallel.devices=cpu:3"),
        pytest.param(("parallel=model",), marks=pytest.mark.zoo),
        pytest.param(("parallel=pipeline", "parallel.microbatches=4"), marks=pytest.mark.zoo),
        pytest.param(
            ("parallel=pipeline", "parallel.stages=4", "parallel.microbatches=4", "parallel.schedule=gpipe"),
            marks=pytest.mark.zoo,
        ),
        pytest.param(
            ("parallel=hybrid", "parallel.microbatches=2", "trainer.grad_accumulation=2"), marks=pytest.mark.zoo
        ),
        pytest.param(
            ("parallel=hybrid", "parallel.microbatches=2", "trainer.clip_global_norm=0.1", "trainer.ema_decay=0.9"),
            marks=pytest.mark.zoo,
        ),
    ],
)
@pytest.mark.parametrize("model", [SMALL, ("model=lenet", "model.channels=[4,8]", "dataset.batch_size=32")])
def test_every_placement_is_one_device(describe_run, placement, model):
    found = verify(describe_run(*model, *placement), steps=3, tolerance=1e-6)
    assert found.passed, found
    ordered = "parallel.devices=cpu:3" not in placement and "trainer.clip_global_norm=0.1" not in placement
    assert bool(found.bits) == ordered and (not ordered or found.worst.worst == 0)


@pytest.mark.slow
@pytest.mark.parametrize("batch_norm", ["replicas", "global"])
def test_joint_batch_norm_equals_one_device(describe_run, batch_norm):
    placement = ("parallel=hybrid", "parallel.microbatches=2", f"parallel.batch_norm={batch_norm}")
    found = verify(describe_run("model=resnet", "model.depth=8", "dataset.batch_size=32", *placement), 3, 1e-6)
    assert found.passed and not found.bits, found


@pytest.mark.slow
def test_a_broken_placement_is_caught_and_the_layer_named(capsys):
    overrides = [*SMALL, "parallel=data", f"parallel._target_={__name__}.Broken", "logger=[]"]
    assert run(["verify", *overrides]) == 1
    assert "NOT the same as on one device" in (said := capsys.readouterr().out) and "'features.3'" in said


@pytest.mark.slow
def test_lost_bits_are_found_in_exact_placements(describe_run):
    found = verify(describe_run(*SMALL, "parallel=data", f"parallel._target_={__name__}.Rounded"), 2, 1e-3)
    assert found.worst.worst < 1e-3 and found.unequal and not found.passed
    assert found.unequal[-1] == "output"


def lose_a_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of what the second replica found does not reach the sum."""
    right = Grid.forward_backward

    def wrong(self: Grid, *arguments: Any) -> Any:
        sums = right(self, *arguments)
        self.reductions[0].replicas[1][:] = 0
        return sums

    monkeypatch.setattr(Grid, "forward_backward", wrong)


def divide_by_own_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each microbatch takes its own mean, as if it were a batch."""
    right = HeadGradients.__call__
    monkeypatch.setattr(HeadGradients, "__call__", lambda self, loss, size, whole: right(self, loss, size, size))


def repeat_the_first_microbatch(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Layout.divide

    def wrong(self: Layout, batch: Batch) -> Any:
        return [[[share[0]] * len(share) for share in shares] for shares in right(self, batch)]

    monkeypatch.setattr(Layout, "divide", wrong)


def keep_own_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MovingStatistics, "all_reduce", lambda *_: None)


def sum_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MXNetStore, "reduce", lambda *_: None)


BREAKS = [lose_a_replica, divide_by_own_size, repeat_the_first_microbatch, keep_own_statistics, sum_nothing]
HYBRID = ("model=lenet", "model.channels=[4,8]", "dataset.batch_size=24", "parallel=hybrid", "parallel.microbatches=2")


@pytest.mark.slow
@pytest.mark.parametrize("damage", BREAKS)
def test_a_fault_of_the_engine_is_found(describe_run, monkeypatch, damage):
    """The reference does not share it."""
    damage(monkeypatch)
    assert not verify(describe_run(*HYBRID), steps=1, tolerance=1e-6).passed


@pytest.mark.slow
@pytest.mark.parametrize("batch_norm", ["per_device", "global"])
def test_faults_of_the_engine_do_not_reach_the_reference(describe_run, monkeypatch, batch_norm):
    description = describe_run(*HYBRID, f"parallel.batch_norm={batch_norm}", "trainer.grad_accumulation=2")
    right = train_reference(description)
    for damage in BREAKS:
        damage(monkeypatch)
    monkeypatch.setattr(Grid, "__init__", None)
    monkeypatch.setattr(TrainingStep, "__call__", None)
    monkeypatch.setattr(Updater, "update", None)
    found = train_reference(description)
    assert right.keys() == found.keys() and len(right) > 20
    for name, array in right.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def train_reference(description: Any) -> Dict[str, np.ndarray]:
    """Parameters and gradients of the reference after two steps."""
    splits = open_splits(description.dataset)
    signature = description.dataset.infer_signature(splits, description.model)
    devices = description.parallel.resolve_devices()
    sides = Sides(description, signature, devices, description.parallel, ALONE, None, 5, [])
    reference = sides.reference("float64")
    data = build_data(description, splits, signature, devices[0][0])
    for batch in batches(data.train, 2, Consumer([reference])):
        reference.step(batch.cast("float64"), 0.1)
    gradients = {f"gradient of {name}": array.asnumpy() for name, array in reference.gradients.items()}
    return {**gradients, **{name: array.asnumpy() for name, array in reference.values.items()}}


@pytest.mark.slow
def test_random_or_lossy_settings_are_refused(capsys):
    assert run(["verify", "optimizer=sgld"]) == 2
    assert "adds noise" in capsys.readouterr().err
    assert run(["verify", "parallel=data", "kvstore=device", "kvstore.compression=2bit", "kvstore.threshold=1"]) == 2
    assert "kvstore.compression=none" in capsys.readouterr().err


@pytest.mark.slow
def test_verify_prints_a_summary(tmp_path, capsys):
    file = tmp_path / "found.json"
    assert run(["verify", "parallel=pipeline", "parallel.microbatches=4", f"output={file}", "steps=2"]) == 0
    said = capsys.readouterr().out
    assert "dropout is switched off" in said and "every bit is equal" in said
    found = json.loads(file.read_text())
    assert found["passed"] and found["steps"] == 2 and len(found["layers"]) > 5
    assert np.isfinite([layer["gradient_abs"] for layer in found["layers"]]).all()


@needs_bfloat16
def test_long_verification_shows_its_progress(describe_run):
    shown = []

    class Seen(WorkProgress):
        def begin(self, what, total):
            shown.append([what, total, 0])

        def advance(self, count):
            shown[-1][2] += count

    verify(describe_run(*SMALL, "parallel=data", "amp=bfloat16"), 3, 1e-6, progress=Seen())
    assert [(name.partition(",")[0], total, done) for name, total, done in shown[1:]] == [
        ("comparing bits", 6, 6),
        ("comparing in bfloat16", 2, 2),
        ("comparing in float64", 6, 6),
        ("comparing gradients of own layers with finite differences", 0, 0),
    ]


def test_leaky_relus_are_computed_in_float64():
    """MXNet's operator rounds to float32 below 0."""
    from mxtrain.engine.backend import autograd, gluon, nd

    network = gluon.nn.HybridSequential()
    network.add(gluon.nn.LeakyReLU(0.1), gluon.nn.LeakyReLU(0.3))
    network.hybridize()
    given = nd.array(np.array([[-1 / 3, 0, 1 / 7, -5e3]]), dtype="float64")
    network(given)  # traced before
    network.cast("float64")
    use_exact_leaky_relu(network)
    given.attach_grad()
    with autograd.record():
        found = network(given)
    found.backward()
    np.testing.assert_allclose(found.asnumpy(), [[-0.03 / 3, 0, 1 / 7, -0.03 * 5e3]], rtol=1e-14)
    np.testing.assert_allclose(given.grad.asnumpy(), [[0.03, 0.03, 1, 0.03]], rtol=1e-14)
