"""Folders that are served: of strangers, of runs, several at once; and what the command line refuses."""

from __future__ import annotations

import io
import json
import re
import socket
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable, List, Tuple

import numpy as np
import onnx
import pytest
import running
import served_folders
from PIL import Image
from served_folders import Served, write_pixels

import mxtrain
from mxtrain.cli.dispatch import run
from mxtrain.errors import ConfigError
from mxtrain.exporting import standalone
from mxtrain.exporting.standalone import UnusableFolder
from mxtrain.files.unused_folders import locked_folder
from mxtrain.serving import server
from mxtrain.serving.errors import RequestError
from mxtrain.serving.models import ServedModel
from mxtrain.serving.server import bind
from mxtrain.serving.spec import ServeSettings
from mxtrain.workflows import serve


def load(folder: Path, **changed: Any) -> ServedModel:
    return ServedModel(
        **{"name": "m", "folder": str(folder), "threads": 1, "check": True, "max_batch": 8, "max_scale": 4.0, **changed}
    )


def change_json(folder: Path, **values: Any) -> Path:
    path = folder / standalone.SIGNATURE
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    return folder


def test_a_network_that_mixes_its_samples_is_never_batched(tmp_path: Path) -> None:
    assert not load(served_folders.write_mixing(tmp_path / "a")).is_batched
    assert load(served_folders.write_ids(tmp_path / "b")).is_batched


@pytest.mark.parametrize("name", ["os.system", "builtins.eval", "../../evil", "mxtrain.cli.serve", ""])
def test_a_signature_chooses_among_our_own_readers_only(tmp_path: Path, name: Any) -> None:
    folder = write_pixels(tmp_path / "a", samples=name)
    model = load(folder)
    assert model.reader is None and model.accepts == ["application/json"]


DAMAGED = {
    "shape": {"shape": [1, 1 << 30, 1 << 30], "decoding": {"shape": [1, 4, 4], "central_crop": 1.0}},
    "negative": {"shape": [1, -4, 4], "decoding": {"shape": [1, 4, 4], "central_crop": 1.0}},
    "text": {"shape": "x", "decoding": {}},
    "nothing": {},
    "list": [],
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_signatures_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnusableFolder, match=r"signature.json is damaged|signature is \[\]; it must be an object"):
        load(write_pixels(tmp_path / "a", signature=DAMAGED[name]))


