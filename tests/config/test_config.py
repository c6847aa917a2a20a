"""From plain dicts to descriptions, without Hydra."""

from __future__ import annotations

from typing import List, Literal, Optional, Union

import pytest

from mxtrain.config.specs import accepted_names, build_spec, check_arguments, collect, flatten, shown, spec_help
from mxtrain.errors import ConfigError
from mxtrain.types import Positive, Spec


class Inner(Spec):
    """Inner settings."""

    side: Positive = 1


class Animal(Spec):
    """Base of a group."""

    legs: Positive = 4
    """Number of legs."""


class Dog(Animal):
    """One option."""

    name: Literal["rex", "bello"] = "rex"
    size: Union[Literal["auto"], float] = "auto"
    friends: List[Inner] = []
    inner: Inner = Inner()
    owner: Optional[str] = None


class Robot:
    """A user's own class."""

    def __init__(self, legs_of_steel, *, colour="grey"):
        pass


def where(path: str) -> str:
    return f"conf/{path}"


def build_dog(**fields):
    return build_spec({"_target_": f"{__name__}.Dog", **fields}, "animal", Animal, where)


def test_a_node_becomes_its_class() -> None:
    assert build_dog(legs=3, inner={"side": 2}, size=1.5) == Dog(legs=3, inner=Inner(side=2), size=1.5)


@pytest.mark.parametrize(
    "fields, parts",
    [
        ({"legs": 0}, ["animal.legs=0", "greater than 0", "conf/animal.legs"]),
        ({"legs": "4"}, ["animal.legs=4", "integer"]),
        ({"legs": True}, ["animal.legs=true"]),
        ({"lgs": 4}, ["no 'animal.lgs'", "'animal.legs'", "friends"]),
        ({"name": "belo"}, ["animal.name=belo", "'rex' or 'bello'", "Did you mean 'bello'"]),
        ({"size": "big"}, ["animal.size=big: should be 'auto' or a valid number"]),
        ({"inner": {"sde": 1}}, ["no 'animal.inner.sde'", "'animal.inner.side'"]),
        ({"friends": [{"side": 1}, {"side": -1}]}, ["animal.friends.1.side=-1"]),
        ({"owner": "???"}, ["animal.owner must be given", "animal.owner=..."]),
        ({"legs": 0, "name": "x"}, ["animal.legs=0", "animal.name=x"]),
    ],
)
def test_mistakes_are_named(fields: dict, parts: list) -> None:
    with pytest.raises(ConfigError) as caught:
        build_dog(**fields)
    assert [part for part in parts if part not in str(caught.value)] == []


@pytest.mark.parametrize(
    "node, part",
    [
        (3, "expected settings with a _target_"),
        ({"_target_": "Dog"}, "package.module.Name"),
        ({"_target_": "no_such_module.Dog"}, "no module 'no_such_module'"),
        ({"_target_": f"{__name__}.Dgo"}, "Did you mean 'Dog'"),
        ({"_target_": f"{__name__}.Inner"}, "is no Animal"),
        ({"_target_": f"{__name__}.Robot", "legs_of_steel": 1}, "subclass"),
        ({"_target_": f"{__name__}.Robot", "color": 1}, "'colour'"),
        ({"_target_": f"{__name__}.Robot"}, "animal.legs_of_steel must be given"),
    ],
)
def test_wrong_targets(node, part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_spec(node, "animal", Animal, where)
    assert part in str(caught.value)


def test_failing_module_is_not_reported_as_missing(tmp_path, monkeypatch) -> None:
    (tmp_path / "breaks_on_import.py").write_text("import no_such_dependency\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match="importing it failed: No module named 'no_such_dependency'"):
        build_spec({"_target_": "breaks_on_import.Dog"}, "animal", Animal, where)


def test_arguments_that_the_group_fills_in_need_not_be_given() -> None:
    check_arguments(Robot, {"colour": "red"}, "animal", ["legs_of_steel"])
    with pytest.raises(ConfigError, match="legs_of_steel"):
        check_arguments(Robot, {"colour": "red"}, "animal", [])
    check_arguments(dict, {"anything": 1}, "animal", [])


def test_accepted_names() -> None:
    assert accepted_names(Dog, Animal)[0] == "legs" and "owner" in accepted_names(Dog, Animal)
    assert accepted_names(Robot, Animal) == ["legs", "legs_of_steel", "colour"]


def test_collect_reports_everything_at_once() -> None:
    def wrong(text):
        raise ConfigError(text)

    with pytest.raises(ConfigError, match="^a\nb$"):
        collect([lambda: wrong("a"), lambda: 1, lambda: wrong("b")])
    assert collect([lambda: 1, lambda: 2]) == [1, 2]


def test_flatten_and_shown() -> None:
    assert flatten({"a": {"b": 1, "c": {}}, "d": [1]}) == {"a.b": 1, "a.c": {}, "d": [1]}
    assert [shown(v) for v in (None, True, [1, None], {"a": False}, 0.5)] == [
        "null",
        "true",
        "[1, null]",
        "{a: false}",
        "0.5",
    ]
    assert spec_help(Dog, ["legs"]) == "Number of legs."
