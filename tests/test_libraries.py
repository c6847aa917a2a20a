"""What is said to install where data need a library that is not there."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from mxtrain.errors import DataError
from mxtrain.libraries import EXTRAS, NUMPY, installing, require_library

try:
    import tomllib
except ImportError:  # before Python 3.11
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]


def test_extras_are_those_of_the_project() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {name: list(packages) for name, packages in EXTRAS.items()}
    assert set(extras.pop("gymnasium")) <= set(declared["dependencies"])
    assert NUMPY in declared["dependencies"]
    assert extras == {name: declared["optional-dependencies"][name] for name in extras}


@pytest.mark.parametrize(
    "extra, page",
    [("tune", "training/tune.md"), ("gp", "training/tune.md"), ("export", "deploy/export.md"),
     ("serve", "deploy/serve.md")],
)  # fmt: skip
def test_guides_install_the_packages_of_an_extra(extra: str, page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert f"-m pip install {shlex.join([*EXTRAS[extra], NUMPY])}" in text
    assert "mxtrain[" not in text, "mxtrain is not published: pip does not find it where it runs from a checkout"


def test_a_library_that_is_missing_is_named_with_the_command_for_this_environment(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    monkeypatch.setattr(sys, "executable", "/my env/python")
    with pytest.raises(DataError) as error:
        require_library("gymnasium", "gymnasium", "dataset=gymnasium")
    command = "'/my env/python' -m pip install 'gymnasium>=0.29,<2' 'pygame-ce>=2.1.3' numpy==1.23.5"
    assert str(error.value).startswith("dataset=gymnasium needs the package gymnasium (")
    assert str(error.value).endswith(command)
    assert installing("num2words") == "'/my env/python' -m pip install num2words numpy==1.23.5"
