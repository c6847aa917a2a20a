"""Recordings at any rate, and those that are missing, cut, silent or none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from mxtrain.speech.recording import RecordingError, read_recording

TONE = (0.5 * np.sin(2 * np.pi * 440 * np.arange(8000) / 8000)).astype(np.float32)
"""A second at 8,000 samples a second."""


@pytest.mark.parametrize("name, rate", [("a.wav", 8000), ("a.flac", 8000), ("a.wav", 44100), ("a.flac", 11025)])
def test_a_tone_is_the_same_at_any_rate(tmp_path: Path, name: str, rate: int) -> None:
    sound = 0.5 * np.sin(2 * np.pi * 440 * np.arange(rate) / rate)
    soundfile.write(tmp_path / name, sound, rate)
    found = read_recording(tmp_path / name, 8000)
    assert found.dtype == np.float32 and len(found) == 8000
    np.testing.assert_allclose(found[200:-200], TONE[200:-200], atol=2e-3)  # a filter has no neighbours at the ends


def test_channels_are_averaged_and_parts_are_parts(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.stack([TONE, np.zeros_like(TONE)], axis=1), 8000, subtype="FLOAT")
    np.testing.assert_allclose(read_recording(tmp_path / "a.wav", 8000), TONE / 2, atol=1e-6)
    part = read_recording(tmp_path / "a.wav", 8000, 0.25, 0.5)
    np.testing.assert_allclose(part, TONE[2000:6000] / 2, atol=1e-6)


def cut_wav(path: Path) -> None:
    soundfile.write(path, TONE, 8000)
    path.write_bytes(path.read_bytes()[:-4000])


def cut_flac(path: Path) -> None:
    soundfile.write(path, np.random.RandomState(0).uniform(-1, 1, 8000), 8000)
    path.write_bytes(path.read_bytes()[:-4000])


def cut_behind_an_odd_chunk(path: Path) -> None:
    """A chunk of an odd length has a byte of padding behind it."""
    cut_wav(path)
    content = path.read_bytes()
    path.write_bytes(content[:12] + b"note\x03\x00\x00\x00abc\x00" + content[12:])


def piped_wav(path: Path) -> None:
    """Returns a WAV file written by a program that does not know the length."""
    soundfile.write(path, TONE, 8000)
    content = bytearray(path.read_bytes())
    content[4:8] = content[40:44] = b"\xff\xff\xff\xff"
    path.write_bytes(content)


@pytest.mark.parametrize(
    "name, write, kind, said",
    [
        ("a.wav", lambda path: None, "unreadable_audio", "No such file"),
        ("a.wav", lambda path: path.write_text("hello"), "unreadable_audio", "no recording that can be read"),
        ("a.wav", lambda path: path.mkdir(), "unreadable_audio", "cannot be read: Is a directory."),
        ("a.wav", lambda path: soundfile.write(path, np.zeros(800), 8000), "silent_audio", "are the same"),
        ("a.wav", lambda path: soundfile.write(path, np.full(800, 0.25), 8000), "silent_audio", "are the same"),
        ("a.wav", lambda path: soundfile.write(path, np.zeros(0), 8000), "silent_audio", "holds no sound"),
        (
            "a.wav",
            lambda path: soundfile.write(path, np.array([0.1, np.nan, 0.2]), 8000, subtype="FLOAT"),
            "unreadable_audio",
            "no finite numbers",
        ),
        ("a.wav", cut_wav, "cut_audio", "75% of what its header says is there"),
        ("a.wav", cut_behind_an_odd_chunk, "cut_audio", "75% of what its header says is there"),
        ("a.wav", lambda path: soundfile.write(path, np.zeros((9, 65)), 8000), "unreadable_audio", "65 channels"),
        ("a.flac", cut_flac, "", ""),
    ],
)
def test_unusable_recordings_are_refused_by_kind(tmp_path: Path, name: str, write, kind: str, said: str) -> None:
    write(tmp_path / name)
    with pytest.raises(RecordingError) as caught:
        read_recording(tmp_path / name, 8000)
    assert said in caught.value.fact
    assert caught.value.kind == kind or not kind and caught.value.kind in ("cut_audio", "unreadable_audio")


@pytest.mark.parametrize(
    "audio_format, subtype",
    [
        ("WAV", "PCM_24"),
        ("WAVEX", "PCM_16"),
        ("RF64", "PCM_16"),
        ("W64", "PCM_16"),
        ("FLAC", "PCM_16"),
        ("OGG", "VORBIS"),
        ("OGG", "OPUS"),
        ("MP3", "MPEG_LAYER_III"),
        ("AIFF", "PCM_16"),
        ("AIFF", "FLOAT"),
        ("AU", "PCM_16"),
        ("CAF", "PCM_16"),
        ("NIST", "PCM_16"),
    ],
)
def test_formats_of_speech_are_read(tmp_path: Path, audio_format: str, subtype: str) -> None:
    for endian in ("FILE", "LITTLE", "BIG"):
        if soundfile.check_format(audio_format, subtype, endian):
            soundfile.write(tmp_path / "a", TONE, 8000, format=audio_format, subtype=subtype, endian=endian)
            found = read_recording(tmp_path / "a", 8000)
            np.testing.assert_allclose(found[2000:6000], TONE[2000:6000], atol=0.1)


def test_mp3_with_a_tag_is_read(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.mp3", TONE, 8000)
    content = (tmp_path / "a.mp3").read_bytes()
    (tmp_path / "a.mp3").write_bytes(b"ID3\x03\0\0\0\0\0\x0a" + bytes(10) + content)
    assert len(read_recording(tmp_path / "a.mp3", 8000)) >= 8000


@pytest.mark.parametrize("audio_format", ["MAT4", "MAT5", "PAF", "PVF", "VOC", "IRCAM", "SVX", "AVR", "XI", "HTK"])
def test_other_formats_of_libsndfile_are_refused(tmp_path: Path, monkeypatch, audio_format: str) -> None:
    subtype = "DPCM_16" if audio_format == "XI" else "PCM_16"
    rate = 44100 if audio_format == "XI" else 8000
    soundfile.write(tmp_path / "a.wav", TONE, rate, format=audio_format, subtype=subtype)
    monkeypatch.setattr(soundfile, "SoundFile", None)
    with pytest.raises(RecordingError, match="WAV, RF64, W64, FLAC, Ogg, MP3.* first bytes are of none of these"):
        read_recording(tmp_path / "a.wav", 8000)


def test_more_than_a_sample_may_take_is_refused_before_it_is_read(tmp_path: Path, monkeypatch) -> None:
    soundfile.write(tmp_path / "a.wav", TONE, 8000)
    monkeypatch.setattr("mxtrain.speech.recording.MAX_SECONDS", 0.6)
    with pytest.raises(RecordingError, match="is 1 seconds long; at most 1 are read as one utterance"):
        read_recording(tmp_path / "a.wav", 8000)
    assert len(read_recording(tmp_path / "a.wav", 8000, 0.5)) == 4000


def test_a_part_beyond_the_end_is_cut(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", TONE, 8000)
    with pytest.raises(RecordingError, match="its last 0.50 s are missing"):
        read_recording(tmp_path / "a.wav", 8000, 0.75, 0.75)
    with pytest.raises(RecordingError, match="it ends after 1.00 s"):
        read_recording(tmp_path / "a.wav", 8000, 2.0)


def test_wav_file_of_unknown_length_is_read_completely(tmp_path: Path) -> None:
    piped_wav(tmp_path / "a.wav")
    assert len(read_recording(tmp_path / "a.wav", 8000)) == 8000
