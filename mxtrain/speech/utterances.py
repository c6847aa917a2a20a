"""Readers of speech manifests: NeMo and DeepSpeech manifests, Common Voice tables, LibriSpeech and Kaldi folders."""

from __future__ import annotations

import io
import math
import os
import re
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

from mxtrain.data.checking.problems import (
    LISTED_TWICE,
    MISSING_COUNTERPART,
    UNREADABLE_ROW,
    DataLocation,
    Findings,
    Problem,
)
from mxtrain.data.loading.dataset_files import as_posix, read_text, require_exists, walk
from mxtrain.data.table.text_rows import read_cells
from mxtrain.errors import DataError
from mxtrain.files.json_text import JsonTextError, kind_of, parse_json
from mxtrain.files.text_lines import BLANKS, split_lines, split_words
from mxtrain.files.text_numbers import parse_finite, parse_number
from mxtrain.speech.aligned_rows import TEXT_KEYS

AUDIO_KEYS = ("audio_filepath", "key", "wav_filename", "audio", "path", "wav")
"""Keys of the audio file, in order of priority: NeMo, Baidu's Deep Speech, Mozilla's DeepSpeech, others."""
TIME_KEYS = ("offset", "duration")
OTHER_TIMES = ("start", "end", "begin", "start_time", "end_time", "begin_time", "start_s", "end_s")
"""Keys of start and end times in the manifests of other programs. They are rejected, because ignoring them would train
on whole recordings."""
_FIRST_WORD = re.compile(r"([^ \t]+)[ \t]*(.*)", re.DOTALL)
CLIPS = "clips"
"""Folder with the recordings of Common Voice, beside its tables."""
PIPE = "pipe"
"""Kind of problem: wav.scp has a command instead of a file."""
Part = Tuple[str, float, Optional[float]]
"""(recording, start in seconds, length in seconds or None for the rest) of a part of a recording."""


class Utterance(NamedTuple):
    """A recording, or a part of it, with its transcript.

    Attributes:
        path: path of the recording.
        text: transcript.
        location: source location, for messages.
        begin_s: start of the part, in seconds.
        duration_s: length of the part, in seconds; None = to the end.
        stated_s: minimum length of the whole recording that the manifest states, in seconds; 0 = unknown.
        speaker: speaker, all of whose utterances are held out together; "" = unknown.
    """

    path: str
    text: str
    location: DataLocation
    begin_s: float = 0.0
    duration_s: Optional[float] = None
    stated_s: float = 0.0
    speaker: str = ""


def read_manifest(path: str, findings: Findings) -> List[Utterance]:
    """Reads the utterances of a manifest.

    A manifest has lines of JSON (NeMo, Baidu's Deep Speech), or is a table with a header, separated by commas
    (Mozilla's DeepSpeech), semicolons or tabs (Common Voice). Recordings are relative to the manifest's folder.

    Raises:
        DataError: the manifest cannot be read, or a line is invalid.
    """
    require_exists(path)
    text = read_text(path, findings)
    rows = json_rows(path, text, findings) if text.lstrip()[:1] in ("{", "[") else _table_rows(path, text, findings)
    folder, clips = Path(path).parent, Path(path).parent / CLIPS
    utterances = []
    for line, row in rows:
        location = DataLocation(path, line)
        try:
            utterance = utterance_of(row, folder, location)
            if "sentence" in row:  # a column of Common Voice, whose tables name recordings without their folder
                utterance = _find_clip(utterance, clips)
            utterances.append(utterance)
        except ValueError as error:
            findings.refuse(Problem(UNREADABLE_ROW, location, f"{location} {error}."))
    if not utterances and not findings.keeps_going:
        raise DataError(f"{path}: there are no utterances.")
    return utterances


def _find_clip(utterance: Utterance, clips: Path) -> Utterance:
    """Returns an utterance with the path of its recording in the folder `clips`, unless it is beside the table."""
    if os.path.exists(utterance.path) or not clips.is_dir():
        return utterance
    return utterance._replace(path=str(clips / os.path.basename(utterance.path)))


