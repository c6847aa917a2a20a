"""Samplers choose the samples of a training epoch: each sample once, or classes by weights.

`ClassSampler` treats a class as an endless stream: all of its samples in random order, then all of them in another
order, and so on. An epoch takes the next samples of each stream, so no sample repeats before all others of its class
were drawn. The position of an epoch in the streams is a function of its number, so the sampler has no state to save.

Legend: N samples of the split and of an epoch, K classes, M samples of one class, P passes over them, E epochs.
"""

from __future__ import annotations

from typing import Mapping, Protocol, Sequence, Sized

import numpy as np

from mxtrain.config.specs import refuse_unknown_names
from mxtrain.data.loading.randomness import Draw, bits, uniform
from mxtrain.data.loading.samples import Labelled
from mxtrain.errors import DataError

MAX_SHOWN = 10
"""Maximum number of classes in a summary; if there are more, it has the rarest and the most frequent ones."""


class Sampler(Protocol):
    """Chooses the samples of each epoch.

    Attributes:
        takes_all: whether an epoch contains each sample of the split once.
        summary: one line about the samples of an epoch; empty if it contains all.
    """

    takes_all: bool
    summary: str

    def draw(self, epoch: int) -> np.ndarray:
        """Returns the samples of an epoch, (N,) int64, not shuffled. A function of the seed and the epoch.

        A sample is represented by its index, plus N for each earlier occurrence in the epoch, so that random
        augmentation, which is seeded by this number, differs between occurrences.
        """


class EverySample:
    """Takes each sample once per epoch."""

    takes_all = True
    summary = ""

    def __init__(self, num_samples: int) -> None:
        self._num_samples = num_samples

    def draw(self, epoch: int) -> np.ndarray:
        """See `Sampler`."""
        return np.arange(self._num_samples)


