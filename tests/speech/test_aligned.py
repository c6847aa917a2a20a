"""Datasets of symbols with durations: what is read, fitted to its sound, refused and listed; and their batches."""

from __future__ import annotations

import ctypes.util
import json
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import pytest
import soundfile

from mxtrain.data.checking.dataset_check import CollectedFindings
from mxtrain.data.checking.problems import Problem
from mxtrain.data.loading.loader import LoaderOptions
from mxtrain.errors import DataError
from mxtrain.speech.aligned import AlignedSource, fit_to_length
from mxtrain.speech.aligned_loader import DECIBELS, AlignedLoader
from mxtrain.speech.aligned_rows import frame_positions
from mxtrain.speech.espeak_library import joined
from mxtrain.speech.features import Features
from mxtrain.speech.formant_digits import FormantDigits
from mxtrain.speech.manifests import AlignedManifest
from mxtrain.speech.spoken_numbers import SpokenNumbers
from mxtrain.speech.symbol_means import SymbolMeans

pytestmark = pytest.mark.usefixtures("own_cache")
RATE = 4000
FEATURES = Features(sample_rate=RATE, window_ms=50.0, step_ms=12.5, num_mels=12, preemphasis=0.0, normalize="none")
HERTZ = {"a": 400, "b": 900, " ": 1500}


def sound(text: str, frames: List[int]) -> np.ndarray:
    """A tone for each character, 50 samples a frame."""
    tones = [np.sin(np.arange(50 * count) * 2 * np.pi * HERTZ[one] / RATE) for one, count in zip(text, frames)]
    found: np.ndarray = 0.4 * np.concatenate(tones)
    return found


def manifest(folder: Path, *more: Dict[str, Any], count: int = 12) -> str:
    rows: List[Dict[str, Any]] = []
    for number in range(count):
        text, frames = ("ab a", [6, 4, 3, 5 + number]) if number % 2 else ("bba", [4, 0, 7 + number])
        soundfile.write(folder / f"{number}.wav", sound(text, frames), RATE)
        durations = {"durations_frames": frames} if number % 3 else {"durations_s": [one * 0.0125 for one in frames]}
        rows.append({"audio_filepath": f"{number}.wav", "text": text, **durations})
    lines = [json.dumps(row) if isinstance(row, dict) else row for row in [*rows, *more]]
    (folder / "train.jsonl").write_text("\n".join(lines) + "\n")
    return str(folder / "train.jsonl")


def dataset(train: str, **given: Any) -> AlignedManifest:
    return AlignedManifest(train=train, features=FEATURES, **{"val_fraction": 0.25, **given})


