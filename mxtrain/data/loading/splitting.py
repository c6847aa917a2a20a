"""Makes seeded, stratified splits, and measures mean and deviation of the training images."""

from __future__ import annotations

import logging
from typing import List, Sequence, Tuple, Union

import numpy as np

from mxtrain.data.loading.randomness import Draw, bits
from mxtrain.errors import DataError

log = logging.getLogger(__name__)
_CHUNK = 1024


def count_held_out(count: int, val_fraction: float, test_fraction: float, max_total: int) -> Tuple[int, int]:
    """Counts the samples that validation and testing get: their shares, rounded. A share that is not 0 gets one sample
    at least, which is logged, as is a test share that gets none.

    Args:
        count: number of samples.
        val_fraction: share for validation.
        test_fraction: share for testing.
        max_total: how many samples can be held out.
    """
    counts: List[int] = []
    for name, fraction in (("val", val_fraction), ("test", test_fraction)):
        rounded = int(round(count * fraction))
        num_held_out = max(min(max(rounded, 1 if fraction else 0), max_total - sum(counts)), 0)
        counts.append(num_held_out)
        if fraction and not rounded and num_held_out:
            log.info("dataset.%s_fraction=%g of %d samples is less than one: 1 is held out", name, fraction, count)
        elif fraction and not num_held_out and name == "test":
            log.info(
                "dataset.test_fraction=%g of %d samples: none can be held out, so there is no test split",
                fraction,
                count,
            )
    return counts[0], counts[1]


def split_indices(
    label_N: np.ndarray, val_fraction: float, test_fraction: float, seed: int
) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Divides samples into three splits: equal shares of each class, totals as in `count_held_out`, and at least one
    training sample of every class.

    Args:
        label_N: Class indices.
        val_fraction: Share for validation.
        test_fraction: Share for testing.
        seed: Which samples go where.

    Returns:
        Ascending indices of the training, validation and test samples.
    """
    classes, size_K = np.unique(label_N, return_counts=True)
    total = len(label_N)
    num_val, num_test = count_held_out(total, val_fraction, test_fraction, total - len(classes))
    # One sample of each class stays for training: a class that is only measured cannot be learned.
    num_val_K = _apportion(size_K, val_fraction, size_K - 1, num_val)
    num_test_K = _apportion(size_K, test_fraction, size_K - 1 - num_val_K, num_test)
    part_N = np.zeros(len(label_N), np.int8)
    random_N = bits(seed, 0, np.arange(len(label_N)), Draw.SPLIT)
    for label, num_val, num_test in zip(classes, num_val_K, num_test_K):
        members = np.flatnonzero(label_N == label)
        order = members[np.argsort(random_N[members], kind="stable")]
        part_N[order[:num_val]] = 1
        part_N[order[num_val : num_val + num_test]] = 2
    return np.flatnonzero(part_N == 0), np.flatnonzero(part_N == 1), np.flatnonzero(part_N == 2)


def split_groups(
    group_N: np.ndarray, val_fraction: float, test_fraction: float, seed: int
) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Divides samples so that those of a group are in one split: groups in random order until the split has its share
    as nearly as possible, but at least one. One group at least remains for training.

    Args:
        group_N: number of each sample's group; at least as many groups as splits.
        val_fraction: share of samples for validation.
        test_fraction: share for testing.
        seed: which groups go where.

    Returns:
        Ascending indices of the training, validation and test samples.
    """
    groups, size_G = np.unique(group_N, return_counts=True)
    order = np.argsort(bits(seed, 0, np.arange(len(groups)), Draw.SPLIT), kind="stable")
    part_G = np.zeros(len(groups), np.int8)
    first = 0
    for part, fraction, needed_later in ((1, val_fraction, 1 + (test_fraction > 0)), (2, test_fraction, 1)):
        wanted, count = fraction * len(group_N), 0
        while fraction and first < len(groups) - needed_later:
            size = int(size_G[order[first]])
            if count and abs(count + size - wanted) >= abs(count - wanted):
                break
            part_G[order[first]] = part
            count, first = count + size, first + 1
    part_N = part_G[np.searchsorted(groups, group_N)]
    return np.flatnonzero(part_N == 0), np.flatnonzero(part_N == 1), np.flatnonzero(part_N == 2)


def _apportion(size_K: np.ndarray, fraction: float, room_K: np.ndarray, total: int) -> np.ndarray:
    """Returns integers near `size_K * fraction`, within `room_K`, whose sum is `total` (largest remainder method)."""
    exact_K = size_K * fraction
    # A product may fall short of the whole number that is meant: 0.29 * 100 is 28.999999999999996.
    count_K = np.minimum(np.floor(exact_K + 1e-9).astype(np.int64), room_K)
    missing = total - int(count_K.sum())
    open_K = np.flatnonzero(count_K < room_K)
    order = open_K[np.argsort(-(exact_K - count_K)[open_K], kind="stable")]
    count_K[order[: max(missing, 0)]] += 1
    return count_K


def _samples(count: int) -> str:
    return f"{count} sample{'' if count == 1 else 's'}"


def refuse_empty(name: str, num_train: int, num_val: int, val_fraction: float) -> None:
    """Checks that samples are left to train on and to validate with.

    Raises:
        DataError: there are none.
    """
    if num_train and num_val:
        return
    if not num_train and not num_val:
        raise DataError(f"{name} leaves no training samples: there is none in it.")
    if not num_train:
        raise DataError(
            f"{name} leaves no training samples: {_samples(num_val)}, dataset.val_fraction={val_fraction}. Type a "
            "smaller dataset.val_fraction, e.g. dataset.val_fraction=0.2."
        )
    advice = "Type dataset.val_fraction=0.2"
    if val_fraction:  # then even one sample could not be held out
        advice = "At least one of each class is trained on, so none can be held out. Add samples"
    raise DataError(
        f"{name} leaves no validation samples: {_samples(num_train)}, dataset.val_fraction={val_fraction}. {advice}, "
        "or give validation data of their own."
    )


def channel_statistics(image_NCHW: np.ndarray) -> Tuple[List[float], List[float]]:
    """Computes mean and standard deviation per channel, where white is 1; exact sums, so the same on every machine.

    Args:
        image_NCHW: uint8.

    Returns:
        mean and std, one number per channel.
    """
    channels = image_NCHW.shape[1]
    total, square = np.zeros(channels, np.uint64), np.zeros(channels, np.uint64)
    for first in range(0, len(image_NCHW), _CHUNK):
        chunk = image_NCHW[first : first + _CHUNK]
        total += chunk.sum(axis=(0, 2, 3), dtype=np.uint64)
        square += np.square(chunk, dtype=np.uint16).sum(axis=(0, 2, 3), dtype=np.uint64)  # 255 ** 2 fits 16 bits
    count = image_NCHW.size // channels
    mean = [int(t) / count / 255 for t in total]
    variance = [int(s) / count / 255**2 - m * m for s, m in zip(square, mean)]
    return mean, [max(v, 1e-6) ** 0.5 for v in variance]  # never 0: images are divided by it


def choose_statistics(
    mean: Union[str, Sequence[float]], std: Union[str, Sequence[float]], image_NCHW: np.ndarray
) -> Tuple[List[float], List[float]]:
    """Returns mean and deviation from the description, or measured where it says auto."""
    if not isinstance(mean, str) and not isinstance(std, str):
        return list(mean), list(std)
    measured_mean, measured_std = channel_statistics(image_NCHW)
    return (measured_mean if isinstance(mean, str) else list(mean), measured_std if isinstance(std, str) else list(std))
