"""From a description to a run: what is read, how it is placed and what a step is told of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mxtrain.data.signature import Signature
from mxtrain.data.spec import open_splits
from mxtrain.engine.backend import mx
from mxtrain.parallel.engine_dependency import can_add_dependencies, written_together
from mxtrain.task.classification import Classification
from mxtrain.text.language_modeling.masked_language_modeling import MaskedLanguageModeling
from mxtrain.text.signature import TextSignature
from mxtrain.text.tokenizing.config import TokenizerConfig
from mxtrain.text.tokenizing.wordpiece import WordPiece
from mxtrain.training.build import build_run
from mxtrain.training.network import build_network
from mxtrain.training.remarks import warnings_of

SMALL = ("model=mlp", "model.hidden=[8]", "dataset.batch_size=50", "logger=jsonl")


@pytest.fixture
def built_run(describe_run: Any, tmp_path: Path) -> Any:
    """Overrides -> the runner of a run that has not begun."""
    return lambda *overrides: build_run(describe_run(*SMALL, *overrides), tmp_path / "run").runner


@pytest.mark.slow
def test_mixed_samples_have_blended_loss_and_likeliest_class(built_run: Any) -> None:
    """The loss of blended labels, smoothed; the likeliest class counts as right."""
    runner = built_run("dataset.augment.mixup=0.4", "loss.label_smoothing=0.2")
    strategy = runner.context.step.strategy
    batch = next(iter(runner.context.data.train.epoch(0)))
    (scores,), (labels,) = strategy.predict(batch.inputs), batch.targets
    score_BK, label_BK = scores.asnumpy().astype(np.float64), labels.asnumpy()
    assert label_BK.shape == (50, 10) and ((label_BK > 0) & (label_BK < 1)).any()
    log_p_BK = score_BK - np.log(np.exp(score_BK).sum(axis=1, keepdims=True))
    loss, right = strategy.forward_backward(batch).asnumpy()
    assert loss == pytest.approx(-((0.8 * label_BK + 0.02) * log_p_BK).sum(), rel=1e-5)
    assert right == (score_BK.argmax(axis=1) == label_BK.argmax(axis=1)).sum()


@pytest.mark.slow
def test_overfitting_takes_the_first_samples_in_order_and_as_they_are(built_run: Any, describe_run: Any) -> None:
    runner = built_run("trainer.overfit_batches=2", "dataset.augment.mixup=0.4")
    source = describe_run(*SMALL).dataset.open().train
    for epoch in (0, 1):
        batches = list(runner.context.data.train.epoch(epoch))
        labels = np.concatenate([batch.targets[0].asnumpy() for batch in batches])
        np.testing.assert_array_equal(labels, source.label_N[:100])


@pytest.mark.slow
def test_splits_follow_the_description(built_run: Any) -> None:
    data = built_run("trainer.test=false", "trainer.limit_train_batches=3", "dataset.eval_batch_size=100").context.data
    assert data.test is None and (len(data.train), len(data.val)) == (3, 3)
    assert built_run("dataset.test_fraction=0").context.data.test is None
    assert built_run().context.data.test.num_samples == 270


@pytest.mark.slow
def test_prediction_allocates_no_large_gradients(describe_run: Any) -> None:
    """Its graph is that of a network that learns, batch norms' statistics included."""
    description = describe_run("model=resnet", "model.depth=8", "model.width=0.25")
    signature = description.dataset.infer_signature(open_splits(description.dataset), description.model)
    learning, trained = (build_network(description, signature, mx.cpu(), learns=learns) for learns in (True, False))
    for parameter, other in zip(trained.collect_params().values(), learning.collect_params().values()):
        is_vector = len(parameter.shape) == 1
        assert (parameter._grad is None) == (other._grad is None or not is_vector)
        np.testing.assert_array_equal(parameter.data().asnumpy(), other.data().asnumpy())
    assert len(written_together(trained)) == len(written_together(learning)) > 0 and can_add_dependencies(trained)


@pytest.mark.slow
def test_input_shape_is_typed_or_that_of_images(built_run: Any) -> None:
    def shape(*overrides: str) -> Any:
        return next(iter(built_run(*overrides).context.data.val.epoch(0))).inputs[0].shape[1:]

    assert shape() == (1, 8, 8)
    assert shape("dataset.channels=3") == (3, 8, 8)
    assert shape("dataset.image_size=[12,10]") == (1, 12, 10)