def test_each_frame_has_the_tone_of_its_symbol(tmp_path: Path) -> None:
    splits = dataset(manifest(tmp_path)).open()
    assert splits.class_names == [" ", "a", "b"] and len(splits.train) == 9 and len(splits.val) == 3
    train: Any = splits.train
    bands = {}
    for index in range(len(train)):
        durations, symbols = train.durations_of(index), train.symbols_of(index)
        assert durations.sum() == train.frame_N[index] == len(train.read(index))
        begin = 0
        for symbol, duration in zip(symbols.tolist(), durations.tolist()):
            if duration > 4:
                bands.setdefault(symbol, set()).add(int(train.read(index)[begin + duration // 2].argmax()))
            begin += duration
    assert all(len(found) == 1 for found in bands.values()) and len(set.union(*bands.values())) == len(bands)


@pytest.mark.parametrize(
    "durations, frames, tolerance, wanted",
    [
        ([3, 4], 7, 0, [3, 4]),
        ([3, 4], 9, 2, [3, 6]),
        ([3, 4], 6, 2, [3, 3]),
        ([3, 1], 2, 2, [2, 0]),
        ([3, 4], 10, 2, None),
        ([3, 4], 4, 2, None),
    ],
)
def test_small_duration_differences_are_added_to_the_last_symbol(
    durations: List[int], frames: int, tolerance: int, wanted: Any
) -> None:
    found = fit_to_length(np.array(durations), frames, tolerance)
    assert (None if found is None else found.tolist()) == wanted


def test_durations_are_rounded_at_symbol_ends(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "long.wav", sound("ab", [30, 20]), RATE)
    seconds = [0.0179] * 35  # 1.43 frames each: 35 and not 50 frames, where each was rounded
    row = {
        "audio_filepath": "long.wav",
        "phonemes": " ".join("ab"[place % 2] for place in range(35)),
        "durations_s": seconds,
    }
    train: Any = dataset(manifest(tmp_path, row), val_fraction=0.1).open().train
    index = int(np.argmax(np.diff(train.symbol.begin)))
    end_L = np.cumsum(train.durations_of(index))
    np.testing.assert_array_equal(end_L, np.rint(np.cumsum(seconds) / 0.0125))


WRONG = [
    ({"audio_filepath": "0.wav", "text": "ab", "durations_frames": [11]}, "has 1 durations_frames for 2 symbols"),
    ({"audio_filepath": "0.wav", "text": "a", "durations_frames": [-11]}, "has -11 in durations_frames, at symbol 1"),
    ({"audio_filepath": "0.wav", "text": "a", "durations_frames": [10.5]}, "each is a whole number of frames"),
    ({"audio_filepath": "0.wav", "text": "a", "durations_s": [float("nan")]}, "each is a number of seconds"),
    ({"audio_filepath": "0.wav", "text": "a", "durations_s": [10**400]}, "beyond the range of 64-bit"),
    ({"audio_filepath": "0.wav", "text": "a", "durations_s": 0.1}, "has durations_s that are no list"),
    ({"audio_filepath": "0.wav", "text": "a", "durations": [1]}, "has neither. Did you mean 'durations_"),
    ({"audio_filepath": "0.wav", "text": "a", "durations_s": [1], "durations_frames": [1]}, "and has both"),
    ({"audio_filepath": "0.wav", "text": "a", "durations_frames": [0]}, "durations_frames that add up to 0"),
    ({"audio_filepath": "0.wav", "phonemes": ["a", 3], "durations_frames": [1, 2]}, "'phonemes' that are no list"),
    ({"audio_filepath": "0.wav", "durations_frames": [1, 2]}, "has no symbols: neither 'phonemes' nor a text"),
    ({"text": "a", "durations_frames": [11]}, "names no recording"),
    ("{nonsense", "is not JSON"),
    (
        {"audio_filepath": "0.wav", "text": "ba", "durations_frames": [4, 4]},
        "its durations add up to 8 frames (0.10 s), and",
    ),
    ({"audio_filepath": "gone.wav", "text": "ba", "durations_frames": [4, 7]}, "which cannot be read"),
    ({"audio_filepath": "silent.wav", "text": "a", "durations_frames": [20]}, "is silent"),
    ({"audio_filepath": "0.wav", "text": "ba", "durations_frames": [4, 7], "duration": 9.0}, "is cut: it has 0.14 s"),
]


@pytest.mark.parametrize("row, said", WRONG)
def test_mistakes_are_refused_by_line(tmp_path: Path, row: Any, said: str) -> None:
    soundfile.write(tmp_path / "silent.wav", np.zeros(1000), RATE)
    with pytest.raises(DataError) as error:
        dataset(manifest(tmp_path, row)).open()
    assert "train.jsonl, line 13" in str(error.value) and said in str(error.value)


def test_all_mistakes_are_listed_and_can_be_left_out(tmp_path: Path, caplog: Any) -> None:
    soundfile.write(tmp_path / "silent.wav", np.zeros(1000), RATE)
    unknown = {"audio_filepath": "0.wav", "text": "bx", "durations_frames": [4, 7]}
    path = manifest(tmp_path, *(row for row, _ in WRONG), unknown)
    problems: List[Problem] = []
    findings = CollectedFindings(write=problems.append)
    splits = dataset(path, symbols=["a", "b", " "]).examine(findings)
    assert sorted(problem.location.line or 0 for problem in problems) == list(range(13, 14 + len(WRONG)))
    kinds = {problem.kind for problem in problems}
    assert kinds == {
        "unreadable_row",
        "duration_mismatch",
        "unreadable_audio",
        "silent_audio",
        "cut_audio",
        "unknown_symbol",
    }
    assert len(splits.train) + len(splits.val) == 12
    with caplog.at_level("WARNING"):
        dataset(path, symbols=["a", "b", " "], skip_unreadable=True).open()
    assert "1 is left out, duration_mismatch" in caplog.text
    with pytest.raises(DataError, match=r"line 2 has ' ', which is no symbol of these. Correct it"):
        dataset(manifest(tmp_path), symbols=["a", "b"]).open()


def test_frames_that_cannot_become_sound_are_refused() -> None:
    for wrong in ({"normalize": "utterance"}, {"normalize": "none", "step_ms": 20.0}):
        with pytest.raises(ValueError, match="dataset.features.(normalize=none|step_ms=6.25)"):
            AlignedManifest(features=Features(**{"sample_rate": RATE, "num_mels": 12, **wrong}))


def source(tmp_path: Path) -> AlignedSource:
    train: Any = dataset(manifest(tmp_path)).open().train
    return train


def test_batches_hold_symbols_places_and_normalised_frames(tmp_path: Path) -> None:
    train = source(tmp_path)
    mean, deviation = np.arange(12) * 0.1, np.arange(1, 13) * 0.5
    options = LoaderOptions(batch_size=9, in_order=True, prefetch=0)
    loader = AlignedLoader(train, mean.tolist(), deviation.tolist(), options)
    (batch,) = loader.epoch()
    symbols, lengths, index, place = (one.asnumpy() for one in batch.inputs)
    frames, counts, unit = (one.asnumpy() for one in batch.targets)
    assert batch.meta is not None and batch.meta.tolist() == counts.tolist() == train.frame_N.tolist()
    np.testing.assert_allclose(unit, np.tile(deviation * DECIBELS, (9, 1)), rtol=1e-6)
    for row in range(9):
        count, durations = int(counts[row]), train.durations_of(row)
        assert lengths[row] == len(durations) and (symbols[row, : len(durations)] == train.symbols_of(row)).all()
        assert np.bincount(index[row, :count].astype(int), minlength=len(durations)).tolist() == durations.tolist()
        assert (np.diff(index[row, :count]) >= 0).all() and (index[row, count:] == -1).all()
        np.testing.assert_allclose(frames[row, :count] * deviation + mean, train.read(row), atol=1e-4)
        assert (frames[row, count:] == 0).all() and (place[row, count:] == 0).all()


def test_frame_positions_within_symbols() -> None:
    place = frame_positions(np.array([2, 0, 1]))
    np.testing.assert_allclose(place[:, 0], [0.25, 0.75, 0.5])
    np.testing.assert_allclose(place[:, 1], np.log([3, 3, 2]) / 4, rtol=1e-6)
    np.testing.assert_allclose(place[:, 2:], [[0.005, 0.025], [0.015, 0.015], [0.025, 0.005]], rtol=1e-6)


def test_symbol_mean_error_equals_deviation_within_symbols(tmp_path: Path) -> None:
    train = source(tmp_path)
    symbol = np.concatenate([np.repeat(train.symbols_of(row), train.durations_of(row)) for row in range(9)])
    frames = np.concatenate([train.read(row) for row in range(9)]).astype(np.float64)
    found = np.stack([frames[symbol == one].mean(axis=0) for one in range(3)])
    wanted = np.abs(found[symbol] - frames).mean() * 10 / np.log(10)
    assert SymbolMeans(train, 3, 99).measure(train, 99)[0] == pytest.approx(wanted)


def test_digits_are_a_function_of_their_number_and_differ_between_splits() -> None:
    given = {"num_train": 6, "num_val": 3, "features": FEATURES.model_copy(update={"sample_rate": 8000})}
    splits, again = FormantDigits(**given).open(), FormantDigits(**given, split_seed=1).open()
    train: Any = splits.train
    other: Any = again.train
    assert [one.utterance.text for one in train.utterances] != [one.utterance.text for one in other.utterances]
    texts = [[one.durations for one in part.utterances] for part in (splits.train, splits.val, splits.test)]  # type: ignore[union-attr]
    assert not any(one in texts[0] for one in [*texts[1], *texts[2]])
    silence = splits.class_names.index("_")
    symbol = np.repeat(train.symbols_of(0), train.durations_of(0))
    energy = train.read(0).mean(axis=1)
    assert energy[symbol != silence].mean() > energy[symbol == silence].mean() + 4


def test_events_of_espeak_become_phonemes_with_ends() -> None:
    events = [[10, "s"], [30, "E"], [30, "_:"], [50, "_"], [70, "n"], [90, "_:"], [100, "_"]]
    found = joined(np.zeros(100, np.int16), events)
    assert found.phonemes == ["_", "s", "_", "n", "_"] and found.end_N.tolist() == [10, 30, 70, 90, 100]


@pytest.mark.skipif(ctypes.util.find_library("espeak-ng") is None, reason="eSpeak NG is not installed")
def test_numbers_are_spoken_by_espeak() -> None:
    given = SpokenNumbers(num_train=6, num_val=2, largest=99)
    splits = given.open()
    train: Any = splits.train
    texts = [one.utterance.text for part in (train, splits.val, splits.test) for one in part.utterances]  # type: ignore[union-attr]
    assert len(set(texts)) == 10 and len(train) == 6
    assert all(len(train.read(row)) == train.durations_of(row).sum() > 20 for row in range(6))
    energy = np.concatenate([train.read(row).mean(axis=1) for row in range(6)])
    symbol = np.concatenate([np.repeat(train.symbols_of(row), train.durations_of(row)) for row in range(6)])
    silence = splits.class_names.index("_")
    assert energy[symbol == silence].mean() < energy[symbol != silence].mean() - 5
    with pytest.raises(DataError, match="voice=nobody: eSpeak NG has no such voice"):
        SpokenNumbers(num_train=6, num_val=2, voice="nobody").open()


def test_missing_espeak_names_an_alternative(monkeypatch: Any) -> None:
    from mxtrain.speech import espeak_library

    monkeypatch.setattr(espeak_library, "_espeak", None)
    monkeypatch.setattr(espeak_library.ctypes.util, "find_library", lambda name: "libnowhere.so")
    with pytest.raises(DataError, match="Or type dataset=formant_digits, which needs nothing"):
        SpokenNumbers().open()
