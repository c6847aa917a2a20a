"""`export for=pytorch`: the folder, its proof, and what a wrong conversion does."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, List

import numpy as np
import pytest
import running
from small_runs import CASES, SHORT, with_data, write_data

import mxtrain
from mxtrain.cli.dispatch import run
from mxtrain.errors import NotProven
from mxtrain.exporting.pytorch import proof as proof_module
from mxtrain.exporting.pytorch.operators import CONVERTERS
from mxtrain.model.foreign.safetensors_file import read_safetensors

pytestmark = pytest.mark.usefixtures("own_cache")
FILES = {
    "README.md",
    "decoding.py",
    "export.json",
    "exported.py",
    "model.py",
    "model.safetensors",
    "names.json",
    "predict.py",
    "proof.json",
    "proof.npz",
    "proof_files.npz",
    "reading",
    "signature.json",
}


def words_of_page(ending: str, run_dir: Path, out: Path) -> List[str]:
    """The command of the page that ends so, without a comment, for a run and a folder."""
    page = (running.ROOT / "docs" / "deploy" / "pytorch.md").read_text()
    lines = [
        line.partition("#")[0].strip() for line in page.splitlines() if line.startswith("python -m mxtrain export")
    ]
    (line,) = [line for line in lines if line.endswith(ending)]
    return shlex.split(line.replace("RUN", str(run_dir)).replace("FOLDER", str(out)))[3:]


def test_without_pytorch_nothing_is_done(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert run(["export", "no_such_run", "for=pytorch"]) == 2
    said = capsys.readouterr().err
    assert "export for=pytorch needs the package torch" in said and "pip install 'torch>=2'" in said


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a small network for images."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("pytorch") / "run"
    running.train_here(folder, *SHORT, *CASES["lenet"], "dataset.batch_size=8")
    return folder


@pytest.fixture(scope="module")
def exported(trained: Path) -> Path:
    """Its folder for PyTorch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        assert run(words_of_page("for=pytorch out=FOLDER", trained, trained.parent / "exported")) == 0
    return trained.parent / "exported"


