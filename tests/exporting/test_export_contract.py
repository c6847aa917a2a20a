"""Every task and every model option: its export proves itself."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, Dict, Tuple

import numpy as np
import pytest
import running
from gluoncv_families import CLASSIFIERS
from PIL import Image
from small_runs import CASES, SHORT, classifier_words, with_data, write_data

import mxtrain
from mxtrain.cli.dispatch import run
from mxtrain.config.options import option_classes
from mxtrain.engine import backend, native
from mxtrain.errors import DataError
from mxtrain.types.kinds import kind_names

CONF = Path(__file__).resolve().parents[2] / "conf"
ELSEWHERE = {
    "gluoncv": "its families are below",
    **dict.fromkeys(("symbol", "symbol_ssd", "onnx"), "networks from files have tests of their own"),
}
FACE = ("task=metric_learning", "task.embedding_size=8")
FACES: Dict[str, Tuple[str, ...]] = {
    "iresnet": (*FACE, "model=iresnet", "model.depth=18"),
    "mobilefacenet": (*FACE, "model=mobilefacenet", "model.output=E", "model.blocks=[1,1,1,1]"),
}
"""Networks whose channels cannot be pruned, so that they are not among the cases of all commands."""
SLOW = ("lenet", "bert", "lstm", "yolo3")
"""Cases of all test runs but the quick one; the others are in the zoo."""

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Data of all kinds."""
    write_data(tmp_path)
    return tmp_path


@pytest.fixture
def export(folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Path]:
    """Overrides -> the exported folder of a run that trained for two steps, after its check."""

    def make(*overrides: str, exit_codes: Tuple[int, ...] = (0,)) -> Path:
        trained = folder / "run"
        running.train_here(trained, *SHORT, *with_data(overrides, folder))
        code = run(["export", str(trained), "limit_batches=2"])
        assert code in exit_codes, capsys.readouterr()
        if code == 0:
            assert run(["export", "check", str(trained / "export")]) == 0
        return trained / "export"

    return make


def require_proven(exported: Path) -> Dict[str, Any]:
    """The report of an export, whose errors are those that float32 explains."""
    report = json.loads((exported / "export.json").read_text())
    assert report["errors"] and max(report["errors"].values()) < 1e-5, report["errors"]
    assert report["metrics"]
    signature = json.loads((exported / "signature.json").read_text())
    assert signature["targets"] == kind_names(option_classes("task")[signature["task"]].takes.targets[0])  # type: ignore[attr-defined]
    return report


@pytest.mark.zoo_cases("yolo3")
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SLOW else pytest.mark.zoo) for name in (*CASES, *FACES)]
)
def test_export_proves_itself(export: Callable[..., Path], name: str) -> None:
    require_proven(export(*{**CASES, **FACES}[name]))


@pytest.mark.slow
@pytest.mark.zoo
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_gluoncv_families_prove_themselves(export: Callable[..., Path], name: str) -> None:
    require_proven(export(*classifier_words(name)))


def test_every_model_option_is_in_a_list() -> None:
    options = {path.stem for path in (CONF / "model").glob("*.yaml")}
    assert options == {name.partition(",")[0] for name in (*CASES, *FACES)} - {"regression"} | {*ELSEWHERE}


@pytest.mark.slow
def test_plain_forms_of_own_operators(export: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "_native_operators", functools.cache(lambda: native.Library(None, "a test")))
    require_proven(export(*CASES["bert"]))


@pytest.mark.slow
def test_folder_works_without_mxnet_and_predicts_as_the_run(export: Callable[..., Path], tmp_path: Path) -> None:
    exported = export(*CASES["lenet"])
    trained = mxtrain.load(exported.parent)
    with pytest.raises(DataError, match="is not overwritten"):
        trained.export()
    assert trained.export(tmp_path / "other", limit_batches=1).errors["output"] < 1e-5
    alone = tmp_path / "alone"
    shutil.copytree(exported, alone)
    image = tmp_path / "image.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 14), dtype=np.uint8)).save(image)

    def predict(*arguments: str) -> str:
        blocked = "import sys, runpy; sys.modules.update(mxnet=None, mxtrain=None); sys.argv[:] = sys.argv[1:]; "
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                f"{blocked}runpy.run_path(sys.argv[0], run_name='__main__')",
                str(alone / "predict.py"),
                *arguments,
            ],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "probabilities: relative error" in predict("--check")
    found, expected = json.loads(predict(str(image))), trained.predict(image)[0]
    assert found["class"] == expected["class"]
    assert found["probability"] == pytest.approx(expected["probability"], abs=2e-6)
