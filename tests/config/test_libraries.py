"""Messages that name the package to install if data need a missing library."""

from __future__ import annotations

import fnmatch
import importlib
import shlex
import sys
from pathlib import Path
from typing import Any, Dict

import pytest

from mxtrain.cli import serve
from mxtrain.config.libraries import EXTRAS, NUMPY, install_command, require_library
from mxtrain.errors import ConfigError, DataError
from mxtrain.logger.wandb import Wandb
from mxtrain.vision.images.dicom import require_pydicom
from mxtrain.workflows.doctor import other_versions

try:
    import tomllib
except ImportError:  # before Python 3.11
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]


def test_extras_match_the_project() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {name: list(packages) for name, packages in EXTRAS.items()}
    for name in ("gymnasium", "tokenizers", "babel", "num2words"):
        assert set(extras.pop(name)) <= set(declared["dependencies"])
    assert set(extras.pop("onnxruntime")) <= set(extras["export"])
    assert NUMPY in declared["dependencies"]
    assert extras == {name: declared["optional-dependencies"][name] for name in extras}


@pytest.mark.parametrize(
    "extra, page",
    [
        ("tune", "training/tune.md"),
        ("gp", "training/tune.md"),
        ("export", "deploy/export.md"),
        ("serve", "deploy/serve.md"),
    ],
)
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
    assert install_command("num2words") == "'/my env/python' -m pip install 'num2words>=0.5.13,!=0.5.15' numpy==1.23.5"
    assert install_command("other") == "'/my env/python' -m pip install other numpy==1.23.5"


def make_installed(folder: Path, monkeypatch: Any, **versions: str) -> None:
    """Makes packages look installed in these versions."""
    for name, version in versions.items():
        (folder / f"{name}-{version}.dist-info").mkdir()
        (folder / f"{name}-{version}.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    monkeypatch.syspath_prepend(folder)


@pytest.mark.parametrize(
    "extra, versions, said",
    [
        (
            "sentencepiece",
            {"sentencepiece": "0.2.3"},
            "It needs sentencepiece>=0.2.1,<0.2.2, and sentencepiece 0.2.3 is "
            "installed: * -m pip install 'sentencepiece>=0.2.1,<0.2.2' numpy==1.23.5",
        ),
        (
            "export",
            {"onnx": "1.18.0", "ml_dtypes": "0.6.1"},
            "It needs ml_dtypes<0.6, and ml_dtypes 0.6.1 is installed*",
        ),
        (
            "num2words",
            {"num2words": "0.5.15"},
            "It needs num2words>=0.5.13,!=0.5.15, and num2words 0.5.15 is installed*",
        ),
        ("tune", {"optuna": "4.3"}, "It needs optuna>=4.4,<6, and optuna 4.3 is installed*"),
        ("sentencepiece", {"sentencepiece": "0.2.1"}, ""),
        ("sentencepiece", {"sentencepiece": "0.2.1rc1"}, "*"),
        ("tune", {"optuna": "5.0b1"}, ""),
    ],
)
def test_another_installed_version_is_named_before_the_import(
    tmp_path: Path, monkeypatch: Any, extra: str, versions: Dict[str, str], said: str
) -> None:
    make_installed(tmp_path, monkeypatch, **versions)
    monkeypatch.setattr(importlib, "import_module", lambda name: name)
    if not said:
        assert require_library("json", extra, "It") == "json"
        return
    with pytest.raises(DataError) as error:
        require_library("json", extra, "It")
    assert fnmatch.fnmatch(str(error.value), said), error.value


def test_trackers_dicom_and_serve_check_versions(tmp_path: Path, monkeypatch: Any) -> None:
    make_installed(tmp_path, monkeypatch, wandb="0.12", pydicom="4.0", fastapi="0.1")
    (tmp_path / "wandb.py").write_text("raise SystemExit('imported')")
    with pytest.raises(ConfigError, match=r"logger.wandb needs wandb>=0.26,<1, and wandb 0.12 is installed"):
        Wandb(project="p").require_usable("logger.wandb")
    with pytest.raises(DataError, match=r"scan.dcm' is a DICOM file, which needs pydicom.*, and pydicom 4.0 is"):
        require_pydicom("scan.dcm")
    with pytest.raises(ConfigError, match=r"serve needs fastapi>=0.115,<1, and fastapi 0.1 is installed"):
        serve.run([str(tmp_path)])


def test_the_doctor_names_packages_in_other_versions(tmp_path: Path, monkeypatch: Any) -> None:
    before = other_versions()
    make_installed(tmp_path, monkeypatch, sentencepiece="0.2.3", optuna="5.0")
    (finding,) = (finding for finding in other_versions() if finding not in before)
    assert (finding.what, finding.state) == ("sentencepiece", "missing")
    assert finding.value == "0.2.3; mxtrain needs sentencepiece>=0.2.1,<0.2.2"
    assert finding.remedy.endswith("-m pip install 'sentencepiece>=0.2.1,<0.2.2' numpy==1.23.5")
