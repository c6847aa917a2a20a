"""Datasets of recordings: what is kept, held out and refused, features in the cache, and batches of so many seconds."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import pytest
import soundfile

from mxtrain.data.checking.dataset_check import CollectedFindings, check_dataset
from mxtrain.data.corpus import preparing
from mxtrain.data.loading.loader import LoaderOptions
from mxtrain.errors import DataError
from mxtrain.speech import prepared
from mxtrain.speech.audio import AudioDataset
from mxtrain.speech.deep_speech2 import DeepSpeech2
from mxtrain.speech.features import Features
from mxtrain.speech.loader import FRAME_STEP
from mxtrain.speech.manifests import SpeechManifest
from mxtrain.speech.signature import AudioSignature
from mxtrain.speech.spoken_digits import SpokenDigits
from mxtrain.types.kinds import TargetKind

pytestmark = pytest.mark.usefixtures("own_cache")
FEATURES = Features(sample_rate=4000, num_mels=16)
RATE = 4000


class NoProgress:
    """Progress display that shows nothing."""

    def begin(self, what: str, total: int) -> None: ...

    def advance(self, count: int) -> None: ...


def noise(path: Path, seconds: float, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, np.random.RandomState(seed).uniform(-0.5, 0.5, int(seconds * RATE)), RATE)


def manifest(folder: Path, count: int = 12, **changed: Dict[str, Any]) -> str:
    """Recordings of a third of a second to more than one, each with two words."""
    rows: List[str] = []
    for number in range(count):
        name, seconds = f"{number}.{'flac' if number % 2 else 'wav'}", 0.3 + 0.1 * number
        noise(folder / name, seconds, number)
        text = f"Ab  {'cd'[number % 2]}"
        rows.append(json.dumps({"audio_filepath": name, "duration": seconds, "text": text}))
    rows += [json.dumps(row) for row in changed.values()]
    path = folder / "train.jsonl"
    path.write_text("\n".join(rows) + "\n")
    return str(path)


def dataset(train: str, **given: Any) -> AudioDataset:
    return SpeechManifest(train=train, features=FEATURES, val_fraction=0.25, **given)


def complete_windows(num_samples: int) -> int:
    return 1 + (num_samples - FEATURES.window) // FEATURES.step


def test_utterances_become_frames_and_characters(tmp_path: Path) -> None:
    splits = dataset(manifest(tmp_path)).open()
    assert splits.class_names == [" ", "a", "b", "c", "d"]
    train: Any = splits.train
    assert len(train) == 9 and len(splits.val) == 3 and splits.test is None
    assert sorted([*train.frame_N, *splits.val.frame_N]) == sorted(
        complete_windows(int((0.3 + 0.1 * number) * RATE)) for number in range(12)
    )
    assert train.transcript(0).text in ("ab c", "ab d") and train.label_of(0).tolist()[:3] == [1, 2, 0]
    frames = train.read(0, seed=0, epoch=0, train=False)
    assert frames.shape == (train.frame_N[0], 16) and frames.dtype == np.float32
    assert not (frames == 0).any(), "nothing is hidden outside of training"
    hidden = [train.read(0, seed=0, epoch=epoch, train=True) for epoch in (0, 0, 1)]
    assert (hidden[0] == hidden[1]).all() and (hidden[0] != hidden[2]).any() and (hidden[0] == 0).any()


def test_features_are_computed_once_for_any_number_of_threads(tmp_path: Path, monkeypatch: Any) -> None:
    path = manifest(tmp_path)
    count = []
    compute = prepared.compute_utterance
    monkeypatch.setattr(prepared, "compute_utterance", lambda *given: count.append(1) or compute(*given))
    first: Any = dataset(path, num_workers=1).open().train
    again: Any = dataset(path, num_workers=4).open().train
    assert len(count) == 12
    frames = [first.read(index, seed=0, epoch=0, train=False) for index in range(len(first))]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    others: Any = dataset(path, num_workers=4).open().train
    assert len(count) == 24
    for index, wanted in enumerate(frames):
        for one in (again, others):
            np.testing.assert_array_equal(one.read(index, seed=0, epoch=0, train=False), wanted)
    noise(tmp_path / "3.flac", 0.9, 99)  # another recording under the same name, with the same manifest
    dataset(path).open()
    assert len(count) == 36


def test_other_parts_and_other_features_are_other_frames(tmp_path: Path) -> None:
    noise(tmp_path / "long.wav", 3.0, 1)

    def read(begin_s: float, duration_s: float, **changed: Any) -> np.ndarray:
        row = {"audio_filepath": "long.wav", "text": "a", "offset": begin_s, "duration": duration_s}
        given = SpeechManifest(
            train=manifest(tmp_path, 1, part=row), val_fraction=0.5, features=FEATURES.model_copy(update=changed)
        )
        splits = given.open()
        source: Any = next(one for one in (splits.train, splits.val) if "long" in one.utterances[0].path)  # type: ignore
        found: np.ndarray = source.read(0, seed=0, epoch=0, train=False)
        return found

    first = read(0.5, 1.0)
    assert len(first) == complete_windows(RATE)
    assert len(read(0.5, 1.5)) == complete_windows(RATE * 3 // 2)
    for other in (read(1.0, 1.0), read(0.5, 1.0, preemphasis=0.0), read(0.5, 1.0, normalize="none")):
        assert other.shape == first.shape and (other != first).any()


@pytest.mark.slow
def test_interrupted_preparation_resumes_after_saved_files(tmp_path: Path, monkeypatch: Any) -> None:
    path = manifest(tmp_path)
    monkeypatch.setattr(prepared, "BYTES_PER_BLOCK", 1)
    compute, count = prepared.compute_utterance, []

    def dying(*given: Any) -> Any:
        count.append(1)
        if len(count) == 9:
            raise KeyboardInterrupt
        return compute(*given)

    monkeypatch.setattr(prepared, "compute_utterance", dying)
    with pytest.raises(KeyboardInterrupt):
        dataset(path, num_workers=1).open()
    train: Any = dataset(path, num_workers=1).open().train
    assert 12 < len(count) < 9 + 12, "some were on the disk"
    monkeypatch.setattr(preparing, "FORMAT", -1)
    fresh: Any = dataset(path).open().train
    for index in range(len(fresh)):
        np.testing.assert_array_equal(
            train.read(index, seed=0, epoch=0, train=False), fresh.read(index, seed=0, epoch=0, train=False)
        )


def wrong_manifest(folder: Path) -> str:
    soundfile.write(folder / "silent.wav", np.zeros(2000), RATE)
    noise(folder / "cut.wav", 1.0, 50)
    (folder / "cut.wav").write_bytes((folder / "cut.wav").read_bytes()[:-1000])
    noise(folder / "short.flac", 1.0, 51)
    noise(folder / "long.wav", 0.2, 52)
    noise(folder / "odd.wav", 1.0, 53)
    text = "ab c"
    return manifest(
        folder,
        missing={"audio_filepath": "missing.wav", "text": text},
        silent={"audio_filepath": "silent.wav", "text": text},
        cut={"audio_filepath": "cut.wav", "text": text},
        said={"audio_filepath": "short.flac", "duration": 2.5, "text": text},
        long={"audio_filepath": "long.wav", "text": "abababababababab"},
        odd={"audio_filepath": "odd.wav", "text": "ab é7"},
        empty={"audio_filepath": "odd.wav", "text": "  "},
    )


KINDS = {
    "unreadable_audio": (13, "missing.wav', which cannot be read: No such file"),
    "silent_audio": (14, "silent.wav' is silent"),
    "cut_audio": (15, "cut.wav' is cut: 88% of what its header says"),
    "short_audio": (17, "has 18 frames, of which the network makes 5, and CTC needs 16"),
    "unknown_character": (18, "holds 'é', '7', which are not in the alphabet"),
    "empty_text": (19, "empty transcript"),
}


def test_a_check_lists_all_that_is_wrong_by_file_and_line(tmp_path: Path) -> None:
    path = wrong_manifest(tmp_path)
    findings = CollectedFindings()
    given = dataset(path, characters="abcd ").for_run(TargetKind, DeepSpeech2())
    census = check_dataset(given, findings, NoProgress(), 2)
    assert sum(census.num_samples.values()) == 12
    assert findings.counts == {**{kind: 1 for kind in KINDS}, "cut_audio": 2}
    for kind, (line, said) in KINDS.items():
        problem = findings.shown[kind][0]
        assert (problem.location.file, problem.location.line) == (path, line) and said in problem.fact
        assert problem.fact.startswith(f"{path}, line {line}")
    assert "it has 1.00 s of 2.50 s" in findings.shown["cut_audio"][1].fact


def test_training_refuses_the_first_or_leaves_them_out(tmp_path: Path, caplog: Any) -> None:
    path = wrong_manifest(tmp_path)
    with pytest.raises(DataError, match="line 13 names .*missing.wav'.*dataset.skip_unreadable=true"):
        dataset(path, characters="abcd ").open()
    with caplog.at_level(logging.WARNING):
        splits = dataset(path, characters="abcd ", skip_unreadable=True).for_run(TargetKind, DeepSpeech2()).open()
    assert len(splits.train) + len(splits.val) == 12
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == len(KINDS) and any("2 are left out, cut_audio, e.g. " in line for line in said)
    # Of a network that gives a score for each frame the long transcript fits.
    splits = dataset(path, characters="abcd ", skip_unreadable=True).open()
    assert len(splits.train) + len(splits.val) == 13


def test_punctuation_is_kept_or_removed_and_unknown_characters_are_refused(tmp_path: Path) -> None:
    path = manifest(tmp_path, more={"audio_filepath": "1.flac", "text": "Ab, c."})
    assert set(dataset(path).open().class_names) == set(" abcd,.")
    removed = dataset(path, punctuation="remove")
    assert set(removed.open().class_names) == set(" abcd")
    assert removed.transcript_signature == "NFC,lower,single_spaces,no_punctuation"
    with pytest.raises(DataError, match="dataset.punctuation=remove, or add it to dataset.characters; it is 'abcd '"):
        dataset(path, characters="abcd ").open()
    signature = AudioSignature(((64, 16), ()), class_names=list("abcd "), audio=FEATURES)
    restored: Any = SpeechManifest(train=path).restored(signature, [], "run")[0]
    assert restored.features == FEATURES, "those of the network"
    with pytest.raises(DataError, match="skip_unreadable=true to leave .* knows 'abcd ', in dataset.case=lower"):
        restored.open()


def test_times_of_manifests_may_be_rounded(tmp_path: Path) -> None:
    noise(tmp_path / "long.wav", 9.93, 3)
    row = {"audio_filepath": "long.wav", "text": "a", "duration": 10.0}
    splits = dataset(manifest(tmp_path, more=row)).open()
    assert len(splits.train) + len(splits.val) == 13


def test_too_few_seconds_for_any_utterance_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"dataset.max_seconds=0.1 leaves no .* of .*line \d+, has 0\.\d\d s"):
        dataset(manifest(tmp_path), max_seconds=0.1).open()


def test_batches_have_at_most_so_many_seconds_and_each_utterance_once(tmp_path: Path) -> None:
    given = dataset(manifest(tmp_path), batch_seconds=4.0)
    splits = given.open()

    def batches(epoch: int, train: bool = True) -> List[Any]:
        options = LoaderOptions(batch_size=3, train=train, seed=1, encode=lambda frame_N: (frame_N,))
        loader = given.build_loader(splits.train, given.infer_signature(splits, DeepSpeech2()), options)
        found = list(loader.epoch(epoch))
        assert len(found) == len(loader)
        return found

    first, second = batches(0), batches(1)
    for found in (first, second):
        assert sorted(np.concatenate([batch.index_B for batch in found])) == list(range(9))
        assert all(batch.inputs[0].shape[0] * batch.inputs[0].shape[1] <= 400 for batch in found)
        assert all(batch.inputs[0].shape[1] % FRAME_STEP == 0 for batch in found)
    assert len(first) == len(second) < 9 and max(batch.size for batch in first) > 3
    assert [batch.index_B.tolist() for batch in first] != [batch.index_B.tolist() for batch in second]
    assert [batch.size for batch in batches(0, train=False)] == [3, 3, 3]
    frames, lengths = (one.asnumpy() for one in first[0].inputs)
    for row, index in enumerate(first[0].index_B.tolist()):
        size = int(lengths[row])
        wanted = splits.train.read(index, seed=1, epoch=0, train=True)
        np.testing.assert_array_equal(frames[row, :size], wanted)
        assert size == len(wanted) and not frames[row, size:].any()
    with pytest.raises(DataError, match="has no room for the longest utterance, of .*Type dataset.batch_seconds=2"):
        dataset(manifest(tmp_path), batch_seconds=1.0).open()
    kept = dataset(manifest(tmp_path), batch_seconds=1.0, max_seconds=0.9).open()
    assert len(kept.train) < 9 and len(kept.val) == 3


FAKE = """#!/usr/bin/env python3
import sys
import numpy as np, soundfile
if sys.argv[1] == "--version":
    print("eSpeak NG text-to-speech: 1.0  Data at: /x")
    sys.exit()
