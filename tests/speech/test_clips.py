"""Clips of sound with classes: folders of recordings, augmentation, and a run from training to an exported network."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Callable, List, Tuple

import numpy as np
import pytest
import soundfile

from mxtrain.data.checking.problems import STRICT
from mxtrain.data.corpus.shards import Ragged
from mxtrain.data.loading.loader import LoaderOptions
from mxtrain.errors import DataError
from mxtrain.speech.audio_folder import LISTS, NOISE, SILENCE, UNKNOWN, AudioFolder, split_of_speaker
from mxtrain.speech.clip_frames import QUIETEST, clip_frames, fit_clip
from mxtrain.speech.clips import ClipAugment, add_noise
from mxtrain.speech.features import Features
from mxtrain.speech.formant_keywords import FormantKeywords
from mxtrain.speech.log_mel import log_mel

pytestmark = pytest.mark.usefixtures("own_cache")
FEATURES = Features(sample_rate=8000, window_ms=40.0, step_ms=20.0, num_mels=8, normalize="none")
SMALL = {"features": FEATURES, "seconds": 0.5}


def sound(path: Path, seconds: float = 0.5, tone: float = 500.0, rate: int = 8000, name: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(sum(map(ord, str(path.name)))).standard_normal(int(seconds * rate))
    soundfile.write(path, 0.3 * np.sin(np.arange(len(noise)) * tone * 6.283 / rate) + 0.01 * noise, rate)
    return path


def commands(root: Path) -> AudioFolder:
    """Two words and a rare one, with lists and noise, as Speech Commands has them."""
    for tone, word in ((400, "no"), (900, "yes"), (2000, "bird")):
        for speaker in "abcdef":
            sound(root / word / f"{speaker}_nohash_0.wav", tone=tone)
    sound(root / NOISE / "running_tap.wav", 8.0, 3000)
    (root / NOISE / "README.md").write_text("x")
    (root / LISTS["val"]).write_text("no/a_nohash_0.wav\nyes/a_nohash_0.wav\nbird/a_nohash_0.wav\n")
    (root / LISTS["test"]).write_text("no/b_nohash_0.wav\nyes/b_nohash_0.wav\n")
    return AudioFolder(root=str(root), **SMALL)


def names_of(source: Any) -> List[str]:
    return ["/".join(Path(clip.utterance.path).parts[-2:])[:-13] for clip in source.clips]


def test_lists_of_speech_commands_decide_the_splits(tmp_path: Path) -> None:
    splits = commands(tmp_path).open()
    assert splits.class_names == ["bird", "no", "yes"] and splits.shape == (1, 24, 8)
    assert names_of(splits.val) == ["bird/a", "no/a", "yes/a"] and names_of(splits.test) == ["no/b", "yes/b"]
    assert len(splits.train) == 13 and splits.train.read_labels().tolist() == [0] * 5 + [1] * 4 + [2] * 4


def test_other_words_and_silence_are_classes_if_asked_for(tmp_path: Path) -> None:
    dataset = commands(tmp_path).model_copy(update={"classes": ["yes", "no"]})
    splits = dataset.open()
    assert splits.class_names == ["yes", "no"] and names_of(splits.val) == ["no/a", "yes/a"]
    both = dataset.model_copy(update={"others": "unknown", "silence": 0.5}).open()
    assert both.class_names == ["yes", "no", UNKNOWN, SILENCE]
    assert np.bincount(both.train.read_labels()).tolist() == [4, 4, 5, 6]
    parts = [
        [clip.utterance.begin_s for clip in part.clips if clip.label == 3] for part in (both.train, both.val, both.test)
    ]
    assert [len(part) for part in parts] == [6, 2, 1]
    assert 0 <= min(parts[0]) and max(parts[0]) <= 5.9 and min(parts[1]) >= 6.4 and max(parts[1]) <= 6.7
    assert 7.2 <= parts[2][0] <= 7.5


def test_speakers_are_in_one_split_without_lists(tmp_path: Path) -> None:
    digests = {name: int(hashlib.sha1(name.encode()).hexdigest(), 16) % 2**27 for name in map(str, range(300))}
    for name, digest in digests.items():
        share = 100 * digest / (2**27 - 1)
        assert split_of_speaker(name, 0.1, 0.2) == ("val" if share < 10 else "test" if share < 30 else "train")
    dataset = commands(tmp_path).model_copy(update={"val_fraction": 0.3, "test_fraction": 0.3})
    for name in LISTS.values():
        (tmp_path / name).unlink()
    splits = dataset.open()
    speakers = [{name.split("/")[1] for name in names_of(part)} for part in (splits.train, splits.val, splits.test)]
    assert [len(part) for part in speakers] == [2, 2, 2] and len(set().union(*speakers)) == 6


@pytest.mark.parametrize("missing", ["val", "test"])
def test_a_split_without_a_list_gets_whole_speakers(tmp_path: Path, missing: str) -> None:
    dataset = commands(tmp_path).model_copy(update={"val_fraction": 0.4, "test_fraction": 0.4})
    listed = {"val": 3, "test": 2}
    (tmp_path / LISTS[missing]).unlink()
    del listed[missing]
    splits = dataset.open()
    parts = {"train": splits.train, "val": splits.val, "test": splits.test}
    speakers = {split: {name.split("/")[1] for name in names_of(part)} for split, part in parts.items()}
    assert speakers[missing] and not speakers[missing] & speakers["train"]
    assert {split: len(parts[split]) for split in listed} == listed and sum(map(len, parts.values())) == 18
    # The rest of the speakers of the existing list stays for training or is held out as a whole.
    assert speakers[missing] == {
        name for name in speakers["train"] | speakers[missing] if split_of_speaker(name, 0.4, 0.4) == missing
    }


@pytest.mark.parametrize("missing", ["val", "test"])
def test_a_missing_list_of_speech_commands_is_restored(tmp_path: Path, missing: str) -> None:
    split_of = {f"s{number}": split_of_speaker(f"s{number}", 0.1, 0.1) for number in range(60)}
    assert set(split_of.values()) == {"train", "val", "test"}
    for word in ("no", "yes"):
        (tmp_path / word).mkdir()
        for speaker in split_of:
            (tmp_path / word / f"{speaker}_nohash_0.wav").touch()
    for split, name in LISTS.items():
        if split != missing:
            listed = [f"no/{speaker}_nohash_0.wav\n" for speaker, one in split_of.items() if one == split]
            (tmp_path / name).write_text("".join(listed) + "".join(listed).replace("no/", "yes/"))
    clips = AudioFolder(root=str(tmp_path), **{**SMALL, "val_fraction": 0.1, "test_fraction": 0.1}).list_clips(STRICT)
    for split, found in (("train", clips.train), ("val", clips.val), ("test", clips.test)):
        speakers = {Path(clip.utterance.path).name.partition("_")[0] for clip in found or ()}
        assert speakers == {speaker for speaker, one in split_of.items() if one == split}


def test_a_test_split_without_speakers_is_refused(tmp_path: Path) -> None:
    dataset = commands(tmp_path).model_copy(update={"test_fraction": 0.0001})
    (tmp_path / LISTS["test"]).unlink()
    with pytest.raises(
        DataError, match="falls into the test split by dataset.test_fraction=0.0001.*test_fraction=0[.]$"
    ):
        dataset.list_clips(STRICT)
    without = dataset.model_copy(update={"val_fraction": 0.4, "test_fraction": 0.0})
    assert without.list_clips(STRICT).test is None
    (tmp_path / LISTS["val"]).unlink()
    assert without.list_clips(STRICT).test is None and without.list_clips(STRICT).val


def test_a_validation_split_without_speakers_is_refused_and_lists_of_windows_are_read(tmp_path: Path) -> None:
    dataset = commands(tmp_path).model_copy(update={"val_fraction": 0.0001})
    for name in LISTS.values():
        (tmp_path / name).write_text((tmp_path / name).read_text().replace("/", "\\"))
    assert len(dataset.list_clips(STRICT).val or ()) == 3
    for name in LISTS.values():
        (tmp_path / name).unlink()
    with pytest.raises(
        DataError, match="none of the speakers in '.*' falls into the validation split by dataset.val_f"
    ):
        dataset.list_clips(STRICT)


def test_folders_of_splits(tmp_path: Path) -> None:
    for name in ("train/a/1", "train/a/2", "train/b/1", "val/a/1", "val/b/1"):
        sound(tmp_path / f"{name}.flac")
    splits = AudioFolder(root=str(tmp_path), **SMALL).open()
    assert [len(part) for part in (splits.train, splits.val)] == [3, 2] and splits.test is None


def test_longer_clips_are_cut_in_the_middle_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sound_S = np.arange(10, dtype=np.float32)
    assert fit_clip(sound_S, 4).tolist() == [3, 4, 5, 6] and fit_clip(sound_S, 10).tolist() == sound_S.tolist()
    assert fit_clip(sound_S[1:4], 6).tolist() == [0, 1, 2, 3, 0, 0]
    dataset = commands(tmp_path)
    sound(tmp_path / "no/f_nohash_0.wav", 0.9)
    dataset.open()
    assert "dataset.seconds=0.5: 1 of 13 recordings are longer, and only their middle is used, e.g." in caplog.text
    assert "f_nohash_0.wav' of 0.9 s" in caplog.text


def test_noise_is_added_at_its_ratio() -> None:
    draw = np.random.default_rng(0)
    clip_S, noise_S = (draw.standard_normal(80_000).astype(np.float32) * level for level in (0.2, 0.01))
    clip_TF, noise_TF = (log_mel(each, FEATURES) for each in (clip_S, noise_S))
    scale = np.sqrt(np.square(clip_S).mean() / np.square(noise_S).mean() / 10)  # 10 dB
    expected_TF = log_mel(clip_S + scale * noise_S, FEATURES)
    found_TF = add_noise(clip_TF, noise_TF, 10.0)
    assert abs(np.exp(found_TF).mean() / np.exp(expected_TF).mean() - 1) < 0.01
    assert np.abs(found_TF.mean(axis=0) - expected_TF.mean(axis=0)).max() < 0.05


def test_augmentation_is_a_function_of_its_arguments() -> None:
    frames_TF = np.arange(80, dtype=np.float32).reshape(10, 8) / 100
    noise = Ragged(np.full((30, 8), -1.0, np.float16), np.array([0, 12, 30]))
    still = ClipAugment(shift=0.0, gain_db=0.0, noise_share=0.0)
    np.testing.assert_array_equal(still.apply(frames_TF, noise, 0, 0, 0), frames_TF)
    one, two, other = (ClipAugment().apply(frames_TF, noise, 0, epoch, 5) for epoch in (1, 1, 2))
    np.testing.assert_array_equal(one, two)
    assert np.abs(one - other).max() > 1e-3
    shifted = [ClipAugment(shift=0.2, gain_db=0.0, noise_share=0.0).apply(frames_TF, None, 0, 0, n) for n in range(60)]
    assert {round(float(each[5, 0] - frames_TF[5, 0]) * 100 / 8) for each in shifted} == {-2, -1, 0, 1, 2}
    gains = [ClipAugment(shift=0.0, gain_db=6.0, noise_share=0.0).apply(frames_TF, None, 0, 0, n) for n in range(60)]
    decibels = [float((each - frames_TF)[0, 0]) * 10 / np.log(10) for each in gains]
    assert -6 <= min(decibels) < -4 and 4 < max(decibels) <= 6
    quiet_TF = np.full((10, 8), QUIETEST, np.float32)
    assert min(ClipAugment(noise_share=0).apply(quiet_TF, None, 0, 0, n).min() for n in range(9)) == np.float32(
        QUIETEST
    )
    noisy = [ClipAugment(shift=0, gain_db=0, noise_share=0.5).apply(frames_TF, noise, 0, 0, n) for n in range(60)]
    assert 15 < sum(bool((each > frames_TF).any()) for each in noisy) < 45


@pytest.mark.slow
def test_batches_are_standardised_and_only_training_is_augmented(tmp_path: Path) -> None:
    dataset = commands(tmp_path)
    splits = dataset.open()
    signature = dataset.infer_signature(splits, None)
    (batch,) = dataset.build_loader(splits.train, signature, LoaderOptions(batch_size=20, in_order=True)).epoch()
    frames = batch.inputs[0].asnumpy()
    assert frames.shape == (13, 1, 24, 8) and batch.targets[0].asnumpy().tolist() == splits.train.read_labels().tolist()
    assert np.abs(frames.mean(axis=(0, 1, 2))).max() < 1e-3 and np.abs(frames.std(axis=(0, 1, 2)) - 1).max() < 1e-3
    first = splits.train.clips[0].utterance.path
    read_S, _ = soundfile.read(first, dtype="float32")
    expected = (clip_frames(read_S, FEATURES, 0.5) - np.array(signature.mean)) / np.array(signature.std)
    np.testing.assert_allclose(frames[0, 0], expected, atol=0.02)
    (trained,) = dataset.build_loader(splits.train, signature, LoaderOptions(batch_size=20, train=True)).epoch()
    order = np.argsort(trained.index_B)
    assert np.abs(trained.inputs[0].asnumpy()[order] - frames).max() > 0.1


def without(name: str) -> Callable[[Path], object]:
    return lambda root: (root / name).unlink()


def written(name: str, text: str) -> Callable[[Path], object]:
    return lambda root: (root / name).write_text(text)


def emptied(root: Path) -> None:
    for path in (root / "bird").iterdir():
        path.unlink()


def halved(root: Path) -> None:
    path = root / "no/c_nohash_0.wav"
    path.write_bytes(path.read_bytes()[:4000])


DAMAGES: List[Tuple[Callable[[Path], object], str]] = [
    (without("no/a_nohash_0.wav"), "validation_list.txt, line 1 names 'no/a_nohash_0.wav', and there is no such rec"),
    (
        written(LISTS["test"], "no/b_nohash_0.wav\n\nno/a_nohash_0.wav\n"),
        "testing_list.txt, line 3 names .* as .*line 1",
    ),
    (written("no/c_nohash_0.wav", ""), "'.*no/c_nohash_0.wav' is no recording that can be read"),
    (written("no/c_nohash_0.wav", "text"), "'.*no/c_nohash_0.wav' is no recording that can be read"),
    (halved, "'.*no/c_nohash_0.wav' is cut: "),
    (emptied, r"The class folder '.*bird' holds no recordings \(files ending in .wav"),
    (written(f"{NOISE}/running_tap.wav", "text"), "running_tap.wav' is no recording that can be read"),
    (written(LISTS["test"], "\u00e9.wav"), "testing_list.txt, line 1 names"),
]


@pytest.mark.parametrize("damage, said", DAMAGES)
def test_damaged_files(damage: Callable[[Path], object], said: str, tmp_path: Path) -> None:
    dataset = commands(tmp_path)
    damage(tmp_path)
    with pytest.raises(DataError, match=said):
        dataset.open()


def test_unusable_recordings_are_skipped_if_asked_for(tmp_path: Path) -> None:
    dataset = commands(tmp_path).model_copy(update={"skip_unreadable": True})
    halved(tmp_path)
    (tmp_path / "bird/c_nohash_0.wav").write_text("x")  # the first row of the store
    (tmp_path / NOISE / "running_tap.wav").write_text("x")
    splits = dataset.open()
    assert len(splits.train) == 11 and splits.shape == (1, 24, 8)
    (frames,) = (splits.train.fetch(np.array([0]), seed=0, epoch=0, train=False)[0],)
    assert frames.max() > -5


@pytest.mark.parametrize(
    "settings, said",
    [
        ({"classes": ["yes", "noo"]}, "dataset.classes: there is no folder 'noo'. Did you mean 'no'"),
        ({"silence": 0.5, "seconds": 1.0}, "dataset.silence=0.5 needs recordings of at least 10 s"),
        ({"root": "nowhere"}, "there is no folder 'nowhere'"),
    ],
)
def test_wrong_settings_are_refused(settings: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=said):
        commands(tmp_path).model_copy(update=settings).open()


def test_validated_settings() -> None:
    with pytest.raises(ValueError, match="Type dataset.features.normalize=none"):
        AudioFolder(features=Features())
    with pytest.raises(ValueError, match="seconds=0.01 is shorter than a window of features.window_ms=40"):
        AudioFolder(seconds=0.01)


def test_synthesised_speakers_of_splits_differ() -> None:
    dataset = FormantKeywords(num_train=20, num_val=10, **SMALL)
    speakers = [set(dataset._speakers(number)) for number in (0, 20, 30)]
    assert all(len(one) >= 2 for one in speakers) and not speakers[0] & speakers[1] and not speakers[1] & speakers[2]
    splits = dataset.open()
    assert [len(part) for part in (splits.train, splits.val, splits.test)] == [20, 10, 10]
    assert np.bincount(splits.train.read_labels()).tolist() == [2] * 10
    sounds = [dataset.read_sound(splits.train.clips[index].utterance) for index in (0, 0, 10)]
    np.testing.assert_array_equal(sounds[0], sounds[1])
    assert len(sounds[0]) == 4000 and np.abs(sounds[0] - sounds[2]).max() > 1e-3
