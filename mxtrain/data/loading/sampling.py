"""Chooses which samples a training epoch has: all of them once, or of each class as many as are asked for.

A class is a stream: all of its samples in random order, then all of them again in another order, and so on. An epoch
takes the next ones of each stream. So no sample comes again before all others of its class have come: within an epoch
where a class is rare, over several epochs where it is frequent. Where in its streams an epoch begins is computed from
its number, so nothing has to be remembered.

Legend: N samples of the split and of an epoch, K classes, M samples of one class, P passes over them, E epochs.
"""

from __future__ import annotations

from typing import Mapping, Protocol, Sequence, Sized

import numpy as np

from mxtrain.config.specs import refuse_unknown_names
from mxtrain.data.loading.randomness import Draw, bits, uniform
from mxtrain.data.loading.samples import Labelled
from mxtrain.errors import DataError

MOST_SHOWN = 10
"""Classes whose numbers are shown; of more, the rarest and the most frequent ones."""


class Sampler(Protocol):
    """Chooses the samples of each epoch.

    Attributes:
        takes_all: whether an epoch has each sample of the split once.
        summary: what an epoch has, in a line; empty if it takes all.
    """

    takes_all: bool
    summary: str

    def draw(self, epoch: int) -> np.ndarray:
        """The samples of an epoch, N of them, int64, not yet shuffled: a function of seed and epoch.

        A sample is its index, plus N for each time that the epoch has had it already, so that a loader can change it
        at random in another way each time.
        """


class EverySample:
    """Each sample once."""

    takes_all = True
    summary = ""

    def __init__(self, num_samples: int) -> None:
        self._num_samples = num_samples

    def draw(self, epoch: int) -> np.ndarray:
        """See `Sampler`."""
        return np.arange(self._num_samples)


class ClassSampler:
    """Draws classes in the ratio of their weights, in epochs as long as the split."""

    takes_all = False

    def __init__(self, label_N: np.ndarray, weight_K: Sequence[float], class_names: Sequence[str], seed: int) -> None:
        """Sort the samples by class.

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
        # Class k has places bound[k] to bound[k + 1] of the N of an epoch, on average over epochs.
        bound_K1 = np.concatenate([[0.0], self._total * cumulative_K / cumulative_K[-1]])
        bound_K1[1:][cumulative_K == cumulative_K[-1]] = self._total  # exactly, whatever was rounded
        self._whole_K1 = np.floor(bound_K1).astype(np.int64)
        self._rest_K1 = bound_K1 - self._whole_K1
        self.summary = _summarize(size_K, self.counts(0), class_names)

    def counts(self, epoch: int) -> np.ndarray:
        """Returns the number of samples of each class in an epoch: the exact share, rounded up or down, with the sum N.

        Source: systematic sampling (Madow, "On the Theory of Systematic Sampling, II", 1949): all bounds between
        classes are moved by one random number, so that over many epochs each class gets its share.
        """
        return self._taken(epoch + 1) - self._taken(epoch)

    def _taken(self, num_epochs: int) -> np.ndarray:
        """Samples of each class in the first epochs together, (K,)."""
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
        """Places `begin` up to `end` of a class's stream."""
        size = len(member_M)
        pass_P1 = np.arange(begin // size, -(-end // size))[:, None]
        key_PM = bits(self._seed, 0, (pass_P1 * self._total + member_M).ravel(), Draw.CLASS_ORDER)
        order_PM = np.argsort(key_PM.reshape(-1, size), axis=1, kind="stable")
        repeat_P1 = pass_P1 - pass_P1[0]
        sample_PM = member_M[order_PM] + repeat_P1 * self._total
        skipped = int(pass_P1[0, 0]) * size
        return sample_PM.ravel()[begin - skipped : end - skipped]


def class_labels(samples: object) -> np.ndarray:
    """The class of each sample, as its source's `read_labels` says.

    Raises:
        DataError: it does not.
    """
    if not isinstance(samples, Labelled):
        raise DataError(
            f"{type(samples).__name__} does not say which class its samples have, which dataset.sampler needs to know. "
            "Give it a method read_labels() -> int32 array, or type dataset.sampler=shuffle."
        )
    return samples.read_labels()


def build_class_sampler(
    samples: Sized, class_names: Sequence[str], weights: Mapping[str, float], seed: int
) -> ClassSampler:  # fmt: skip
    """The sampler of training samples.

    Args:
        samples: of the training split.
        class_names: one per class.
        weights: relative frequencies by name; others 1.
        seed: of the run.

    Raises:
        ConfigError: a weight is of a class that there is not.
        DataError: the source does not say one class for each sample.
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
    if len(texts) > MOST_SHOWN:
        half = MOST_SHOWN // 2
        texts = [*texts[:half], f"({len(texts) - 2 * half} more)", *texts[-half:]]
    return f"an epoch has {size_K.sum()} samples; of each class, rarest first: {', '.join(texts)}"
