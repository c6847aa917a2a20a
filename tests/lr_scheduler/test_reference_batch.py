"""Learning rate and warm-up for another batch than they were tuned for."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from mxtrain.errors import ConfigError
from mxtrain.lr_scheduler.reference_batch import LearningRates, scale_rates
from mxtrain.lr_scheduler.schedules import Constant, Cosine, InverseSqrt, Linear, MultiStep
from mxtrain.lr_scheduler.spec import Schedule

CONF = Path(__file__).resolve().parents[2] / "conf"


def rates(
    schedule: Schedule, batch_size: int, reference: Any = 256, rule: Any = "linear", lr: float = 0.1
) -> LearningRates:
    return scale_rates(lr, schedule, batch_size=batch_size, reference=reference, rule=rule, optimizer="SGD")


def test_the_linear_rule_is_that_of_goyal() -> None:
    found = rates(Cosine(warmup=5.0), 8192)
    assert found.lr == pytest.approx(3.2) and found.schedule == Cosine(warmup=5.0)  # their learning rate for 8k
    small = rates(Constant(), 32)
    assert small.lr == pytest.approx(0.0125)
    assert small.remark == "learning rate scaled from 0.1 (batch size 256) to 0.0125 (32; linear rule)"


def test_the_square_root_keeps_the_noise_of_adams_steps() -> None:
    found = rates(Constant(), 64, reference=16, rule="sqrt", lr=0.001)
    assert found.lr == pytest.approx(0.002) and found.remark.endswith("0.002 (64; sqrt rule)")


@pytest.mark.parametrize("reference", [None, 256])
def test_rates_are_unchanged_without_another_reference(reference: Any) -> None:
    schedule = Constant(warmup=3.0, unit="steps")
    found = rates(schedule, 256, reference=reference, rule=None, lr=0.1 + 0.2)
    assert found.lr == 0.1 + 0.2 and found.schedule is schedule and not found.remark and not found.facts


def samples_of_warmup(schedule: Schedule, lr: float, batch_size: int, num_samples: int = 51200) -> int:
    """Samples before the rate is reached."""
    steps = num_samples // batch_size
    rate = schedule.build(lr, steps, steps * 10)
    return (next(step for step in range(steps * 10) if rate(step) >= lr * 0.999999) + 1) * batch_size


@pytest.mark.parametrize(
    "schedule",
    [
        Constant(warmup=2.0),
        Constant(warmup=40.0, unit="steps"),
        MultiStep(warmup=0.5, milestones=[5.0]),
        Linear(warmup_share=0.2),
        Linear(warmup=40.0, unit="steps"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("batch_size", [32, 64, 512])
def test_warm_up_covers_the_same_samples(schedule: Schedule, batch_size: int) -> None:
    found = rates(schedule, batch_size)
    assert samples_of_warmup(found.schedule, found.lr, batch_size) == samples_of_warmup(schedule, 0.1, 256)
    in_steps = schedule.unit == "steps"
    assert ("warm-up 40 -> " in found.remark) == in_steps == ("warmup" in found.facts)


def test_an_inverse_square_root_is_the_same_function_of_samples() -> None:
    schedule = InverseSqrt(warmup=400.0)
    small = rates(schedule, 64, reference=256, rule="sqrt", lr=0.1)
    before, after = schedule.build(0.1, 100, None), small.schedule.build(small.lr, 400, None)
    assert small.facts["warmup"] == 1600
    for step in (400, 500, 4000):  # behind so many steps of 256, or four times as many of 64
        assert after(4 * step - 1) == pytest.approx(before(step - 1) / 2, rel=1e-12)


def test_schedules_that_cannot_be_scaled_are_refused() -> None:
    with pytest.raises(ConfigError, match="reference_batch_size=256: no rule .* of SGD .*lr_scaling=linear or sqrt"):
        rates(Constant(), 32, rule=None)
    with pytest.raises(ConfigError, match="becomes 1600 steps: warmup=1600 must be shorter than duration=1000"):
        rates(Cosine(warmup=200.0, duration=1000.0, unit="steps"), 32)


def test_every_optimizer_with_a_plain_rate_has_a_scaling_rule() -> None:
    found = {}
    for path in sorted((CONF / "optimizer").glob("*.yaml")):
        module, _, name = OmegaConf.load(path)["_target_"].rpartition(".")
        found[path.stem] = getattr(importlib.import_module(module), name).lr_scaling
    linear = {name for name, rule in found.items() if rule == "linear"}
    assert linear == {"sgd", "nag", "dcasgd", "lbsgd"}
    assert {name for name, rule in found.items() if rule is None} == {"adadelta", "sgld"}
    assert set(found.values()) == {"linear", "sqrt", None}


@pytest.mark.slow
@pytest.mark.parametrize(
    "experiment, reference",
    [("cifar10_resnet20", 128), ("image_folder_resnet50", 256), ("glue", 32), ("glue_mrpc", 32), ("glue_mnli", 48)],
)
def test_presets_know_their_batch(describe_run: Any, experiment: str, reference: int) -> None:
    as_published = describe_run(f"experiment={experiment}")
    assert (as_published.trainer.reference_batch_size, as_published.dataset.batch_size) == (reference, reference)
    assert as_published.rates == LearningRates(as_published.optimizer.lr, as_published.lr_scheduler)
    smaller = describe_run(f"experiment={experiment}", "dataset.batch_size=16")
    factor = (16 / reference) ** (0.5 if experiment.startswith("glue") else 1)
    assert smaller.rates.lr == pytest.approx(as_published.optimizer.lr * factor)


@pytest.mark.slow
def test_the_user_may_choose_the_rule(describe_run: Any) -> None:
    options = ("dataset.batch_size=16", "trainer.reference_batch_size=64")
    assert describe_run(*options).rates.lr == pytest.approx(0.0005)
    assert describe_run(*options, "trainer.lr_scaling=linear").rates.lr == pytest.approx(0.00025)
    assert describe_run(*options, "optimizer=sgd", "trainer.lr_scaling=sqrt").rates.lr == pytest.approx(0.05)
    with pytest.raises(ConfigError, match="learning rate of SGLD"):
        describe_run(*options, "optimizer=sgld")
    assert describe_run(*options, "optimizer=sgld", "trainer.lr_scaling=sqrt").rates.facts["rule"] == "sqrt"


@pytest.mark.slow
def test_run_trains_with_the_reported_rates(train_run: Any, tmp_path: Path, caplog: Any) -> None:
    """The same bits as with the scaled numbers typed, also after a resume; a group's own rate multiplies as ever."""
    small = (
        "model=mlp",
        "model.hidden=[8]",
        "dataset.batch_size=32",
        "optimizer=sgd",
        "lr_scheduler=constant",
        "lr_scheduler.unit=steps",
        "early_stopping=off",
        "model.param_groups=[{pattern: output.*, lr_mult: 2.0}]",
        "trainer.max_epochs=2",
    )
    scaled = ("trainer.reference_batch_size=256", "lr_scheduler.warmup=2")
    with caplog.at_level("INFO"):
        _, found = train_run(*small, *scaled, "trainer.max_steps=30", run_dir=tmp_path / "scaled")
    line = "learning rate scaled from 0.1 (batch size 256) to 0.0125 (32; linear rule); warm-up 2 -> 16 steps"
    assert caplog.text.count(line) == 1 and found.exit_code == 75
    _, found = train_run(*small, *scaled, run_dir=tmp_path / "scaled")
    _, typed = train_run(*small, "optimizer.lr=0.0125", "lr_scheduler.warmup=16", run_dir=tmp_path / "typed")
    assert found.weights_sha256 == typed.weights_sha256
    rows = [json.loads(text) for text in (tmp_path / "scaled/metrics.jsonl").read_text().splitlines()]
    rates_of_steps = [row["lr"] for row in rows if row["split"] == "train"]
    assert rates_of_steps[:16] == pytest.approx([0.0125 * step / 16 for step in range(1, 17)])
    assert set(rates_of_steps[16:]) == {0.0125}
    facts = json.loads((tmp_path / "scaled/status.json").read_text())["lr_scaling"]
    assert (facts["reference_lr"], facts["lr"], facts["rule"], facts["warmup"]) == (0.1, 0.0125, "linear", 16)
    assert "lr_scaling" not in json.loads((tmp_path / "typed/status.json").read_text())
