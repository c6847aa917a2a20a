"""Typed keywords of the Python API: the groups of options, for editors, notebooks and type checkers."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import mxtrain
from mxtrain.config.groups import GROUPS, PRESET_GROUPS
from mxtrain.errors import ConfigError
from mxtrain.workflows.average import AverageSettings
from mxtrain.workflows.clean import CleanSettings
from mxtrain.workflows.diff import DiffSettings
from mxtrain.workflows.lr_find import LrFindSettings
from mxtrain.workflows.plan import PlanSettings
from mxtrain.workflows.predict import PredictSettings
from mxtrain.workflows.reproduce import ReproduceSettings
from mxtrain.workflows.verify import VerifySettings

SETTINGS = {
    "average": AverageSettings,
    "clean": CleanSettings,
    "diff": DiffSettings,
    "lr_find": LrFindSettings,
    "plan": PlanSettings,
    "predict": PredictSettings,
    "reproduce": ReproduceSettings,
    "verify": VerifySettings,
}
FUNCTIONS = ("compose", "dry_run", "train", "verify", "launch", "lr_find", "plan", "session")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_group_is_a_keyword(name: str) -> None:
    parameters = inspect.signature(getattr(mxtrain, name)).parameters
    assert set(parameters) >= {*GROUPS, *PRESET_GROUPS}
    assert all(parameters[group].kind is inspect.Parameter.KEYWORD_ONLY for group in GROUPS)
    assert "gluon.Block" in str(parameters["model"].annotation), "types are those of the annotation, as text"


def test_keywords_of_loading_and_measuring() -> None:
    assert set(inspect.signature(mxtrain.load).parameters) >= {"model", "dataset", "loss", "metric"}
    for function in (mxtrain.evaluate, mxtrain.Run.evaluate):
        assert set(inspect.signature(function).parameters) >= {"dataset", "loss", "metric", "parallel", "amp"}


def test_keywords_match_the_command_line() -> None:
    given = mxtrain.compose(
        model="lenet",
        optimizer={"lr": 0.5},
        lr_scheduler="constant",
        metric=["accuracy", "f1"],
        parallel={"devices": "cpu:1"},
        trainer={"max_epochs": 3},
        debug="fast",
    )
    typed = mxtrain.compose(
        "model=lenet",
        "optimizer.lr=0.5",
        "lr_scheduler=constant",
        "metric=[accuracy,f1]",
        "parallel.devices=cpu:1",
        "trainer.max_epochs=3",
        "debug=fast",
    )
    assert given == typed


@pytest.mark.parametrize("name", SETTINGS)
def test_defaults_are_those_of_the_command(name: str) -> None:
    """Python takes sequences for texts that the command splits, and None where nothing is written."""
    fields, parameters = SETTINGS[name].model_fields, inspect.signature(getattr(mxtrain, name)).parameters
    shared = [
        key for key in parameters if key in fields and not isinstance(parameters[key].default, (tuple, type(None)))
    ]
    assert shared and {key: parameters[key].default for key in shared} == {key: fields[key].default for key in shared}


@pytest.mark.parametrize("name", ["compose", "dry_run", "train", "verify", "lr_find", "plan"])
def test_wrong_names_get_the_nearest_spelling(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name}\(\) has no argument 'optimiser'. Did you mean 'optimizer'"):
        getattr(mxtrain, name)(optimiser="sgd")


def test_stubs_name_everything_that_is_offered() -> None:
    stubs = (Path(mxtrain.__file__).parent / "__init__.pyi").read_text(encoding="utf-8")
    imported = {name: module for module, name in re.findall(r"from (\S+) import \w+ as (\w+)", stubs)}
    assert imported == {name: getattr(mxtrain, name).__module__ for name in mxtrain.__all__ if name != "__version__"}
