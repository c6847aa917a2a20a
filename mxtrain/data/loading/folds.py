"""Divides samples into folds for cross validation: at random, with equal shares of each class, or by whole groups.

The properties are those of scikit-learn's KFold, StratifiedKFold, GroupKFold and StratifiedGroupKFold.

Groups are assigned whole, large ones first, to the fold whose sum of squared class shares grows least. Sizes within a
factor of two are ordered at random, because exact order would make all repetitions alike.

Legend: N samples, G groups, K classes, F folds.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal, Optional, Tuple, Union

import numpy as np

from mxtrain.data.loading.randomness import Draw, bits
from mxtrain.data.loading.splitting import split_indices
from mxtrain.errors import ConfigError, DataError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Fold:
    """The fold that a run validates with.

    Attributes:
        count: number of folds.
        number: which one, from 1 on; those above `count` are the folds of repetitions, which are drawn anew.
        stratify: True: equal shares of each class; "auto": the same if each sample has a class.
        groups: name of a column whose equal values must stay in the same fold; None = there is none.
    """

    count: int
    number: int
    stratify: Union[Literal["auto"], bool] = "auto"
    groups: Optional[str] = None

    @property
    def repetition(self) -> int:
        """Returns the repetition that it belongs to, from 0 on."""
        return (self.number - 1) // self.count

    @property
    def index(self) -> int:
        """Returns the index within the repetition, from 0 on."""
        return (self.number - 1) % self.count


def split_fold(
    label_N: np.ndarray,
    fold: Fold,
    val_fraction: float,
    test_fraction: float,
    seed: int,
    group_N: Optional[np.ndarray] = None,
) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the ascending indices of training, validation and test samples. Test samples are the same in every fold;
    without groups they are those of a run without folds.

    Args:
        label_N: class indices; all equal if samples have no class.
        fold: the fold to validate with.
        val_fraction: share of samples for validation in a run without folds.
        test_fraction: share of samples for testing, which are in no fold.
        seed: decides which samples go where.
        group_N: number of the group of each sample; None = there are no groups.

    Raises:
        ConfigError: samples have no classes to stratify by.
        DataError: there are fewer samples or groups than folds.
    """
    has_classes = len(label_N) > 0 and bool((label_N != label_N[0]).any())
    if fold.stratify is True and not has_classes:
        raise ConfigError(
            "trainer.fold_stratify=true: these samples do not have one class each. Type trainer.fold_stratify=auto."
        )
    if group_N is None:
        # The same call as without folds, so test samples are never among those that a run without folds trains on.
        *kept, test_N = split_indices(label_N, val_fraction, test_fraction, seed)
        kept_N = np.sort(np.concatenate(kept))
    else:
        kept_N, test_N = _split_groups(group_N, test_fraction, seed)
    units = len(kept_N) if group_N is None else len(np.unique(group_N[kept_N]))
    if units < fold.count:
        unit = "training samples" if group_N is None else f"groups in the column '{fold.groups}'"
        raise DataError(
            f"trainer.folds={fold.count}: there are {units} {unit}, and every fold needs one. Type trainer.folds="
            f"{max(units, 2)} or less."
        )
    class_N = label_N[kept_N] if fold.stratify and has_classes else np.zeros(len(kept_N), np.int64)
    fold_N = assign_folds(class_N, fold.count, seed, fold.repetition, None if group_N is None else group_N[kept_N])
    _warn_of_rare_classes(label_N[kept_N], fold_N, fold, has_classes)
    is_held_N = fold_N == fold.index
    return kept_N[~is_held_N], kept_N[is_held_N], test_N


def assign_folds(
    class_N: np.ndarray, count: int, seed: int, repetition: int = 0, group_N: Optional[np.ndarray] = None
) -> np.ndarray:
    """Returns the fold of each sample, from 0 on.

    Without groups, folds differ by one sample at most, as do their numbers of samples of each class. Groups are
    assigned whole, large ones first, each to the fold that has the fewest samples of its classes.

    Args:
        class_N: class indices; all equal = nothing is stratified.
        count: number of folds.
        seed: decides which samples go where.
        repetition: another one gives other folds.
        group_N: number of the group of each sample.
    """
    if group_N is not None:
        return _assign_groups(class_N, count, seed, repetition, group_N)
    random_N = bits(seed, repetition, np.arange(len(class_N)), Draw.FOLD)
    # By class, and at random within it. Dealing continues from one class to the next, so totals are balanced, too.
    order_N = np.lexsort((random_N, class_N))
    fold_N = np.empty(len(class_N), np.int64)
    fold_N[order_N] = np.arange(len(class_N)) % count
    return fold_N


def _assign_groups(class_N: np.ndarray, count: int, seed: int, repetition: int, group_N: np.ndarray) -> np.ndarray:
    _, member_N = np.unique(group_N, return_inverse=True)
    _, class_N = np.unique(class_N, return_inverse=True)
    num_groups, num_classes = int(member_N.max()) + 1, int(class_N.max()) + 1
    random_G = bits(seed, repetition, np.arange(num_groups), Draw.FOLD)
    size_G = np.bincount(member_N, minlength=num_groups)
    # Sizes within a factor of 2 count as equal, so that repetitions differ although large groups come first.
    order_G = np.lexsort((random_G, -np.floor(np.log2(size_G))))
    class_size_K = np.bincount(class_N, minlength=num_classes)
    sorted_N = np.argsort(member_N, kind="stable")
    begin_G = np.concatenate([[0], np.cumsum(size_G)])
    share_FK, size_F, fold_G = np.zeros((count, num_classes)), np.zeros(count, np.int64), np.zeros(num_groups, int)
    for group in order_G.tolist():
        sample_N = sorted_N[begin_G[group] : begin_G[group + 1]]
        share_K = np.bincount(class_N[sample_N], minlength=num_classes) / class_size_K
        # The fold that adds least to the sum of squared shares of classes per fold; then the smallest one.
        cost_F = share_FK @ share_K
        # Rounded: sums of shares in another order differ in their last bits, and ties must be ties on every machine.
        chosen = int(np.lexsort((size_F, np.round(cost_F, 12)))[0])
        share_FK[chosen] += share_K
        size_F[chosen] += size_G[group]
        fold_G[group] = chosen
    return fold_G[member_N]


def _split_groups(group_N: np.ndarray, test_fraction: float, seed: int) -> Tuple[np.ndarray, np.ndarray]:
    """Holds out whole groups for testing, at random, until they have this share of the samples."""
    names_G, member_N = np.unique(group_N, return_inverse=True)
    target_size = int(round(test_fraction * len(group_N)))
    is_test_G = np.zeros(len(names_G), bool)
    if target_size:
        size_G, num_test = np.bincount(member_N), 0
        for group in np.argsort(bits(seed, 0, np.arange(len(names_G)), Draw.SPLIT), kind="stable").tolist():
            if num_test + size_G[group] <= target_size or not num_test:
                is_test_G[group], num_test = True, num_test + size_G[group]
    is_test_N = is_test_G[member_N]
    return np.flatnonzero(~is_test_N), np.flatnonzero(is_test_N)


def _warn_of_rare_classes(label_N: np.ndarray, fold_N: np.ndarray, fold: Fold, has_classes: bool) -> None:
    if not has_classes or fold.index:
        return
    classes, size_K = np.unique(label_N, return_counts=True)
    rare = int((size_K < fold.count).sum())
    if rare:
        log.warning(
            "trainer.folds=%d: %d of %d classes have fewer samples than there are folds, so some folds have none of "
            "them",
            fold.count,
            rare,
            len(classes),
        )
