"""Rows of digits, spoken by a formant synthesiser of our own: durations are known, and nothing has to be installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, List, Sequence

import numpy as np

from mxtrain.data.checking.problems import DataLocation, Findings
from mxtrain.data.corpus.preparing import prepare
from mxtrain.data.corpus.shards import Shards
from mxtrain.data.loading.loader import count_workers
from mxtrain.data.loading.randomness import uniform_rows
from mxtrain.speech.aligned import AlignedUtterance
from mxtrain.speech.aligned_dataset import AlignedDataset, Parts
from mxtrain.speech.draws import SpeechDraw
from mxtrain.speech.features import Features
from mxtrain.speech.formant import DIGITS, PHONEMES, SILENCE, VERSION, say
from mxtrain.speech.prepared import Computed, compute, feature_forms, feature_key, feature_writer
from mxtrain.speech.utterances import Utterance
from mxtrain.types import BatchSize, Positive, Range

if TYPE_CHECKING:
    from mxtrain.types.annotations import Json

_TEMPO = (0.7, 1.5)
"""Shortest and longest duration of a phoneme, relative to the usual one."""


class FormantDigits(AlignedDataset):
    """Rows of digits as phonemes, whose durations are drawn."""

    is_generated: ClassVar[bool] = True

    batch_size: BatchSize = 16

    features: Features = Features(window_ms=40.0, num_mels=64, preemphasis=0.0, normalize="none")
    length: Range[Positive] = [1, 5]
    """Minimum and maximum number of digits of an utterance."""
    num_train: Positive = 800
    """Training utterances."""
    num_val: Positive = 80
    """Validation utterances; as many to test with."""

    def utterances(self, findings: Findings) -> Parts:
        """See `AlignedDataset.utterances`."""
        sizes = (self.num_train, self.num_val, self.num_val)
        train, val, test = (self._plan(sum(sizes[:part]), sizes[part]) for part in range(3))
        return "dataset=formant_digits", train, val, test

    def compute_features(self, name: str, utterances: Sequence[AlignedUtterance]) -> Shards:
        """See `AlignedDataset.compute_features`; the sound itself is not kept."""
        features = self.features

        def compute_one(index: int) -> Computed:
            aligned = utterances[index]
            samples_N = (np.asarray(aligned.durations, np.int64) * features.step).tolist()
            sound_S = say(aligned.symbols, samples_N, features.sample_rate, _seed(aligned))
            return compute(sound_S, features, are_centred=True)

        plan: List[Json] = [[_seed(aligned), list(aligned.symbols), list(aligned.durations)] for aligned in utterances]
        cache_key: Json = [VERSION, feature_key(features), plan]
        write = feature_writer(len(utterances), compute_one, count_workers(self.num_workers))
        what = f"features of {len(utterances)} rows of digits"
        return prepare("formant_digits", cache_key, feature_forms(features), write, what=what, total=len(utterances))

    def _plan(self, first: int, count: int) -> List[AlignedUtterance]:
        """Returns the planned utterances, as a function of `split_seed` and the number of the utterance."""
        min_digits, max_digits = self.length
        number_N, words = np.arange(first, first + count), list(DIGITS)
        max_symbols = 1 + max_digits * (1 + max(map(len, DIGITS.values())))
        text_N = uniform_rows(self.split_seed, 0, number_N, SpeechDraw.SPOKEN_TEXT, 1 + max_digits).astype(np.float64)
        tempo_N = uniform_rows(self.split_seed, 0, number_N, SpeechDraw.SPOKEN_DURATION, max_symbols)
        texts = zip(number_N.tolist(), text_N.tolist(), tempo_N.astype(np.float64).tolist())
        step_s, utterances = self.features.step / self.features.sample_rate, []
        for number, (length, *digits), tempo in texts:
            num_digits = min_digits + int(length * (max_digits - min_digits + 1))
            spoken_words = [words[int(digit * 10)] for digit in digits[:num_digits]]
            symbols = [SILENCE, *(symbol for word in spoken_words for symbol in (*DIGITS[word], SILENCE))]
            seconds = [
                PHONEMES[symbol].duration_s * (_TEMPO[0] + share * (_TEMPO[1] - _TEMPO[0]))
                for symbol, share in zip(symbols, tempo)
            ]
            # Whole frames, so that durations add up to the frames of the sound exactly.
            durations = [max(round(duration_s / step_s), 1) for duration_s in seconds]
            utterance = Utterance("", " ".join(spoken_words), DataLocation(record=number))
            utterances.append(AlignedUtterance(utterance, symbols, durations))
        return utterances


def _seed(aligned: AlignedUtterance) -> int:
    """Returns the seed of the noise of an utterance."""
    return aligned.utterance.location.record or 0
