"""Samples that are clips of sound of one length with a class: their source, augmentation and loader.

Legend: N clips, B batch, T frames, F mel bands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.checking.problems import DataLocation
from mxtrain.data.corpus.shards import Ragged, Shards
from mxtrain.data.loading.loader import BatchLoader
from mxtrain.data.loading.randomness import uniform_rows
from mxtrain.speech.clip_frames import QUIETEST
from mxtrain.speech.draws import SpeechDraw
from mxtrain.speech.utterances import Utterance
from mxtrain.types import Fraction, NonNegativeFloat, Range, Spec

if TYPE_CHECKING:
    from mxtrain.data.checking.checks import Checked, Checks
    from mxtrain.data.loading.loader import LoaderOptions
    from mxtrain.data.loading.placing import HostArrays


class ClipAugment(Spec):
    """Changes of clips in training, as a function of seed, epoch and sample."""

    shift: Fraction = 0.1
    """Largest shift in time, as a share of the clip; edges are repeated."""
    gain_db: NonNegativeFloat = 6.0
    """Largest change of the level, in decibels."""
    noise_share: Fraction = 0.8
    """Share of clips to which noise is added, if the data have recordings of noise (`_background_noise_`)."""
    snr_db: Range[float] = [5.0, 30.0]
    """Least and largest ratio of the powers of clip and added noise, in decibels."""

    def apply(self, frames_TF: np.ndarray, noise: Optional[Ragged], seed: int, epoch: int, index: int) -> np.ndarray:
        """Returns the augmented frames of sample `index`.

        Args:
            frames_TF: log-mel frames before normalisation.
            noise: frames of recordings of noise, at least as many as those of a clip; None = none.
            seed, epoch, index: coordinates of the random numbers.
        """
        row = uniform_rows(seed, epoch, np.array([index]), SpeechDraw.CLIP_AUGMENT, 6)[0].astype(np.float64)
        moved, gain, is_noisy, which, begin, ratio = row.tolist()
        count = len(frames_TF)
        largest = int(self.shift * count)
        shift = int(moved * (2 * largest + 1)) - largest
        frames_TF = frames_TF[np.clip(np.arange(count) - shift, 0, count - 1)]
        if noise is not None and is_noisy < self.noise_share:
            first = int(noise.begin[int(which * (len(noise.begin) - 1))])
            length = int(noise.begin[int(which * (len(noise.begin) - 1)) + 1]) - first
            first += int(begin * (length - count + 1))
            noise_TF = np.asarray(noise.value[first : first + count], np.float32)
            snr = self.snr_db[0] + ratio * (self.snr_db[1] - self.snr_db[0])
            frames_TF = add_noise(frames_TF, noise_TF, snr)
        level = np.float32((2 * gain - 1) * self.gain_db * np.log(10) / 10)
        return np.maximum(frames_TF + level, np.float32(QUIETEST))


def add_noise(frames_TF: np.ndarray, noise_TF: np.ndarray, snr_db: float) -> np.ndarray:
    """Adds noise to log-mel frames: the powers of independent sounds add in each band.

    Args:
        frames_TF: log-mel frames of a clip.
        noise_TF: those of noise.
        snr_db: ratio of their mean powers after scaling the noise, in decibels.
    """
    power, noise_power = (float(np.exp(each, dtype=np.float64).mean()) for each in (frames_TF, noise_TF))
    scale = np.log(power / noise_power) - snr_db * np.log(10) / 10
    return np.logaddexp(frames_TF, noise_TF + np.float32(scale))


class Clip(NamedTuple):
    """A clip of sound.

    Attributes:
        utterance: recording, or part of one.
        label: class.
    """

    utterance: Utterance
    label: int


class Clips:
    """Source of clips; see `mxtrain.data.loading.samples.Source`.

    Args:
        clips: the clips.
        feature: frames of all clips of the store, T for each.
        row_N: row of each clip in the store.
        augment: augmentation in training; None = none.
        noise: frames of recordings of noise; None = none.
    """

    samples_per_task = 0

    def __init__(
        self,
        clips: Sequence[Clip],
        feature: Ragged,
        row_N: np.ndarray,
        augment: Optional[ClipAugment] = None,
        noise: Optional[Ragged] = None,
    ) -> None:
        self.clips, self._feature, self._row_N = list(clips), feature, np.asarray(row_N, np.int64)
        self._augment, self._noise = augment, noise
        self.store: Optional[Shards] = None
        """Store of the frames, if it is deleted together with this object."""
        frames = int(feature.length.max(initial=0))  # 0 of clips that cannot be used
        self.shape = (1, frames, feature.value.shape[1])

    def __len__(self) -> int:
        return len(self.clips)

    def take(self, indices: Sequence[int]) -> Clips:
        """Returns some of the clips; those beyond the end are left out."""
        kept = [int(index) for index in indices if index < len(self)]
        return Clips(
            [self.clips[index] for index in kept], self._feature, self._row_N[kept], self._augment, self._noise
        )

    def read_labels(self) -> np.ndarray:
        """Returns the class of each clip."""
        return np.array([clip.label for clip in self.clips], np.int32)

    def location(self, index: int) -> DataLocation:
        """Returns the source location of a clip."""
        return self.clips[index].utterance.location

    def frames(self, index: int) -> np.ndarray:
        """Returns the frames of a clip as they are stored, (T, F) float32."""
        begin = int(self._feature.begin[self._row_N[index]])
        return self._feature.value[begin : begin + self.shape[1]].astype(np.float32)

    def fetch(self, index_B: np.ndarray, *, seed: int, epoch: int, train: bool) -> Tuple[np.ndarray, np.ndarray]:
        """See `Source.fetch`."""
        frames_B1TF = np.empty((len(index_B), *self.shape), np.float32)
        for row, index in enumerate(index_B.tolist()):
            frames_TF = self.frames(index)
            if train and self._augment is not None:
                frames_TF = self._augment.apply(frames_TF, self._noise, seed, epoch, index)
            frames_B1TF[row, 0] = frames_TF
        return frames_B1TF, np.array([self.clips[index].label for index in index_B.tolist()], np.int32)

    def checks(self) -> Checks:
        """Returns the checks that `data check` runs on each sample."""
        from mxtrain.data.checking.checks import FetchedChecks

        return _ClipChecks(self, FetchedChecks(self))


class _ClipChecks:
    """The usual checks of fetched samples, with the source locations of clips."""

    def __init__(self, source: Clips, checks: Checks) -> None:
        self._source, self._checks = source, checks

    def __len__(self) -> int:
        return len(self._source)

    def location(self, index: int) -> DataLocation:
        """See `Checks`."""
        return self._source.location(index)

    def check(self, index: int) -> Checked:
        """See `Checks`."""
        return self._checks.check(index)


class ClipLoader(BatchLoader):
    """Loads batches of clips: standardised frames (B, 1, T, F), and classes (B,).

    Args:
        source: clips.
        statistics: mean and deviation of each band.
        options: options of all loaders.
    """

    def __init__(self, source: Clips, statistics: Tuple[Sequence[float], Sequence[float]], options: LoaderOptions):
        super().__init__(len(source), options)
        self.source, self._encode = source, options.encode
        self._mean_F, self._std_F = (np.asarray(values, np.float32) for values in statistics)

    def _read_share(self, share_B: np.ndarray, index_B: np.ndarray, epoch: int) -> Tuple[HostArrays, HostArrays]:
        frames_B1TF, label_B = self.source.fetch(share_B, seed=self.seed, epoch=epoch, train=self.train)
        targets: Any = (label_B.astype(np.float32),) if self._encode is None else self._encode(label_B)
        return ((frames_B1TF - self._mean_F) / self._std_F,), targets
