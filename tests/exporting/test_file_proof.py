"""The proof of an export reads files, and `predict.py` takes folders."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, Tuple

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image
from served_folders import write_pixels
from test_exported_readers import write_wav
from test_one_reader_of_images import FILES, signature_of

from mxtrain.data.checking.checks import SubsetChecks
from mxtrain.data.checking.problems import DataLocation
from mxtrain.data.corpus.shards import Ragged
from mxtrain.data.features import exported_rows
from mxtrain.data.features.feature_columns import FeatureColumns
from mxtrain.data.features.feature_rows import FeatureEncoder, FeatureRows
from mxtrain.data.features.feature_store import FeatureLayout, ReadColumn, open_store
from mxtrain.errors import DataError, NotProven
from mxtrain.exporting import file_proof, standalone
from mxtrain.exporting import folder as export_folder
from mxtrain.exporting.file_proof import prove_files
from mxtrain.exporting.folder import check_folder, write_proof_files
from mxtrain.exporting.proof import Sampled
from mxtrain.speech.alphabet import Alphabet
from mxtrain.speech.features import Features
from mxtrain.speech.prepared import Recordings, compute_utterance
from mxtrain.speech.utterances import Utterance
from mxtrain.vision import exported_images
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


Case = Tuple[str, standalone.UnrunExport, Any, Sampled, Dict[str, np.ndarray]]
"""Reader, folder, source, first batch, inputs of the exported network."""


def unwritten(signature: Dict[str, Any]) -> standalone.UnrunExport:
    return standalone.UnrunExport(signature, {}.__getitem__, lambda name: {})


def image_case(folder: Path, **more: Any) -> Case:
    names = ("a large JPEG", "a palette", "orientation 6", "PNG", "alpha", "GIF")
    paths = [folder / f"{number}.bin" for number in range(len(names))]
    for path, name in zip(paths, names):
        path.write_bytes(FILES[name]())
    decoding = Decoding((3, 24, 20), 0.875)
    source = DecodedSource(ImageFiles(list(map(str, paths))), decoding)
    index_B = np.array([0, 2, 1, 3, 4, 5])
    image_BCHW, _ = source.fetch(index_B, seed=0, epoch=0, train=False)
    folder_of = unwritten(signature_of(decoding, "uint8", **more))
    return IMAGES, folder_of, source, Sampled([], [], index_B), {"input": image_BCHW}


def speech_case(folder: Path) -> Case:
    """A manifest of a recording, of its beginning, of its end, and of nothing; taken in another order."""
    path, features = folder / "tone.wav", Features(sample_rate=8000, num_mels=16)
    write_wav(path, 8000, 1, 2)
    utterances = [
        Utterance(file, "a", DataLocation(str(path), line), begin_s, duration_s)
        for line, (file, begin_s, duration_s) in enumerate(
            ((str(path), 0.0, None), (str(path), 0.0, 0.5), (str(path), 0.5, None), ("", 0.0, None)), start=1
        )
    ]
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
    return SPEECH, unwritten(signature), source, Sampled([], [], np.arange(4)), {"input0": frame_BTF}


def table_case(folder: Path, ending: str) -> Case:
    rows = [("Ulm", True, 1.5), ("Bonn", False, 2.0), ("Ulm", True, -3.0)]
    path = folder / f"rows{ending}"
    if ending == ".jsonl":
        path.write_text("".join(json.dumps(dict(zip(("town", "vip", "age"), row))) + "\n" for row in rows))
    else:
        mark = "," if ending == ".csv" else "\t"
        path.write_text("\n".join(mark.join(map(str, row)) for row in [("town", "vip", "age"), *rows]) + "\n")
    columns = FeatureColumns.from_json(
        [
            {"name": "town", "kind": "category", "vocabulary": ["Ulm", "Bonn"]},
            {"name": "vip", "kind": "category", "vocabulary": ["true", "false"]},
            {"name": "age", "kind": "number", "std": 2.0},
        ]
    )
    read = tuple(ReadColumn(column.name, column.kind, column.name) for column in columns.columns)
    source = FeatureRows([open_store(str(path), FeatureLayout(read, None, ("0", "1"), ("", "NA")))])
    ids, numbers = FeatureEncoder(columns)(source, np.arange(3))
    signature = {
        "task": "tabular",
        "facts": {},
        "signature": {"columns": columns.to_json()},
        "inputs": [{"name": "input0", "dtype": "int32"}, {"name": "input1", "dtype": "float32"}],
    }
    return ROWS, unwritten(signature), source, Sampled([], [], np.arange(3)), {"input0": ids, "input1": numbers}


def test_files_of_samples_are_read_again(tmp_path: Path) -> None:
    case = image_case(tmp_path)
    assert prove_files(*case) == (file_proof.NUM_FILES, 0.0)
    assert prove_files(*image_case(tmp_path, task="pose_estimation")) == (0, 0.0)
    reader, signature, source, _, entered = case
    assert prove_files(reader, signature, source, Sampled([], []), entered) == (0, 0.0), "unknown indices"
    assert prove_files("mxtrain.recommendation.exported_users", *case[1:]) == (0, 0.0), "no reader of single inputs"


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".jsonl"])
def test_lines_of_tables_are_read_again(ending: str, tmp_path: Path) -> None:
    reader, signature, source, sampled, entered = table_case(tmp_path, ending)
    assert prove_files(reader, signature, source, sampled, entered) == (3, 0.0)
    entered["input0"][1, 0] += 1
    with pytest.raises(NotProven, match=rf"predict.py reads .*\{ending}, line \d differently from the run: input0 by"):
        prove_files(reader, signature, source, sampled, entered)


@pytest.mark.parametrize(
    "before, quote", [("", '"'), ("sep=,\n", ""), ("\n \n", ""), ("\ufeff", '"'), ("\ufeffsep=,\n", "")]
)
def test_rows_of_tables_are_found(before: str, quote: str, tmp_path: Path) -> None:
    reader, folder, source, sampled, entered = table_case(tmp_path, ".csv")
    header, *rows = (tmp_path / "rows.csv").read_text().splitlines()
    quoted = "\n".join([header, *(f"{quote}{row.partition(',')[0]}{quote},{row.partition(',')[2]}" for row in rows)])
    path = tmp_path / "given.csv"
    path.write_text(f"{before}{quoted}\n")
    first = before.count("\n") + 2
    places = [DataLocation(str(path), first + number) for number in range(3)]
    given = SimpleNamespace(checks=lambda: SimpleNamespace(location=lambda index: places[index]))
    assert prove_files(reader, folder, given, sampled, entered) == (3, 0.0)


def test_rows_of_several_lines_are_left_out(tmp_path: Path) -> None:
    reader, folder, source, sampled, entered = table_case(tmp_path, ".csv")
    (tmp_path / "rows.csv").write_text('town,vip,age\n"Ulm\n",True,1.5\n"Bo""nn",False,2\nUlm,True,-3\n')
    places = [DataLocation(str(tmp_path / "rows.csv"), line) for line in (3, 5, 5)]
    given = SimpleNamespace(checks=lambda: SimpleNamespace(location=lambda index: places[index]))
    split = tmp_path / "split.csv"
    split.write_text('town,vip,"age\n"\nUlm,True,1.5\n')
    header = SimpleNamespace(checks=lambda: SimpleNamespace(location=lambda index: DataLocation(str(split), 3)))
    assert prove_files(reader, folder, header, sampled, entered) == (0, 0.0)
    index_B = np.array([0, 2])
    assert prove_files(reader, folder, given, Sampled([], [], index_B), {k: v[[0, 2]] for k, v in entered.items()}) == (
        1,
        0.0,
    )


def test_rows_of_parquet_are_read_again(tmp_path: Path) -> None:
    reader, folder, _, sampled, entered = table_case(tmp_path, ".csv")
    path = tmp_path / "rows.parquet"
    rows = {"town": ["Ulm", "Bonn", "Ulm"], "vip": [True, False, True], "age": [1.5, 2.0, -3.0]}
    pyarrow.parquet.write_table(pyarrow.table(rows), path, row_group_size=2)
    places = [DataLocation(str(path), record=number) for number in range(3)]
    source = SimpleNamespace(checks=lambda: SimpleNamespace(location=lambda index: places[index]))
    assert prove_files(reader, folder, source, sampled, entered) == (3, 0.0)
    places[1], places[2] = places[2], DataLocation(str(tmp_path / "rows.csv"), record=2)  # records of no table
    with pytest.raises(NotProven, match="record 2 of '.*rows.parquet' differently from the run: input0 by"):
        prove_files(reader, folder, source, sampled, entered)
    assert prove_files(reader, folder, source, Sampled([], [], np.array([0, 2])), entered)[0] == 1


def proof_folder(place: Path) -> Path:
    """An export with files of the proof."""
    folder = write_pixels(place, reader="exported_images")
    found = unwritten(standalone.read_signature(str(folder)))
    cases = [
        (name, content, {"input": exported_images.inputs_of_file(found, content, name)["input"][0]})  # type: ignore
        for name, content in exported_images.examples(found.signature)
    ]
    write_proof_files(folder, cases)
    return folder


def test_files_of_the_proof_are_read_by_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = proof_folder(tmp_path / "export")
    assert exported_images.MAX_INPUT_ERROR * 256 == 4, "as documented"
    write_proof_files(tmp_path, [])
    assert not (tmp_path / standalone.PROOF_FILES).exists()
    errors = check_folder(str(folder))
    assert errors["reading proof.png"] == errors["reading proof.jpg"] == 0.0
    assert standalone.check(str(folder), lambda signature: exported_images) == errors
    assert set(errors) - set(standalone.check(str(folder))) == {"reading proof.png", "reading proof.jpg"}
    monkeypatch.setattr(pixels, "_draft", lambda image, mode, box, target: (image, box))
    with pytest.raises(DataError, match=r"proof.jpg of proof_files.npz is read differently from the run, by \d"):
        check_folder(str(folder))


def test_check_names_a_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = proof_folder(tmp_path / "export")

    def refuse(*_: Any) -> None:
        raise ImportError("No module named 'PIL'", name="PIL")

    monkeypatch.setattr(exported_images, "predict", refuse)
    with pytest.raises(DataError, match="export check needs the package PIL"):
        check_folder(str(folder))


def test_levels_of_another_decoder_are_allowed(tmp_path: Path) -> None:
    folder = proof_folder(tmp_path / "export")
    arrays = standalone.read_arrays(str(folder), standalone.PROOF_FILES)
    limit = int(arrays["1/input/input"].max() * exported_images.MAX_INPUT_ERROR)
    for levels in (limit, limit + 1):
        changed = arrays["1/input/input"].copy()
        changed.flat[changed.argmin()] += levels
        np.savez(folder / standalone.PROOF_FILES, **{**arrays, "1/input/input": changed})
        if levels == limit:
            assert 0 < check_folder(str(folder))["reading proof.jpg"] <= exported_images.MAX_INPUT_ERROR
            continue
        with pytest.raises(DataError, match="is read differently"):
            check_folder(str(folder))


BAD: Dict[str, Dict[str, np.ndarray]] = {
    "which is no array of a proof": {"0/other/x": np.zeros(2)},
    "0/file/x.png, which is no": {"0/file/x.png": np.array(["a"])},
    "x.png of proof_files.npz cannot be read: x.png cannot": {"0/file/x.png": np.zeros(9, np.uint8)},
    "holds Parquet": {"0/file/x": np.frombuffer(b"PAR1 PAR1", np.uint8)},
    "differently from the run, by inf": {
        "0/file/proof.png": np.frombuffer(
            exported_images.examples({"signature": {"shape": [1, 4, 4], "decoding": {"shape": [1, 4, 4]}}})[0][1],
            np.uint8,
        )
    },
}


@pytest.mark.parametrize("said", BAD)
def test_files_of_unknown_origin_are_refused(said: str, tmp_path: Path) -> None:
    folder = proof_folder(tmp_path / "export")
    np.savez(folder / standalone.PROOF_FILES, **BAD[said])
    with pytest.raises(DataError, match=said):
        check_folder(str(folder))
    (folder / standalone.PROOF_FILES).unlink()
    assert "output" in check_folder(str(folder))


@pytest.mark.parametrize("reader", ["", "exported_nothing", "pixels", "exported_*", "../exported_images"])
def test_only_our_own_readers_read_for_check(reader: str) -> None:
    assert export_folder._own_reader({"reader": reader}) is None
    assert export_folder._own_reader({"reader": "exported_rows"}).predict is exported_rows.predict


def test_files_read_differently_by_predict_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, nothing = unwritten(standalone.read_signature(str(write_pixels(tmp_path / "export")))), SimpleNamespace()
    read: Dict[str, Dict[str, np.ndarray]] = {}
    for name, content in exported_images.examples(folder.signature):
        read[name] = {"input": exported_images.inputs_of_file(folder, content, name)["input"][0]}  # type: ignore
    monkeypatch.setattr(file_proof, "_inputs_of_run", lambda trained, network, name, content: read[name])
    cases = file_proof.prove_examples(IMAGES, folder, nothing, nothing)  # type: ignore[arg-type]
    assert [name for name, _, _ in cases] == ["proof.png", "proof.jpg"]
    np.testing.assert_array_equal(cases[1][2]["input"], read["proof.jpg"]["input"])
    read["proof.jpg"] = {"input": read["proof.jpg"]["input"] ^ 1}
    with pytest.raises(NotProven, match="predict.py reads proof.jpg of the proof differently from `predict`: input by"):
        file_proof.prove_examples(IMAGES, folder, nothing, nothing)  # type: ignore[arg-type]
    read["proof.jpg"] = {}  # `predict` reads no such files
    assert len(file_proof.prove_examples(IMAGES, folder, nothing, nothing)) == 1  # type: ignore[arg-type]
    assert file_proof.prove_examples("mxtrain.recommendation.exported_users", folder, nothing, nothing) == []  # type: ignore


def test_first_inputs_match_the_network_itself() -> None:
    def predict(folder: Any, content: bytes, name: str) -> Any:
        yield folder.run({"x": np.ones(1)}, content.decode())

    reader = SimpleNamespace(predict=predict)
    assert standalone.first_inputs(reader, unwritten({}), b"", "x") == {"x": np.ones(1)}
    assert standalone.first_inputs(reader, unwritten({}), b"step", "x") == {}
    assert standalone.first_inputs(SimpleNamespace(predict=lambda *_: []), unwritten({}), b"", "x") == {}


def test_complete_recordings_of_a_manifest_are_read_again(tmp_path: Path) -> None:
    reader, signature, source, sampled, entered = speech_case(tmp_path)
    count, error = prove_files(reader, signature, source, sampled, entered)
    assert (count, error) == (1, 0.0)
    assert [str(source.checks().location(index))[-6:] for index in range(4)] == ["line 4", "line 3", "line 2", "line 1"]
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


@pytest.mark.parametrize(
    "name, text, line, expected",
    [
        ("a.csv", "x,y\n1,2\n3,4\n", 3, b"x,y\n3,4\n"),
        ("a.TSV", "x\n1\n", 2, b"x\n1\n"),
        ("a.csv", 'x,y\n"1\n2",3\n', 3, None),
        ("a.csv", '"x",y\n1,2\n', 2, b'"x",y\n1,2\n'),
        ("a.csv", '"x\ny",z\n1,2\n', 3, None),
        ("a.tsv", '"x"\n1\n', 2, None),
        ("a.csv", "sep=;\nx\n1\n", 3, b"sep=;\nx\n1\n"),
        ("a.jsonl", '{"a": 1}\n', 1, b'{"a": 1}\n'),
        ("a.csv", "x\n1\n", 9, b"x\n"),
        ("a.parquet", "x\n1\n", 2, None),
        ("a.txt", "x\n", None, b"x\n"),
    ],
)
def test_lines_are_read_with_the_first_one(tmp_path: Path, name: str, text: str, line: Any, expected: Any) -> None:
    (tmp_path / name).write_text(text)
    assert file_proof._content(DataLocation(str(tmp_path / name), line)) == expected


def test_samples_that_are_not_files_are_left_out(tmp_path: Path) -> None:
    def fail(index: int) -> Any:
        raise NotImplementedError

    (tmp_path / "a").touch()
    places: Dict[Any, bool] = {
        DataLocation(str(tmp_path / "a")): True,
        DataLocation(str(tmp_path / "a"), record=3): False,
        DataLocation(str(tmp_path / "missing")): False,
        DataLocation(str(tmp_path)): False,
        DataLocation(""): False,
    }
    for place, is_file in places.items():
        source: Any = SimpleNamespace(
            checks=lambda place=place: SimpleNamespace(
                content_location=lambda index: place, location=lambda index: place
            )
        )
        assert (file_proof._location(source, 0) == place) is is_file
    assert file_proof._location(SimpleNamespace(), 0) is None  # type: ignore[arg-type]
    source = SimpleNamespace(checks=lambda: SimpleNamespace(content_location=fail, location=fail))
    assert file_proof._location(source, 0) is None


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
    assert standalone.input_errors({"x": found}, {"x": padded}) == {"x": 0.0}
    assert standalone.input_errors({"x": found}, {"x": padded[:2]}) == {"x": float("inf")}
    assert standalone.input_errors({"x": found}, {"y": padded}) == {"y": float("inf")}
    assert standalone.input_errors({"x": found}, {"x": padded[0]}) == {"x": float("inf")}


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


def test_progress_is_shown_only_on_a_terminal_without_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    for stdout, total, expected in ((io.StringIO(), 2, "\r1 of 2 files"), (io.StringIO(), 1, ""), (Terminal(), 2, "")):
        stderr = Terminal()
        monkeypatch.setattr("sys.stdout", stdout)
        monkeypatch.setattr("sys.stderr", stderr)
        standalone.show_progress(1, total)
        assert stderr.getvalue() == expected


def test_folder_predicts_for_the_images_of_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_pixels(tmp_path / "export", reader="exported_images")
    monkeypatch.setattr(standalone.importlib, "import_module", lambda name: exported_images)
    (tmp_path / "photos").mkdir()
    for number in range(3):
        Image.fromarray(np.full((9, 9), 80 * number, np.uint8)).save(tmp_path / "photos" / f"{number}.png")
    assert standalone.main([str(tmp_path / "photos")], str(folder)) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [Path(row["file"]).name for row in rows] == ["0.png", "1.png", "2.png"]
