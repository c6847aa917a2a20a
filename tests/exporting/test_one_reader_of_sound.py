"""A recording is read alike by training, `predict`, the exported folder and the server, and refused for the same
reason."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, Callable, Dict

import numpy as np
import pytest
import soundfile

from mxtrain.speech.exported_speech import read_sound
from mxtrain.speech.recording import RecordingError, read_recording
from mxtrain.speech.resampling import resampled
from mxtrain.speech.sound_checks import problem_of_missing

RATE = 16000
TIME_S = np.arange(RATE // 4) / RATE
SOUND_S = 0.3 * np.sin(2 * np.pi * 440 * TIME_S) * np.hanning(len(TIME_S)) + 0.01 * np.sin(900 * TIME_S)


def saved(sound: np.ndarray, kind: str = "WAV", subtype: Any = "PCM_16", rate: int = RATE) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, sound, rate, format=kind, subtype=subtype)
    return file.getvalue()


def two(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return np.stack([left, right], axis=1)


def with_sizes(content: bytes, size: bytes) -> bytes:
    """Replaces the sizes in the header, as programs that write to a pipe, or that were killed."""
    begin = content.index(b"data") + 4
    return content[:4] + size + content[8:begin] + size + content[begin + 4 :]


READABLE: Dict[str, Callable[[], bytes]] = {
    **{
        subtype: (lambda subtype=subtype: saved(SOUND_S, subtype=subtype))
        for subtype in ("PCM_16", "PCM_24", "PCM_32", "PCM_U8", "FLOAT", "DOUBLE", "ALAW", "ULAW")
    },
    "extensible": lambda: saved(SOUND_S, "WAVEX", "PCM_24"),
    "FLAC": lambda: saved(SOUND_S, "FLAC"),
    "Ogg": lambda: saved(SOUND_S, "OGG", "VORBIS"),
    "AIFF": lambda: saved(SOUND_S, "AIFF"),
    "AU, A-law": lambda: saved(SOUND_S, "AU", "ALAW"),
    "W64": lambda: saved(SOUND_S, "W64"),
    "RF64": lambda: saved(SOUND_S, "RF64"),
    "8 kHz": lambda: saved(SOUND_S, rate=8000),
    "48 kHz, FLAC": lambda: saved(SOUND_S, "FLAC", rate=48000),
    "44.1 kHz": lambda: saved(SOUND_S, rate=44100),
    "two channels": lambda: saved(two(SOUND_S, SOUND_S / 2)),
    "one of two": lambda: saved(two(SOUND_S, 0 * SOUND_S)),
    "loud": lambda: saved(40 * SOUND_S, subtype="FLOAT"),
    "from a pipe": lambda: with_sizes(saved(SOUND_S), b"\xff" * 4),
    "FLAC called WAV": lambda: saved(SOUND_S, "FLAC"),
    "without seeking": lambda: saved(SOUND_S, subtype="GSM610"),
    "ADPCM": lambda: saved(SOUND_S, subtype="IMA_ADPCM"),
    "MP3": lambda: saved(SOUND_S, "MP3", "MPEG_LAYER_III"),
    "quiet": lambda: saved(np.where(TIME_S > 0.1, 2.0**-15, 0.0), subtype="FLOAT"),
}
REFUSED: Dict[str, Any] = {
    "cut": (lambda: saved(SOUND_S)[:4000], "is cut: 49% of what its header says is there"),
    "cut by a sample": (lambda: saved(SOUND_S)[:-2], "is cut: 100% of what its header says is there"),
    "cut FLAC": (lambda: saved(SOUND_S, "FLAC")[: len(saved(SOUND_S, "FLAC")) // 2], ""),
    "silent": (lambda: saved(0 * SOUND_S), "is silent: all of"),
    "constant": (lambda: saved(0 * SOUND_S[:50] + 0.01), "is silent: all of its samples are the same"),
    "almost silent": (lambda: saved(np.where(TIME_S > 0.1, 2.0**-16, 0.0), subtype="FLOAT"), "is silent: all of"),
    "opposite phase": (
        lambda: saved(two(SOUND_S, -SOUND_S)),
        "is silent: the mean of its 2 channels is, which cancel each other. Save one of them",
    ),
    "empty": (lambda: saved(SOUND_S[:0]), "is empty: its header says that it holds no sound"),
    "killed recorder": (lambda: with_sizes(saved(SOUND_S), b"\0" * 4), "is empty"),
    "NaN": (lambda: saved(np.where(TIME_S == 0.1, np.nan, SOUND_S), subtype="FLOAT"), "no finite numbers"),
    "slow": (lambda: saved(SOUND_S, rate=999), "has 999 samples a second and 1 channels"),
    "text": (lambda: b"no sound at all", "is no recording that can be read: WAV, RF64"),
    "nothing": (lambda: b"", "WAV, RF64"),
    "M4A": (
        lambda: b"\0\0\0\x1cftypM4A \0\0\2\0",
        "is M4A, WebM, WMA or AMR: convert it with `ffmpeg -i FILE FILE.flac`",
    ),
    "WebM": (lambda: b"\x1a\x45\xdf\xa3\x9f\x42\x86\x81\1\x42\xf7\x81", "convert it with `ffmpeg -i FILE FILE.flac`"),
    "WMA": (lambda: b"\x30\x26\xb2\x75\x8e\x66\xcf\x11\xa6\xd9\0\xaa", "convert it with `ffmpeg"),
    "AMR": (lambda: b"#!AMR\n\x3c\x91\x17\x16\xbe\x66", "convert it with `ffmpeg"),
}


@pytest.mark.parametrize("name", READABLE)
def test_all_readers_return_the_same_samples(name: str, tmp_path: Path) -> None:
    path = tmp_path / "sound.wav"
    path.write_bytes(READABLE[name]())
    found_S, rate = read_sound(path.read_bytes(), "sound.wav")
    np.testing.assert_array_equal(found_S, read_recording(path, rate))
    expected_S = read_recording(path, RATE)  # also the server's reader
    assert np.ptp(expected_S) >= 2.0**-15
    np.testing.assert_array_equal(resampled(found_S, rate, RATE), expected_S)


@pytest.mark.parametrize("name", REFUSED)
def test_all_readers_refuse_for_the_same_reason(name: str, tmp_path: Path) -> None:
    make, reason = REFUSED[name]
    path = tmp_path / "sound.wav"
    path.write_bytes(make())
    with pytest.raises(RecordingError) as trained:
        read_recording(path, RATE)
    with pytest.raises(ValueError) as exported:
        read_sound(path.read_bytes(), "sound.wav")
    assert reason in trained.value.fact
    assert str(exported.value).startswith("sound.wav ") and reason in str(exported.value)
    if reason:
        assert str(exported.value) == f"sound.wav {trained.value.fact.rstrip('.')}"


def test_a_few_missing_samples_are_rounding() -> None:
    assert problem_of_missing(320, RATE) is None and problem_of_missing(1, 10) is None
    assert problem_of_missing(321, RATE) == ("cut_audio", "is cut: its last 0.02 s are missing.")
    assert problem_of_missing(2, 10) is not None


def test_all_bytes_of_the_telephone_laws() -> None:
    for subtype, form in (("ALAW", b"\x06\0"), ("ULAW", b"\x07\0")):
        content = saved(np.zeros(256), subtype=subtype)
        assert content[20:22] == form
        begin = content.index(b"data") + 8
        content = content[:begin] + bytes(range(256)) + content[begin + 256 :]
        expected, _ = soundfile.read(io.BytesIO(content), dtype="float32")
        np.testing.assert_array_equal(read_sound(content, "x")[0], expected)