class ClassSampler:
    """Draws classes in the ratio of their weights. An epoch has as many samples as the split."""

    takes_all = False

    def __init__(self, label_N: np.ndarray, weight_K: Sequence[float], class_names: Sequence[str], seed: int) -> None:
        """Sorts the samples by class.

        Args:
            label_N: Class indices of the training samples.
            weight_K: Relative frequencies; a class without samples is left out.
            class_names: One per class.
            seed: Seed of the run.
        """
        self._seed, self._total = seed, len(label_N)
        size_K = np.bincount(label_N, minlength=len(weight_K))
        self._member_N = np.argsort(label_N, kind="stable")
        self._first_K1 = np.concatenate([[0], np.cumsum(size_K)])
        cumulative_K = np.cumsum(np.where(size_K > 0, weight_K, 0.0))
        # On average over epochs, class k has bound[k + 1] - bound[k] of the N samples.
        bound_K1 = np.concatenate([[0.0], self._total * cumulative_K / cumulative_K[-1]])
        bound_K1[1:][cumulative_K == cumulative_K[-1]] = self._total  # exact, whatever the division has rounded
        self._whole_K1 = np.floor(bound_K1).astype(np.int64)
        self._rest_K1 = bound_K1 - self._whole_K1
        self.summary = _summarize(size_K, self.counts(0), class_names)

    def counts(self, epoch: int) -> np.ndarray:
        """Returns the number of samples of each class in an epoch, (K,): the exact share rounded; the sum is N.

        Source: systematic sampling (Madow, "On the Theory of Systematic Sampling, II", 1949): one random number shifts
        all bounds between classes, so that over many epochs each class gets its exact share.
        """
        return self._taken(epoch + 1) - self._taken(epoch)

    def _taken(self, num_epochs: int) -> np.ndarray:
        """Returns the number of samples of each class in the first `num_epochs` epochs together, (K,)."""
        # All epochs before are drawn again instead of a state being kept: a resume in any epoch gives the same samples.
        shift_E = np.sort(uniform(self._seed, 0, np.arange(num_epochs), Draw.CLASS_SHARE))
        moved_K1 = num_epochs - np.searchsorted(shift_E, 1.0 - self._rest_K1)
        return np.diff(num_epochs * self._whole_K1 + moved_K1)

    def draw(self, epoch: int) -> np.ndarray:
        """See `Sampler`."""
        begin_K, end_K = self._taken(epoch), self._taken(epoch + 1)
        members = np.split(self._member_N, self._first_K1[1:-1])
        parts = [self._draw_class(*of_class) for of_class in zip(members, begin_K, end_K) if of_class[1] < of_class[2]]
        return np.concatenate(parts)

    def _draw_class(self, member_M: np.ndarray, begin: int, end: int) -> np.ndarray:
        """Returns the samples at positions `begin` to `end` of a class's stream, (end - begin,).

        Args:
            member_M: indices of the samples of the class.
        """
        size = len(member_M)
        pass_P1 = np.arange(begin // size, -(-end // size))[:, None]
        key_PM = bits(self._seed, 0, (pass_P1 * self._total + member_M).ravel(), Draw.CLASS_ORDER)
        order_PM = np.argsort(key_PM.reshape(-1, size), axis=1, kind="stable")
        repeat_P1 = pass_P1 - pass_P1[0]
        # A multiple of N marks a repetition, which so gets other random crops; the remainder is the sample.
        sample_PM = member_M[order_PM] + repeat_P1 * self._total
        skipped = int(pass_P1[0, 0]) * size
        return sample_PM.ravel()[begin - skipped : end - skipped]


def class_labels(samples: object) -> np.ndarray:
    """Returns the class of each sample, from `read_labels` of the source.

    Raises:
        DataError: the source has no such method.
    """
    if not isinstance(samples, Labelled):
        raise DataError(
            f"{type(samples).__name__} does not say which class its samples have, which dataset.sampler needs to know. "
            "Give it a method read_labels() -> int32 array, or type dataset.sampler=shuffle."
        )
    return samples.read_labels()


def build_class_sampler(
    samples: Sized, class_names: Sequence[str], weights: Mapping[str, float], seed: int
) -> ClassSampler:
    """Builds the class-weighted sampler of the training split.

    Args:
        samples: the training samples.
        class_names: name of each class.
        weights: class name -> relative frequency; 1 for classes that are not listed.
        seed: seed of the run.

    Raises:
        ConfigError: a weight is given for an unknown class.
        DataError: the source does not have one valid class for each sample.
    """
    refuse_unknown_names("dataset.class_weights", "class", weights, class_names)
    label_N = np.asarray(class_labels(samples))
    if label_N.shape != (len(samples),) or label_N.dtype.kind not in "iu":
        raise DataError(
            f"dataset.sampler: {type(samples).__name__}.read_labels() must give a whole number for each of its "
            f"{len(samples)} samples, but gave {label_N.dtype} of shape {label_N.shape}."
        )
    wrong = np.flatnonzero((label_N < 0) | (label_N >= len(class_names)))
    if len(wrong):
        raise DataError(
            f"dataset.sampler: sample {wrong[0]} has the label {label_N[wrong[0]]}; allowed are 0 to "
            f"{len(class_names) - 1}."
        )
    return ClassSampler(label_N, [weights.get(name, 1.0) for name in class_names], class_names, seed)


def _summarize(size_K: np.ndarray, count_K: np.ndarray, class_names: Sequence[str]) -> str:
    """Describes the number of samples of each class in the data and in an epoch, rarest first."""
    texts = [f"{class_names[k]} {size_K[k]} -> {count_K[k]}" for k in np.argsort(size_K, kind="stable")]
    if len(texts) > MAX_SHOWN:
        half = MAX_SHOWN // 2
        texts = [*texts[:half], f"({len(texts) - 2 * half} more)", *texts[-half:]]
    return f"an epoch has {size_K.sum()} samples; of each class, rarest first: {', '.join(texts)}"
