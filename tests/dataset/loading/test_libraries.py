"""What is said to install where data need a library that is not there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from mxtrain.data.loading.libraries import EXTRAS, installing, require_library
from mxtrain.errors import DataError

try:
    import tomllib
except ImportError:  # before Python 3.11
    import tomli as tomllib


def test_extras_are_those_of_the_project() -> None:
    project = Path(__file__).resolve().parents[3] / "pyproject.toml"
    declared = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    extras = {name: list(packages) for name, packages in EXTRAS.items()}
    assert set(extras.pop("gymnasium")) <= set(declared["dependencies"])
    assert extras == {name: declared["optional-dependencies"][name] for name in extras}


def test_a_library_that_is_missing_is_named_with_the_command_for_this_environment(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    monkeypatch.setattr(sys, "executable", "/my env/python")
    with pytest.raises(DataError) as error:
        require_library("gymnasium", "gymnasium", "dataset=gymnasium")
    command = "'/my env/python' -m pip install 'gymnasium>=0.29,<2' 'pygame-ce>=2.1.3'"
    assert str(error.value).startswith("dataset=gymnasium needs the package gymnasium (")
    assert str(error.value).endswith(command)
    assert installing("num2words") == "'/my env/python' -m pip install num2words"