def json_rows(path: str, text: str, findings: Findings) -> Iterator[Tuple[int, Dict[str, object]]]:
    """Yields (line number, object) of each line of JSON."""
    if text.lstrip()[:1] == "[":
        location = DataLocation(path)
        remedy = "Write one object a line: jq -c '.[]' FILE > NEW.jsonl."
        findings.refuse(Problem(UNREADABLE_ROW, location, f"{path} is one JSON list, not a line for each row.", remedy))
        return
    for number, line in enumerate(split_lines(text), start=1):
        if not line.strip():
            continue
        location = DataLocation(path, number)
        try:
            row = parse_json(line, allow_nan=True)  # pandas writes NaN for empty cells
        except JsonTextError as error:
            fact = f"{location} {error}."
            findings.refuse(
                Problem(UNREADABLE_ROW, location, fact, "Each line is one object with its file and its text.")
            )
            continue
        if not isinstance(row, dict):
            fact = f"{location} is {kind_of(row)}, and no object with a file and a text."
            remedy = 'Each line is one object, e.g. {"audio_filepath": "1.wav", "text": "yes"}.'
            findings.refuse(Problem(UNREADABLE_ROW, location, fact, remedy))
            continue
        yield number, row


def _table_rows(path: str, text: str, findings: Findings) -> Iterator[Tuple[int, Dict[str, object]]]:
    """Yields (line number, column -> cell) of each row of a table.

    Common Voice separates columns by tabs and does not quote cells.
    """
    first = (split_lines(text[:100_000]) or [""])[0]
    ending = ".tsv" if "\t" in first and not first.startswith("sep=") else ".csv"
    rows = read_cells(Path(path), io.StringIO(text, newline=""), ending)
    filled = ((line, cells) for line, cells in rows if any(map(str.strip, cells)))
    names = [name.strip() for name in next(filled, (0, []))[1]]
    if not set(AUDIO_KEYS) & set(names) or not set(TEXT_KEYS) & set(names):
        raise DataError(
            f"{path} is no manifest: its first line is neither an object of JSON nor a header with wav_filename and "
            f"transcript (or path and sentence, with tabs, as in Common Voice), but '{first[:80]}'."
        )
    repeated = next((name for name in (*AUDIO_KEYS, *TEXT_KEYS, *TIME_KEYS) if names.count(name) > 1), None)
    if repeated is not None:
        raise DataError(f"{path}: two columns are called '{repeated}'. Give each a name of its own.")
    for line, cells in filled:
        extra = next((cell for cell in cells[len(names) :] if cell.strip()), None)
        if extra is not None:
            location = DataLocation(path, line)
            fact = f"{location} has {len(cells)} cells, and the header {len(names)} names: '{extra:.60}' is below none."
            findings.refuse(Problem(UNREADABLE_ROW, location, fact, "Quote texts with separators in them."))
            continue
        yield line, dict(zip(names, cells))


def utterance_of(row: Dict[str, object], folder: Path, location: DataLocation) -> Utterance:
    """Converts a row of a manifest to an utterance.

    Args:
        row: key or column -> value.
        folder: folder that recordings are relative to.
        location: source location of the row.

    Raises:
        ValueError: a value is missing or invalid; the message continues a sentence that begins with `location`.
    """
    audio = next((name for key in AUDIO_KEYS if isinstance(name := _file_of(row.get(key)), str)), None)
    text = next((row[key] for key in TEXT_KEYS if key in row), None)
    if not isinstance(audio, str) or not audio.strip():
        raise ValueError(f"names no recording: none of {', '.join(AUDIO_KEYS)} is a text")
    if not isinstance(text, str):
        raise ValueError(f"has no transcript: none of {', '.join(TEXT_KEYS)} is a text")
    _require_text(text)
    begin, duration = _seconds(row, "offset"), _seconds(row, "duration")
    times = [key for key in OTHER_TIMES if row.get(key) not in (None, "")]
    if begin is None and times:
        raise ValueError(f"has {' and '.join(times)}, which are not read: write offset and duration, in seconds")
    if duration is not None and duration <= 0:
        raise ValueError(f"has the duration {duration}")
    path = os.path.join(folder, os.path.expanduser(as_posix(audio)))
    if begin is None:
        # Without an offset the duration describes the whole file, as NeMo writes it, and cuts nothing.
        return Utterance(path, text, location, stated_s=duration or 0.0)
    return Utterance(path, text, location, begin, duration)


