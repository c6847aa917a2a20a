"""Speech recognition: decoding, what is shown and written, networks of a user's own, and runs on recordings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Tuple

import numpy as np
import pytest
import soundfile
from low_precision import needs_bfloat16
from PIL import Image

from mxtrain.cli.dispatch import run
from mxtrain.data.signature import Signature
from mxtrain.engine.backend import gluon, nd
from mxtrain.errors import ConfigError, DataError
from mxtrain.speech.digit_lines import DigitLines
from mxtrain.speech.speech_recognition import SpeechRecognition
from mxtrain.speech.transcripts import SpeechReport
from mxtrain.task.sample_figure import RIGHT, WRONG
from mxtrain.training.verification import verify
from mxtrain.types import Batch

pytestmark = pytest.mark.usefixtures("own_cache")
SIGNATURE = Signature(((64, 8), ()), class_names=["a", "b", " "])
LINES = ("dataset.num_train=32", "dataset.num_val=8", "dataset.length=[1,2]", "dataset.height=8")
SMALL = (
    "model.channels=[2,3]",
    "model.time_kernels=[3,3]",
    "model.frequency_kernels=[3,3]",
    "model.time_strides=[2,2]",
    "model.frequency_strides=[2,2]",
    "model.units=8",
    "trainer.max_epochs=1",
    "dataset.batch_size=4",
)
CONFORMER = (
    "model=conformer",
    "model.units=8",
    "model.hidden_size=12",
    "model.num_heads=2",
    "model.num_layers=2",
    "model.kernel=3",
)
AUDIO = (*SMALL, "dataset.features.sample_rate=4000", "dataset.features.num_mels=16", "dataset.val_fraction=0.25")


def scores_of(*paths: str) -> nd.NDArray:
    """Scores whose likeliest classes are these; - is the blank."""
    best = np.array([["ab -".index(one) for one in path] for path in paths])
    return nd.array(np.eye(4)[best] * 5)


def batch_of(*counts: int) -> Batch:
    return Batch((), (nd.zeros((len(counts), 1)), nd.array(counts)), len(counts))


@pytest.mark.parametrize("beam_size", [1, 8])
def test_repetitions_and_blanks_are_left_out(beam_size: int) -> None:
    task = SpeechRecognition(beam_size=beam_size)
    decode = task.build_decode(None, SIGNATURE)  # type: ignore[arg-type]  # it is asked for nothing
    found = decode((scores_of("aab--ab ", "a-aabb--", "--------"),), batch_of(8, 4, 8))
    texts = [task.row(SIGNATURE, one, 1)["text"] for one in found.asnumpy()]  # type: ignore[union-attr]
    assert texts == ["abab ", "aa", ""]


def test_a_report_has_rates_frequent_errors_and_the_worst_lines() -> None:
    lines: Any = DigitLines(num_train=4, num_val=4, length=[3, 3]).open().val
    found = np.full((4, 6), -1.0, np.float32)
    for row in range(4):
        found[row, :3] = lines.label_of(row)
    found[1, 1] = (found[1, 1] + 1) % 10
    found[2, :3] = -1
    meta = np.empty(4, object)
    for row in range(4):
        meta[row] = lines.transcript(row)
    report = SpeechReport(lambda outputs, batch: outputs[0], lines)
    report.update(Batch((), (nd.zeros((4, 1)),), 4, index_B=np.arange(4), meta=meta), (nd.array(found),))
    rates, frequent, worst = (one.rows for one in report.artifacts("val"))  # type: ignore[union-attr]
    assert rates == [["words", 0.5, 1, 1, 0, 4], ["characters", pytest.approx(4 / 12), 1, 3, 0, 12]]
    assert sorted(row[2] for row in frequent) == [1, 1] and ("" in [row[1] for row in frequent])
    assert [row[0] for row in worst] == ["sample 2", "sample 1"] and worst[0][1:] == [1.0, lines.transcript(2).text, ""]


def test_lines_differ_in_each_epoch_of_training_and_never_in_validation() -> None:
    lines: Any = DigitLines(num_train=8, num_val=8).open().train
    read = lambda epoch, train, seed=0: lines.read(3, seed=seed, epoch=epoch, train=train)  # noqa: E731
    assert (read(0, True) == read(0, True)).all() and (read(0, True) != read(1, True)).any()
    assert (read(0, True) != read(0, True, 1)).any() and (read(0, False, 1) == read(5, False)).all()
    assert read(0, True).shape == (lines.frame_N[3], 24)
    taken = lines.take([5, 3, 99])
    assert len(taken) == 2 and (taken.read(1, seed=0, epoch=0, train=False) == read(0, False)).all()


class Coarse(gluon.HybridBlock):
    """One score for each 32 frames: too few for a digit or two."""

    def __init__(self, num_classes: int, step: int = 32, **of_the_default: object):
        super().__init__()
        self._step = step
        with self.name_scope():
            self.dense = gluon.nn.Dense(num_classes, flatten=False)

    def hybrid_forward(self, F, frames_BTF, length_B):
        part = F.slice(frames_BTF, begin=(None, None, None), end=(None, None, None), step=(1, self._step, 1))
        return F.broadcast_add(self.dense(part), 0 * F.reshape(length_B, shape=(-1, 1, 1)))


class TimeLast(gluon.HybridBlock):
    def __init__(self, num_classes: int, **of_the_default: object):
        super().__init__()
        with self.name_scope():
            self.dense = gluon.nn.Dense(num_classes, flatten=False)

    def hybrid_forward(self, F, frames_BTF, length_B):
        return F.transpose(self.dense(frames_BTF), axes=(0, 2, 1))


def own(name: str, *more: str) -> Tuple[str, ...]:
    return (
        "task=speech_recognition",
        *LINES,
        f"model._target_={__name__}.{name}",
        "trainer.max_epochs=1",
        "dataset.batch_size=4",
        *more,
    )


@pytest.mark.slow
def test_a_network_of_the_users_trains_and_its_scores_are_counted(train_run: Any, monkeypatch: Any) -> None:
    _, result = train_run(*own("Coarse", "+model.step=2"))
    assert result.exit_code == 0 and np.isfinite(result.metrics["val/loss"])


@pytest.mark.slow
def test_a_network_with_too_few_scores_is_refused_before_it_trains(train_run: Any) -> None:
    with pytest.raises(DataError, match=r"has \d+ frames, of which the network makes 1, and CTC needs \d"):
        train_run(*own("Coarse"))


@pytest.mark.slow
def test_a_network_that_returns_no_scores_along_time_is_refused_by_name(train_run: Any) -> None:
    with pytest.raises(ConfigError, match=r"TimeLast must return scores \(B, T, 11\)"):
        train_run(*own("TimeLast"))


def test_samples_are_shown_as_a_table_and_as_strips() -> None:
    lines: Any = DigitLines(num_train=4, num_val=3).open().val
    found = [lines.label_of(row) for row in range(3)]
    found[1] = found[1][:-1]
    names = Signature(((96, 24), ()), class_names=list("0123456789"))
    table, image = SpeechRecognition().show(names, lines, found, [])
    assert [row[1] == row[2] for row in table.rows] == [True, False, True]  # type: ignore[union-attr]
    drawn = image.draw(2)  # type: ignore[union-attr]
    assert drawn.size[0] == 660 and drawn.size[1] < image.draw(3).size[1]  # type: ignore[union-attr]
    pixels = np.asarray(drawn).reshape(-1, 3).tolist()
    assert list(RIGHT) in pixels and list(WRONG) in pixels


@pytest.mark.parametrize(
    "words, said",
    [
        ("task=speech_recognition loss=l2", "Type loss=ctc."),
        ("task=speech_recognition loss.label_smoothing=0.1", "Type loss.label_smoothing=0."),
        ("task=speech_recognition metric=[accuracy]", "Type metric=[cer]."),
        ("task=speech_recognition model=lenet", "Type model=deep_speech2."),
        ("model=deep_speech2 dataset=digits", "it is for speech_recognition. Type model=lenet"),
        ("task=speech_recognition task.language_model=trian", "or type task.language_model=train"),
        ("task=asr", "Did you mean 'speech_recognition'?"),
        ("task=speech_recognition task.beam_size=1 task.language_model=train", "type beam_size=8"),
        ("dataset=librispeech dataset.root=/nowhere", "Name the one with train-clean-100 in it"),
    ],
)
def test_wrong_settings_are_refused(words: str, said: str, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert run([*words.split(), "logger=[]"]) == 2
    assert said in capsys.readouterr().err


def recordings(folder: Path, count: int = 16) -> str:
    """High tones are "a", low ones "b"."""
    rows = []
    for number in range(count):
        text = "ab"[number % 2] + "ab"[number // 2 % 2]
        tones = [np.sin(np.arange(1200) * {"a": 1.2, "b": 0.3}[one]) for one in text]
        soundfile.write(folder / f"{number}.flac", 0.4 * np.concatenate(tones), 4000)
        rows.append(json.dumps({"audio_filepath": f"{number}.flac", "text": text}))
    (folder / "train.jsonl").write_text("\n".join(rows))
    return f"dataset.train={folder / 'train.jsonl'}"


@pytest.mark.slow
def test_a_run_on_recordings_is_evaluated_and_predicts_files(train_run: Any, tmp_path: Path, capsys: Any) -> None:
    given = ("dataset=speech_manifest", recordings(tmp_path), *AUDIO, "metric=[cer,wer,sentence_accuracy]")
    made, result = train_run(*given, run_dir=tmp_path / "run")
    assert result.exit_code == 0
    signatures = made.info.metric_signatures
    assert signatures["wer"].endswith("unit=word,over=corpus,text=NFC,lower,single_spaces,decoding=greedy")
    assert signatures["sentence_accuracy"] == "text=NFC,lower,single_spaces,decoding=greedy"
    assert run(["eval", str(tmp_path / "run"), "split=val", "task.language_model=train"]) == 0
    metrics = json.loads((tmp_path / "run" / "eval" / "val" / "metrics.json").read_text())
    assert metrics["samples"] == 4 and 0 <= metrics["cer"]
    mistakes = (tmp_path / "run" / "eval" / "val" / "mistakes.csv").read_text().splitlines()[1:]
    assert metrics["sentence_accuracy"] == 1 - len(mistakes) / 4
    assert "frequent_errors" in {path.stem for path in (tmp_path / "run" / "eval" / "val").iterdir()}
    new = tmp_path / "new"
    new.mkdir()
    soundfile.write(new / "1.wav", 0.3 * np.sin(np.arange(20_000) * 0.2), 22050)  # another rate, longer than any
    soundfile.write(new / "2.flac", np.zeros(900), 4000)
    capsys.readouterr()
    (tmp_path / "train.jsonl").unlink()  # predictions need no data
    assert run(["predict", str(tmp_path / "run"), str(new)]) == 2
    assert "2.flac' is silent" in capsys.readouterr().err
    assert run(["predict", str(tmp_path / "run"), str(new), str(tmp_path / "0.flac"), "skip_unreadable=true"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert [Path(row["file"]).name for row in rows] == ["1.wav", "0.flac"]
    assert all(set(row) == {"file", "text"} and set(row["text"]) <= {"a", "b"} for row in rows)
    assert run(["eval", str(tmp_path / "run"), "dataset.features.num_mels=20"]) == 2


@pytest.mark.slow
def test_lines_are_read_from_images(train_run: Any, tmp_path: Path, capsys: Any) -> None:
    train_run("task=speech_recognition", *LINES, *SMALL, run_dir=tmp_path / "run")
    lines: Any = DigitLines(num_train=4, num_val=4).open().val
    image = (np.clip(lines.draw(0), 0, 1) * 255).astype(np.uint8)
    Image.fromarray(image).save(tmp_path / "line.png")
    (tmp_path / "none.png").write_text("x")
    assert run(["predict", str(tmp_path / "run"), str(tmp_path / "line.png")]) == 0
    (row,) = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert set(row["text"]) <= set("0123456789")
    assert run(["predict", str(tmp_path / "run"), str(tmp_path / "none.png")]) == 2
    assert "none.png' is not a readable image" in capsys.readouterr().err
    assert run(["eval", str(tmp_path / "run"), "dataset=kaldi", "dataset.train=/nowhere"]) == 2
    assert "has learned from frames that are no sound" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    "placement",
    [pytest.param(("parallel=pipeline", "parallel.microbatches=2"), marks=pytest.mark.zoo), ("parallel=data",)],
)
def test_a_conformer_is_the_same_under_every_placement(describe_run: Any, placement: Tuple[str, ...]) -> None:
    words = (*CONFORMER, *LINES, "trainer.clip_global_norm=null", "dataset.batch_size=8", *placement)
    found = verify(describe_run(*words), 2, 1e-5)
    assert found.passed and found.bits, found


@pytest.mark.slow  # kernels are made for each shape
@needs_bfloat16
@pytest.mark.parametrize("model", [SMALL, CONFORMER], ids=["deep_speech2", "conformer"])
def test_bfloat16_is_the_same_under_a_placement_and_near_float32(describe_run: Any, model: Tuple[str, ...]) -> None:
    words = ("task=speech_recognition", *LINES, *model, "dataset.batch_size=8", "amp=bfloat16", "parallel=data")
    found = verify(describe_run(*words), steps=2, tolerance=1e-6)
    assert found.passed and found.low is not None, found


@pytest.mark.slow
def test_recordings_have_the_same_bits_for_any_threads_and_prefetching(
    train_run: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    given = ("dataset=speech_manifest", recordings(tmp_path), *AUDIO, "dataset.batch_seconds=4")
    found = []
    for name, more in (("a", ("dataset.num_workers=1", "dataset.prefetch=0")), ("b", ("dataset.num_workers=3",))):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / f"cache_{name}"))
        found.append(train_run(*given, *more, run_dir=tmp_path / name)[1].weights_sha256)
    assert found[0] == found[1]


@pytest.mark.zoo
@pytest.mark.slow
def test_lines_of_digits_are_learned(train_run: Any) -> None:
    """About 15 s of processor time: most digits are right after two epochs of fewer lines."""
    _, result = train_run(
        "task=speech_recognition", "dataset.num_train=3000", "dataset.length=[1,4]", "trainer.max_epochs=3"
    )
    assert result.metrics["val/cer"] < 0.25
