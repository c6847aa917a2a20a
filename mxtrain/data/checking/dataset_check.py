"""Reads a whole dataset once, in several threads, and collects its problems.

Memory grows by only `checks.DIGEST_BYTES` per sample, for the detection of duplicates. The order of the findings does
not depend on the threads.

The check opens datasets by their own `examine`, of which training's `open` is the strict form, because a checker with
readers of its own would find other problems than training. Duplicates are equal bytes: whether two images look alike is
a matter of degree, and must not decide an exit code.

Legend: N samples of all splits.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Callable, Collection, Deque, Dict, Iterator, List, Mapping, Optional, Protocol, Sequence, Tuple

import numpy as np

from mxtrain.data.checking.checks import DIGEST_BYTES, Checked, Checks, checks_of
from mxtrain.data.checking.problems import (
    CANNOT_OPEN,
    DUPLICATE,
    DUPLICATE_ACROSS_SPLITS,
    DataLocation,
    Findings,
    NoUsableSamples,
    Problem,
    out_of_range,
    problem_of,
)
from mxtrain.data.loading.dataset_files import file_error
from mxtrain.data.loading.described_paths import with_local_names
from mxtrain.data.spec import BaseDataset, Splits, location_of
from mxtrain.errors import MxtrainError
from mxtrain.types import Table

MAX_SHOWN = 20
_SAMPLES_PER_TASK = 8
_TASKS_AHEAD = 4
"""Number of pending tasks per thread, so that results can be returned in order."""
_MAX_CLASSES = 20
"""Largest number of classes in the table; of more, the most frequent and the rarest are shown."""


class CheckProgress(Protocol):
    """Shows how far a check is."""

    def begin(self, description: str, total: int) -> None:
        """Starts a part of the check that has `total` samples; 0 = unknown."""

    def advance(self, count: int) -> None:
        """Adds `count` to the number of checked samples."""


class CollectedFindings(Findings):
    """Collects problems: counts all, keeps a few of each kind to show, and passes each on to `write` at once.

    Attributes:
        counts: number of problems of each kind, in the order of the first problem of a kind.
        shown: the first `MAX_SHOWN` of each kind.
        ignored: number of problems of each ignored kind.
    """

    def __init__(self, ignore: Collection[str] = (), write: Callable[[Problem], object] = lambda problem: None) -> None:
        """Starts without problems.

        Args:
            ignore: kinds that are only counted, in `ignored`.
            write: called with each problem of another kind.
        """
        self.counts: Dict[str, int] = {}
        self.shown: Dict[str, List[Problem]] = {}
        self.ignored: Dict[str, int] = {}
        self._ignore, self._write = ignore, write

    def refuse(self, *problems: Problem, sentence: str = "") -> None:
        for problem in map(Problem.with_addresses, problems):
            counts = self.ignored if problem.kind in self._ignore else self.counts
            counts[problem.kind] = counts.get(problem.kind, 0) + 1
            if counts is self.counts:
                examples = self.shown.setdefault(problem.kind, [])
                if len(examples) < MAX_SHOWN:
                    examples.append(problem)
                self._write(problem)

    def remark(self, problem: Problem) -> None:
        self.refuse(problem)

    @property
    def keeps_going(self) -> bool:
        return True


@dataclass(frozen=True)
class DatasetCounts:
    """Counts of a dataset's content.

    Attributes:
        num_samples: number of samples of each split.
        class_names: names of the predicted classes, if they have names.
        class_counts: by split, the number of samples of each class, or of those in which it occurs.
    """

    num_samples: Mapping[str, int] = field(default_factory=dict)
    class_names: Sequence[str] = ()
    class_counts: Mapping[str, np.ndarray] = field(default_factory=dict)

    def tables(self) -> List[Table]:
        """Returns the balance of classes, where samples have any."""
        counts = {split: count_K for split, count_K in self.class_counts.items() if count_K.any()}
        if not counts:
            return []
        total_K = np.sum(list(counts.values()), axis=0)
        numbers = np.arange(len(total_K))
        head = "class"
        if len(numbers) > _MAX_CLASSES:
            order = np.argsort(-total_K, kind="stable")
            half = _MAX_CLASSES // 2
            head = f"most and least frequent of {len(numbers):,}"
            numbers = np.concatenate([order[:half], order[-half:]])
        rows = [
            [
                self.class_names[number],
                *(_share(count_K, number, self.num_samples[split]) for split, count_K in counts.items()),
            ]
            for number in numbers
        ]
        return [Table("classes", [head, *counts], rows)]


def _share(count_K: np.ndarray, number: int, num_samples: int) -> str:
    return f"{count_K[number]:,} ({count_K[number] / max(num_samples, 1):.1%})"


def check_dataset(
    dataset: BaseDataset, findings: CollectedFindings, progress: CheckProgress, num_threads: int
) -> DatasetCounts:
    """Opens a dataset, reads each sample, and searches for duplicates.

    Args:
        dataset: what to check.
        findings: gets all problems, in an order that does not depend on threads.
        progress: shows how far the check is.
        num_threads: number of threads that read samples.

    Returns:
        Counts of the content; empty if the dataset cannot be opened.
    """
    progress.begin("opening", 0)
    dataset = with_local_names(dataset)
    splits = _open(dataset, findings)
    if splits is None:
        return DatasetCounts()
    sources = {"train": splits.train, "val": splits.val, "test": splits.test}
    source_checks = {split: checks_of(source) for split, source in sources.items() if source is not None}
    checks = dataset.data_checks.extend(dataset, source_checks, findings)
    count = sum(map(len, checks.values()))
    progress.begin("reading", count)
    names = list(splits.class_names)
    class_counts = {split: np.zeros(len(names), np.int64) for split in checks}
    digests = {
        split: np.zeros((len(split_checks), DIGEST_BYTES // 8), np.uint64) for split, split_checks in checks.items()
    }
    for split, split_checks in checks.items():
        for index, checked in enumerate(_in_order(split_checks, num_threads)):
            findings.refuse(*checked.problems)
            if checked.digest:
                digests[split][index] = np.frombuffer(checked.digest, np.uint64)
            if names:
                _count(checked, split_checks, index, class_counts[split], findings)
            progress.advance(1)
    progress.begin("comparing", 0)
    for problem in _duplicates(checks, digests):
        findings.refuse(problem)
    # A table of numbers has names of columns, and no classes.
    counts = class_counts if any(count_K.any() for count_K in class_counts.values()) else {}
    return DatasetCounts({split: len(split_checks) for split, split_checks in checks.items()}, names, counts)


def _open(dataset: BaseDataset, findings: Findings) -> Optional[Splits]:
    location = DataLocation(location_of(dataset))
    try:
        return dataset.examine(findings)
    except NoUsableSamples:
        return None
    except OSError as error:
        reported: Exception = file_error(error.filename or location.file, error)
    except Exception as error:  # a user's own dataset may raise anything; it is listed as a problem
        reported = error
    fact = str(reported) if isinstance(reported, MxtrainError) else f"{type(reported).__name__}: {reported}"
    findings.refuse(Problem(CANNOT_OPEN, location, fact))
    return None


def _in_order(checks: Checks, num_threads: int) -> Iterator[Checked]:
    """Yields the findings of each sample, in order; a few samples are read ahead."""
    size = len(checks)
    pool = ThreadPoolExecutor(num_threads, thread_name_prefix="data-check")
    waiting: Deque[Future[List[Checked]]] = deque()
    try:
        for begin in range(0, size, _SAMPLES_PER_TASK):
            # Several samples a task share the cost of the queue.
            waiting.append(pool.submit(_check_some, checks, range(begin, min(begin + _SAMPLES_PER_TASK, size))))
            if len(waiting) >= _TASKS_AHEAD * num_threads:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
    finally:
        # The generator may be closed early, by Ctrl-C or an error, with tasks still waiting.
        pool.shutdown(cancel_futures=True)


def _check_some(checks: Checks, indices: range) -> List[Checked]:
    return [_check_one(checks, index) for index in indices]


def _check_one(checks: Checks, index: int) -> Checked:
    try:
        return checks.check(index)
    except Exception as error:  # a dataset may raise anything; the other samples are still read
        return Checked((problem_of(error, checks.location(index)),))


def _count(checked: Checked, checks: Checks, index: int, count_K: np.ndarray, findings: Findings) -> None:
    for number in checked.classes:
        if 0 <= number < len(count_K):
            count_K[number] += 1
            continue
        findings.refuse(out_of_range(checks.location(index), number, len(count_K)))


def _duplicates(checks: Mapping[str, Checks], digests: Mapping[str, np.ndarray]) -> Iterator[Problem]:
    """Yields a problem for each sample whose content came before, in order."""
    digest_N2 = np.concatenate(list(digests.values()))
    if not len(digest_N2):
        return
    order = np.lexsort(digest_N2.T)  # is stable: of the same content, the first sample comes first
    sorted_N2 = digest_N2[order]
    begins = np.ones(len(order), bool)
    # A digest of zeros means that a sample is not compared, so each of these begins a run of its own.
    begins[1:] = (sorted_N2[1:] != sorted_N2[:-1]).any(axis=1) | ~sorted_N2[1:].any(axis=1)
    first = np.maximum.accumulate(np.where(begins, np.arange(len(order)), 0))
    repeated = np.flatnonzero(~begins)
    repeated = repeated[np.argsort(order[repeated])]
    starts, splits = _starts(digests)
    for later, earlier in zip(order[repeated], order[first[repeated]]):
        split, location = _sample_at(int(later), starts, splits, checks)
        other, before = _sample_at(int(earlier), starts, splits, checks)
        fact = f"{location} ({split}) has the same content as {before} ({other})."
        if split != other:
            yield Problem(DUPLICATE_ACROSS_SPLITS, location, fact, "Training samples must not be measured: remove one.")
        else:
            yield Problem(
                DUPLICATE, location, fact, "Remove one, or type ignore=duplicate where it counts twice on purpose."
            )


def _starts(digests: Mapping[str, np.ndarray]) -> Tuple[np.ndarray, List[str]]:
    sizes = [len(digest_N2) for digest_N2 in digests.values()]
    return np.concatenate([[0], np.cumsum(sizes)]), list(digests)


def _sample_at(
    number: int, starts: np.ndarray, splits: Sequence[str], checks: Mapping[str, Checks]
) -> Tuple[str, DataLocation]:
    """Returns the split of a sample, and its source location."""
    part = int(np.searchsorted(starts, number, side="right")) - 1
    return splits[part], checks[splits[part]].location(number - int(starts[part]))
