"""Features of utterances, computed once in threads and kept in the cache, and the source that reads them.

Legend: N utterances, T frames, F numbers of a frame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, List, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from mxtrain.data.checking.problems import DataLocation
from mxtrain.data.corpus.content import contents_of
from mxtrain.data.corpus.preparing import Advance, Write, prepare, prepare_temporary
from mxtrain.data.corpus.shards import ArrayForm, Ragged, Shards, ShardWriter
from mxtrain.data.corpus.threads import map_in_order
from mxtrain.speech.alphabet import Alphabet
from mxtrain.speech.features import Features
from mxtrain.speech.log_mel import centred, log_mel, stored
from mxtrain.speech.recording import RecordingError, read_recording
from mxtrain.speech.source import TranscribedSource
from mxtrain.speech.spec_augment import SpecAugment
from mxtrain.speech.utterances import Utterance

if TYPE_CHECKING:
    from mxtrain.types.annotations import Json, JsonObject

FEATURE, PROBLEM, SECONDS = "feature", "problem", "seconds"
FRAMES_VERSION = 2
"""Version of the computation of frames; those of other versions in the cache are not used."""
BYTES_PER_BLOCK = 32 << 20
"""Bytes of features per commit; an interrupted preparation continues after the last commit."""


class Computed(NamedTuple):
    """Result of preparing an utterance.

    Attributes:
        frames_TF: frames, float16; none if the utterance cannot be used.
        problem: kind of the problem, a tab, and the end of a sentence about it; empty if there is none.
        seconds: length in seconds.
    """

    frames_TF: np.ndarray
    problem: str
    seconds: float


def compute(sound_S: np.ndarray, features: Features, are_centred: bool = False) -> Computed:
    """Returns the features of an utterance that was read."""
    framed_S = centred(sound_S, features) if are_centred else sound_S
    return Computed(stored(log_mel(framed_S, features)), "", len(sound_S) / features.sample_rate)


def compute_utterance(utterance: Utterance, features: Features, are_centred: bool = False) -> Computed:
    """Reads an utterance and computes its features."""
    try:
        sound_S = read_recording(utterance.path, features.sample_rate, utterance.begin_s, utterance.duration_s)
    except RecordingError as error:
        return Computed(np.zeros((0, features.num_mels), np.float16), f"{error.kind}\t{error.fact}", 0.0)
    return compute(sound_S, features, are_centred)


def features_of(
    utterances: Sequence[Utterance], features: Features, what: str, num_threads: int, are_centred: bool = False
) -> Shards:
    """Returns the features of utterances, from the cache if they exist; problems of utterances are stored with them.

    Args:
        utterances: utterances whose files exist.
        features: settings of the features.
        what: name of the data, for progress messages.
        num_threads: number of threads.
        are_centred: see `features.centred`.

    Raises:
        DataError: a file is written to meanwhile, or the disk is full.
    """
    # Utterances may be parts of one recording, whose content is hashed once.
    paths = list(dict.fromkeys(utterance.path for utterance in utterances))
    number = {path: index for index, path in enumerate(paths)}
    parts: List[Json] = [[number[utterance.path], utterance.begin_s, utterance.duration_s] for utterance in utterances]
    # The key holds contents and no names, so a corpus that moved is not computed again.
    contents = contents_of(paths, f"content of the files for {what}", num_threads)
    cache_key: Json = [feature_key(features), [content.sha256 for content in contents], parts]
    write = feature_writer(
        len(utterances), lambda index: compute_utterance(utterances[index], features, are_centred), num_threads
    )
    kind = "centred_features" if are_centred else "features"
    return prepare(kind, cache_key, feature_forms(features), write, what=what, total=len(utterances))


def features_for_now(utterances: Sequence[Utterance], features: Features, num_threads: int) -> Shards:
    """Returns the features of utterances in a store that is deleted together with the returned object."""
    write = feature_writer(len(utterances), lambda index: compute_utterance(utterances[index], features), num_threads)
    return prepare_temporary("features", feature_forms(features), write)


def feature_key(features: Features) -> Json:
    """Returns the part of the key of prepared frames that determines their computation."""
    return [FRAMES_VERSION, features.model_dump()]


def feature_forms(features: Features) -> Mapping[str, ArrayForm]:
    """Returns the arrays stored for each utterance."""
    return {
        FEATURE: ArrayForm("float16", (features.num_mels,), is_ragged=True),
        PROBLEM: ArrayForm("uint8", (), is_ragged=True),
        SECONDS: ArrayForm("float32"),
    }


def feature_writer(count: int, compute_one: Callable[[int], Computed], num_threads: int) -> Write:
    """Returns the function that writes the features of `count` utterances; see `corpus.preparing.Write`."""

    def write(writer: ShardWriter, advance: Advance) -> JsonObject:
        waiting = 0
        for computed in map_in_order(compute_one, range(writer.records, count), num_threads):
            # Problems are stored without the file's name: a second start still reports them, under whatever name.
            problem = np.frombuffer(computed.problem.encode("utf-8", "replace"), np.uint8)
            values = {FEATURE: computed.frames_TF, PROBLEM: problem, SECONDS: np.array([computed.seconds])}
            writer.append(1, values, {name: np.array([len(values[name])]) for name in (FEATURE, PROBLEM)})
            waiting += computed.frames_TF.nbytes
            if waiting >= BYTES_PER_BLOCK:
                writer.commit()
                waiting = 0
            advance(1)
        return {}

    return write


class Recordings(TranscribedSource):
    """Utterances with their features.

    Args:
        utterances: utterances of one split, with normalised texts.
        feature: frames of all utterances of the store.
        row_N: row of each utterance in the store.
        alphabet: alphabet of the transcripts.
        augment: SpecAugment in training.
        are_known: True if there are transcripts.
    """

    def __init__(
        self,
        utterances: Sequence[Utterance],
        feature: Ragged,
        row_N: np.ndarray,
        alphabet: Alphabet,
        augment: Optional[SpecAugment] = None,
        are_known: bool = True,
    ) -> None:
        self.utterances, self._feature, self._row_N = list(utterances), feature, np.asarray(row_N, np.int64)
        self._augment, self._are_known = augment, are_known
        self.numbers: Sequence[int] = ()
        """Number of the recording of each utterance, if utterances are parts of recordings whose texts are joined."""
        self.store: Optional[Shards] = None
        """Store of the frames, if it is deleted together with this object."""
        texts = [utterance.text for utterance in self.utterances] if are_known else [""] * len(self.utterances)
        labels = [alphabet.encode(text) for text in texts]
        begin = np.zeros(len(labels) + 1, np.int64)
        np.cumsum([len(label) for label in labels], out=begin[1:])
        value = np.concatenate([np.zeros(0, np.int32), *labels]).astype(np.int32)
        frame_N = (feature.begin[1:] - feature.begin[:-1])[self._row_N]
        width = feature.value.shape[1]
        super().__init__(frame_N, width, Ragged(value, begin), alphabet, texts if are_known else None)

    def take(self, indices: Sequence[int]) -> Recordings:
        """See `TranscribedSource.take`."""
        kept = [int(index) for index in indices if index < len(self)]
        utterances = [self.utterances[index] for index in kept]
        return Recordings(utterances, self._feature, self._row_N[kept], self.alphabet, self._augment, self._are_known)

    def location(self, index: int) -> DataLocation:
        """See `TranscribedSource.location`."""
        return self.utterances[index].location

    def speaker(self, index: int) -> str:
        """See `TranscribedSource.speaker`."""
        return self.utterances[index].speaker

    def content_location(self, index: int) -> DataLocation:
        """See `TranscribedSource.content_location`."""
        utterance = self.utterances[index]
        is_whole = not utterance.begin_s and utterance.duration_s is None
        return DataLocation(utterance.path) if is_whole else DataLocation(record=index)

    def read(self, index: int, *, seed: int, epoch: int, train: bool) -> np.ndarray:
        """See `TranscribedSource.read`."""
        row = int(self._row_N[index])
        frames_TF = self._feature.value[self._feature.begin[row] : self._feature.begin[row + 1]].astype(np.float32)
        if train and self._augment is not None:
            self._augment.apply_masks(frames_TF, seed, epoch, index)
        return frames_TF


def problems_of(shards: Shards) -> List[str]:
    """Returns the problem of each utterance; see `Computed.problem`."""
    rows = shards.ragged(PROBLEM)
    return [rows.value[begin:end].tobytes().decode() for begin, end in zip(rows.begin[:-1], rows.begin[1:])]