@pytest.mark.slow
def test_the_folder_proves_itself_and_predicts_as_mxtrain(trained: Path, exported: Path, tmp_path: Path) -> None:
    out = exported
    assert {path.name for path in out.iterdir()} == FILES
    assert "FILE is an image of 8 or 16 bits" in (out / "README.md").read_text()
    proof = json.loads((out / "proof.json").read_text())
    assert proof["batch_sizes"] == [1, 4] and max(proof["outputs"].values()) < 1e-5
    assert proof["gradients"]["precision"] == "float64" and proof["gradients"]["largest_error"] < 1e-9
    assert proof["gradients"]["compared"] == proof["trained"] == 16
    tuned = proof["fine_tuning"]
    assert tuned["steps"] == len(tuned["mxnet"]) == 20
    np.testing.assert_allclose(tuned["pytorch"], tuned["mxnet"], rtol=1e-3)
    assert len({*tuned["pytorch"]}) == 20
    assert proof["torch_export"] is True and proof["loss"] == "the validation loss"
    assert proof["through_onnx"] is False
    names, weights = json.loads((out / "names.json").read_text()), read_safetensors(out / "model.safetensors")
    network = mxtrain.load(trained).network
    for name, parameter in network._collect_params_with_prefix().items():
        np.testing.assert_array_equal(weights[names[name]], parameter.data().asnumpy())
    image = np.random.default_rng(0).integers(0, 256, (1, 1, 8, 8)).astype(np.uint8)
    np.savez(tmp_path / "a.npz", input=image)
    done = subprocess.run(
        [sys.executable, str(out / "predict.py"), str(tmp_path / "a.npz")], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    (expected,) = mxtrain.load(trained).predict([image[0, 0]])
    assert found["class"] == expected["class"]
    assert found["probability"] == pytest.approx(expected["probability"], abs=1e-5)


@pytest.mark.slow
def test_export_check_executes_no_code_of_the_folder(exported: Path, tmp_path: Path, capsys: Any) -> None:
    shutil.copytree(exported, tmp_path / "out")
    (tmp_path / "out" / "model.py").write_text("raise SystemExit(7)")
    assert run(["export", "check", str(tmp_path / "out")]) == 2
    assert "is for PyTorch, and its network is code" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    "operator, old, new, said",
    [
        ("BatchNorm", "nn.BatchNorm2d(", "nn.BatchNorm2d(eps=0.1, num_features=", "PyTorch's outputs differ"),
        ("Convolution", "nn.Conv2d(", "nn.ConvTranspose2d(", "Error"),
    ],
)
def test_a_wrong_conversion_is_refused_and_leaves_nothing(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operator: str, old: str, new: str, said: str
) -> None:
    from dataclasses import replace

    convert = CONVERTERS[operator]

    def wrong(call: Any) -> Any:
        layer = convert(call)
        return replace(layer, code=tuple(one.replace(old, new) if isinstance(one, str) else one for one in layer.code))

    monkeypatch.setitem(CONVERTERS, operator, wrong)
    with pytest.raises((NotProven, RuntimeError), match=said):
        mxtrain.export(trained, tmp_path / "out", for_="pytorch")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_wrong_gradient_is_refused(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The outputs are right, and the gradient does not reach the layers before."""
    monkeypatch.setitem(CONVERTERS, "Flatten", lambda call: f"{call.x()}.flatten(1).detach()")
    with pytest.raises(NotProven, match="the gradient of features.* differs between PyTorch and MXNet"):
        mxtrain.export(trained, tmp_path / "out", for_="pytorch")


@pytest.mark.slow
def test_another_loss_in_fine_tuning_is_refused(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = proof_module.TorchTraining.step
    monkeypatch.setattr(proof_module.TorchTraining, "step", lambda self, batch: 1.011 * step(self, batch))
    with pytest.raises(NotProven, match=r"step 1 of fine-tuning .* agree within .*e-1\d, so that rounding"):
        mxtrain.export(trained, tmp_path / "out", for_="pytorch")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_embedding_network_is_exported_without_centres(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    running.train_here(tmp_path / "run", *SHORT, "task=metric_learning", "task.embedding_size=16", "model.hidden=8")
    proof = mxtrain.export(tmp_path / "run", tmp_path / "out", for_="pytorch").proof
    assert [*proof["outputs"]] == ["output"] and proof["torch_export"] is True
    assert proof["loss"] == "squared distance to disturbed outputs"
    names = json.loads((tmp_path / "out" / "names.json").read_text())
    assert names and all(name.startswith("embedding.") for name in names)


@pytest.mark.slow
def test_operator_without_code_goes_through_onnx(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network with convolutions, batch normalisations and matrix products, by onnx2torch, for an epoch."""
    pytest.importorskip("onnx2torch")
    monkeypatch.delitem(CONVERTERS, "Pooling")
    words = words_of_page("finetune_steps=epoch", trained, tmp_path / "out")
    assert run([*words, "dataset.eval_batch_size=300"]) == 0
    proof = json.loads((tmp_path / "out" / "proof.json").read_text())
    # An epoch of 1,437 digits, without the smaller batch at its end.
    assert proof["fine_tuning"]["steps"] == 4 and proof["fine_tuning"]["batch_size"] == 300
    assert proof["through_onnx"] is True and proof["torch_export"] is True and max(proof["outputs"].values()) < 1e-5
    assert proof["gradients"]["largest_error"] < 1e-4
    assert proof["gradients"]["compared"] == proof["trained"] == 16
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*FILES, "network.onnx"}
    assert any("the operator Pooling" in remark for remark in proof["remarks"])
    assert "numpy onnx2torch\n" in (tmp_path / "out" / "README.md").read_text()


THROUGH_ONNX = {"faster_rcnn", "mask_rcnn"}


@pytest.mark.slow
@pytest.mark.zoo
@pytest.mark.zoo_cases("mlp")
@pytest.mark.parametrize("name", CASES)
def test_every_task_exports(name: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    write_data(tmp_path)
    # Four samples: two batches at least, so that a step has changed the weights.
    running.train_here(tmp_path / "run", *SHORT, *with_data(CASES[name], tmp_path), "dataset.eval_batch_size=4")
    proof = mxtrain.export(tmp_path / "run", tmp_path / "out", for_="pytorch").proof
    assert max(proof["outputs"].values()) < 1e-5 and proof["gradients"]["largest_error"] < 1e-4
    assert proof["fine_tuning"]["steps"] >= 2
    assert proof["through_onnx"] is (name in THROUGH_ONNX)
    assert (proof["torch_export"] is True) is (name not in THROUGH_ONNX)