def test_damaged_text_and_sound_signatures_are_refused(tmp_path: Path) -> None:
    from mxtrain.serving.models import TensorSpec
    from mxtrain.serving.readers import find_reader

    text = [TensorSpec(f"input{k}", "int32", "INT32", ("batch", "length")[: 2 - k // 2]) for k in range(3)]
    sound = [TensorSpec("a", "float32", "FP32", ("batch", "time", 8)), TensorSpec("b", "float32", "FP32", ("batch",))]
    words = {"file": "a.json", "max_length": 1 << 40, "special": [], "lowercase": False, "pad": 0}
    for kind, specs, given in (
        ("text", text, {}),
        ("text", text, {"facts": {"tokenizer": {"file": 7}}}),
        ("text", text, {"facts": {"tokenizer": words}}),
        ("frames", sound, {"signature": {"audio": {"sample_rate": "x"}}}),
    ):
        signature = {"samples": kind, "task": "speech_recognition", **given}
        folder: Any = SimpleNamespace(signature=signature, read=lambda name: overrides_of(["a"]))
        with pytest.raises(UnusableFolder, match="is damaged"):
            find_reader(folder, specs)


def test_reader_follows_the_kinds_of_samples_and_targets(tmp_path: Path) -> None:
    """The task of another package is served like one of mxtrain with the same kinds."""
    folder = write_pixels(tmp_path / "a", task="grading", targets=["Grade", "ClassIndex"])
    assert load(folder).reader is not None
    given = write_pixels(tmp_path / "b", signature={"shape": [1, 4, 4], "mean": [], "std": [], "class_names": []})
    assert load(given).reader is None  # trained on arrays: there is no way to decode files


def overrides_of(vocabulary: List[str]) -> bytes:
    """The content of a tokenizer.json of words."""
    model = {"type": "WordLevel", "vocab": {word: number for number, word in enumerate(vocabulary)}, "unk_token": "a"}
    return json.dumps({"version": "1.0", "added_tokens": [], "model": model}).encode()


def test_network_that_fails_its_proof_is_refused_unless_allowed(tmp_path: Path) -> None:
    folder = write_pixels(tmp_path / "a")
    model = onnx.load(str(folder / standalone.MODEL))
    model.graph.initializer[0].raw_data = (served_folders.WEIGHT * 2).tobytes()
    (folder / standalone.MODEL).write_bytes(model.SerializeToString())
    with pytest.raises(UnusableFolder, match="the proof fails on this machine: output 1"):
        load(folder)
    assert load(folder, check=False).outputs[0].name == "output"
    assert run(["serve", str(folder)]) == 2


def test_open_sizes_are_limited_by_the_proof(tmp_path: Path) -> None:
    model = load(served_folders.write_ids(tmp_path / "a"))
    assert model.validate({"ids": np.zeros((2, 24), np.int32)}) == 2
    for shape, status in (((1, 25), 413), ((9, 3), 413), ((1, 0), 400), ((3,), 400)):
        with pytest.raises(RequestError) as caught:
            model.validate({"ids": np.zeros(shape, np.int32)})
        assert caught.value.status == status


def as_folder(tmp_path: Path) -> Tuple[Any, ...]:
    return (str(write_pixels(tmp_path / "pixels")),)


def twice(tmp_path: Path) -> Tuple[Any, ...]:
    return str(write_pixels(tmp_path / "a" / "m")), f"m={write_pixels(tmp_path / 'b' / 'n')}"


def custom_operators(tmp_path: Path) -> Tuple[Any, ...]:
    folder = write_pixels(tmp_path / "m")
    model = onnx.load(str(folder / standalone.MODEL))
    model.opset_import.append(onnx.helper.make_opsetid("evil", 1))
    (folder / standalone.MODEL).write_bytes(model.SerializeToString())
    return (str(folder),)


def link(tmp_path: Path) -> Tuple[Any, ...]:
    folder = write_pixels(tmp_path / "m")
    (folder / standalone.MODEL).rename(tmp_path / "elsewhere.onnx")
    (folder / standalone.MODEL).symlink_to(tmp_path / "elsewhere.onnx")
    return (str(folder),)


def no_run(tmp_path: Path) -> Tuple[Any, ...]:
    (tmp_path / "empty").mkdir()
    return (str(tmp_path / "empty"),)


def damaged_run(tmp_path: Path) -> Tuple[Any, ...]:
    (tmp_path / "run" / "checkpoints" / "step-00000001").mkdir(parents=True)
    return (str(tmp_path / "run"),)


REFUSED = {
    "nothing": (lambda tmp_path: (), "serve takes exported folders or runs"),
    "missing": (lambda tmp_path: ("nowhere",), "there is no folder 'nowhere'"),
    "misspelt": (
        lambda tmp_path: (*as_folder(tmp_path), "prot=8000"),
        "there is no setting 'prot'. Did you mean 'port'?",
    ),
    "threads": (lambda tmp_path: (*as_folder(tmp_path), "threads=257"), "threads=257: should be less than or equal"),
    "value": (lambda tmp_path: (*as_folder(tmp_path), "port=99999"), "port"),
    "name": (lambda tmp_path: (f"a b={as_folder(tmp_path)[0]}",), "no name of a model"),
    "twice": (twice, "two models are called 'm'"),
    "custom operators": (custom_operators, "are not ONNX's"),
    "link": (link, "cannot be read"),
    "no run": (no_run, "neither an exported folder nor a run with a checkpoint."),
    "above": (
        lambda tmp_path: (str(write_pixels(tmp_path / "digits" / "1").parent.parent),),
        "nor a run with a checkpoint; it contains the exported folder ",
    ),
    "damaged run": (damaged_run, "/run' cannot be exported: "),
    "host": (lambda tmp_path: (*as_folder(tmp_path), "host=203.0.113.9"), "host=203.0.113.9"),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "damaged run" else ()) for name in REFUSED]
)
def test_refused_commands(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    make: Callable[[Path], Tuple[str, ...]]
    make, said = REFUSED[name]
    assert run(["serve", *make(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert said in error and len(error[error.index("error: ") :].splitlines()) == 1


def test_folder_and_port_are_checked_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", *no_run(tmp_path)]) == 2
    assert capsys.readouterr().out == "", "it does not say that it is exported"
    first = bind(ServeSettings(port=0))
    with first:  # it loads its models, and does not listen yet
        port = first.getsockname()[1]
        with pytest.raises(ConfigError, match="Address already in use"):
            bind(ServeSettings(port=port))
        first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as `run_server` does
        first.listen()
        with socket.create_connection(("127.0.0.1", port)) as client:
            first.accept()[0].close()
            assert client.recv(1) == b""
    with bind(ServeSettings(port=port)) as second:  # the connection still waits in the kernel
        second.listen()


def test_long_work_at_the_start_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [str(write_pixels(tmp_path / "good")), *custom_operators(tmp_path)]
    assert run(["serve", *folders, "port=0"]) == 2
    assert capsys.readouterr().out == "", "it is quick"
    for module in ("cli", "workflows"):
        monkeypatch.setattr(f"mxtrain.{module}.serve.QUIET_S", 0.0)
    assert run(["serve", *folders, "port=0"]) == 2
    said = capsys.readouterr()
    assert [re.sub(r", .*", "", line) for line in said.out.splitlines()] == [
        "loading good",
        "mxtrain: good is loaded",
        "loading m",
    ]
    assert said.err.count("\n") == 1, "standard error has the log alone"


def test_a_port_in_use_and_a_short_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(write_pixels(tmp_path / "m"))
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert run(["serve", folder, f"port={other.getsockname()[1]}"]) == 2
    assert "Address already in use. port=0 takes a free one." in capsys.readouterr().err
    for token in ("short", "with space and more", "ä" * 20):
        monkeypatch.setenv("MXTRAIN_SERVE_TOKEN", token)
        assert run(["serve", folder]) == 2
        assert "at least 16 characters" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_is_served_and_predicts_as_mxtrain_does(tmp_path: Path) -> None:
    trained = tmp_path / "digits"
    running.train_here(
        trained,
        "model.channels=[2,4]",
        "model.hidden=8",
        "trainer.max_epochs=1",
        "trainer.limit_train_batches=4",
        "trainer.test=false",
    )
    loaded = mxtrain.load(trained)
    images = np.random.default_rng(0).integers(0, 256, (6, 20, 14), dtype=np.uint8)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    with Served(trained, environment={"TMPDIR": str(temporary)}) as served:
        assert list(temporary.glob("mxtrain-serve-*"))
        for number, pixels in enumerate(images):
            file = tmp_path / f"{number}.png"
            Image.fromarray(pixels).save(file)
            status, found, _ = served.ask("/v2/models/digits/predict", file.read_bytes(), "image/png")
            expected = loaded.predict(file)[0]
            assert (status, found["class"]) == (200, expected["class"])
            assert found["probability"] == pytest.approx(expected["probability"], abs=2e-6)
    assert not list(temporary.glob("mxtrain-serve-*")) and not (trained / "export").exists()


@pytest.mark.slow
@pytest.mark.zoo
def test_texts_are_read_as_mxtrain_does(tmp_path: Path) -> None:
    words = [" ".join(f"w{(row * k + row) % 20}" for k in range(1, 4 + row % 7)) for row in range(120)]
    table = tmp_path / "texts.csv"
    table.write_text("\n".join(["label,text", *(f"{'ab'[row % 2]},{text}" for row, text in enumerate(words))]) + "\n")
    trained = tmp_path / "texts"
    running.train_here(
        trained,
        "dataset=text",
        "model=bert",
        f"dataset.train={table}",
        "dataset.sentence=text",
        "model.num_layers=1",
        "model.units=16",
        "model.hidden_size=32",
        "model.num_heads=2",
        "dataset.max_length=16",
        "dataset.vocab_size=100",
        "dataset.batch_size=4",
        "trainer.max_epochs=1",
        "trainer.limit_train_batches=2",
        "trainer.test=false",
    )
    loaded = mxtrain.load(trained)
    loaded.export(tmp_path / "exported", limit_batches=1)
    texts = ["w1 w2 w3", "W4 unknown words ö, and quite a few more than sixteen tokens of them in one line", "w9"]
    (tmp_path / "some.txt").write_text("\n".join(texts))
    with Served(tmp_path / "exported") as served:
        path = "/v2/models/exported/predict"
        for text, expected in zip(texts, loaded.predict(tmp_path / "some.txt")):
            status, found, _ = served.ask(path, text.encode(), "text/plain; charset=utf-8")
            assert (status, found["class"]) == (200, expected["class"])
            assert found["probability"] == pytest.approx(expected["probability"], abs=2e-6)
        for body, kind in ((b"", "text/plain"), (b"\xff", "text/plain"), (b"one", "text/tab-separated-values")):
            assert served.ask(path, body, kind)[0] == 400
        assert served.ask(path, b"one\ttwo", "text/tab-separated-values")[0] == 200
        assert served.ask(path, b"x" * 1_000_001, "text/plain")[0] == 413


@pytest.mark.slow
@pytest.mark.zoo
def test_recordings_are_read_as_mxtrain_does(tmp_path: Path) -> None:
    import soundfile

    trained = tmp_path / "spoken"
    rows = []
    for number in range(24):
        tone = 0.3 * np.sin(np.arange(16_000 + 800 * number) * 0.02 * (number % 5 + 1))
        soundfile.write(tmp_path / f"{number}.wav", tone, 16_000)
        rows.append({"audio_filepath": f"{number}.wav", "text": "abcde"[number % 5] * 2})
    manifest = tmp_path / "train.jsonl"
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    running.train_here(
        trained,
        "task=speech_recognition",
        "dataset=speech_manifest",
        f"dataset.train={manifest}",
        "dataset.val_fraction=0.3",
        "dataset.batch_size=4",
        "model.channels=[2,3,2]",
        "model.units=8",
        "model.num_layers=2",
        "trainer.max_epochs=8",
        "trainer.test=false",
        "optimizer.lr=0.01",
    )
    loaded = mxtrain.load(trained)
    loaded.export(tmp_path / "exported", limit_batches=1)
    sound = (0.3 * np.sin(np.arange(24_000) * np.linspace(0.02, 0.4, 24_000))).astype(np.float32)
    file = tmp_path / "sound.wav"
    soundfile.write(file, sound, 22_050)
    path = "/v2/models/exported/predict"
    with Served(tmp_path / "exported") as served:
        status, found, _ = served.ask(path, file.read_bytes(), "audio/wav")
        assert (status, found) == (200, {"text": loaded.predict(file)[0]["text"]})
        long = io.BytesIO()
        soundfile.write(long, np.tile(sound[:1000], 7000), 16_000, format="FLAC")
        assert served.ask(path, long.getvalue(), "audio/flac")[0] == 413
        for body in (b"", b"RIFF", file.read_bytes()[:5000], b"x" * 10_000):
            assert served.ask(path, body, "audio/wav")[0] == 400


def test_models_named_like_settings_are_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, found = as_folder(tmp_path)[0], []
    monkeypatch.setattr(serve, "load_model", lambda name, folder, *others: found.append((name, folder)))
    monkeypatch.setattr(server, "run_server", lambda server, ready: server.settings.threads)
    assert run(["serve", f"prot={folder}", f"thread={folder}", f"models={folder}", "port=0", "threads=256"]) == 256
    assert found == [("prot", folder), ("thread", folder), ("models", folder)]


def test_export_of_a_killed_server_is_removed_by_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left, other = tmp_path / f"{serve.TEMPORARY}abc", tmp_path / "mxtrain-other"
    (left / "export").mkdir(parents=True)
    other.mkdir()
    with locked_folder(tmp_path, serve.TEMPORARY) as living:
        assert not left.exists() and living.exists()
        with locked_folder(tmp_path, serve.TEMPORARY) as own:  # one of a living server stays
            assert living.exists() and own != living and other.exists()
        assert not own.exists()
    assert not living.exists() and other.exists()


def test_a_run_is_exported_into_a_folder_that_the_next_server_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(serve, "holds_checkpoint", lambda folder: True)
    monkeypatch.setattr(serve, "run_child", lambda command, **options: 0)
    (tmp_path / f"{serve.TEMPORARY}old").mkdir()
    (tmp_path / "run").mkdir()
    with ExitStack() as stack:
        out = Path(serve.export_if_run(str(tmp_path / "run"), stack))
        assert out.parent.exists() and [one.name for one in tmp_path.glob(f"{serve.TEMPORARY}*")] == [out.parent.name]
    assert not out.parent.exists()
