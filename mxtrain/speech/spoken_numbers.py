"""Numbers in words, spoken by an installed eSpeak NG, whose library reports the beginning of each phoneme."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, List, NamedTuple, Sequence

import numpy as np
import pydantic
from typing_extensions import Annotated

from mxtrain.config.libraries import require_library
from mxtrain.data.checking.problems import DataLocation, Findings
from mxtrain.data.corpus.preparing import Advance, prepare
from mxtrain.data.corpus.shards import ArrayForm, Shards, ShardWriter
from mxtrain.data.loading.loader import count_workers
from mxtrain.data.loading.randomness import uniform
from mxtrain.speech.aligned import AlignedUtterance
from mxtrain.speech.aligned_dataset import AlignedDataset, Parts
from mxtrain.speech.draws import SpeechDraw
from mxtrain.speech.espeak_library import espeak_library
from mxtrain.speech.prepared import Computed, compute, feature_forms, feature_key, feature_writer
from mxtrain.speech.resampling import resampled
from mxtrain.speech.utterances import Utterance
from mxtrain.types import BatchSize, Positive

if TYPE_CHECKING:
    from mxtrain.types.annotations import Json, JsonObject

SOUND, NAMES, ENDS = "sound", "names", "ends"
_COMMIT_EVERY = 256


class NumberPlan(NamedTuple):
    """An utterance to synthesize: text, voice and settings."""

    text: str
    voice: str
    speed: int


class SpokenNumbers(AlignedDataset):
    """Different whole numbers as English words, by one voice."""

    is_generated: ClassVar[bool] = True

    batch_size: BatchSize = 16

    voice: str = "en-us"
    """Voice of eSpeak NG, e.g. en-us+f2."""
    speed: Annotated[int, pydantic.Field(ge=80, le=400)] = 170
    """Approximate speed in words per minute."""
    largest: Annotated[int, pydantic.Field(ge=99, le=999_999_999)] = 999_999
    """Largest spoken number; the smallest is 0."""
    num_train: Positive = 600
    """Training utterances."""
    num_val: Positive = 60
    """Validation utterances; as many to test with."""

    @pydantic.model_validator(mode="after")
    def _check_numbers(self) -> SpokenNumbers:
        num_numbers = self.num_train + 2 * self.num_val
        if num_numbers > (self.largest + 1) // 2:
            raise ValueError(
                f"num_train={self.num_train} and num_val={self.num_val} ask for {num_numbers} different numbers, and "
                f"largest={self.largest}. Type a larger dataset.largest, twice as many at least"
            )
        return self

    def utterances(self, findings: Findings) -> Parts:
        """See `AlignedDataset.utterances`."""
        numbers, bounds = self._numbers(), [0, self.num_train, self.num_train + self.num_val, None]
        train, val, test = (self._spoken(numbers[begin:end]) for begin, end in zip(bounds, bounds[1:]))
        return "dataset=spoken_numbers", train, val, test

    def compute_features(self, name: str, utterances: Sequence[AlignedUtterance]) -> Shards:
        """See `AlignedDataset.compute_features`; sounds are synthesised once, for all kinds of features."""
        plan = self._plan([item.utterance.text for item in utterances])
        sounds, features = synthesize(plan).ragged(SOUND), self.features
        source_rate = espeak_library().rate

        def compute_one(index: int) -> Computed:
            sound_S = sounds.value[sounds.begin[index] : sounds.begin[index + 1]].astype(np.float32) / np.float32(32768)
            return compute(resampled(sound_S, source_rate, features.sample_rate), features, are_centred=True)

        cache_key: Json = [feature_key(features), espeak_library().version, [list(item) for item in plan]]
        write = feature_writer(len(plan), compute_one, count_workers(self.num_workers))
        what = f"features of {len(plan)} spoken numbers"
        return prepare("spoken_numbers", cache_key, feature_forms(features), write, what=what, total=len(plan))

    def _numbers(self) -> List[int]:
        """Returns distinct numbers, as a function of `split_seed`. The number of digits is distributed uniformly."""
        numbers: List[int] = []
        digits, count, first = len(str(self.largest)), self.num_train + 2 * self.num_val, 0
        seen = set()
        while len(numbers) < count:
            index_N = np.arange(first, first + count)
            # The length is drawn first: else nine of ten numbers would have the most digits.
            length_N = 1 + (uniform(self.split_seed, 0, index_N, SpeechDraw.SPOKEN_TEXT) * digits).astype(int)
            share_N = uniform(self.split_seed, 0, index_N, SpeechDraw.SPOKEN_DURATION)
            for length, share in zip(length_N.tolist(), share_N.tolist()):
                number = int(share * min(10**length, self.largest + 1))
                if number not in seen:
                    seen.add(number)
                    numbers.append(number)
            first += count
        return numbers[:count]

    def _plan(self, texts: Sequence[str]) -> List[NumberPlan]:
        return [NumberPlan(text, self.voice, self.speed) for text in texts]

    def _spoken(self, numbers: Sequence[int]) -> List[AlignedUtterance]:
        library = require_library("num2words", "num2words", "dataset=spoken_numbers")
        texts = [library.num2words(number) for number in numbers]
        spoken, rate = synthesize(self._plan(texts)), espeak_library().rate
        names, ends, utterances = spoken.ragged(NAMES), spoken.ragged(ENDS), []
        for index, text in enumerate(texts):
            symbols = names.value[names.begin[index] : names.begin[index + 1]].tobytes().decode().split()
            end_N = ends.value[ends.begin[index] : ends.begin[index + 1]].astype(np.float64)
            durations = (np.diff(end_N, prepend=0.0) / rate).tolist()
            utterance = Utterance("", text, DataLocation(record=index))
            utterances.append(AlignedUtterance(utterance, symbols, durations, in_seconds=True))
        return utterances


def synthesize(plan: Sequence[NumberPlan]) -> Shards:
    """Returns the synthesized sound, int16, its phonemes and their ends, from the cache if they exist.

    Raises:
        DataError: eSpeak NG is not installed, or fails.
    """
    library = espeak_library()
    cache_key: Json = [library.version, [list(item) for item in plan]]

    def write(writer: ShardWriter, advance: Advance) -> JsonObject:
        for item in plan[writer.records :]:
            spoken = library.say(item.text, item.voice, item.speed)
            names = np.frombuffer(" ".join(spoken.phonemes).encode(), np.uint8)
            values = {SOUND: spoken.sound_S, NAMES: names, ENDS: spoken.end_N}
            writer.append(1, values, {name: np.array([len(value)]) for name, value in values.items()})
            if writer.records % _COMMIT_EVERY == 0:
                writer.commit()
            advance(1)
        return {}

    forms = {
        SOUND: ArrayForm("int16", (), is_ragged=True),
        NAMES: ArrayForm("uint8", (), is_ragged=True),
        ENDS: ArrayForm("int64", (), is_ragged=True),
    }
    return prepare("spoken_phonemes", cache_key, forms, write, what=f"{len(plan)} spoken numbers", total=len(plan))
