"""Proofs that must fail, weights outside of the file, a full disk, tokenizers as data files."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest
from small_runs import CASES
from test_export_contract import export, folder  # noqa: F401  # fixtures

import mxtrain
from mxtrain.errors import DataError, NotProven
from mxtrain.exporting import bundle, standalone
from mxtrain.exporting import folder as export_folder
from mxtrain.exporting.converters import CONVERTERS
from mxtrain.exporting.folder import check_folder
from mxtrain.exporting.standalone import rows_error
from mxtrain.files.new_folder import new_folder
from mxtrain.text.exported_texts import Vocabulary
from mxtrain.text.exported_vocabulary import vocabulary_facts
from mxtrain.text.tokenizing.config import TokenizerConfig
from mxtrain.text.tokenizing.library import train_bpe
from mxtrain.text.tokenizing.plain import train_characters, train_words
from mxtrain.text.tokenizing.wordpiece import train_wordpiece

OWN_CACHE = pytest.mark.usefixtures("own_cache")


@pytest.mark.slow
@OWN_CACHE
def test_a_wrong_step_or_a_wrong_order_is_refused(
    export: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    exported = export(*CASES["gpt"])
    run = mxtrain.load(exported.parent)
    proof = dict(standalone.read_arrays(str(exported)))
    assert any(name.startswith("step:3/output/scores") for name in proof)
    tampered = tmp_path / "tampered"
    shutil.copytree(exported, tampered)
    proof["step:3/output/scores"] = proof["step:3/output/scores"] * 1.01
    np.savez_compressed(tampered / "proof.npz", **proof)
    with pytest.raises(DataError, match=r"step\.scores"):
        check_folder(str(tampered))
    real = CONVERTERS["_mxtrain_attention_step"]
    monkeypatch.setitem(CONVERTERS, "_mxtrain_attention_step", lambda call: [*real(call)[:1], *real(call)[:0:-1]])
    with pytest.raises(NotProven, match="next_moving"):
        run.export(tmp_path / "wrong", limit_batches=1)
    assert not (tmp_path / "wrong").exists()


@pytest.mark.slow
@pytest.mark.zoo
@OWN_CACHE
def test_a_detector_with_a_wrong_operator_is_refused_however_its_rows_are_compared(
    export: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    exported = export(*CASES["ssd"])
    real = CONVERTERS["_contrib_box_nms"]

    def wrong(call: Any) -> Any:
        call.attrs = {**call.attrs, "overlap_thresh": "0.95"}
        return real(call)

    monkeypatch.setitem(CONVERTERS, "_contrib_box_nms", wrong)
    with pytest.raises(NotProven, match="_contrib_box_nms"):
        mxtrain.load(exported.parent).export(tmp_path / "wrong", limit_batches=1)


def test_rows_are_compared_in_any_order_and_only_a_share_may_differ() -> None:
    row_BND = np.random.default_rng(0).normal(size=(2, 10, 3)).astype(np.float32)
    shuffled = row_BND[:, ::-1].copy()
    assert rows_error(shuffled, row_BND, 1.0) == 0
    shuffled[:, :4] = 100
    assert rows_error(shuffled, row_BND, 0.5) == 0 and rows_error(shuffled, row_BND, 0.7) > 0.01


@pytest.mark.slow
@OWN_CACHE
def test_large_weights_are_outside_of_the_file_and_are_needed(
    export: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(export_folder, "MAX_INSIDE", 20_000)
    exported = export("model=mlp", "model.hidden=[512]")
    weights = exported / "model.onnx.data"
    assert weights.stat().st_size > 64 * 512 * 4 and (exported / "model.onnx").stat().st_size < 20_000
    content = weights.read_bytes()
    weights.write_bytes(bytes(len(content)))
    with pytest.raises(DataError, match="differ from MXNet's"):
        check_folder(str(exported))
    weights.unlink()
    monkeypatch.chdir(weights.parent.parent)  # of another folder they are not taken
    Path(weights.name).write_bytes(content)
    with pytest.raises(DataError, match="model.onnx.data is missing, in which model.onnx has its weights"):
        check_folder(str(exported))


def test_full_disk_is_reported_with_advice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*arguments: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(export_folder, "replace_file", full)
    with pytest.raises(DataError, match=r"No space left on device\. .* bytes left\. Name a folder on another disk"):
        export_folder.write_texts(tmp_path, {"task": "", "inputs": []}, _REPORT, {}, {}, {})


def test_given_card_and_program_replace_ours(tmp_path: Path) -> None:
    given = {"README.md": b"card", "predict.py": b"program", "words.json": b"{}"}
    export_folder.write_texts(tmp_path, {"task": "", "inputs": []}, _REPORT, given, {}, {})
    assert {name: (tmp_path / name).read_bytes() for name in given} == given
    assert [name for name in given if os.access(tmp_path / name, os.X_OK)] == ["predict.py"]


_REPORT = {
    "model": "x",
    "dataset": "y",
    "step": 1,
    "versions": {"mxtrain": "1"},
    "errors": {},
    "metrics": {},
    "evaluated": "",
}
TEXTS = ["The quick brown Fox jumps", "over  the\tlazy dög.", "ΣΑΣ İstanbul", "one\x1ctwo three", "x" * 40, "", "  "]


class _Folder:
    def __init__(self, facts: Any, files: Any):
        self.signature, self.read = {"facts": {"tokenizer": facts}}, files.__getitem__


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("kind", ["words", "characters", "wordpiece", "bpe"])
def test_tokenizers_are_the_same_as_data_files(kind: str, lowercase: bool) -> None:
    learned = TEXTS[:3] * 3
    tokenizer = {
        "words": lambda: train_words(learned, 100, lowercase),
        "characters": lambda: train_characters(learned, 60, lowercase),
        "wordpiece": lambda: train_wordpiece(learned, 120, lowercase),
        "bpe": lambda: train_bpe(learned, 300, lowercase, False),
    }[kind]()
    facts, files = vocabulary_facts(TokenizerConfig(tokenizer, 16), "tokenizer")
    found = Vocabulary(_Folder(json.loads(json.dumps(facts)), files))  # type: ignore[arg-type]
    for text in TEXTS:
        assert found.encode(text) == tokenizer.tokens(text), text
        assert found.decode(tokenizer.tokens(text)) == tokenizer.decode(tokenizer.tokens(text))


@pytest.mark.parametrize(
    "entry",
    [
        "mxtrain.text.exported_texts",
        "mxtrain.vision.exported_images",
        "mxtrain.vision.video.exported_videos",
        "mxtrain.speech.exported_speech",
        "mxtrain.speech.exported_clips",
        "mxtrain.data.features.exported_rows",
        "mxtrain.recommendation.exported_users",
    ],
)
def test_bundled_modules_do_not_import_mxtrain(entry: str) -> None:
    files = bundle.bundled(entry)
    assert f"{entry.rpartition('.')[2]}.py" in files
    for name, content in files.items():
        allowed = {"numpy", "__future__", "codecs", "contextlib", "contextvars", "dataclasses", "pathlib", "typing"}
        for line in content.decode().split("\n"):
            if line.startswith(("import mxtrain", "from mxtrain")):
                raise AssertionError(f"{name}: {line}")
            if line.startswith("from ") and not line.startswith("from ."):
                assert line.split()[1].partition(".")[0] in allowed, f"{name}: {line}"


def test_full_disk_in_a_new_folder_is_reported_with_advice(tmp_path: Path) -> None:
    with (
        pytest.raises(DataError, match=r"cannot be written: No space left on device\. .* bytes left\. Name a folder"),
        new_folder(tmp_path / "out"),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    with (
        pytest.raises(DataError, match=r"cannot be written: Disk quota exceeded\. .* bytes left\. Name a folder"),
        new_folder(tmp_path / "out") as draft,
    ):
        raise OSError(errno.EDQUOT, "Disk quota exceeded", draft / "model.py")
    elsewhere = OSError(errno.ENOSPC, "No space left on device", "/elsewhere")
    for other in (elsewhere, OSError(errno.EIO, "Input/output error")):
        with pytest.raises(OSError) as caught, new_folder(tmp_path / "out"):
            raise other
        assert caught.value is other
    assert list(tmp_path.iterdir()) == []
