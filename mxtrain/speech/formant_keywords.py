"""Clips of one digit each, spoken by a formant synthesiser of our own with many sizes of the speaker, in noise."""

from __future__ import annotations

from typing import TYPE_CHECKING, List, Sequence

import numpy as np

from mxtrain.data.checking.problems import DataLocation, Findings
from mxtrain.data.loading.randomness import uniform_rows
from mxtrain.speech.clip_dataset import ClipDataset, ListedClips
from mxtrain.speech.clips import Clip
from mxtrain.speech.draws import SpeechDraw
from mxtrain.speech.formant import DIGITS, PHONEMES, VERSION, say
from mxtrain.speech.resampling import resampled
from mxtrain.speech.utterances import Utterance
from mxtrain.types import BatchSize, Positive

if TYPE_CHECKING:
    from mxtrain.types.annotations import Json

_TEMPO = (0.7, 1.4)
"""Shortest and longest duration of a phoneme, relative to the usual one."""
_SPEAKERS = tuple(range(80, 124, 2))
"""Sizes of speakers: all frequencies are those of the synthesiser times this many hundredths."""
_HELD_OUT = ((86, 110), (94, 118))
"""Speakers of validation and test, who are not trained on."""
_SNR_DB = (0.0, 20.0)
"""Ratio of the powers of voice and noise."""


class FormantKeywords(ClipDataset):
    """One English digit in each clip; speakers of validation and test are not those of training."""

    batch_size: BatchSize = 32
    num_train: Positive = 1200
    """Training clips."""
    num_val: Positive = 200
    """Validation clips; as many to test with."""

    def list_clips(self, findings: Findings) -> ListedClips:
        """See `ClipDataset.list_clips`."""
        first, parts = 0, []
        for size in (self.num_train, self.num_val, self.num_val):
            parts.append(
                [
                    Clip(Utterance("", "", DataLocation(record=number)), number % len(DIGITS))
                    for number in range(first, first + size)
                ]
            )
            first += size
        train, val, test = parts
        return ListedClips(list(DIGITS), train, val, test, name="dataset=formant_keywords")

    def can_open(self, utterance: Utterance, findings: Findings) -> bool:
        """See `ClipDataset.can_open`: clips are synthesised on demand."""
        return True

    def cache_key(self, utterances: Sequence[Utterance], name: str) -> Json:
        """See `ClipDataset.cache_key`."""
        numbers: List[Json] = [utterance.location.record for utterance in utterances]
        return [VERSION, self.split_seed, self.num_train, self.num_val, numbers]

    def read_sound(self, utterance: Utterance) -> np.ndarray:
        """See `ClipDataset.read_sound`: a digit at a random time of the clip, in noise."""
        number, rate = utterance.location.record or 0, self.features.sample_rate
        speakers = self._speakers(number)
        word = list(DIGITS.values())[number % len(DIGITS)]
        row = uniform_rows(self.split_seed, 0, np.array([number]), SpeechDraw.CLIP_LOOK, 5 + len(word))[0]
        which, level, ratio, tilt, begin, *tempo = row.astype(np.float64).tolist()
        samples_N = [
            round(PHONEMES[symbol].duration_s * (_TEMPO[0] + share * (_TEMPO[1] - _TEMPO[0])) * rate)
            for symbol, share in zip(word, tempo)
        ]
        size = speakers[int(which * len(speakers))]
        voice_S = resampled(say(word, samples_N, rate, number), size * rate // 100, rate)
        sound_S = np.zeros(max(round(self.seconds * rate), len(voice_S)), np.float32)
        first = int(begin * (len(sound_S) - len(voice_S) + 1))
        sound_S[first : first + len(voice_S)] = voice_S
        # The stream of RandomState is frozen in NumPy, so a seed gives the same noise in later versions.
        noise_S = np.random.RandomState(number).standard_normal(len(sound_S))
        noise_S[1:] += 0.95 * tilt * noise_S[:-1]
        snr_db = _SNR_DB[0] + ratio * (_SNR_DB[1] - _SNR_DB[0])
        scale = np.sqrt(np.square(voice_S).mean() / np.square(noise_S).mean() / 10 ** (snr_db / 10))
        noisy_S: np.ndarray = ((sound_S + scale * noise_S) * 10 ** (-level)).astype(np.float32)
        return noisy_S

    def _speakers(self, number: int) -> Sequence[int]:
        """Returns the speakers of the split of a clip."""
        if number < self.num_train:
            return [size for size in _SPEAKERS if not any(size in held_out for held_out in _HELD_OUT)]
        return _HELD_OUT[0 if number < self.num_train + self.num_val else 1]
