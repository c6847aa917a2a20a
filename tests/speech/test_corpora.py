"""Common Voice, LJ Speech and AISHELL-1: their files as they are published, and problems by file and line."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Callable, ClassVar, List, Tuple

import numpy as np
import pytest
import soundfile

from mxtrain.data.checking.dataset_check import CollectedFindings
from mxtrain.data.checking.problems import MISSING_COUNTERPART, STRICT, WRONG_FORMAT, DataLocation
from mxtrain.data.loading.folds import Fold
from mxtrain.data.spec import with_fold
from mxtrain.errors import DataError
from mxtrain.speech.aishell import TRANSCRIPTS, Aishell
from mxtrain.speech.audio import AudioDataset
from mxtrain.speech.common_voice import DURATIONS, CommonVoice, read_durations
from mxtrain.speech.ljspeech import METADATA, LJSpeech
from mxtrain.speech.utterances import Utterance

pytestmark = pytest.mark.usefixtures("own_cache")
COLUMNS = "client_id\tpath\tsentence_id\tsentence\tsentence_domain\tup_votes\tdown_votes\tage\tgender\taccents\tsegment"


def sound(path: Path, seconds: float = 0.5, rate: int = 16000) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    number = sum(map(ord, path.stem))
    soundfile.write(path, 0.3 * np.sin(np.arange(int(seconds * rate)) * (0.05 + 0.01 * (number % 7))), rate)
    return path


def write(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def row(number: int, text: str) -> str:
    return f"s{number}\tc{number}.mp3\tabc{number}\t{text}\t\t2\t0\t\t\t\t"


def common_voice(root: Path) -> CommonVoice:
    texts = ['She said, "no."', "one", "two", '"Well', "noted", "wit"]
    rows = [row(number, text) for number, text in enumerate(texts)]
    for name, part in {"train": rows[:4], "dev": rows[4:5], "test": rows[5:], "validated": rows}.items():
        write(root / f"{name}.tsv", COLUMNS, *part)
    for number in range(6):
        sound(root / f"clips/c{number}.mp3", 1.0, rate=32000)
    write(root / DURATIONS, "clip\tduration[ms]", *(f"c{number}.mp3\t1000" for number in range(6)))
    return CommonVoice(root=str(root))


def ljspeech(root: Path) -> LJSpeech:
    write(root / METADATA, *(f'LJ00{n}|"No. {n}, {n}%|number {"abc"[n]} percent' for n in range(3)))
    for number in range(3):
        sound(root / f"wavs/LJ00{number}.wav", rate=22050)
    return LJSpeech(root=str(root), val_fraction=0.4)


def aishell(root: Path) -> Aishell:
    names = [(split, f"BAC009S000{n}W012{n}") for n, split in enumerate(["train", "train", "dev", "test"])]
    texts = ["而 对 楼市", "成交 抑制", "对 成交", "楼市 对"]
    write(root / "transcript" / TRANSCRIPTS, *(f"{name} {text}" for (_, name), text in zip(names, texts)))
    for split, name in names:
        sound(root / "wav" / split / name[6:11] / f"{name}.wav")
    return Aishell(root=str(root))


def texts_of(source: Any) -> List[str]:
    return [utterance.text for utterance in source.utterances]


def test_tables_of_common_voice(tmp_path: Path) -> None:
    splits = common_voice(tmp_path).open()
    assert texts_of(splits.train) == ['she said, "no."', "one", "two", '"well']
    assert [texts_of(part) for part in (splits.val, splits.test)] == [["noted"], ["wit"]]
    clip = splits.train.utterances[1]
    assert (clip.path, clip.location.line) == (str(tmp_path / "clips/c1.mp3"), 3)
    assert [utterance.stated_s for utterance in splits.train.utterances] == [0.8] * 4


def test_clips_of_other_splits_are_not_trained_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    dataset = common_voice(tmp_path).model_copy(update={"train": ["validated", "train"]})
    with caplog.at_level(logging.INFO):
        splits = dataset.open()
    assert texts_of(splits.train) == ['she said, "no."', "one", "two", '"well']
    assert "2 of 6 utterances of dataset.train are in the tables of dataset.val or dataset.test" in caplog.text
    held_out = dataset.model_copy(update={"train": "validated", "val": None, "test": None, "val_fraction": 0.34})
    assert [len(part) for part in (held_out.open().train, held_out.open().val)] == [4, 2]


def test_clips_of_two_splits_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    common_voice(tmp_path).model_copy(update={"train": "train", "val": "dev", "test": ["test", "dev"]}).open()
    assert "c4.mp3' belongs to val (" in caplog.text and "dev.tsv, line 2) and to test (" in caplog.text


def test_a_table_that_is_missing_is_named_with_those_that_exist(tmp_path: Path) -> None:
    common_voice(tmp_path / "cv" / "tr")
    with pytest.raises(DataError, match=r"has no tran\.tsv\. Did you mean 'train'\?.*There: clip_durations, dev, test"):
        CommonVoice(root=str(tmp_path / "cv/tr"), train=["tran"]).open()
    with pytest.raises(DataError, match="folders below have: type dataset.root=.*tr"):
        CommonVoice(root=str(tmp_path / "cv"), val=None, test=None).open()
    with pytest.raises(DataError, match="holds no tables. Name the folder"):
        CommonVoice(root=str(tmp_path), val=None, test=None).open()


def test_durations_of_common_voice_are_milliseconds(tmp_path: Path) -> None:
    write(tmp_path / DURATIONS, "clip\tduration[ms]", "a.mp3\t1500", "", "b.mp3\t0")
    assert read_durations(str(tmp_path / DURATIONS), STRICT) == {"a.mp3": 1.5, "b.mp3": 0.0}
    assert read_durations(str(tmp_path / "none.tsv"), STRICT) == {}


def test_normalized_and_raw_texts_of_lj_speech(tmp_path: Path) -> None:
    dataset = ljspeech(tmp_path)
    splits = dataset.open()
    texts = sorted(texts_of(splits.train) + texts_of(splits.val))
    assert texts == ["number a percent", "number b percent", "number c percent"]
    assert splits.train.utterances[0].path.startswith(str(tmp_path / "wavs/LJ00"))
    raw = dataset.model_copy(update={"text": "raw"}).open()
    assert sorted(texts_of(raw.train) + texts_of(raw.val))[0] == '"no. 0, 0%'


def test_lines_with_one_text_and_with_file_names(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path / METADATA, "a.flac|one", "b|two")
    (one, two) = LJSpeech(root=str(tmp_path)).utterances(STRICT)[1]
    assert (Path(one.path).name, one.text, Path(two.path).name, two.text) == ("a.flac", "one", "b.wav", "two")


def test_aishell_is_read_as_characters(tmp_path: Path) -> None:
    dataset = aishell(tmp_path)
    splits = dataset.open()
    assert [texts_of(part) for part in (splits.train, splits.val, splits.test)] == [
        ["而对楼市", "成交抑制"],
        ["对成交"],
        ["楼市对"],
    ]
    assert splits.class_names == sorted("而对楼市成交抑制")
    assert texts_of(dataset.model_copy(update={"spaces": "keep"}).open().val) == ["对 成交"]


class SomeSpeakers(Aishell):
    """The speaker of each fourth utterance is unknown."""

    unknown: ClassVar[int] = 4

    def utterances(self, findings: Any) -> Any:
        root, train, val, test = super().utterances(findings)
        known = [one if number % self.unknown else one._replace(speaker="") for number, one in enumerate(train)]
        return root, known, val, test


class NoSpeakers(SomeSpeakers):
    unknown: ClassVar[int] = 1


def test_aishell_without_dev_holds_out_speakers(tmp_path: Path) -> None:
    names = [f"BAC009S000{speaker}W012{number}" for speaker in range(5) for number in range(4)]
    write(tmp_path / "transcript" / TRANSCRIPTS, *(f"{name} 对" for name in names))
    for name in names:
        sound(tmp_path / "wav" / "train" / name[6:11] / f"{name}.wav")
    dataset = Aishell(root=str(tmp_path), val_fraction=0.25, test_fraction=0.2)
    splits = dataset.open()
    speakers = [
        [Path(utterance.path).parent.name for utterance in part.utterances]
        for part in (splits.train, splits.val, splits.test)
    ]
    assert [len(part) for part in speakers] == [12, 4, 4]
    assert [len(set(part)) for part in speakers] == [3, 1, 1] and len(set().union(*speakers)) == 5
    in_folds = with_fold(dataset, Fold(3, 1))
    assert len({Path(one.path).parent.name for one in in_folds.open().val.utterances}) > 2
    some, none = (
        kind(root=str(tmp_path), val_fraction=0.25, test_fraction=0.2).open() for kind in (SomeSpeakers, NoSpeakers)
    )
    assert [one.path for one in some.val.utterances] == [one.path for one in none.val.utterances]
    path = tmp_path / "transcript" / TRANSCRIPTS
    path.write_text("".join(path.read_text(encoding="utf-8").splitlines(True)[:8]), encoding="utf-8")
    two = dataset.open()  # of two speakers, which are too few for three splits
    assert [len(part) for part in (two.train, two.val, two.test)] == [4, 2, 2]


def test_recordings_of_aishell_without_a_transcript_are_left_out(tmp_path: Path) -> None:
    dataset = aishell(tmp_path)
    stray = sound(tmp_path / "wav/train/S0000/BAC009S0000W9999.wav")
    findings = CollectedFindings()
    assert len(dataset.utterances(findings)[1]) == 2
    assert [problem.fact for problem in findings.shown[MISSING_COUNTERPART]] == [
        f"'{stray}' has no line in {tmp_path / 'transcript' / TRANSCRIPTS}."
    ]
    assert len(dataset.open().train) == 2


def test_archives_of_aishell_are_to_be_unpacked(tmp_path: Path) -> None:
    dataset = aishell(tmp_path)
    (tmp_path / "wav/S0000.tar.gz").touch()  # unpacked
    dataset.open()
    (tmp_path / "wav/S0009.tar.gz").touch()
    with pytest.raises(DataError, match=r"holds 1 archives that are not unpacked, such as S0009.tar.gz. Type cd"):
        dataset.open()


def replaced(name: str, old: str, new: str) -> Callable[[Path], None]:
    def damage(root: Path) -> None:
        content = (root / name).read_bytes()
        assert old.encode() in content
        (root / name).write_bytes(content.replace(old.encode(), new.encode("latin-1"), 1))

    return damage


def removed(name: str) -> Callable[[Path], None]:
    return lambda root: (root / name).unlink()


def cut(name: str, share: float) -> Callable[[Path], None]:
    def damage(root: Path) -> None:
        content = (root / name).read_bytes()
        (root / name).write_bytes(content[: int(len(content) * share)])

    return damage


AISHELL_FILE = f"transcript/{TRANSCRIPTS}"
DAMAGES: List[Tuple[Callable[[Path], AudioDataset], Callable[[Path], None], str]] = [
    (common_voice, removed("clips/c1.mp3"), "train.tsv, line 3 names '.*c1.mp3', which cannot be read: No such file"),
    (common_voice, cut("clips/c1.mp3", 0), "train.tsv, line 3: '.*c1.mp3' is no recording that can be read"),
    (common_voice, cut("clips/c1.mp3", 0.5), "train.tsv, line 3: '.*c1.mp3' is cut: its last 0.6. s are missing"),
    (common_voice, replaced("train.tsv", "c2.mp3", "c1.mp3"), "line 4 is about 'c1.mp3', as .*train.tsv, line 3 is"),
    (common_voice, replaced("train.tsv", "one", ""), "train.tsv, line 3 has an empty transcript"),
    (common_voice, replaced("train.tsv", "one", "\xe9"), "train.tsv, line 3 .*UTF-8"),
    (common_voice, replaced("train.tsv", "\tsentence\t", "\ttekst\t"), "train.tsv is no manifest"),
    (common_voice, cut("train.tsv", 0), "train.tsv is no manifest|train.tsv.*empty"),
    (
        common_voice,
        replaced(DURATIONS, "c1.mp3\t1000", "c1.mp3\tx"),
        "line 3 is no name of a clip, a tab and its length in milliseconds: 'c1.mp3\tx'",
    ),
    (common_voice, replaced(DURATIONS, "c0.mp3\t1000", "c0.mp3\tx"), "line 2 is no name of a clip, a tab and its len"),
    (common_voice, replaced(DURATIONS, "c1.mp3\t1000", "c1.mp3\t-1"), "line 3 is no name of a clip, a tab and its len"),
    (common_voice, replaced(DURATIONS, "c1.mp3\t1000", "c1.mp3\t9000"), "is cut: it has 1.00 s of 8.80 s"),
    (ljspeech, removed("wavs/LJ001.wav"), "metadata.csv, line 2 names '.*LJ001.wav', which cannot be read"),
    (ljspeech, replaced(METADATA, "|number b percent", ""), "metadata.csv, line 2 has no normalized text"),
    (ljspeech, replaced(METADATA, "number b", "number|b"), "metadata.csv, line 2 has 4 cells between vertical bars"),
    (ljspeech, replaced(METADATA, "LJ001|", "|"), "metadata.csv, line 2 has 3 cells between vertical bars: '|"),
    (ljspeech, replaced(METADATA, "LJ001", "LJ000"), "metadata.csv, line 2 is about 'LJ000', as .*line 1 is"),
    (ljspeech, replaced(METADATA, "number b", "number \xe9"), "metadata.csv, line 2 .*UTF-8"),
    (ljspeech, cut(METADATA, 0), "metadata.csv.*(empty|no utterances)"),
    (ljspeech, removed(METADATA), "metadata.csv.*No such file"),
    (ljspeech, cut("wavs/LJ001.wav", 0.5), "metadata.csv, line 2: '.*LJ001.wav' is cut"),
    (aishell, removed("wav/train/S0001/BAC009S0001W0121.wav"), "line 2 is about .*there is no BAC009S0001W0121.wav in"),
    (aishell, replaced(AISHELL_FILE, "S0001W0121", "S0000W0120"), "line 2 is about .*, as .*line 1 is"),
    (aishell, replaced(AISHELL_FILE, " 成交 抑制", ""), "line 2 has no transcript behind a name and a space"),
    (aishell, removed(AISHELL_FILE), "aishell_transcript_v0.8.txt.*No such file"),
    (aishell, cut(AISHELL_FILE, 0), "there are no train/SPEAKER|empty"),
]


@pytest.mark.parametrize("make, damage, said", DAMAGES)
def test_damaged_files(make: Callable[[Path], AudioDataset], damage: Callable[[Path], None], said: str, tmp_path: Path):
    dataset = make(tmp_path)
    damage(tmp_path)
    with pytest.raises(DataError, match=said):
        dataset.open()


def test_a_speaker_in_a_folder_of_no_split_is_refused(tmp_path: Path) -> None:
    dataset = aishell(tmp_path)
    (tmp_path / "wav/dev").rename(tmp_path / "wav/valid")
    with pytest.raises(DataError, match=r"line 3 is about .* in '.*wav'/\{train,dev,test\}/"):
        dataset.open()


LAYOUTS = [
    ({"channels": "refuse"}, 16000, 2, "has 2 channels. Save one of them, or type dataset.channels=mix"),
    (
        {"rates": "refuse_lower"},
        8000,
        1,
        "has 8000 samples a second, so its bands above 4000 Hz are empty. Type dataset.",
    ),
    ({"rates": "refuse"}, 8000, 1, "has 8000 samples a second, so its bands above 4000 Hz are empty"),
    ({"rates": "refuse"}, 44100, 1, "has 44100 samples a second, and dataset.features.sample_rate=16000. Convert it"),
    ({"rates": "refuse_lower"}, 44100, 2, ""),
    ({"channels": "refuse", "rates": "refuse"}, 16000, 1, ""),
    ({}, 8000, 2, ""),
]


@pytest.mark.parametrize("settings, rate, channels, said", LAYOUTS)
def test_rates_and_channels_are_refused_if_asked_for(
    settings: Any, rate: int, channels: int, said: str, tmp_path: Path
) -> None:
    dataset = LJSpeech(root=str(tmp_path), **settings)
    soundfile.write(tmp_path / "a.wav", np.zeros((100, channels)), rate)
    findings = CollectedFindings()
    utterance = Utterance(str(tmp_path / "a.wav"), "", DataLocation("f", 3))
    assert dataset.can_open(utterance, findings) == (not said)
    shown = findings.shown.get(WRONG_FORMAT, [])
    assert len(shown) == bool(said) and all(said in problem.sentence for problem in shown)
    (tmp_path / "b.wav").write_text("x")
    assert dataset.can_open(utterance._replace(path=str(tmp_path / "b.wav")), findings)  # reading it says why
