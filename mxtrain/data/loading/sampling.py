"""Samplers choose the samples of a training epoch: each sample once, classes in the ratio of weights, or batches with
several samples of each of their classes.

`ClassSampler` treats a class as an endless stream: all of its samples in random order, then all of them in another
order, and so on. An epoch takes the next samples of each stream, so no sample repeats before all others of its class
were drawn. The position of an epoch in the streams is a function of its number, so the sampler has no state to save.

Legend: N samples of the split and of an epoch, K classes, M samples of one class, P passes over them, E epochs. For
`GroupSampler`: C classes with samples, G groups of M samples of one class, P passes over the classes.
"""

from __future__ import annotations

from typing import Mapping, Protocol, Sequence, Sized

import numpy as np

from mxtrain.config.specs import refuse_unknown_names
from mxtrain.data.loading.randomness import Draw, bits, uniform
from mxtrain.data.loading.samples import Labelled
from mxtrain.errors import ConfigError, DataError

MAX_SHOWN = 10
"""Maximum number of classes in a summary; if there are more, it has the rarest and the most frequent ones."""


class Sampler(Protocol):
    """Chooses the samples of each epoch.

    Attributes:
        takes_all: whether an epoch contains each sample of the split once.
        is_ordered: True if samples are used in the order in which they are drawn; otherwise the loader shuffles them.
        summary: one line about the samples of an epoch; empty if it contains all.
    """

    takes_all: bool
    is_ordered: bool
    summary: str

    def draw(self, epoch: int) -> np.ndarray:
        """Returns the samples of an epoch, (N,) int64. A function of the seed and the epoch.

        A sample is represented by its index, plus N for each earlier occurrence in the epoch, so that random
        augmentation, which is seeded by this number, differs between occurrences.
        """


class EverySample:
    """Takes each sample once per epoch."""

    takes_all, is_ordered = True, False
    summary = ""

    def __init__(self, num_samples: int) -> None:
        self._num_samples = num_samples

    def draw(self, epoch: int) -> np.ndarray:
        """See `Sampler`."""
        return np.arange(self._num_samples)


class ClassSampler:
    """Draws classes in the ratio of their weights. An epoch has as many samples as the split."""

    takes_all, is_ordered = False, False

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


class GroupSampler:
    """Draws batches that have M samples of each of their classes, for losses that compare the samples of a batch.

    An epoch consists of passes over all classes in random order. Each batch takes the next classes of a pass; classes
    that do not fill a last batch are left out of this pass. The epoch ends when it has as many samples as the split.

    A class takes its samples in random order, M at a time. When fewer than M are left, these are skipped, and it begins
    again with the first one. Classes with fewer than M samples use each of them several times in a batch.

    Source: Hermans et al., "In Defense of the Triplet Loss" (2017), arXiv 1703.07737, section 2.

    Args:
        label_N: class indices of the training samples.
        batch_size: number of samples of a batch, a multiple of M.
        per_class: M.
        seed: seed of the run.

    Raises:
        ConfigError: a batch is no whole number of classes, or has more classes than the data.
    """

    takes_all, is_ordered = False, True

    def __init__(self, label_N: np.ndarray, batch_size: int, per_class: int, seed: int):
        self._seed, self._total, self._per_class = seed, len(label_N), per_class
        size_K = np.bincount(label_N, minlength=1)
        self._class_C = np.flatnonzero(size_K)
        self._size_K, self._first_K = size_K, np.cumsum(size_K) - size_K
        self._label_N = label_N
        self._classes_per_batch, rest = divmod(batch_size, per_class)
        setting = f"dataset.sampler=grouped: a batch of {batch_size} samples"
        if rest:
            raise ConfigError(
                f"{setting} is no whole number of classes with {per_class} samples each. Type "
                f"dataset.batch_size={max(self._classes_per_batch, 1) * per_class}."
            )
        if self._classes_per_batch > len(self._class_C):
            raise ConfigError(
                f"{setting} has {self._classes_per_batch} classes with {per_class} samples each, and the training "
                f"samples are of {len(self._class_C)}. Type dataset.batch_size={len(self._class_C) * per_class}."
            )
        few = int((size_K[self._class_C] < per_class).sum())
        self.summary = (
            f"a batch has {per_class} samples of each of {self._classes_per_batch} classes; {few} of "
            f"{len(self._class_C)} classes have fewer samples, which are repeated"
        )

    def draw(self, epoch: int) -> np.ndarray:
        """See `Sampler`."""
        groups = -(-self._total // self._per_class)
        batch_G, place_G = np.divmod(np.arange(groups), self._classes_per_batch)
        pass_G, turn_G = np.divmod(batch_G, len(self._class_C) // self._classes_per_batch)
        index_PC = np.arange(pass_G[-1] + 1)[:, None] * len(self._size_K) + self._class_C
        key_PC = bits(self._seed, epoch, index_PC, Draw.GROUP_CLASS)
        order_PC = np.argsort(key_PC, axis=1, kind="stable")
        class_G = self._class_C[order_PC[pass_G, turn_G * self._classes_per_batch + place_G]]
        return self._members(class_G, pass_G, epoch)[: self._total]

    def _members(self, class_G: np.ndarray, pass_G: np.ndarray, epoch: int) -> np.ndarray:
        """Returns M samples for each group, in order. Each class occurs at most once in a pass, so the number of the
        pass determines its next samples."""
        size = self._per_class
        key_N = bits(self._seed, epoch, np.arange(self._total), Draw.CLASS_ORDER)
        member_N = np.lexsort((key_N, self._label_N))
        count_G = self._size_K[class_G]
        # Classes with at least M samples skip the last ones that do not fill a group.
        round_G = np.where(count_G < size, count_G, count_G // size * size)
        position_GM = pass_G[:, None] * size + np.arange(size)
        repeat_GM, within_GM = np.divmod(position_GM, round_G[:, None])
        sample_GM = member_N[self._first_K[class_G][:, None] + within_GM]
        # A multiple of N marks a repetition, see `Sampler`.
        return (sample_GM + repeat_GM * self._total).ravel()


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
    label_N = checked_labels(samples, class_names)
    return ClassSampler(label_N, [weights.get(name, 1.0) for name in class_names], class_names, seed)


def checked_labels(samples: Sized, class_names: Sequence[str]) -> np.ndarray:
    """Returns the class index of each sample.

    Raises:
        DataError: the source does not have one valid class for each sample.
    """
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
    return label_N


def _summarize(size_K: np.ndarray, count_K: np.ndarray, class_names: Sequence[str]) -> str:
    """Describes the number of samples of each class in the data and in an epoch, rarest first."""
    texts = [f"{class_names[k]} {size_K[k]} -> {count_K[k]}" for k in np.argsort(size_K, kind="stable")]
    if len(texts) > MAX_SHOWN:
        half = MAX_SHOWN // 2
        texts = [*texts[:half], f"({len(texts) - 2 * half} more)", *texts[-half:]]
    return f"an epoch has {size_K.sum()} samples; of each class, rarest first: {', '.join(texts)}"
