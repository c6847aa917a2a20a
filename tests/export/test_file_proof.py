"""The proof of an export reads files, and `predict.py` takes folders."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, Tuple

import numpy as np
import pytest
from PIL import Image
from test_exported_readers import write_wav
from test_one_reader_of_images import FILES, signature_of

from mxtrain.data.checking.checks import SubsetChecks
from mxtrain.data.checking.problems import DataPlace
from mxtrain.data.corpus.shards import Ragged
from mxtrain.data.features.feature_columns import FeatureColumns
from mxtrain.data.features.feature_rows import FeatureEncoder, FeatureRows
from mxtrain.data.features.feature_store import FeatureLayout, ReadColumn, open_store
from mxtrain.export import file_proof, standalone
from mxtrain.export.file_proof import prove_files
from mxtrain.export.proof import NotProven, Sampled
from mxtrain.speech.alphabet import Alphabet
from mxtrain.speech.features import Features
from mxtrain.speech.prepared import Recordings, compute_utterance
from mxtrain.speech.utterances import Utterance
from mxtrain.vision.images import pixels
from mxtrain.vision.images.decoding import DecodedSource
from mxtrain.vision.images.files import ImageFiles
from mxtrain.vision.images.settings import Decoding

IMAGES, ROWS = "mxtrain.vision.exported_images", "mxtrain.data.features.exported_rows"
SPEECH = "mxtrain.speech.exported_speech"


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps prepared rows apart from those of the user."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def image_case(folder: Path, **more: Any) -> Tuple[str, Dict[str, Any], Any, Sampled, Dict[str, np.ndarray]]:
    """Reader, signature, source, first batch, inputs of the exported network."""
    names = ("a large JPEG", "a palette", "orientation 6", "PNG", "alpha", "GIF")
    paths = [folder / f"{number}.bin" for number in range(len(names))]
    for path, name in zip(paths, names):
        path.write_bytes(FILES[name]())
    decoding = Decoding((3, 24, 20), 0.875)
    source = DecodedSource(ImageFiles(list(map(str, paths))), decoding)
    index_B = np.array([0, 2, 1, 3, 4, 5])
    image_BCHW, _ = source.fetch(index_B, seed=0, epoch=0, train=False)
    return IMAGES, signature_of(decoding, "uint8", **more), source, Sampled([], [], index_B), {"input": image_BCHW}


def speech_case(folder: Path) -> Tuple[str, Dict[str, Any], Any, Sampled, Dict[str, np.ndarray]]:
    """A manifest of a recording, of its beginning, of its end, and of nothing; taken in another order."""
    path, features = folder / "tone.wav", Features(sample_rate=8000, num_mels=16)
    write_wav(path, 8000, 1, 2)
    utterances = [
        Utterance(file, "a", DataPlace(str(path), line), begin_s, duration_s) for line, (file, begin_s, duration_s) in
        enumerate(((str(path), 0.0, None), (str(path), 0.0, 0.5), (str(path), 0.5, None), ("", 0.0, None)), start=1)
    ]  # fmt: skip
    frames = [compute_utterance(one, features).frames_TF for one in utterances[:3]]
    begin = np.cumsum([0, *map(len, frames)])
    feature = Ragged(np.concatenate(frames), begin)
    recordings = Recordings(utterances, feature, np.array([0, 1, 2, 2]), Alphabet(["a"]))
    frame_BTF = np.zeros((4, 128, 16), np.float32)
    for row, index in enumerate((3, 2, 1, 0)):
        own_TF = recordings.read(index, seed=0, epoch=0, train=False)
        frame_BTF[row, : len(own_TF)] = own_TF
    inputs = [{"name": "input0", "shape": ["batch", "time", 16], "dtype": "float32"}]
    signature = {"task": "speech_recognition", "signature": {"audio": features.model_dump()}, "inputs": inputs}
    source = SimpleNamespace(checks=lambda: SubsetChecks(recordings.checks(), np.array([3, 2, 1, 0])))
    return SPEECH, signature, source, Sampled([], [], np.arange(4)), {"input0": frame_BTF}


def table_case(folder: Path, ending: str) -> Tuple[str, Dict[str, Any], Any, Sampled, Dict[str, np.ndarray]]:
    rows = [("Ulm", True, 1.5), ("Bonn", False, 2.0), ("Ulm", True, -3.0)]
    path = folder / f"rows{ending}"
    if ending == ".jsonl":
        path.write_text("".join(json.dumps(dict(zip(("town", "vip", "age"), row))) + "\n" for row in rows))
    else:
        mark = "," if ending == ".csv" else "\t"
        path.write_text("\n".join(mark.join(map(str, row)) for row in [("town", "vip", "age"), *rows]) + "\n")
    columns = FeatureColumns.from_json([
        {"name": "town", "kind": "category", "vocabulary": ["Ulm", "Bonn"]},
        {"name": "vip", "kind": "category", "vocabulary": ["true", "false"]},
        {"name": "age", "kind": "number", "std": 2.0},
    ])  # fmt: skip
    read = tuple(ReadColumn(column.name, column.kind, column.name) for column in columns.columns)
    source = FeatureRows([open_store(str(path), FeatureLayout(read, None, ("0", "1"), ("", "NA")))])
    ids, numbers = FeatureEncoder(columns)(source, np.arange(3))
    signature = {"task": "tabular", "facts": {}, "signature": {"columns": columns.to_json()},
                 "inputs": [{"name": "input0", "dtype": "int32"}, {"name": "input1", "dtype": "float32"}]}  # fmt: skip
    return ROWS, signature, source, Sampled([], [], np.arange(3)), {"input0": ids, "input1": numbers}


def test_files_of_samples_are_read_again(tmp_path: Path) -> None:
    case = image_case(tmp_path)
    assert prove_files(*case) == (file_proof.NUM_FILES, 0.0)
    assert prove_files(*image_case(tmp_path, task="pose_estimation")) == (0, 0.0)
    reader, signature, source, _, entered = case
    assert prove_files(reader, signature, source, Sampled([], []), entered) == (0, 0.0), "unknown indices"
    assert prove_files("mxtrain.text.exported_texts", *case[1:]) == (0, 0.0), "no reader of single inputs"


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".jsonl"])
def test_lines_of_tables_are_read_again(ending: str, tmp_path: Path) -> None:
    reader, signature, source, sampled, entered = table_case(tmp_path, ending)
    assert prove_files(reader, signature, source, sampled, entered) == (3, 0.0)
    entered["input0"][1, 0] += 1
    with pytest.raises(NotProven, match=rf"predict.py reads .*\{ending}, line \d differently from the run: input0 by"):
        prove_files(reader, signature, source, sampled, entered)


def test_whole_recordings_of_a_manifest_are_read_again(tmp_path: Path) -> None:
    reader, signature, source, sampled, entered = speech_case(tmp_path)
    count, error = prove_files(reader, signature, source, sampled, entered)
    assert (count, error) == (1, 0.0)
    assert [str(source.checks().place(index))[-6:] for index in range(4)] == ["line 4", "line 3", "line 2", "line 1"]
    frame_TF = entered["input0"][3, :90]  # the rest is padding
    step, place = 2.0**-10 * np.abs(frame_TF).max(), np.unravel_index(np.abs(frame_TF).argmin(), frame_TF.shape)
    frame_TF[place] += step  # of float16
    with pytest.raises(NotProven, match=r"predict.py reads '.*tone.wav' differently from the run: input0 by"):
        prove_files(reader, signature, source, sampled, entered)


def test_files_that_are_too_large_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, images = table_case(tmp_path, ".csv"), image_case(tmp_path)
    monkeypatch.setattr(file_proof, "MAX_LINE_FILE", (tmp_path / "rows.csv").stat().st_size)
    monkeypatch.setattr(file_proof, "MAX_GIVEN_BYTES", (tmp_path / "0.bin").stat().st_size - 1)
    assert prove_files(*table) == (3, 0.0) and prove_files(*images) == (3, 0.0)
    monkeypatch.setattr(file_proof, "MAX_LINE_FILE", file_proof.MAX_LINE_FILE - 1)
    assert prove_files(*table) == (0, 0.0)


def test_another_scale_of_the_decoder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault that the proof by arrays did not find."""
    case = image_case(tmp_path)
    monkeypatch.setattr(pixels, "_draft", lambda image, mode, box, target: (image, box))
    with pytest.raises(NotProven, match=r"predict.py reads '.*0.bin' differently from the run: input by \d"):
        prove_files(*case)


