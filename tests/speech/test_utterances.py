"""Manifests, LibriSpeech's and Kaldi's folders: what they say, and what is wrong with them by file and line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import List, Optional

import pytest

from mxtrain.data.checking.dataset_check import CollectedFindings
from mxtrain.data.checking.problems import STRICT
from mxtrain.errors import DataError
from mxtrain.speech.utterances import read_kaldi, read_librispeech, read_manifest


def write(path: Path, *lines: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_manifest_format_is_recognised_by_content(tmp_path: Path) -> None:
    nemo = write(
        tmp_path / "a",
        json.dumps({"audio_filepath": "x/1.wav", "duration": 1.5, "text": "one"}),
        "",
        json.dumps({"audio_filepath": "/2.wav", "offset": 2, "duration": 0.5, "text": "two"}),
    )
    baidu = write(tmp_path / "b", json.dumps({"key": "1.wav", "duration": "1.5", "text": "one"}))
    mozilla = write(tmp_path / "c", "wav_filename,wav_filesize,transcript", '1.wav,10,"one, two"')
    first, second = read_manifest(nemo, STRICT)
    assert (first.path, first.text, first.stated_s, first.begin_s, first.duration_s) == (
        str(tmp_path / "x/1.wav"),
        "one",
        1.5,
        0.0,
        None,
    )
    assert (second.path, second.begin_s, second.duration_s, str(second.location)) == (
        "/2.wav",
        2.0,
        0.5,
        f"{nemo}, line 3",
    )
    assert [(one.path, one.text) for one in read_manifest(baidu, STRICT)] == [(str(tmp_path / "1.wav"), "one")]
    (only,) = read_manifest(mozilla, STRICT)
    assert (only.text, only.location.line) == ("one, two", 2)


def test_recordings_may_be_in_the_users_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/u")
    (only,) = read_manifest(write(tmp_path / "a", '{"audio_filepath": "~/1.wav", "text": "one"}'), STRICT)
    assert only.path == "/home/u/1.wav"


WRONG = {
    "{": "is not JSON",
    "[1]": "is a list, and no object",
    '{"text": "a"}': "names no recording",
    '{"audio_filepath": "1.wav"}': "has no transcript",
    '{"audio_filepath": 3, "text": "a"}': "names no recording",
    '{"audio_filepath": "1.wav", "text": "a", "duration": -1}': "is no time",
    '{"audio_filepath": "1.wav", "text": "a", "duration": "x"}': "is no number",
    '{"audio_filepath": "1.wav", "text": "a", "offset": NaN}': "is no time",
    '{"audio_filepath": "1.wav", "text": "a", "duration": 0}': "has the duration 0",
    '{"audio_filepath": "1.wav", "text": "a", "duration": 1e999}': "beyond the range of float64",
    '{"audio_filepath": "1.wav", "text": "a", "duration": "1e999"}': "is no time",
    '{"audio_filepath": "1.wav", "text": "a", "duration": "1_0"}': "is no number",
    '{"audio_filepath": "1.wav", "text": "a", "duration": ' + "9" * 400 + "}": "beyond the range of 64-bit integers",
    '{"audio_filepath": "1.wav", "text": "a", "offset": "' + "9" * 5000 + '"}': "is no number",
    '{"audio_filepath": "1.wav", "text": "a", "x": ' + "[" * 5000 + "]" * 5000 + "}": "nested deeper",
}


def test_wrong_lines_of_a_manifest_are_listed_by_their_numbers(tmp_path: Path) -> None:
    good = json.dumps({"audio_filepath": "1.wav", "text": "one"})
    path = write(tmp_path / "a.jsonl", *[line for wrong in WRONG for line in (good, wrong)])
    findings = CollectedFindings()
    assert len(read_manifest(path, findings)) == len(WRONG)
    problems = findings.shown["unreadable_row"]
    assert [one.location.line for one in problems] == list(range(2, 2 * len(WRONG) + 1, 2))
    for one, said in zip(problems, WRONG.values()):
        assert said in one.fact and one.fact.startswith(f"{path}, line {one.location.line}")
    with pytest.raises(DataError, match="line 2 is not JSON"):
        read_manifest(path, STRICT)
    with pytest.raises(DataError, match="is no manifest: its first line is neither"):
        read_manifest(write(tmp_path / "b.txt", "hello world"), STRICT)


def test_librispeech_lines_name_recordings_beside_them(tmp_path: Path) -> None:
    for name in ("84-1-0000.flac", "84-1-0001.wav", "84-1-0009.flac"):
        write(tmp_path / "84/1" / name)
    write(tmp_path / "84/1/84-1.trans.txt", "84-1-0000 ONE TWO", "84-1-0001 THREE", "84-1-0002 FOUR")
    findings = CollectedFindings()
    found = read_librispeech(str(tmp_path), findings)
    assert [(Path(one.path).name, one.text, one.location.line) for one in found] == [
        ("84-1-0000.flac", "ONE TWO", 1),
        ("84-1-0001.wav", "THREE", 2),
    ]
    facts = [one.fact for one in findings.shown["missing_counterpart"]]
    assert len(facts) == 2 and "line 3 is about '84-1-0002'" in facts[0] and "84-1-0009.flac' has no line" in facts[1]
    with pytest.raises(DataError, match="line 3 is about '84-1-0002', and there is no"):
        read_librispeech(str(tmp_path), STRICT)


@pytest.mark.parametrize("space", ["\u00a0", "\u2028", "\u3000", "\x85", "\x0c", "\x1c"])
def test_only_spaces_tabs_and_line_ends_divide_lines(tmp_path: Path, space: str) -> None:
    name, said = f"u{space}1", f"one{space}two"
    write(tmp_path / "k/wav.scp", f"r{space}1 a{space}b.wav")
    write(tmp_path / "k/segments", f"{name} r{space}1 0.5 1.25")
    write(tmp_path / "k/text", f"{name} \t{said}")
    (one,) = read_kaldi(str(tmp_path / "k"), STRICT)
    assert (Path(one.path).name, one.text, one.duration_s) == (f"a{space}b.wav", said, 0.75)
    write(tmp_path / "l" / f"{name}.flac")
    write(tmp_path / "l/l.trans.txt", f"{name} {said}")
    assert [one.text for one in read_librispeech(str(tmp_path / "l"), STRICT)] == [said]
    manifest = json.dumps({"audio_filepath": "1.wav", "text": said}, ensure_ascii=False)
    if space >= " ":  # JSON has control characters as escapes
        assert [one.text for one in read_manifest(write(tmp_path / "a.jsonl", manifest), STRICT)] == [said]
    tsv = write(tmp_path / "a.csv", "wav_filename,transcript", f"1.wav,{said}", "2.wav,x")
    assert [(one.text, one.location.line) for one in read_manifest(tsv, STRICT)] == [(said, 2), ("x", 3)]


def kaldi(folder: Path, segments: List[str]) -> None:
    write(folder / "a.wav")
    write(folder / "wav.scp", "r1 a.wav", f"r2 {folder}/b.wav")
    write(folder / "text", "u1 one two", "u2 three")
    if segments:
        write(folder / "segments", *segments)


def test_kaldi_folders_with_and_without_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kaldi(tmp_path / "x", ["u1 r1 0.5 1.25", "u2 r2 1 -1"])
    found = [(one.path, one.text, one.begin_s, one.duration_s) for one in read_kaldi(str(tmp_path / "x"), STRICT)]
    assert found == [(str(tmp_path / "x/a.wav"), "one two", 0.5, 0.75), (str(tmp_path / "x/b.wav"), "three", 1.0, None)]
    write(tmp_path / "y/wav.scp", "u1 c.wav")
    write(tmp_path / "y/text", "u1 one")
    (only,) = read_kaldi(str(tmp_path / "y"), STRICT)
    assert (only.path, only.begin_s, only.duration_s) == (str(tmp_path / "y/c.wav"), 0.0, None)
    monkeypatch.chdir(tmp_path)  # where Kaldi would be started
    write(tmp_path / "c.wav")
    (only,) = read_kaldi(str(tmp_path / "y"), STRICT)
    assert only.path == "c.wav"


def test_missing_manifest_names_the_nearest_spelling(tmp_path: Path) -> None:
    write(tmp_path / "train/wav.scp")
    write(tmp_path / "train.jsonl")
    with pytest.raises(DataError, match=r"trian.jsonl' cannot be read: No such file.* Did you mean 'train.jsonl'\?"):
        read_manifest(str(tmp_path / "trian.jsonl"), STRICT)
    with pytest.raises(DataError, match=r"trein/wav.scp' cannot be read: No such file.* Did you mean 'train'\?"):
        read_kaldi(str(tmp_path / "trein"), STRICT)


def test_tabs_separate_as_spaces_do(tmp_path: Path) -> None:
    write(tmp_path / "k/wav.scp", "u1\ta b.wav", "u2   c.wav")
    write(tmp_path / "k/text", "u1\tone two", "u2  three")
    write(tmp_path / "k/segments", "u1\tu1 0\t1", "u2 u2 0 2")
    found = [(Path(one.path).name, one.text, one.duration_s) for one in read_kaldi(str(tmp_path / "k"), STRICT)]
    assert found == [("a b.wav", "one two", 1.0), ("c.wav", "three", 2.0)]
    write(tmp_path / "l/1.flac")
    write(tmp_path / "l/1.trans.txt", "1\tONE TWO")
    (only,) = read_librispeech(str(tmp_path / "l"), STRICT)
    assert (Path(only.path).name, only.text) == ("1.flac", "ONE TWO")


def test_commands_in_kaldi_folders_are_refused_and_never_run(tmp_path: Path) -> None:
    kaldi(tmp_path, ["u1 r1 0 1", "u2 r9 0 1", "u3 r1 2 1", "u1 r1 1 2", "u4 r2 1 1"])
    write(tmp_path / "wav.scp", f"r1 touch {tmp_path}/run && cat a.wav |", "r2 b.wav", "r3 | cat a.wav")
    findings = CollectedFindings()
    assert read_kaldi(str(tmp_path), findings) == []
    assert not (tmp_path / "run").exists()
    pipe, other = findings.shown["pipe"]
    assert "wav.scp, line 3 is a command" in other.fact
    assert "wav.scp, line 1 is a command ('touch " in pipe.fact and "never run" in pipe.fact
    assert [one.location.line for one in findings.shown["unreadable_row"]] == [3, 5]
    assert [one.fact for one in findings.shown["missing_counterpart"]] == [
        f"{tmp_path}/segments, line 2 is of 'r9', which wav.scp does not have."
    ]
    assert [one.location.line for one in findings.shown["listed_twice"]] == [4]
    with pytest.raises(DataError, match="is a command"):
        read_kaldi(str(tmp_path), STRICT)


@pytest.mark.parametrize("indent", [None, 1])
def test_list_of_rows_is_refused_as_such(tmp_path: Path, indent: Optional[int]) -> None:
    path = write(tmp_path / "a.json", json.dumps([{"audio_filepath": "1.wav", "text": "a"}] * 2, indent=indent))
    with pytest.raises(DataError, match="a.json is one JSON list, not a line for each row. Write one.*jq -c"):
        read_manifest(path, STRICT)


def test_tables_of_common_voice(tmp_path: Path) -> None:
    write(tmp_path / "clips/c1.mp3")
    write(tmp_path / "beside.wav")
    rows = ["client_id\tpath\tsentence\tup_votes", 'a\tc1.mp3\t"quoted, once\t2', "a\tbeside.wav\tsay 'no'\t0"]
    (tmp_path / "train.tsv").write_bytes("\ufeff".encode() + "\r\n".join([*rows, ""]).encode())
    first, second = read_manifest(str(tmp_path / "train.tsv"), STRICT)
    assert (first.path, first.text, first.location.line) == (str(tmp_path / "clips/c1.mp3"), '"quoted, once', 2)
    assert (second.path, second.text) == (str(tmp_path / "beside.wav"), "say 'no'")
    with pytest.raises(DataError, match="path and sentence, with tabs, as in Common Voice"):
        read_manifest(write(tmp_path / "b.tsv", "file\tsaid", "a\tb"), STRICT)
