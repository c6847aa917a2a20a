"""Spoken digits, synthesised by an installed eSpeak NG: nothing to download.

Voices of validation and test differ from the training voices.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, List, NamedTuple, Sequence

import numpy as np

from mxtrain.data.checking.problems import DataLocation, Findings
from mxtrain.data.corpus.preparing import Advance, prepare
from mxtrain.data.corpus.shards import ArrayForm, Shards, ShardWriter
from mxtrain.data.corpus.threads import map_in_order
from mxtrain.data.loading.loader import count_workers
from mxtrain.data.loading.randomness import uniform_rows
from mxtrain.errors import DataError
from mxtrain.files.temporary import temporary_root
from mxtrain.speech.audio import AudioDataset, Parts
from mxtrain.speech.draws import SpeechDraw
from mxtrain.speech.features import Features
from mxtrain.speech.kinds import Frames, Transcripts
from mxtrain.speech.prepared import Computed, compute, feature_forms, feature_key, feature_writer
from mxtrain.speech.recording import read_recording
from mxtrain.speech.resampling import resampled
from mxtrain.speech.utterances import Utterance
from mxtrain.types import BatchSize, Positive, Range
from mxtrain.types.kinds import Gives

if TYPE_CHECKING:
    from mxtrain.types.annotations import Json, JsonObject

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
VOICES = (
    (
        "en-us",
        "en-us+m1",
        "en-us+m3",
        "en-us+m4",
        "en-us+m6",
        "en-us+f1",
        "en-us+f2",
        "en-us+f4",
        "en-gb",
        "en-gb+m2",
        "en-gb+m5",
        "en-gb+f2",
        "en-gb+f5",
        "en-gb-scotland",
        "en-gb-scotland+f1",
        "en-gb-x-rp",
        "en-gb-x-rp+f4",
        "en-gb-x-gbclan+m1",
        "en-029+m4",
    ),
    ("en-us+m7", "en-gb+f3"),
    ("en-us+f3", "en-gb-x-rp+m7"),
)
"""Voices of training, validation and test."""
RATE = 22050
"""Sample rate of eSpeak NG, in Hz."""
_SPEED, _PITCH = (130, 190), (30, 70)
"""Words a minute, and eSpeak NG's pitch."""
_COMMIT_EVERY = 256
SOUND = "sound"


class SynthesisRequest(NamedTuple):
    """An utterance to synthesize: text, voice and settings."""

    text: str
    voice: str
    speed: int
    pitch: int


class SpokenDigits(AudioDataset):
    """Rows of digits as words, spoken by 23 voices, of which 2 are for validation and 2 for testing."""

    gives: ClassVar[Gives] = Gives(Frames, Transcripts)

    batch_size: BatchSize = 16
    features: Features = Features(num_mels=40)
    characters: str = " efghinorstuvwxz"
    """Alphabet of transcripts; auto = the characters of the ten words."""
    length: Range[Positive] = [1, 5]
    """Minimum and maximum number of digits of an utterance."""
    num_train: Positive = 1200
    """Training utterances."""
    num_val: Positive = 150
    """Validation utterances; as many to test with."""

    def utterances(self, findings: Findings) -> Parts:
        """See `AudioDataset.utterances`."""
        train, val, test = (
            [
                Utterance(request.voice, request.text, DataLocation(record=index))
                for index, request in enumerate(self._plan(part))
            ]
            for part in range(3)
        )
        return "dataset=spoken_digits", train, val, test

    def can_open(self, utterance: Utterance, findings: Findings) -> bool:
        """See `AudioDataset.can_open`: recordings are synthesized on demand."""
        return True

    def compute_features(self, name: str, utterances: Sequence[Utterance]) -> Shards:
        """See `AudioDataset.compute_features`; sounds are synthesised once, for all kinds of features."""
        planned = self._plan(next(part for part, voices in enumerate(VOICES) if utterances[0].path in voices))
        spoken = [planned[utterance.location.record or 0] for utterance in utterances]
        threads = count_workers(self.num_workers)
        sounds = synthesize(spoken, threads).ragged(SOUND)
        features = self.features

        def compute_one(index: int) -> Computed:
            sound_S = sounds.value[sounds.begin[index] : sounds.begin[index + 1]].astype(np.float32) / np.float32(32768)
            return compute(resampled(sound_S, RATE, features.sample_rate), features)

        cache_key: Json = [feature_key(features), espeak_version(), [list(utterance) for utterance in spoken]]
        write = feature_writer(len(spoken), compute_one, threads)
        what = f"features of {len(spoken)} spoken digits"
        return prepare("features", cache_key, feature_forms(features), write, what=what, total=len(spoken))

    def _plan(self, part: int) -> List[SynthesisRequest]:
        """Returns the planned utterances of a split, as a function of `split_seed` and the number of the utterance."""
        sizes, voices = (self.num_train, self.num_val, self.num_val), VOICES[part]
        first, size = sum(sizes[:part]), sizes[part]
        min_digits, max_digits = self.length
        number_N, draw = np.arange(first, first + size), SpeechDraw.LINE_LAYOUT + 3
        random_rows = uniform_rows(self.split_seed, 0, number_N, draw, 3 + max_digits)
        requests = []
        for number, (length, speed, pitch, *digits) in enumerate(random_rows.astype(np.float64).tolist()):
            count = min_digits + int(length * (max_digits - min_digits + 1))
            text = " ".join(WORDS[int(digit * 10)] for digit in digits[:count])
            requests.append(
                SynthesisRequest(
                    text,
                    voices[number % len(voices)],
                    _SPEED[0] + int(speed * (_SPEED[1] - _SPEED[0] + 1)),
                    _PITCH[0] + int(pitch * (_PITCH[1] - _PITCH[0] + 1)),
                )
            )
        return requests


