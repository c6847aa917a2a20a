"""Mistakes in classes of the user's own are sentences, and their settings are explained and suggested."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from mxtrain.cli import main
from mxtrain.composing.config_files import ConfigFiles, with_defaults
from mxtrain.config.specs import complete_settings, own_spec
from mxtrain.model.spec import Model

pytestmark = pytest.mark.slow
CODE = '''
from typing import ClassVar
from mxtrain.model.spec import Model
from mxtrain.text.model import TextModel
from mxtrain.types import Positive

class Mine(Model):
    width: Positive = 3
    """Units of the layer."""

class NoText(TextModel):
    pass
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with `--config-dir conf` for the classes above."""
    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "own_classes.py").write_text(CODE)
    (tmp_path / "unannotated.py").write_text(CODE + "    depth = 4\n")
    (tmp_path / "no_kind.py").write_text(
        CODE + "from mxtrain.types.kinds import Takes\n\nclass NoKind(Mine):\n    takes = Takes('classification')\n"
    )
    for name, annotation in (("by_name", ""), ("by_constant", ": ClassVar[tuple]")):
        by_name = f"\nfrom typing import ClassVar\n\nclass ByName(Mine):\n    tasks{annotation} = ('classification',)\n"
        (tmp_path / f"{name}.py").write_text(CODE + by_name)
    for option, target in {
        "mine": "own_classes.Mine",
        "by_name": "by_name.ByName",
        "by_constant": "by_constant.ByName",
        "no_kind": "no_kind.NoKind",
        "no_text": "own_classes.NoText",
        "unannotated": "unannotated.NoText",
    }.items():
        (tmp_path / "conf" / "model" / f"{option}.yaml").write_text(f"_target_: {target}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "own_classes", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    "words, said",
    [
        (["model=mine", "model.widht=4"], "Did you mean 'model.width'? model takes: "),
        (["model=by_name"], "by_name sets 'tasks', which was replaced by kinds of samples and targets."),
        (["model=by_constant"], "by_constant.ByName sets 'tasks', which was replaced by kinds of samples and targets."),
        (["model=no_kind"], "TypeError: 'classification' is no kind. Give subclasses of SampleKind or TargetKind"),
        (["model=unannotated"], "'depth = 4' in module unannotated has no type. Write `depth: TYPE = 4`"),
        (["model=mine", "debug=fast"], "own_classes.Mine has no method 'build'"),
        (["model=no_text", "dataset=text", "debug=fast"], "own_classes.NoText has no method 'build_text'"),
    ],
)
def test_wrong_class_is_reported_in_one_sentence(folder: Path, words: Any, said: str, capfd: Any) -> None:
    assert main(["--config-dir", "conf", *words, "hydra.run.dir=run"]) == 2
    error = capfd.readouterr().err
    assert said in error and "Traceback" not in error, error


def test_setting_absent_from_yaml_is_explained(folder: Path, capsys: Any) -> None:
    assert main(["explain", "model.width", "--config-dir", "conf", "model=mine"]) == 0
    printed = capsys.readouterr().out
    assert "model.width = 3\n  meaning   Units of the layer.\n" in printed and "the default of Mine (" in printed
    assert main(["explain", "model", "--config-dir", "conf", "model=mine"]) == 0
    assert "model.width = 3" in capsys.readouterr().out


def test_composing_and_describing_fill_in_the_same_defaults() -> None:
    """The loader completes classes of mxtrain, and the description the user's, which composing does not import."""
    compared = 0
    with ConfigFiles() as files:
        for group in files.groups():
            for option in files.options(group):
                file = files.find_file(f"{group}/{option}")
                content: Any = OmegaConf.load(file) if file else {}
                node = content if "_target_" in content else content.get(group, {})
                spec = own_spec(node.get("_target_")) if "_target_" in node else None
                if spec is not None:
                    composed = OmegaConf.to_container(with_defaults(spec, node))
                    assert composed == complete_settings(OmegaConf.to_container(node), group), file  # type: ignore[arg-type]
                    compared += 1
    assert compared > 100


OF_WEIGHTS = ("mxtrain.model.weights_files", "mxtrain.model.weights", "mxtrain.model.foreign.hub")
OF_SOME_IMAGES = ("mxtrain.vision.images.nifti", "mxtrain.vision.images.variants")
"""Modules that are imported when they are needed: with `model.weights`; for volumes and test-time augmentation."""


def test_runs_without_weights_import_no_readers_of_weights() -> None:
    code = "import sys, mxtrain.training.build, mxtrain.model.prepare; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=True).stdout.split()
    assert "mxtrain.model.weights_report" in loaded and not set(OF_WEIGHTS) & set(loaded)


def test_model_name_alone_imports_only_named_models() -> None:
    code = """
import sys
from mxtrain.composing.config_files import ConfigFiles
with ConfigFiles() as files:
    list(files.named_models())
print(*sys.modules)
"""
    loaded = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=True).stdout.split()
    assert "mxtrain.vision.detection.ssd" in loaded and "mxtrain.text.bert" not in loaded
    assert not {*OF_WEIGHTS, *OF_SOME_IMAGES} & set(loaded), "they would make each start slower"
    with ConfigFiles() as files:
        kinds = [files.class_of("model", option) for option in files.options("model")]
        named = {kind for kind in kinds if kind is not None and issubclass(kind, Model) and "name" in kind.model_fields}
        assert set(files.named_models()) == named and len(named) > 5