seed = len(" ".join(sys.argv[1:7]))
sound = np.random.RandomState(seed).uniform(-0.5, 0.5, 2205 * len(sys.argv[-1].split()) + seed)
soundfile.write(sys.argv[sys.argv.index("-w") + 1], sound, 22050)
"""


def test_missing_espeak_names_the_package_and_an_alternative(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError, match="apt-get install espeak-ng.*dataset=digit_lines"):
        SpokenDigits().open()


@pytest.mark.slow
def test_spoken_digits_are_made_once_with_voices_of_their_own(monkeypatch: Any, tmp_path: Path) -> None:
    import os
    import sys

    (tmp_path / "espeak-ng").write_text(FAKE.replace("/usr/bin/env python3", sys.executable))
    (tmp_path / "espeak-ng").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    given = SpokenDigits(num_train=4, num_val=2, features=FEATURES)
    splits = given.open()
    assert (len(splits.train), len(splits.val), len(splits.test or ())) == (4, 2, 2)
    voices = [{one.path for one in split.utterances} for split in (splits.train, splits.val, splits.test)]  # type: ignore
    assert not voices[0] & voices[1] and not (voices[0] | voices[1]) & voices[2]
    text = splits.train.transcript(0).text  # type: ignore[attr-defined]
    assert set(text.split()) <= {"zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"}
    (tmp_path / "espeak-ng").write_text("#!/bin/sh\necho 'eSpeak NG text-to-speech: 1.0  Data at: /y'\n")
    again = given.open()  # nothing is spoken again
    np.testing.assert_array_equal(
        again.train.read(1, seed=0, epoch=0, train=False),  # type: ignore[attr-defined]
        splits.train.read(1, seed=0, epoch=0, train=False),  # type: ignore[attr-defined]
    )
    with pytest.raises(DataError, match="eSpeak NG cannot say"):
        SpokenDigits(num_train=5, num_val=2, features=FEATURES).open()
