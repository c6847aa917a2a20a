"""Placeholders of Python objects: nodes in the configuration, and objects beside it."""

from __future__ import annotations

from typing import Any

import pytest

from mxtrain.config.placeholders import Given, placeholders_in, with_object
from mxtrain.errors import ConfigError
from mxtrain.types import Spec


class Holder(Given):
    argument = "model"

    size: int = 0


def make(path: str = "model") -> Holder:
    return Holder(given_as=path, object="package.Net")


def test_node_names_class_object_and_facts() -> None:
    node = Holder.node_of("metric.f1", print, {"size": 3})
    assert node == {
        "_target_": f"{__name__}.Holder",
        "given_as": "metric.f1",
        "object": "builtins.print",
        "size": 3,
    }
    assert Holder.node_of("dataset", ([1], {}), {})["object"] == "(builtins.list, builtins.dict)"


def test_objects_are_attached_by_the_path_of_their_setting() -> None:
    without, value = make(), object()
    found = with_object(without, {"model": value, "loss": 1})
    assert found.is_given and found.require() is value
    assert not without.is_given
    assert with_object(make("loss"), {"model": value}).is_given is False
    other = Spec()
    assert with_object(other, {"model": value}) is other
    with pytest.raises(ConfigError, match=r"model: the run was given .* \(package.Net\).*mxtrain.load\(PATH, model="):
        without.require()


@pytest.mark.parametrize(
    "config, paths",
    [
        ({"model": {"given_as": "model"}, "loss": {"given_as": "model"}}, ["model"]),
        ({"metric": {"f1": {"given_as": "metric.f1"}, "mse": {"given_as": "metric.f1"}}}, ["metric.f1"]),
        ({"callback": {"a": {"given_as": "callback.a"}}, "task": None, "x": 3}, ["callback.a"]),
        ({"model": {"layers": {"given_as": "model"}}}, []),
    ],
)
def test_placeholders_of_a_configuration(config: Any, paths: Any) -> None:
    assert [path for path, _ in placeholders_in(config)] == paths