def espeak() -> str:
    """Returns the path of the program eSpeak NG.

    Raises:
        DataError: the program is not installed.
    """
    program = shutil.which("espeak-ng")
    if program is None:
        raise DataError(
            "dataset=spoken_digits is spoken by eSpeak NG, which is not installed: apt-get install espeak-ng, dnf "
            "install espeak-ng or brew install espeak-ng. Or type dataset=digit_lines, which needs nothing."
        )
    return program


def espeak_version() -> str:
    """Returns the version line of eSpeak without its data folder; another version produces other sound."""
    try:
        output = subprocess.run([espeak(), "--version"], capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise DataError(f"'{espeak()}' cannot be run: {error}. Install eSpeak NG anew.") from error
    return output.partition("Data at")[0].strip()


def synthesize(requests: Sequence[SynthesisRequest], num_threads: int) -> Shards:
    """Returns the synthesized sound, int16 at `RATE`, from the cache if it exists.

    Raises:
        DataError: eSpeak NG is not installed, or fails.
    """
    program = espeak()
    # Another version of eSpeak NG speaks in another way.
    cache_key: Json = [espeak_version(), [list(request) for request in requests]]

    def write(writer: ShardWriter, advance: Advance) -> JsonObject:
        with tempfile.TemporaryDirectory(prefix="mxtrain-spoken-", dir=temporary_root()) as folder:
            numbers = range(writer.records, len(requests))
            for sound_S in map_in_order(partial(speak, program, requests, folder), numbers, num_threads):
                writer.append(1, {SOUND: sound_S}, {SOUND: np.array([len(sound_S)])})
                if writer.records % _COMMIT_EVERY == 0:
                    writer.commit()
                advance(1)
        return {}

    forms = {SOUND: ArrayForm("int16", (), is_ragged=True)}
    return prepare("spoken", cache_key, forms, write, what=f"{len(requests)} spoken digits", total=len(requests))


def speak(program: str, requests: Sequence[SynthesisRequest], folder: str, index: int) -> np.ndarray:
    """Returns the sound of one utterance, int16.

    Raises:
        DataError: eSpeak NG cannot say it.
    """
    path, request = Path(folder) / f"{index}.wav", requests[index]
    options = ["-v", request.voice, "-s", str(request.speed), "-p", str(request.pitch), "-w", str(path)]
    try:
        subprocess.run([program, *options, request.text], capture_output=True, check=True, timeout=60)
        sound_S = read_recording(path, RATE)
    except Exception as error:  # of the program, or of what it wrote
        raise DataError(f"eSpeak NG cannot say '{request.text}' with the voice {request.voice}: {error}") from error
    finally:
        path.unlink(missing_ok=True)
    return np.rint(sound_S * 32768).astype(np.int16)
