"""Every network of a quantized folder is quantized: the encoder and the step, with which texts are written, as well."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Callable, Dict, List

import numpy as np
import onnx
import onnxruntime
import pytest
import running
import sacrebleu
from onnx import numpy_helper
from small_runs import CASES, SHORT, with_data, write_data

from mxtrain.cli.dispatch import run
from mxtrain.exporting import compression, quantize, standalone
from mxtrain.text.exported_texts import predict

Arrays = Dict[str, np.ndarray]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_cache")]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_data(folder)
    words = [f"w{number}" for number in range(20)] * 2
    for language, first in (("en", "one"), ("de", "eins")):
        lines = [" ".join([first, *words[row % 20 :][:5]]) for row in range(100)]
        (folder / f"train.{language}").write_text("\n".join(lines[:80]) + "\n")
        (folder / f"val.{language}").write_text("\n".join(lines[80:90]) + "\n")
    return folder


@pytest.fixture
def trained(data: Path, tmp_path: Path) -> Callable[..., Path]:
    """Overrides -> a trained run."""

    def make(*words: str) -> Path:
        running.train_here(tmp_path / "run", "dataset.eval_batch_size=1", *with_data(words, data))
        return tmp_path / "run"

    return make


def direct(path: Path) -> Any:
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def operators(path: Path) -> List[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


def require_all_files(out: Path, form: str) -> Dict[str, Any]:
    """The comparison of a folder, whose sizes are those of all its networks."""
    found: Dict[str, Any] = json.loads((out / "export.json").read_text())["compression"]
    sizes = {path.name: path.stat().st_size for path in out.glob("*.onnx")}
    assert len(sizes) > 1 and found["files"][form] == sizes and found["bytes"][form] == sum(sizes.values())
    assert all(size < found["files"]["float32"][name] for name, size in sizes.items() if name != "model.onnx")
    assert "files, MB" in (out / "README.md").read_text()
    return found


@pytest.mark.parametrize(
    "name, form",
    [
        ("gpt", "int8"),
        pytest.param("lstm", "int8", marks=pytest.mark.zoo),
        pytest.param("gpt", "float16", marks=pytest.mark.zoo),
        pytest.param("lstm", "bfloat16", marks=pytest.mark.zoo),
    ],
)
def test_step_of_a_language_model(
    trained: Callable[..., Path], tmp_path: Path, name: str, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir, out = trained(*SHORT, *CASES[name], "task.temperature=0", "model.units=32"), tmp_path / "out"
    assert run(["export", str(run_dir), f"out={out}", f"quantize={form}", "limit_batches=1", "max_loss=1"]) == 0
    found = require_all_files(out, form)
    if form == "int8":
        assert "MatMulInteger" in operators(out / "step.onnx")
        assert "step.onnx, dynamic: " in capsys.readouterr().out
    else:
        kind = {"float16": onnx.TensorProto.FLOAT16, "bfloat16": onnx.TensorProto.BFLOAT16}[form]
        assert kind in {one.data_type for one in onnx.load(out / "step.onnx").graph.initializer}
    assert 1e-7 < found["errors"]["step.scores"] < 0.1
    assert run(["export", "check", str(out)]) == 0
    with np.load(out / "proof.npz") as proof:
        arrays = dict(proof)
    arrays["step:3/output/scores"] = arrays["step:3/output/scores"] * 1.2
    np.savez(out / "broken.npz", **arrays)
    (out / "broken.npz").rename(out / "proof.npz")
    assert run(["export", "check", str(out)]) == 2
    # The continuation of the folder is that of its step.onnx, run by onnxruntime alone, token by token.
    opened = standalone.OpenedExport(str(out))
    (row,) = predict(opened, b"one two three\n", "texts.txt")
    assert row["continuation"] == greedy(out, "one two three")


def greedy(out: Path, text: str) -> str:
    import tokenizers

    facts = json.loads((out / "signature.json").read_text())["facts"]
    library = tokenizers.Tokenizer.from_file(str(out / "tokenizer.json"))
    tokens, count = library.encode(text, add_special_tokens=False).ids, facts["new_tokens"]
    session, written = direct(out / "step.onnx"), []
    inputs = {
        one.name: np.zeros([{"batch": 1, "past": 0}.get(size, size) for size in one.shape], np.float32)
        for one in session.get_inputs()
    }
    names = [one.name for one in session.get_outputs()]
    for place in range(len(tokens) + count - 1):
        inputs["token"] = np.array([tokens[place]], np.int32)
        if "place" in inputs:
            inputs["place"] = np.array([place], np.float32)
        outputs = dict(zip(names, session.run(names, inputs)))
        inputs.update({key[5:]: array for key, array in outputs.items() if key.startswith("next_")})
        if place + 1 >= len(tokens):
            token = int(outputs["scores"][0].argmax())
            if token == facts["tokenizer"]["eos"]:
                break
            tokens.append(token)
            written.append(token)
    kept = [token for token in written if token not in facts["tokenizer"]["special"]]
    return str(library.decode(kept, skip_special_tokens=False))


LEARNING = (
    "trainer.test=false",
    "trainer.limit_val_batches=1",
    "trainer.max_epochs=6",
    "optimizer.lr=0.02",
    "dataset.train=FOLDER/train",
    "dataset.val=FOLDER/val",
)


def words_of_pairs() -> List[str]:
    return [word for word in CASES["transformer"] if "val_fraction" not in word and "dataset.train" not in word]


def test_bleu_uses_the_quantized_encoder_and_step(
    trained: Callable[..., Path],
    tmp_path: Path,
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_dir, out = trained(*words_of_pairs(), *LEARNING), tmp_path / "out"
    words = ["export", str(run_dir), "split=val", "quantize=int8", "limit_batches=100"]
    assert run([*words, f"out={out}", "max_loss=50"]) == 0, capsys.readouterr().err
    found = require_all_files(out, "int8")
    assert set(found["files"]["int8"]) == {"model.onnx", "encoder.onnx", "step.onnx"}
    assert all("MatMulInteger" in operators(out / name) for name in found["files"]["int8"])
    rows = predict(standalone.OpenedExport(str(out)), (data / "val.en").read_bytes(), "val.en")
    translations = [row["translation"] for row in rows]
    references = (data / "val.de").read_text().splitlines()
    bleu = sacrebleu.corpus_bleu(translations, [references]).score
    assert found["metric"]["name"] == "bleu" and bleu > 1
    assert found["metric"]["int8"] == pytest.approx(bleu, abs=1e-4)
    capsys.readouterr()

    real = quantize.quantize_int8

    def break_step(source: Path, target: Path, samples: Any, is_part: bool = False) -> quantize.Way:
        way = real(source, target, samples, is_part)
        if target.name == "step.onnx":
            model = onnx.load(target)
            for tensor in model.graph.initializer:
                if tensor.name.endswith("_scale"):
                    tensor.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(tensor), tensor.name))
            quantize.save_plain(model, target)
        return way

    monkeypatch.setattr(compression.quantize, "quantize_int8", break_step)
    assert run([*words, f"out={tmp_path / 'worse'}", "max_loss=0.1"]) == 1
    assert "bleu is " in capsys.readouterr().err and not (tmp_path / "worse").exists()

    def cut_step(source: Path, target: Path, samples: Any, is_part: bool = False) -> quantize.Way:
        way = real(source, target, samples, is_part)
        if target.name == "step.onnx":
            model = onnx.load(target)
            model.graph.output.pop()
            quantize.save_plain(model, target)
        return way

    monkeypatch.setattr(compression.quantize, "quantize_int8", cut_step)
    assert run([*words, f"out={tmp_path / 'other'}", "max_loss=0.1"]) == 2
    said = capsys.readouterr().err
    assert "quantize=int8: step.onnx has another output in this form: next_moving1 has the shape None" in said
    assert "quantize=float16" in said and not list(tmp_path.glob("*other*"))
