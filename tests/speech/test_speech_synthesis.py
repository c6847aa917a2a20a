"""Speech synthesis: what is shown, written and refused, runs on manifests, and that the default learns."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from tensorboardX.proto.event_pb2 import Event

from mxtrain.cli.dispatch import run
from mxtrain.data.signature import Signature
from mxtrain.engine.backend import nd
from mxtrain.errors import CheckpointError
from mxtrain.logger.tensorboard_logger import sound_of
from mxtrain.speech.features import Features
from mxtrain.speech.formant_digits import FormantDigits
from mxtrain.speech.signature import SymbolSignature
from mxtrain.speech.speech_synthesis import SpeechSynthesis, decode_frames
from mxtrain.types import Audio, Batch
from mxtrain.workflows.eval_folder import write_artifacts

pytestmark = pytest.mark.usefixtures("own_cache")
FEATURES = Features(sample_rate=4000, num_mels=16, window_ms=50.0, step_ms=12.5, preemphasis=0.0, normalize="none")
SMALL = (
    "dataset.features.sample_rate=4000",
    "dataset.features.num_mels=16",
    "dataset.features.window_ms=50",
    "dataset.features.step_ms=12.5",
    "dataset.features.high_hz=0",
    "model.units=8",
    "model.hidden_size=12",
    "model.decoder_layers=1",
    "trainer.max_epochs=1",
    "dataset.batch_size=4",
    "task.iterations=3",
)


def signature() -> Signature:
    mean, std = (np.arange(16) + first for first in (0.0, 1.0))
    return SymbolSignature(((4,), (), (16,), (16, 4)), mean.tolist(), std.tolist(), symbols=["a"], audio=FEATURES)


def test_predictions_are_frames_without_padding_in_logarithms_of_power() -> None:
    given = np.random.RandomState(0).normal(size=(2, 6, 16)).astype(np.float32)
    found = decode_frames(signature(), (nd.array(given),), Batch((), (), 2, meta=np.array([6, 2])))
    assert [one.shape for one in found] == [(6, 16), (2, 16)]
    np.testing.assert_allclose(found[1].asnumpy(), given[1, :2] * (np.arange(16) + 1) + np.arange(16), rtol=1e-5)
    assert SpeechSynthesis().row(signature(), found[0].asnumpy(), 1) == {"frames": 6, "seconds": 0.075}


def test_samples_are_shown_as_images_and_as_sounds(tmp_path: Path) -> None:
    val: Any = FormantDigits(num_train=2, num_val=3, features=FEATURES).open().val
    task, found = SpeechSynthesis(iterations=3, shown_sounds=1), [val.read(index) + 0.5 for index in range(3)]
    image, *sounds = task.show(signature(), val, found, [])
    assert image.draw(2).size[1] < image.draw(3).size[1]  # type: ignore[union-attr]
    assert [one.name for one in sounds] == ["predicted_0", "true_0"]
    names = write_artifacts([image, *sounds], tmp_path)
    assert names == ["frames.png", "predicted_0.wav", "true_0.wav"]
    sound, rate = soundfile.read(tmp_path / "true_0.wav")
    assert rate == 4000 and len(sound) == 50 * val.frame_N[0] and np.abs(sound).max() > 0.01


def test_tensorboard_gets_wav_files() -> None:
    event = Event(summary=sound_of(Audio("x", 4000, lambda: b"RIFF"), "val/x"))
    (value,) = Event.FromString(event.SerializeToString()).summary.value
    assert value.tag == "val/x" and value.audio.encoded_audio_string == b"RIFF"
    assert value.audio.sample_rate == 4000 and value.audio.content_type == "audio/wav"


def manifest(folder: Path, count: int = 16) -> str:
    rows = []
    for number in range(count):
        text, frames = "ab"[: 1 + number % 2], [8 + number, 6][: 1 + number % 2]
        tones = [np.sin(np.arange(50 * length) * {"a": 0.9, "b": 0.3}[one]) for one, length in zip(text, frames)]
        soundfile.write(folder / f"{number}.flac", 0.4 * np.concatenate(tones), 4000)
        rows.append(json.dumps({"audio_filepath": f"{number}.flac", "text": text, "durations_frames": frames}))
    (folder / "train.jsonl").write_text("\n".join(rows))
    return f"dataset.train={folder / 'train.jsonl'}"


@pytest.mark.slow
def test_run_on_a_manifest_is_evaluated_and_synthesizes(train_run: Any, tmp_path: Path, capsys: Any) -> None:
    given = ("dataset=aligned_manifest", manifest(tmp_path), *SMALL, "dataset.batch_seconds=2")
    made, result = train_run(*given, "dataset.val_fraction=0.25")
    assert result.exit_code == 0 and made.info.metric_signatures["mel_error"] == "dB,durations=given"
    assert run(["eval", str(tmp_path / "run"), "split=val"]) == 0
    folder = tmp_path / "run" / "eval" / "val"
    metrics = json.loads((folder / "metrics.json").read_text())
    lines = (folder / "baselines.csv").read_text().splitlines()
    network, means = (line.split(",") for line in lines[1:])
    assert float(network[1]) == pytest.approx(metrics["mel_error"], rel=1e-3), "the report counts by itself"
    assert float(network[2]) == pytest.approx(metrics["mel_cepstral_distortion"], rel=1e-3)
    assert means[0] == "the mean of their symbol" and 0 < float(means[1]) < 30
    new = tmp_path / "new.jsonl"
    rows: Any = [{"text": "ba", "durations_s": [0.1, 0.2]}, "", {"phonemes": "a x", "durations_frames": [3, 4]}]
    new.write_text("\n".join(json.dumps(row) if row else "" for row in rows))
    for path in tmp_path.glob("*.flac"):
        path.unlink()  # nothing but the checkpoint is needed
    capsys.readouterr()
    assert run(["predict", str(tmp_path / "run"), str(new)]) == 2
    assert "new.jsonl, line 3 has 'x', which is no symbol of these" in capsys.readouterr().err
    words = ["predict", str(tmp_path / "run"), str(new), "skip_unreadable=true", f"folder={tmp_path / 'out'}"]
    assert run(words) == 0
    (row,) = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    wanted = {"file": f"{new}:1", "text": "ba", "frames": 24, "seconds": 0.3, "audio": str(tmp_path / "out/new-1.wav")}
    assert row == wanted
    sound, rate = soundfile.read(io.BytesIO(Path(row["audio"]).read_bytes()))
    assert rate == 4000 and len(sound) == 24 * 50
    assert run(["eval", str(tmp_path / "run"), "dataset.features.num_mels=20"]) == 2
    assert "has learned from its own features and symbols. Leave it out" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_is_not_continued_with_other_symbols(train_run: Any, tmp_path: Path) -> None:
    given = ("dataset=aligned_manifest", manifest(tmp_path), *SMALL, "dataset.val_fraction=0.25")
    train_run(*given)
    path = tmp_path / "train.jsonl"
    path.write_text(path.read_text().replace('"text": "ab"', '"text": "ac"'))
    with pytest.raises(CheckpointError, match="was made with other symbols or features"):
        train_run(*given, "checkpoint.resume=auto", "checkpoint.changes=[data]")


@pytest.mark.slow
@pytest.mark.parametrize(
    "words, said",
    [
        ("task=speech_synthesis loss=l2", "Type loss=frame_l1."),
        ("task=speech_synthesis loss.label_smoothing=0.1", "Type loss.label_smoothing=0."),
        ("task=speech_synthesis metric=[accuracy]", "Type metric=[mel_error]."),
        ("task=speech_synthesis model=lenet", "Type model=fastspeech."),
        ("model=fastspeech dataset=digits", "it is for speech_synthesis. Type model=lenet"),
        ("task=tts", "Did you mean 'speech_synthesis'?"),
        ("task=speech_synthesis dataset.features.normalize=utterance", "Type dataset.features.normalize=none"),
        ("task=speech_synthesis model.num_heads=5", "num_heads must divide units"),
        ("dataset=aligned_manifest dataset.train=/nowhere.jsonl", "'/nowhere.jsonl'"),
    ],
)
def test_wrong_settings_are_refused(words: str, said: str, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert run([*words.split(), "logger=[]"]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.zoo
@pytest.mark.slow
def test_digits_are_learned_better_than_means_of_symbols(train_run: Any) -> None:
    """About 15 s of processor time."""
    made, result = train_run(
        "task=speech_synthesis",
        "dataset.num_train=200",
        "dataset.num_val=20",
        "dataset.length=[1,3]",
        "trainer.max_epochs=6",
        "dataset.batch_size=8",
    )
    assert result.metrics["val/mel_error"] < 3.5, "the means of symbols are off by 5.2 dB"