def test_a_refused_file_is_found(tmp_path: Path) -> None:
    case = image_case(tmp_path)
    (tmp_path / "2.bin").write_bytes(b"no image")
    with pytest.raises(NotProven, match=r"predict.py does not read '.*2.bin', which the run reads: .*cannot be"):
        prove_files(*case)


def test_padding_of_a_batch_is_ignored_and_shapes_are_compared() -> None:
    found, padded = np.ones((1, 3, 2), np.float32), np.zeros((5, 2), np.float32)
    padded[:3] = 1
    assert file_proof._errors({"x": found}, {"x": padded}) == {"x": 0.0}
    assert file_proof._errors({"x": found}, {"x": padded[:2]}) == {"x": float("inf")}
    assert file_proof._errors({"x": found}, {"y": padded}) == {"y": float("inf")}
    assert file_proof._errors({"x": found}, {"x": padded[0]}) == {"x": float("inf")}


def test_predict_py_takes_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b/2.PNG", "b/1.jpg", "a/x.txt", ".hidden/3.png", "b/.4.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    single = str(tmp_path / "a" / "x.txt")
    found = standalone.files_of([single, str(tmp_path)], (".png", ".jpg"))
    assert found == [single, str(tmp_path / "b" / "1.jpg"), str(tmp_path / "b" / "2.PNG")]
    assert standalone.files_of([str(tmp_path)], ()) == [str(tmp_path)]
    with pytest.raises(ValueError, match="a holds no file that this folder reads: none ends in .png, .jpg"):
        standalone.files_of([str(tmp_path / "a")], (".png", ".jpg"))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_goes_to_a_terminal_that_gets_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    for stdout, total, expected in ((io.StringIO(), 2, "\r1 of 2 files"), (io.StringIO(), 1, ""), (Terminal(), 2, "")):
        stderr = Terminal()
        monkeypatch.setattr("sys.stdout", stdout)
        monkeypatch.setattr("sys.stderr", stderr)
        standalone.show_progress(1, total)
        assert stderr.getvalue() == expected


def test_folder_predicts_for_the_images_of_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from served_folders import write_pixels

    from mxtrain.vision import exported_images

    folder = write_pixels(tmp_path / "export", reader="exported_images")
    monkeypatch.setattr(standalone.importlib, "import_module", lambda name: exported_images)
    (tmp_path / "photos").mkdir()
    for number in range(3):
        Image.fromarray(np.full((9, 9), 80 * number, np.uint8)).save(tmp_path / "photos" / f"{number}.png")
    assert standalone.main([str(tmp_path / "photos")], str(folder)) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [Path(row["file"]).name for row in rows] == ["0.png", "1.png", "2.png"]