@pytest.mark.slow
def test_lengths_are_in_steps(built_run: Any) -> None:
    plan = built_run("trainer.max_epochs=3").context.plan  # 26 steps an epoch
    assert (plan.steps_per_epoch, plan.total_steps, plan.max_steps) == (26, 78, None)
    assert (plan.validate.every_epochs, plan.validate.every_steps) == (1, None)
    by_steps = ("trainer.val_interval=5", "trainer.val_interval_unit=steps", "trainer.monitor=val/loss")
    plan = built_run("trainer.max_epochs=null", "trainer.max_steps=7", "trainer.log_interval=4", *by_steps).context.plan
    assert (plan.total_steps, plan.max_steps, plan.log.every_steps) == (7, 7, 4)
    assert (plan.validate.every_epochs, plan.validate.every_steps) == (None, 5)
    assert (plan.monitor, plan.direction) == ("val/loss", "min")


@pytest.mark.slow
def test_random_numbers_are_seeded_only_if_used(built_run: Any) -> None:
    assert built_run("trainer.seed=4").context.step.random_seed is None
    assert built_run("trainer.seed=4", "model.dropout=0.1").context.step.random_seed == 4
    assert built_run("trainer.seed=4", "optimizer=sgld").context.step.random_seed == 4


def test_a_signature_survives_a_checkpoint() -> None:
    image = Signature((3, 8, 9), [0.5] * 3, [0.25] * 3, ["a", "b"])
    assert Signature.from_json(image.to_json()) == image
    assert Classification().num_classes(image) == 2
    config = TokenizerConfig(WordPiece(("x", "y", "z"), True), 5)
    text = TextSignature(((5,), (5,), ()), [], [], class_names=["a", "b"], tokenizer_config=config)
    assert TextSignature.from_json(text.to_json()) == text
    assert (Classification().num_classes(text), text.vocab_size) == (2, 3)
    hiding = TokenizerConfig(WordPiece(("x", "y", "z"), True), 5, 0.2)
    masked = TextSignature(((5,), (5,), (), (1,)), [], [], class_names=["a", "b"], tokenizer_config=hiding)
    assert TextSignature.from_json(masked.to_json()) == masked
    assert (MaskedLanguageModeling().num_classes(masked), masked.vocab_size) == (3, 3)


@pytest.mark.slow
def test_waiting_devices_are_inspected_and_a_single_one_on_request(built_run: Any) -> None:
    assert built_run().monitors.profiling is None
    assert built_run("parallel=data", "parallel.devices=cpu:2").monitors.profiling is not None
    assert built_run("parallel=data", "parallel.devices=cpu:3").monitors.profiling is not None
    assert built_run("trainer.profile=true").monitors.profiling is not None


@pytest.mark.slow
def test_folders_on_the_way_to_the_run_directory_are_made(describe_run: Any, tmp_path: Path) -> None:
    build_run(describe_run(*SMALL), tmp_path / "not" / "there" / "yet")
    assert (tmp_path / "not" / "there" / "yet").is_dir()


@pytest.mark.slow
def test_strategy_of_several_devices_on_one_is_reported(describe_run: Any) -> None:
    meter, workers = SimpleNamespace(weighted=False), SimpleNamespace(independent_steps=False)
    for overrides, is_said in (
        (["parallel=data"], False),
        (["parallel.devices=cpu:1"], False),
        (["parallel=data", "parallel.devices=cpu:1"], True),
    ):
        found = warnings_of(describe_run(*SMALL, *overrides), 1000, 20, meter, workers)  # type: ignore[arg-type]
        assert ["one device trains as parallel=single does. Type parallel.devices=cpu:2" in one for one in found] == [
            True
        ] * is_said


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides, said",
    [
        (
            ("metric=[accuracy,top_k_accuracy]", "metric.top_k_accuracy.top_k=10"),
            "metric.top_k_accuracy.top_k=10: of 10 choices, so it is always 1. Type a smaller one, or leave the metric "
            "out.",
        ),
        (
            ("metric=[top_k_accuracy]", "metric.top_k_accuracy.top_k=12", "trainer.monitor=val/top_k_accuracy"),
            "metric.top_k_accuracy.top_k=12: of 10 choices, so it is always 1. Nothing can get better by it: type a "
            "smaller one, or trainer.monitor=val/loss.",
        ),
        (("dataset.val_fraction=0.004",), "validation has 7 samples, so its metrics say little."),
        (("dataset.val_fraction=0.0001",), "validation has 1 sample, so its metrics say little."),
        (("metric=[accuracy,top_k_accuracy]", "metric.top_k_accuracy.top_k=9"), ""),
    ],
)
def test_uninformative_metric_is_warned_about(
    built_run: Any, caplog: pytest.LogCaptureFixture, overrides: Any, said: str
) -> None:
    with caplog.at_level("WARNING"):
        built_run(*overrides)
    assert (said in caplog.text) if said else "always 1" not in caplog.text
