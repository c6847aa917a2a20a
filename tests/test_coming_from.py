"""The pages for users of other libraries: their commands run with small files of the same form."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
import warnings
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import pytest
from old_files import write_faces, write_old_files, write_photos

from mxtrain.cli import main
from mxtrain.engine.backend import gluon, mx
from mxtrain.files.params_format import parse_arrays
from mxtrain.vision.classification.gluoncv import GluonCV

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs/coming-from"
ONE_BATCH = [f"trainer.limit_{split}_batches=1" for split in ("train", "val", "test")]
TRAINING = re.compile(r"python -m mxtrain (?!inspect|eval|predict|export)")


def blocks(page: str, language: str) -> List[str]:
    """Returns the fenced blocks of a page in a language; "" = commands."""
    text = (PAGES / f"{page}.md").read_text("utf-8")
    return [code for found, code in re.findall(r"^```(\w*)\n(.*?)^```", text, re.M | re.S) if found == language]


def new_commands(page: str) -> List[str]:
    return [line for block in blocks(page, "") for line in block.splitlines() if line.startswith("python -m mxtrain")]


def run(folder: Path, command: str) -> str:
    """Runs a command as it is typed; training for a few steps only."""
    words = shlex.split(command)
    assert words[0] == "python"
    shortened = ["debug=fast", *ONE_BATCH] if TRAINING.match(command) else []
    if words[1:3] != ["-m", "mxtrain"]:
        return run_elsewhere(folder, words)
    before = os.getcwd()
    os.chdir(folder)
    try:
        with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
            with redirect_stdout(file), redirect_stderr(file):
                code = main([*words[3:], *shortened])
            file.seek(0)
            said = file.read()
    finally:
        os.chdir(before)
    assert code == 0, f"{command}\n{said[-3000:]}"
    return said


def run_elsewhere(folder: Path, words: List[str]) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *words[1:]],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, f"{words}\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}"
    return done.stdout + done.stderr


def run_old_code(page: str, **names: Any) -> Dict[str, Any]:
    """Runs the first Python block of a page, in which the user has some names already; returns all names."""
    found: Dict[str, Any] = {"mx": mx, "gluon": gluon, **names}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MXNet's own
        exec(compile(blocks(page, "python")[0], f"{page}.md", "exec"), found)
    return found


@pytest.fixture(scope="module")
def old_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("old")
    write_old_files(folder)
    write_photos(folder / "data/photos")
    return folder


@pytest.fixture
def workplace(old_files: Path, tmp_path: Path) -> Path:
    """A folder with what the pages name; nothing that a test writes is seen by another."""
    for path in old_files.iterdir():
        if path.name != "data":
            (tmp_path / path.name).symlink_to(path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/photos").symlink_to(old_files / "data/photos")
    return tmp_path


@pytest.mark.slow
def test_module_api(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workplace)
    x, y = np.random.RandomState(0).rand(8, 3, 32, 32), np.arange(8) % 2
    iterators = {name: mx.io.NDArrayIter(x, y, 4) for name in ("train_iter", "val_iter")}
    assert run_old_code("module-api", **iterators)["mod"].params_initialized
    said = [run(workplace, command) for command in new_commands("module-api")]
    assert len(said) == 7
    assert "model=symbol model.prefix=old" in said[0] and "fc1" in said[0]
    assert "weights: 8 arrays loaded from old-0003.params" in said[1]
    checkpoints = sorted((workplace / "outputs/photos/checkpoints").glob("step-*/model.params"))
    _, names = parse_arrays(checkpoints[-1].read_bytes())
    assert {"fc1_weight", "bn1_gamma"} <= {name.partition(":")[2] or name for name in names}
    assert (workplace / "exported/photos/model.onnx").is_file()
    assert (workplace / "data/records/photos_train.rec").is_file()


@pytest.mark.slow
def test_networks_in_files(workplace: Path) -> None:
    said = [run(workplace, command) for command in new_commands("../start/old-networks")]
    assert len(said) == 6
    assert "model=symbol model.prefix=old model.epoch=3" in said[0]
    assert "weights: 8 arrays loaded from old-0003.params" in said[1]
    assert (workplace / "exported/old/model.onnx").is_file()


@pytest.mark.slow
def test_gluoncv(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(workplace, "python -m mxtrain.vision.images.make_record data/photos data/records/photos")
    network = GluonCV(name="resnet18_v1").build(1000, (3, 64, 64))
    network.initialize()
    network(mx.nd.ones((1, 3, 64, 64)))
    network.save_parameters(str(workplace / "resnet18_v1.params"))
    monkeypatch.chdir(workplace)
    old = run_old_code("gluoncv", gluoncv=pytest.importorskip("gluoncv"))
    assert old["net"](mx.nd.ones((1, 3, 64, 64))).shape == (1, 2)
    # GluonCV's scripts themselves are not in its package, and take their data from the network.
    # Weights of the Hugging Face Hub need a network; their commands are composed in test_docs.
    commands = [command for command in new_commands("gluoncv") if "=hf:" not in command]
    said = [run(workplace, command) for command in commands]
    assert len(said) == 3 and "arrays loaded from resnet18_v1.params" in said[1]
    assert re.search(r"cat|dog", said[2])


@pytest.mark.slow
def test_insightface(workplace: Path) -> None:
    write_faces(workplace / "faces_emore")
    # Its own commands are scripts of a repository, not of a package.
    said = [run(workplace, command) for command in new_commands("insightface")]
    assert len(said) == 3 and "verification_accuracy" in said[1]
    assert (workplace / "embeddings.jsonl").is_file()


@pytest.mark.slow
def test_sagemaker(workplace: Path) -> None:
    said = [run(workplace, command) for command in new_commands("sagemaker")]
    assert len(said) == 4 and "model.symbol=model.tar.gz" in said[0]
    (old,) = blocks("sagemaker", "python")
    compile(old, "sagemaker.md", "exec")  # not run: it needs an account
    assert "weights: 8 arrays loaded from model.tar.gz" in said[1]


@pytest.mark.slow
def test_leaving_for_pytorch(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    commands = new_commands("leaving-for-pytorch")
    assert len(commands) == 4
    for command in commands:
        run(workplace, command.replace("for=pytorch", "for=pytorch finetune_steps=1"))
    assert (workplace / "exported/weights/model.safetensors").is_file()
    assert (workplace / "exported/pytorch/proof.json").is_file()
    assert (workplace / "exported/photos/model.onnx").is_file()
    (prediction,) = re.findall("^python exported.*$", "".join(blocks("leaving-for-pytorch", "")), re.M)
    assert re.search("cat|dog", run(workplace, prediction))
    monkeypatch.chdir(workplace)
    network, x = gluon.nn.HybridSequential(), np.ones((1, 3, 32, 32), np.float32)
    network.add(gluon.nn.Dense(2))
    network.initialize()
    network.hybridize()
    network(mx.nd.array(x))
    network.export("photos")
    assert run_old_code("leaving-for-pytorch", x=x)["scores"].shape == (1, 2)
    _, new = blocks("leaving-for-pytorch", "python")
    (workplace / "use.py").write_text(f"{new}print(tuple(scores.shape))\n")
    assert "(1, 2)" in run(workplace, "python use.py")


@pytest.mark.slow
def test_estimator(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workplace)
    network = gluon.nn.Dense(2)
    network.initialize()
    data = gluon.data.ArrayDataset(np.ones((40, 8), np.float32), np.arange(40, dtype=np.float32) % 2)
    loaders = {name: gluon.data.DataLoader(data, 10) for name in ("train_loader", "val_loader")}
    assert run_old_code("estimator", net=network, **loaders)["fitter"].trainer.learning_rate == 1e-3
    _, new = blocks("estimator", "python")
    found: Dict[str, Any] = {}
    exec(compile(new, "estimator.md", "exec"), found)
    assert found["run"].state == "finished" and found["run"].metrics["val/accuracy"] > 0.6


def test_every_page_is_listed_and_tested() -> None:
    index = (PAGES / "README.md").read_text("utf-8")
    pages = {path.stem for path in PAGES.glob("*.md")} - {"README"}
    assert pages == set(re.findall(r"\]\(([a-z-]+)\.md\)", index))
    tests = Path(__file__).read_text("utf-8")
    # Weights of 440 MB, and data to download: tests/test_docs.py validates its commands, and the tests of BERT and of
    # translation compare files of GluonNLP.
    needs_download = {"gluonnlp"}
    assert {
        page for page in pages if f'new_commands("{page}")' in tests or f'blocks("{page}"' in tests
    } | needs_download == pages
