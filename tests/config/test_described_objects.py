"""Placeholders of objects that were passed to the Python API: the facts that identify an object, and refusals."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest

from mxtrain.api.training import refuse_several_processes
from mxtrain.composing.objects import Objects, describe_object, placeholder_of
from mxtrain.engine.backend import gluon, mx
from mxtrain.errors import ConfigError


def test_facts_of_a_loss_and_an_optimizer_are_their_settings() -> None:
    """Runs have recorded them: another fact, or one less, would be another description."""
    loss = describe_object("loss", gluon.loss.L2Loss())
    assert loss == {
        "_target_": "mxtrain.loss.custom.GivenLoss",
        "given_as": "loss",
        "object": "mxnet.gluon.loss.L2Loss",
        "arguments": {"_batch_axis": 0, "_monitor_all": False, "_weight": 1.0},
    }
    given = mx.optimizer.SGD(learning_rate=0.5, momentum=0.9, wd=0.25)
    given._calls = 3  # attributes of its own bookkeeping are no settings
    optimizer = describe_object("optimizer", given)
    assert (optimizer["lr"], optimizer["wd"], optimizer["clip_gradient"]) == (0.5, 0.25, None)
    settings = {"allow_np_array": False, "lazy_update": True, "momentum": 0.9, "multi_precision": False}
    assert optimizer["settings"] == settings


@pytest.mark.parametrize(
    "path, value, said",
    [
        ("model", 3, "model=3: must be a gluon.Block, and is a int. To choose one by its name, give an override: "),
        ("loss", print, r"labels\) -> \(B,\), and is a builtin_function_or_method.*loss=hinge\". mxtrain.session"),
        ("optimizer", [], r'such as {"lr": 0.001}, and is a list. To choose one.*"optimizer=sgd"'),
    ],
)
def test_object_of_another_kind_is_refused(path: str, value: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        describe_object(path, value)


def test_members_of_a_group_have_its_placeholder() -> None:
    assert placeholder_of("metric.f1") is placeholder_of("metric")


class Described:
    """As much of a description as the refusal of objects reads."""

    class kvstore:
        distributed = True


def test_objects_are_refused_only_if_there_are_some() -> None:
    refuse_several_processes(Described, Objects(), "train", "new")  # type: ignore[arg-type]
    given = Objects(MappingProxyType({"model": 1}))
    with pytest.raises(ConfigError, match=r'process="new" with objects \(model\)'):
        refuse_several_processes(Described, given, "train", "new")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"lr_find: several workers with objects \(model\)"):
        refuse_several_processes(Described, given, "lr_find")  # type: ignore[arg-type]
