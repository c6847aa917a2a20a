"""Rows of digits, spoken by a formant synthesiser of our own: durations are known, and nothing has to be installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, List, Sequence

import numpy as np

from mxtrain.data.checking.problems import DataPlace, Findings
from mxtrain.data.corpus.preparing import prepare
from mxtrain.data.corpus.shards import Shards
from mxtrain.data.loading.loader import count_workers
from mxtrain.data.loading.randomness import uniform_rows
from mxtrain.speech.aligned import Aligned
from mxtrain.speech.aligned_dataset import AlignedDataset, Parts
from mxtrain.speech.draws import SpeechDraw
from mxtrain.speech.features import Features
from mxtrain.speech.formant import DIGITS, PHONEMES, SILENCE, VERSION, say
from mxtrain.speech.prepared import Computed, compute, feature_forms, feature_writer
from mxtrain.speech.utterances import Utterance
from mxtrain.types import BatchSize, Positive, Range

if TYPE_CHECKING:
    from mxtrain.annotations import Json

_TEMPO = (0.7, 1.5)
"""Of the usual duration of a phoneme: least and most."""


class FormantDigits(AlignedDataset):
    """Rows of digits as phonemes, whose durations are drawn."""

    is_made: ClassVar[bool] = True

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

    def compute_features(self, name: str, given: Sequence[Aligned]) -> Shards:
        """See `AlignedDataset.compute_features`; the sound itself is not kept."""
        features = self.features

        def compute_one(index: int) -> Computed:
            one = given[index]
            samples_N = (np.asarray(one.durations, np.int64) * features.step).tolist()
            return compute(say(one.symbols, samples_N, features.sample_rate, _seed(one)), features, are_centred=True)

        plan: List[Json] = [[_seed(one), list(one.symbols), list(one.durations)] for one in given]
        made_of: Json = [VERSION, features.model_dump(), plan]
        write = feature_writer(len(given), compute_one, count_workers(self.num_workers))
        what = f"features of {len(given)} rows of digits"
        return prepare("formant_digits", made_of, feature_forms(features), write, what=what, total=len(given))

    def _plan(self, first: int, count: int) -> List[Aligned]:
        """Returns the planned utterances, as a function of `split_seed` and the number of the utterance."""
        least, most = self.length
        number_N, words = np.arange(first, first + count), list(DIGITS)
        most_symbols = 1 + most * (1 + max(map(len, DIGITS.values())))
        text_N = uniform_rows(self.split_seed, 0, number_N, SpeechDraw.SPOKEN_TEXT, 1 + most).astype(np.float64)
        tempo_N = uniform_rows(self.split_seed, 0, number_N, SpeechDraw.SPOKEN_DURATION, most_symbols)
        texts = zip(number_N.tolist(), text_N.tolist(), tempo_N.astype(np.float64).tolist())
        step_s, found = self.features.step / self.features.sample_rate, []
        for number, (length, *digits), tempo in texts:
            said = [words[int(digit * 10)] for digit in digits[: least + int(length * (most - least + 1))]]
            symbols = [SILENCE, *(symbol for word in said for symbol in (*DIGITS[word], SILENCE))]
            seconds = [PHONEMES[symbol].duration_s * (_TEMPO[0] + share * (_TEMPO[1] - _TEMPO[0]))
                       for symbol, share in zip(symbols, tempo)]  # fmt: skip
            durations = [max(round(one / step_s), 1) for one in seconds]
            utterance = Utterance("", " ".join(said), DataPlace(record=number))
            found.append(Aligned(utterance, symbols, durations))
        return found


def _seed(one: Aligned) -> int:
    """Returns the seed of the noise of an utterance."""
    return one.utterance.place.record or 0
