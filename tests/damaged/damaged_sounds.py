"""Damaged corpora of speech as they are published, and folders of keywords."""

from __future__ import annotations

from pathlib import Path
from typing import List

from damage import Case, cut, damaged, emptied, in_latin1, in_utf16, kind_of_fuzz, removed, replaced

COMMON_VOICE, LJSPEECH, AISHELL, KEYWORDS = "Common Voice", "LJ Speech", "AISHELL-1", "folders of keywords"

for _kind, _name in {
    COMMON_VOICE: "common voice",
    LJSPEECH: "lj speech",
    AISHELL: "aishell",
    KEYWORDS: "keyword folders",
}.items():
    kind_of_fuzz(_kind, _name)

TABLE, LENGTHS, METADATA = "train.tsv", "clip_durations.tsv", "metadata.csv"
TRANSCRIPTS, WAV = "transcript/aishell_transcript_v0.8.txt", "wav/train/S0001/BAC009S0001W0121.wav"


def in_gb18030(path: Path) -> None:
    path.write_bytes(path.read_bytes().decode().encode("gb18030"))


def without_recordings(path: Path) -> None:
    for one in path.iterdir():
        one.unlink()


CASES: List[Case] = [
    damaged(COMMON_VOICE, "a table is cut off", TABLE, cut(-14), "train.tsv, line 5 has an empty transcript"),
    damaged(
        COMMON_VOICE,
        "a table is empty",
        TABLE,
        emptied,
        "train.tsv is no manifest: its first line is neither an object of JSON nor a header with",
    ),
    damaged(
        COMMON_VOICE,
        "a table is in Latin-1",
        TABLE,
        in_latin1,
        "train.tsv, line 2 is no UTF-8: it holds the byte 0xe9",
    ),
    damaged(
        COMMON_VOICE,
        "a table is in UTF-16",
        TABLE,
        in_utf16,
        "train.tsv is in UTF-16, not UTF-8",
    ),
    damaged(COMMON_VOICE, "a table is missing", TABLE, removed, "has no train.tsv. There: clip_durations, dev, test."),
    damaged(
        COMMON_VOICE,
        "a clip is missing",
        "clips/1.mp3",
        removed,
        "train.tsv, line 3 names ... clips/1.mp3', which cannot be read: No such file",
    ),
    damaged(
        COMMON_VOICE,
        "a clip is empty",
        "clips/1.mp3",
        emptied,
        "train.tsv, line 3: ... clips/1.mp3' is no recording that can be read",
    ),
    damaged(
        COMMON_VOICE,
        "a clip is cut off",
        "clips/1.mp3",
        cut(700),
        "train.tsv, line 3: ... clips/1.mp3' is no recording that can be read: its content is damaged",
    ),
    damaged(
        COMMON_VOICE,
        "a clip is listed twice",
        TABLE,
        replaced("1.mp3", "0.mp3"),
        "train.tsv, line 3 is about '0.mp3', as",
    ),
    damaged(
        COMMON_VOICE,
        "a length is nan",
        LENGTHS,
        replaced("1.mp3\t500", "1.mp3\tnan"),
        "clip_durations.tsv, line 3 is no name of a clip, a tab and its length in milliseconds: '1.mp3\tnan'",
    ),
    damaged(
        COMMON_VOICE,
        "a length is 1e400",
        LENGTHS,
        replaced("1.mp3\t500", "1.mp3\t1e400"),
        "clip_durations.tsv, line 3 is no name of a clip, a tab and its length in milliseconds: '1.mp3\t1e400'",
    ),
    damaged(
        COMMON_VOICE,
        "a length is negative",
        LENGTHS,
        replaced("1.mp3\t500", "1.mp3\t-1"),
        "clip_durations.tsv, line 3 is no name of a clip, a tab and its length in milliseconds: '1.mp3\t-1'",
    ),
    damaged(
        COMMON_VOICE,
        "a length is too large",
        LENGTHS,
        replaced("1.mp3\t500", "1.mp3\t9000"),
        "train.tsv, line 3: ... clips/1.mp3' is cut: it has 0.50 s of 8.80 s",
    ),
    damaged(
        LJSPEECH,
        "metadata.csv is cut off",
        METADATA,
        cut(-16),
        "metadata.csv, line 6 has no normalized text, which other lines have",
    ),
    damaged(LJSPEECH, "metadata.csv is empty", METADATA, emptied, "metadata.csv: there are no utterances."),
    damaged(
        LJSPEECH,
        "metadata.csv is in Latin-1",
        METADATA,
        in_latin1,
        "metadata.csv, line 1 is no UTF-8: it holds the byte 0xe9",
    ),
    damaged(
        LJSPEECH,
        "metadata.csv is in UTF-16",
        METADATA,
        in_utf16,
        "metadata.csv is in UTF-16, not UTF-8",
    ),
    damaged(
        LJSPEECH,
        "a recording is missing",
        "wavs/1.wav",
        removed,
        "metadata.csv, line 2 names ... wavs/1.wav', which cannot be read: No such file",
    ),
    damaged(
        LJSPEECH,
        "a recording is empty",
        "wavs/1.wav",
        emptied,
        "metadata.csv, line 2: ... wavs/1.wav' is no recording that can be read",
    ),
    damaged(
        LJSPEECH,
        "a recording is cut off",
        "wavs/1.wav",
        cut(8000),
        "metadata.csv, line 2: ... wavs/1.wav' is cut: 50% of what its header says is there",
    ),
    damaged(
        LJSPEECH,
        "a recording is listed twice",
        METADATA,
        replaced("1|No", "0|No"),
        "metadata.csv, line 2 is about '0', as",
    ),
    damaged(
        AISHELL,
        "the transcripts are cut off",
        TRANSCRIPTS,
        cut(-18),
        "transcript/aishell_transcript_v0.8.txt, line 6 has no transcript behind a name and a space",
    ),
    damaged(
        AISHELL,
        "the transcripts are empty",
        TRANSCRIPTS,
        emptied,
        "wav' holds no utterances for training: there are no train/SPEAKER/*.wav with a transcript.",
    ),
    damaged(
        AISHELL,
        "the transcripts are in GB 18030",
        TRANSCRIPTS,
        in_gb18030,
        "transcript/aishell_transcript_v0.8.txt, line 1 is no UTF-8: it holds the byte 0xb6. It is probably",
    ),
    damaged(
        AISHELL,
        "the transcripts are in UTF-16",
        TRANSCRIPTS,
        in_utf16,
        "transcript/aishell_transcript_v0.8.txt is in UTF-16, not UTF-8",
    ),
    damaged(
        AISHELL,
        "a recording is missing",
        WAV,
        removed,
        "transcript/aishell_transcript_v0.8.txt, line 2 is about 'BAC009S0001W0121', and there is no",
    ),
    damaged(
        AISHELL,
        "a recording is empty",
        WAV,
        emptied,
        "_v0.8.txt, line 2: ... BAC009S0001W0121.wav' is no recording that can be read",
    ),
    damaged(
        AISHELL,
        "a recording is cut off",
        WAV,
        cut(8000),
        "_v0.8.txt, line 2: ... BAC009S0001W0121.wav' is cut: 50% of what its header says is there",
    ),
    damaged(
        AISHELL,
        "a recording has two transcripts",
        TRANSCRIPTS,
        replaced("S0001W0121", "S0000W0120"),
        "transcript/aishell_transcript_v0.8.txt, line 2 is about 'BAC009S0000W0120', as",
    ),
    damaged(KEYWORDS, "a recording is empty", "no/2.wav", emptied, "no/2.wav' is no recording that can be read"),
    damaged(
        KEYWORDS,
        "a recording is cut off",
        "no/2.wav",
        cut(8000),
        "no/2.wav' is cut: 50% of what its header says is there",
    ),
    damaged(
        KEYWORDS,
        "a listed recording is missing",
        "no/0.wav",
        removed,
        "validation_list.txt, line 1 names 'no/0.wav', and there is no such recording in",
    ),
    damaged(
        KEYWORDS,
        "a class is empty",
        "no",
        without_recordings,
        "no' holds no recordings",
    ),
    damaged(
        KEYWORDS,
        "a list names a recording of another",
        "testing_list.txt",
        replaced("no/1", "no/0"),
        "testing_list.txt, line 1 names 'no/0.wav', as",
    ),
    damaged(
        KEYWORDS,
        "a list is in UTF-16",
        "testing_list.txt",
        in_utf16,
        "testing_list.txt is in UTF-16, not UTF-8",
    ),
    damaged(KEYWORDS, "a list is empty", "testing_list.txt", emptied, "testing_list.txt' is empty"),
]
