"""Faults of a user's own option classes, which are found before anything starts."""

from __future__ import annotations

from typing import ClassVar

import pytest

from mxtrain.callback.protocol import Callback
from mxtrain.config.class_faults import class_fault
from mxtrain.config.groups import GROUPS, NAMED_GROUPS, build_group, describe
from mxtrain.config.options import option_classes
from mxtrain.data.spec import BaseDataset
from mxtrain.errors import ConfigError
from mxtrain.kvstore.spec import KVStore
from mxtrain.logger.spec import Logger
from mxtrain.metric.host import HostMetric
from mxtrain.metric.metrics import Accuracy
from mxtrain.metric.spec import Metric
from mxtrain.task import Task
from mxtrain.training.callback_list import build_logger


class Misspelled(Logger):
    def biuld(self) -> Callback:
        """Is never called."""
        return Callback()


class NoStore(KVStore):
    """Builds nothing."""


class NoSums(Metric):
    def sum(self) -> None:
        """Is never called."""


class NoCompute(HostMetric):
    def comput(self) -> None:
        """Is never called."""


class BestIsMaximum(Accuracy):
    direction: ClassVar[str] = "maximum"  # type: ignore[assignment]


class NoRow(Task):
    def decode(self, outputs: object, batch: object) -> object:  # type: ignore[override]
        """Has no row."""
        return outputs


class Silent(Task):
    predicts: ClassVar[bool] = False


class NoLoader(BaseDataset):
    def open(self) -> None:  # type: ignore[override]
        """Opens nothing."""

    def infer_signature(self) -> None:  # type: ignore[override]
        """Has none."""


@pytest.mark.parametrize(
    "group, kind, fault",
    [
        ("logger.own", Misspelled, "Misspelled must define the method build. Is 'biuld' misspelled?"),
        ("kvstore", NoStore, "NoStore must define the method build."),
        ("metric.own", NoSums, "NoSums must define the method sums or measure or compute. Is 'sum' misspelled?"),
        (
            "metric.own",
            NoCompute,
            "NoCompute must define the method sums or measure or compute. Is 'comput' misspelled?",
        ),
        ("metric.own", BestIsMaximum, "BestIsMaximum.direction is 'maximum'. Write 'max' or 'min'."),
        ("task", NoRow, "NoRow must define the method row or prediction_format."),
        ("dataset", NoLoader, "NoLoader must define the method build_loader."),
    ],
)
def test_a_class_without_a_needed_method_is_refused(group: str, kind: type, fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_group(group, {"_target_": f"{__name__}.{kind.__name__}"}, str)
    assert str(caught.value) == f"{group}._target_={__name__}.{kind.__name__}: {fault}"


def test_a_task_that_predicts_nothing_needs_no_predictions() -> None:
    assert class_fault(Silent, Task) == "" and "decode or build_decode" in class_fault(Task, Task)


@pytest.mark.slow
@pytest.mark.parametrize("group", [group for group in GROUPS if group != "callback"])
def test_no_option_of_mxtrain_has_a_fault(group: str) -> None:
    kinds = [kind for kind in option_classes(group).values() if issubclass(kind, GROUPS[group])]
    assert kinds and {class_fault(kind, GROUPS[group]) for kind in kinds} == {""}


@pytest.mark.parametrize(
    "target, message",
    [
        ("mxtrain.logger.cvs.CSV", "there is no module 'cvs' in 'mxtrain.logger'. Did you mean 'csv'?"),
        ("mxtrain.logger.csv.writer.CSV", "there is no module 'writer' in 'mxtrain.logger.csv'."),
        ("no_such_package_here.x.CSV", "there is no module 'no_such_package_here', neither in the current folder"),
        ("json.JSONDecoder.decode", "'JSONDecoder' is a class, and a _target_ names a class or a function of a module"),
    ],
)
def test_a_missing_module_is_told_from_a_missing_package(target: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_group("logger.own", {"_target_": target}, str)
    assert str(caught.value).startswith(f"logger.own._target_={target}: {message}")


@pytest.mark.parametrize("target", ["mxnet.gluon.SymbolBlock.imports", "mxnet.module.Module.load"])
def test_methods_that_read_graphs_are_replaced_by_a_model(mx, target: str) -> None:
    with pytest.raises(ConfigError, match=r"Type model=symbol model.symbol=old-symbol.json model.weights=old-0000.par"):
        build_group("model", {"_target_": target}, str)


@pytest.mark.parametrize(
    "group, remedy",
    [
        ("logger", "Begin it with `# @package logger.mine`."),
        ("callback", "Begin it with `# @package callback.mine`."),
        ("metric", "Write `mine:` above it, and indent it."),
    ],
)
def test_an_option_without_a_name_is_told_where_it_belongs(group: str, remedy: str) -> None:
    assert group in NAMED_GROUPS
    config = {**{name: {} for name in GROUPS}, group: {"_target_": "a.B", "file": "x"}}
    with pytest.raises(ConfigError) as caught:
        describe(config, lambda path: f"conf/{path.partition('.')[0]}/mine.yaml:3")
    expected = f"{group}._target_=a.B: conf/{group}/mine.yaml gives its option no name. {remedy}"
    assert expected in str(caught.value).splitlines()


class Watch(Callback):
    def on_validaton(self) -> None:
        """Would never be called."""


class BuildsNothing(Logger):
    def build(self) -> None:  # type: ignore[override]
        """Returns no callback."""


class BuildsWatch(Logger):
    def build(self) -> Callback:
        return Watch()


def test_the_callback_of_a_logger_is_checked() -> None:
    with pytest.raises(ConfigError, match=r"^logger.own: BuildsNothing.build returned None, and must return an object"):
        build_logger("own", BuildsNothing())
    with pytest.raises(ConfigError, match=r"^logger.own: nothing calls Watch.on_validaton. Did you mean 'on_valida"):
        build_logger("own", BuildsWatch())
