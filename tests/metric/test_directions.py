"""Directions of metrics: built-in metrics declare one, monitored metrics of users need one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict

import numpy as np
import pytest
import yaml

import mxtrain
from mxtrain.cli.dispatch import run as command
from mxtrain.composing.composer import Composer
from mxtrain.config.rules import require_direction
from mxtrain.config.specs import import_target
from mxtrain.errors import ConfigError
from mxtrain.metric.given import GivenMetric
from mxtrain.metric.meter import LossWeights, Meter
from mxtrain.metric.metrics import Accuracy

CONF = Path(mxtrain.__file__).parents[1] / "conf/metric"
ASKED = "it is not known if smaller or larger values of 'own' are better. Type metric.own.better=min for an error"


def data() -> Any:
    x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    return x, (x.sum(axis=1) + 10).astype(np.float32)


def mape(target_N: np.ndarray, prediction_N: np.ndarray) -> float:
    return float((abs(target_N - prediction_N.ravel()) / abs(target_N)).mean())


@pytest.mark.slow
def test_every_option_has_a_direction_but_the_length_of_episodes() -> None:
    unknown = []
    for file in sorted(CONF.glob("*.yaml")):
        for name, node in yaml.safe_load(file.read_text()).items():
            unknown += [name] if import_target(node["_target_"], f"metric.{name}").direction == "unknown" else []
    assert unknown == ["coverage", "episode_length"]  # 0.9 is best for an interval of 90 %


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("trainer.monitor=val/own",),
        ("early_stopping=on", "early_stopping.monitor=val/own"),
        ("lr_scheduler=plateau", "lr_scheduler.monitor=val/own"),
        ("callback=target", "callback.target.monitor=val/own", "callback.target.value=1"),
    ],
)
def test_the_direction_of_an_own_metric_is_asked_for_if_it_is_monitored(words: Any) -> None:
    given: Dict[str, Any] = {"model": "mlp", "dataset": data()}
    with pytest.raises(ConfigError) as caught:
        mxtrain.compose(*words, metric={"own": mape}, **given)
    assert ASKED in str(caught.value) and 'metric={"own": (METRIC, "min")}' in str(caught.value)
    assert str(caught.value).startswith(f"{words[-2 if 'value' in words[-1] else -1]}: ")
    for direction in ("min", "max"):
        for metric, more in (((mape, direction), ()), (mape, (f"metric.own.better={direction}",))):
            node = mxtrain.compose(*words, *more, metric={"own": metric}, **given)["metric"]["own"]
            assert node["better"] == direction and node["object"].endswith("mape")
    assert mxtrain.compose(metric={"own": mape}, **given)["metric"]["own"].get("better") is None  # not monitored


@pytest.mark.parametrize(
    "metric, name",
    [
        ([(mape, "min")], "mape"),
        ((mape, "min"), "mape"),
        ({"own": (mape, "min")}, "own"),
    ],
)
def test_a_direction_is_given_beside_the_metric(metric: Any, name: str) -> None:
    config = mxtrain.compose(f"trainer.monitor=val/{name}", model="mlp", dataset=data(), metric=metric)
    assert config["metric"][name]["better"] == "min"


def test_metrics_of_mxnet_have_their_directions_and_composite_ones_are_unpacked() -> None:
    from mxnet import metric

    class Renamed(metric.MAE):
        pass

    class Own(metric.EvalMetric):
        pass

    for value, direction in (
        (metric.MAE("any name"), "min"),
        (Renamed(), "min"),
        (metric.Perplexity(-1), "min"),
        (metric.F1(), "max"),
        (metric.PearsonCorrelation(), "max"),
        (Own("loss"), None),
        (metric.CustomMetric(mape), None),
    ):
        assert GivenMetric.describe_object(value).get("better") == direction
    composite = metric.CompositeEvalMetric([metric.MAE(), metric.CompositeEvalMetric([metric.MSE(), metric.RMSE()])])
    given = {"model": "mlp", "dataset": data()}
    config = mxtrain.compose("trainer.monitor=val/mae", metric=composite, **given)
    assert [name for name in config["metric"] if name in ("mae", "mse", "rmse")] == ["mae", "mse", "rmse"]
    named = mxtrain.compose(metric={"all": composite, "one": metric.MAE()}, **given)["metric"]
    assert {"all_1", "all_2", "all_3", "one"} <= set(named)
    assert mxtrain.compose("metric.mae.better=max", metric=metric.MAE(), **given)["metric"]["mae"]["better"] == "max"


def test_directions_by_name() -> None:
    description: Any = SimpleNamespace(metric={"accuracy": Accuracy(), "own": Accuracy(better="min")})
    for name, direction in (("val/loss", "min"), ("val/accuracy", "max"), ("train/own", "min")):
        assert require_direction(description, "objectives", name) == direction
    meter = Meter({"accuracy": Accuracy()}, 2, LossWeights(parts=("size",)))
    assert [meter.direction(name) for name in ("loss", "size", "accuracy")] == ["min", "min", "max"]


OWN_CLASS = """
from typing import ClassVar, Tuple

from mxtrain.metric.metrics import Accuracy
from mxtrain.metric.spec import Metric


class Own(Metric):
    def measure(self, scores, targets):
        return scores


class Errors(Own):
    direction: ClassVar[str] = "min"
"""


@pytest.mark.slow
def test_user_metric_declares_or_is_given_its_direction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_metric_classes.py").write_text(OWN_CLASS)
    monkeypatch.syspath_prepend(str(tmp_path))

    def words(name: str) -> Any:
        return (f"+metric.own._target_=own_metric_classes.{name}", "trainer.monitor=val/own")

    with pytest.raises(ConfigError, match='in a class of your own: direction = "min"'):
        mxtrain.compose(*words("Own"))
    assert mxtrain.compose(*words("Own"), "+metric.own.better=min")["trainer"]["monitor"] == "val/own"
    assert mxtrain.compose(*words("Errors"))["trainer"]["monitor"] == "val/own"
    study = ["tune", "study", words("Own")[0], "objectives=val/own", "optimizer.lr=log(1e-4,1e-1)"]
    assert command(study) == 2
    error = capsys.readouterr().err
    assert "objectives=val/own" in error or "trainer.monitor=val/own" in error
    assert ASKED in error and not (tmp_path / "study").exists()
    with Composer([]) as composer:
        assert composer.compose(["metric.accuracy.better=min"]).config["metric"]["accuracy"]["better"] == "min"
