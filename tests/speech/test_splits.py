"""Utterances of each kind of dataset in training, validation and test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, List, Optional

import numpy as np
import pytest
import soundfile

from mxtrain.data.checking.problems import DataLocation
from mxtrain.data.spec import Splits
from mxtrain.errors import DataError
from mxtrain.speech.digit_lines import DigitLines
from mxtrain.speech.features import Features
from mxtrain.speech.kaldi import Kaldi
from mxtrain.speech.librispeech import LibriSpeech
from mxtrain.speech.manifests import SpeechManifest
from mxtrain.speech.spoken_digits import SpokenDigits
from mxtrain.speech.usable import require_memory

pytestmark = pytest.mark.usefixtures("own_cache")
FEATURES = Features(sample_rate=4000, num_mels=16)
PARTS = {"a": 2, "b": 1, "c": 1, "d": 1}
"""By the name of a part, how many utterances it has; what is said is the name, and a number."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The same parts as manifests, as LibriSpeech and as folders of Kaldi's."""
    for part, count in PARTS.items():
        chapter, kaldi = tmp_path / "libri" / part / "1" / "2", tmp_path / "kaldi" / part
        chapter.mkdir(parents=True)
        kaldi.mkdir(parents=True)
        names = [f"{part}{number}" for number in range(count)]
        for number, name in enumerate(names):
            sound = np.random.RandomState(ord(part) + number).uniform(-0.5, 0.5, 2000)
            soundfile.write(chapter / f"{name}.flac", sound, 4000)
        rows = [{"audio_filepath": f"libri/{part}/1/2/{name}.flac", "text": name} for name in names]
        (tmp_path / f"{part}.jsonl").write_text("\n".join(map(json.dumps, rows)))
        (chapter / "1-2.trans.txt").write_text("\n".join(f"{name} {name}" for name in names))
        (kaldi / "wav.scp").write_text("\n".join(f"{name} {chapter}/{name}.flac" for name in names))
        (kaldi / "text").write_text("\n".join(f"{name} {name}" for name in names))
    return tmp_path


def texts(splits: Splits) -> List[Optional[List[str]]]:
    """Returns the texts of each split."""
    sources: List[Any] = [splits.train, splits.val, splits.test]
    return [None if one is None else [one.transcript(row).text for row in range(len(one))] for one in sources]


def test_each_split_has_its_parts(folder: Path) -> None:
    given: Any = {"features": FEATURES, "characters": "abcd01"}
    wanted = [["a0", "a1", "b0"], ["c0"], ["d0"]]
    files = {part: str(folder / f"{part}.jsonl") for part in PARTS}
    manifests = SpeechManifest(train=[files["a"], files["b"]], val=files["c"], test=[files["d"]], **given)
    libri = LibriSpeech(root=str(folder / "libri"), train=["a", "b"], val=["c"], test="d", **given)
    assert texts(manifests.open()) == texts(libri.open()) == wanted
    train, val, test = (str(folder / "kaldi" / part) for part in "acd")
    assert texts(Kaldi(train=train, val=val, test=test, **given).open()) == [["a0", "a1"], ["c0"], ["d0"]]
    held_out = Kaldi(train=train, test=test, val_fraction=0.5, **given).open()
    train_texts, val_texts, test_texts = texts(held_out)
    assert sorted([*(train_texts or ()), *(val_texts or ())]) == ["a0", "a1"] and test_texts == ["d0"]


def test_digit_splits_have_different_texts() -> None:
    lines = texts(DigitLines(num_train=40, num_val=40, length=[8, 8]).open())
    digits = SpokenDigits(length=[8, 8], num_train=40, num_val=40)
    spoken = [[one.text for one in digits._plan(part)] for part in range(3)]
    for train, val, test in (lines, spoken):  # type: ignore[misc]
        assert not set(train) & set(val) and not (set(train) | set(val)) & set(test)  # type: ignore[arg-type]


class Lengths:
    """Utterances of which only lengths are known, 100 frames a second."""

    def __init__(self, *seconds: float) -> None:
        self.frame_N = np.array([100 * one for one in seconds], np.int64)

    def __len__(self) -> int:
        return len(self.frame_N)

    def location(self, index: int) -> DataLocation:
        return DataLocation("a.jsonl", index + 1)


@pytest.mark.parametrize("split, remedy", [("train", "batch_seconds=601"), ("val", "eval_batch_size=3")])
def test_one_very_long_utterance_is_refused_before_it_fills_the_memory(split: str, remedy: str) -> None:
    features, source = Features(sample_rate=16000, step_ms=10.0), Lengths(4, 600, 5, 6)
    with pytest.raises(DataError, match=f"a.jsonl, line 2 is of 600 s.*32 x 600 s.*{remedy}.*dataset.max_seconds=600"):
        require_memory(split, source, features, 32, None)
    require_memory(split, source, features, 32, 600.0)
    require_memory(split, source, features, 3, None)
    require_memory(split, Lengths(), features, 32, None)
    require_memory(split, Lengths(300, 310, 600), features, 32, None)  # all of them are long
    require_memory(split, Lengths(4, 50, 5), features, 32, None)
