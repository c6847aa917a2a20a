"""Long recordings are cut where they are quiet, and the texts of the parts are joined."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, List

import numpy as np
import pytest
import soundfile

from mxtrain.data.checking.problems import DataLocation
from mxtrain.data.corpus.shards import Ragged
from mxtrain.errors import DataError
from mxtrain.speech.alphabet import Alphabet
from mxtrain.speech.audio import AudioDataset
from mxtrain.speech.chunks import cut_recording, cut_recordings, quietest
from mxtrain.speech.features import Features
from mxtrain.speech.given_recordings import find_usable
from mxtrain.speech.kaldi import Kaldi
from mxtrain.speech.prepared import Recordings
from mxtrain.speech.signature import AudioSignature
from mxtrain.speech.speech_recognition import SpeechRecognition
from mxtrain.speech.utterances import Utterance

pytestmark = pytest.mark.usefixtures("own_cache")
RATE = 8000


def spoken(seconds: float, pauses: List[float], noise: float = 0.01) -> np.ndarray:
    """Noise that is quieter for 0.4 s from each of `pauses` on."""
    sound = np.random.default_rng(0).standard_normal(round(seconds * RATE)) * 0.2
    for begin in pauses:
        sound[round(begin * RATE) : round((begin + 0.4) * RATE)] *= noise
    return sound.astype(np.float32)


def given(path: Path, sound: np.ndarray) -> Utterance:
    soundfile.write(path, sound, RATE)
    return Utterance(str(path), "", DataLocation(str(path)))


def test_cuts_are_in_pauses_of_the_second_half() -> None:
    assert quietest(spoken(10, [2.0, 7.0]), RATE) == pytest.approx(7.2, abs=0.1)
    assert quietest(spoken(10, [9.6]), RATE) == pytest.approx(9.8, abs=0.1)


def test_parts_follow_each_other_and_are_short_enough(tmp_path: Path) -> None:
    whole = given(tmp_path / "a.flac", spoken(23, [3.0, 7.0, 12.0, 17.5]))
    parts = cut_recording(whole, 8.0)
    begins = [part.begin_s for part in parts]
    assert begins == pytest.approx([0, 7.2, 12.2, 17.7], abs=0.15)
    assert begins[1:] == pytest.approx([part.begin_s + part.duration_s for part in parts[:-1]])
    assert parts[-1].duration_s is None and max(part.duration_s or 0 for part in parts) <= 8
    assert cut_recording(whole, 23.0) == [whole]
    silent = given(tmp_path / "s.flac", np.concatenate([np.zeros(10 * RATE), spoken(3, [])]))
    assert [part.begin_s for part in cut_recording(silent, 5.0)] == [0, 5, pytest.approx(9.9, abs=0.2)]
    short = given(tmp_path / "b.wav", spoken(2, []))
    assert cut_recordings([short, whole, short], 8.0)[1] == [0, 1, 1, 1, 1, 2]


def test_files_that_cannot_be_read_are_left_to_the_reader(tmp_path: Path) -> None:
    (tmp_path / "a.mp3").write_text("x")
    (tmp_path / "b.wav").write_bytes(b"RIFF    WAVE")
    for name in ("a.mp3", "b.wav", "none.wav"):
        one = Utterance(str(tmp_path / name), "", DataLocation(name))
        assert cut_recording(one, 8.0) == [one]


def test_silent_parts_are_left_out_and_other_problems_count_for_the_recording() -> None:
    parts = [Utterance(name, "", DataLocation(name)) for name in "aaabbc"]
    silent, cut = "silent_audio\tis silent.", "cut_audio\tis cut."
    numbers = [0, 0, 0, 1, 1, 2]
    assert find_usable(parts, ["", silent, "", "", "", ""], False, {}, numbers) == [0, 2, 3, 4, 5]
    unreadable: Any = {}
    problems = ["", "", "", "", cut, silent]
    assert find_usable(parts, problems, True, unreadable, numbers) == [0, 1, 2]
    assert unreadable == {-2: "'b' is cut.", -3: "'c' is silent."}
    with pytest.raises(DataError, match="'b' is cut. Replace or remove it, or type skip_unreadable=true"):
        find_usable(parts, problems, False, {}, numbers)


def opened(dataset: AudioDataset, names: List[str]) -> Any:
    signature = AudioSignature(((16, 80), ()), class_names=[" ", "a", "b"], audio=Features(sample_rate=RATE))
    return dataset.open_inputs(names, signature, False, {})


def test_parts_become_one_row(tmp_path: Path) -> None:
    long = given(tmp_path / "long.flac", spoken(9, [3.0, 6.5])).path
    short = given(tmp_path / "short.flac", spoken(1, [])).path
    dataset = Kaldi(chunk_seconds=4.0)
    source, locations = opened(dataset, [short, long])
    assert locations == [short, long, long, long] and source.numbers == [0, 1, 1, 1]
    assert source.frame_N.sum() == pytest.approx(1000, abs=20)
    whole, _ = opened(Kaldi(), [short, long])
    assert whole.numbers == [0, 1] and len(whole) == 2
    form = SpeechRecognition().prediction_format()
    predictions = list(enumerate(np.array([[1, 0, -1], [1, -1, 0], [-1, -1, -1], [0, 2, 2]])))
    for names, text in (([" ", "a", "b"], "a bb"), (["c", "a", "b"], "accbb")):
        signature = SimpleNamespace(class_names=names)
        rows = list(form.rows(signature, source, predictions, 3))  # type: ignore[arg-type]
        assert [index for index, _ in rows] == [0, 1] and rows[1][1] == {"text": text}
    rows = list(form.rows(SimpleNamespace(class_names=[" ", "a", "b"]), whole, predictions[:2], 3))  # type: ignore[arg-type]
    assert rows == [(0, {"text": "a "}), (1, {"text": "a "})]


def test_sources_that_were_not_cut_have_a_row_each() -> None:
    feature = Ragged(np.zeros((4, 2), np.float16), np.array([0, 2, 4]))
    parts = [Utterance("a", "", DataLocation("a"))] * 2
    source = Recordings(parts, feature, np.arange(2), Alphabet(["a"]), are_known=False)
    rows = (
        SpeechRecognition()
        .prediction_format()
        .rows(
            SimpleNamespace(class_names=["a"]),  # type: ignore[arg-type]
            source,
            enumerate(np.array([[0], [-1]])),
            3,
        )
    )
    assert list(rows) == [(0, {"text": "a"}), (1, {"text": ""})]