def _file_of(value: object) -> object:
    """Returns the name of a recording; Hugging Face manifests have an object with `path` and `bytes` instead."""
    return value.get("path") if isinstance(value, dict) else value


def _require_text(text: str) -> None:
    """Raises a `ValueError` if a text has a lone surrogate, i.e. one half of a character that JSON writes as two
    escapes."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"has half a character, \\u{ord(text[error.start]):04x}, in its text") from error


def _seconds(row: Dict[str, object], key: str) -> Optional[float]:
    value = row.get(key)
    if value is None or value == "":
        return None
    # True is an int in Python and would be one second.
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"has the {key} {value!r}, which is no number")
    seconds = parse_number(value, allow_special=True) if isinstance(value, str) else float(value)
    if seconds is None:
        raise ValueError(f"has the {key} {value!r:.60}, which is no number")
    if not math.isfinite(seconds) or seconds < 0:
        raise ValueError(f"has the {key} {seconds}, which is no time")
    return seconds


def read_librispeech(folder: str, findings: Findings) -> List[Utterance]:
    """Reads the utterances below a folder in LibriSpeech's layout.

    Each line of a `*.trans.txt` file has the name of a recording in the same folder and its transcript.

    Raises:
        DataError: there are no utterances, or a recording is missing.
    """
    utterances: List[Utterance] = []
    recordings = {_without_case(path): str(path) for path, _ in walk(folder, (".flac", ".wav"), findings=findings)}
    location_of: Dict[str, DataLocation] = {}
    for path, _ in walk(folder, (".trans.txt",), findings=findings):
        for line, content in _lines(str(path), findings):
            name, text = _first_word(content)
            location = DataLocation(str(path), line)
            candidates = (str(path.parent / f"{name}{ending}") for ending in (".flac", ".wav"))
            key = next((candidate for candidate in candidates if candidate in recordings), "")
            if key in location_of:
                fact = f"{location} is about '{name}', as {location_of[key]} is."
                findings.refuse(Problem(LISTED_TWICE, location, fact, "Remove one."))
                continue
            if not key:
                fact = f"{location} is about '{name}', and there is no {name}.flac beside it."
                findings.refuse(Problem(MISSING_COUNTERPART, location, fact, "Restore or remove it."))
                continue
            location_of[key] = location
            utterances.append(Utterance(recordings[key], text, location))
    for recording in sorted(path for key, path in recordings.items() if key not in location_of):
        fact = f"'{recording}' has no line in a .trans.txt beside it."
        findings.remark(Problem(MISSING_COUNTERPART, DataLocation(recording), fact, "It is left out."))
    if not utterances and not findings.keeps_going:
        raise DataError(f"'{folder}' holds no utterances: there are no speaker/chapter/*.trans.txt below it.")
    return utterances


def _without_case(path: Path) -> str:
    """Returns a path with its extension in lower case."""
    return str(path.with_suffix(path.suffix.lower()))


def read_kaldi(folder: str, findings: Findings) -> List[Utterance]:
    """Reads the utterances of a Kaldi folder with the files `wav.scp`, `text`, and optionally `segments`.

    A line of wav.scp that ends in | is a shell command, which Kaldi would run. Such lines are errors here.

    Raises:
        DataError: a file is missing or invalid.
    """
    require_exists(os.path.join(folder, "wav.scp"))
    recordings: Dict[str, str] = {}
    refused: Set[str] = set()  # names with a reported problem, which later files must not report again
    for line, name, rest in _keyed_lines(folder, "wav.scp", findings):
        location = DataLocation(os.path.join(folder, "wav.scp"), line)
        if rest.endswith("|") or rest.startswith("|"):
            fact = f"{location} is a command ('{rest[:60]}'), and no file: commands in data are never run."
            findings.refuse(
                Problem(PIPE, location, fact, "Convert these recordings to WAV or FLAC and name the files.")
            )
            refused.add(name)
            continue
        if not rest:
            findings.refuse(Problem(UNREADABLE_ROW, location, f"{location} names no file."))
            refused.add(name)
            continue
        # Kaldi resolves names against the current folder. Names relative to wav.scp work, too.
        recordings[name] = rest if os.path.exists(rest) else os.path.join(folder, rest)
    parts: Dict[str, Part] = {name: (recording, 0.0, None) for name, recording in recordings.items()}
    if os.path.exists(os.path.join(folder, "segments")):
        parts = _segments(folder, recordings, refused, findings)
    utterances = []
    for line, name, text in _keyed_lines(folder, "text", findings):
        location = DataLocation(os.path.join(folder, "text"), line)
        if name in refused:
            continue
        if name not in parts:
            fact = f"{location} is about '{name}', of which no recording is known."
            findings.refuse(
                Problem(MISSING_COUNTERPART, location, fact, "Add it to wav.scp (or segments), or remove it.")
            )
            continue
        recording, begin_s, duration_s = parts[name]
        utterances.append(Utterance(recording, text, location, begin_s, duration_s))
    if not utterances and not findings.keeps_going:
        raise DataError(f"'{folder}' holds no utterances.")
    return utterances


def _segments(folder: str, recordings: Dict[str, str], refused: Set[str], findings: Findings) -> Dict[str, Part]:
    """Reads `segments`: name of an utterance -> recording, start and length in seconds."""
    parts: Dict[str, Part] = {}
    for line, name, rest in _keyed_lines(folder, "segments", findings):
        location = DataLocation(os.path.join(folder, "segments"), line)
        recording, *times = split_words(rest) or [""]
        begin, end = (list(map(parse_finite, times)) + [None, None])[:2]
        if begin is None or end is None or not (0 <= begin < end or (0 <= begin and end == -1)):
            fact = f"{location} is no segment: NAME RECORDING BEGIN END, in seconds."
            findings.refuse(Problem(UNREADABLE_ROW, location, fact))
            refused.add(name)
        elif times[2:] not in ([], ["-1"]):
            fact = f"{location} is of the channel {times[2]} of a recording, and channels are averaged."
            remedy = "Write a recording for each channel, and segments without channels."
            findings.refuse(Problem(UNREADABLE_ROW, location, fact, remedy))
            refused.add(name)
        elif recording in refused:
            refused.add(name)
        elif recording not in recordings:
            fact = f"{location} is of '{recording}', which wav.scp does not have."
            findings.refuse(Problem(MISSING_COUNTERPART, location, fact, "Add it, or remove the segment."))
            refused.add(name)
        else:
            parts[name] = recordings[recording], begin, None if end == -1 else end - begin
    return parts


def _keyed_lines(folder: str, name: str, findings: Findings) -> Iterator[Tuple[int, str, str]]:
    """Yields (line number, first word, rest) of each line of a Kaldi file. Repeated first words are problems."""
    path = os.path.join(folder, name)
    seen: Dict[str, int] = {}
    for line, content in _lines(path, findings):
        key, rest = _first_word(content)
        if key in seen:
            location = DataLocation(path, line)
            fact = f"{location} is about '{key}', as line {seen[key]} is."
            findings.refuse(Problem(LISTED_TWICE, location, fact, "Remove one."))
            continue
        seen[key] = line
        yield line, key, rest


def _first_word(content: str) -> Tuple[str, str]:
    """Splits a line at the first run of spaces or tabs."""
    word, rest = _FIRST_WORD.fullmatch(content).groups()  # type: ignore[union-attr]  # no line is empty
    return word, rest


def _lines(path: str, findings: Findings) -> Iterator[Tuple[int, str]]:
    for number, line in enumerate(split_lines(read_text(path, findings)), start=1):
        if line.strip(BLANKS):
            yield number, line.strip(BLANKS)
