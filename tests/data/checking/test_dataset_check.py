"""The pass over a whole dataset: order, errors, duplicates, counts, and checks that a dataset brings along."""

from __future__ import annotations

import threading
import time
from typing import Any, ClassVar, List, Tuple

import numpy as np
import pytest

from mxtrain.data.checking import dataset_check
from mxtrain.data.checking.checks import Checked, digest_of
from mxtrain.data.checking.data_checks import DataChecks
from mxtrain.data.checking.dataset_check import MAX_SHOWN, DatasetCounts
from mxtrain.data.checking.problems import EMPTY_BOX, INVERTED_BOX, KINDS, DataLocation, Problem
from mxtrain.data.spec import BaseDataset, Splits
from mxtrain.errors import DataError, LoaderError


class Boxes:
    """A source as another module may bring it: samples with boxes, which only its own checks know."""

    def __init__(self, boxes_N: List[List[Tuple[int, int, int, int]]], file: str) -> None:
        self.boxes_N, self.file = boxes_N, file
        self.threads = set()

    def __len__(self) -> int:
        return len(self.boxes_N)

    def checks(self) -> Boxes:
        return self

    def location(self, index: int) -> DataLocation:
        return DataLocation(self.file, line=index + 1)

    def check(self, index: int) -> Checked:
        self.threads.add(threading.current_thread().name)
        time.sleep(0.002 * (index % 3))
        place, problems = self.location(index), []
        for left, top, right, bottom in self.boxes_N[index]:
            kind = INVERTED_BOX if right < left or bottom < top else EMPTY_BOX if right == left else ""
            kind = "tiny_box" if not kind and right - left < 2 else kind
            if kind:
                problems.append(Problem(kind, place, f"{place}: a box is wrong.", "Draw it again."))
        return Checked(problems, digest_of(repr(self.boxes_N[index]).encode()), [len(self.boxes_N[index])])


class Boxed(BaseDataset):
    """Knows nothing of `data check` but its source's checks."""

    data_checks: ClassVar[DataChecks] = DataChecks(("tiny_box",))
    train: Any
    val: Any

    def open(self) -> Splits:
        return Splits(self.train, self.val, None, ["none", "one"])


@pytest.mark.slow
def test_dataset_has_own_checks_in_sample_order(check):
    good = [[(0, 0, 5 + n, 5)] for n in range(90)]
    boxes = list(good)
    for index, box in ((3, (4, 0, 1, 5)), (40, (2, 2, 2, 5)), (41, (2, 2, 3, 5)), (77, (9, 9, 1, 1))):
        boxes[index] = [box]
    boxes[8] = [(0, 0, 6, 6)] * 2
    train, val = Boxes(boxes, "train.json"), Boxes([[(1, 0, 4, 4)], boxes[20]], "val.json")
    expected = [
        ("inverted_box", "train.json", 4),
        ("label_range", "train.json", 9),
        ("empty_box", "train.json", 41),
        ("tiny_box", "train.json", 42),
        ("inverted_box", "train.json", 78),
        ("duplicate_across_splits", "val.json", 2),
    ]
    for num_threads in (1, 2, 5):
        assert check(Boxed(train=train, val=val), num_threads=num_threads) == expected
    assert len(train.threads) > 2
    assert check.findings.counts == {
        "inverted_box": 2,
        "label_range": 1,
        "empty_box": 1,
        "tiny_box": 1,
        "duplicate_across_splits": 1,
    }
    assert check.census.class_counts["train"].tolist() == [0, 89]
    assert check(Boxed(train=Boxes(good, "t"), val=val), ignore=["duplicate_across_splits"]) == []
    assert check.findings.ignored == {"duplicate_across_splits": 1}


class Fetched:
    """A source without checks: of arrays, or of errors."""

    shape, samples_per_task = (1, 2, 2), 0

    def __init__(self, samples: List[Any]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def fetch(self, index_B: np.ndarray, *, seed: int, epoch: int, train: bool) -> Tuple[np.ndarray, np.ndarray]:
        assert not train
        sample = self.samples[int(index_B[0])]
        if isinstance(sample, Exception):
            raise sample
        image, label = sample
        return np.full((1, 1, 2, 2), image, np.float32), np.array([label], np.int32)


class WithoutFetch:
    def __len__(self) -> int:
        return 3


def test_a_source_without_checks_is_fetched(check):
    samples = [
        (1, 0),
        LoaderError("'a.png' is gone.", "Bring it back.", "unreadable_image"),
        (2, 2),
        ValueError("bad value"),
        (np.nan, 1),
        (3, -1),
        LoaderError("It broke."),
        (1, 1),
    ]
    found = check(Boxed(train=Fetched(samples), val=Fetched([(4, 1)])))
    assert found == [
        ("unreadable_image", "", 1),
        ("label_range", "", 2),
        ("unreadable", "", 3),
        ("not_a_number", "", 4),
        ("label_range", "", 5),
        ("unreadable", "", 6),
        ("duplicate", "", 7),
    ]
    facts = [problem.fact for problem in check.problems]
    assert facts[0] == "'a.png' is gone." and check.problems[0].remedy == "Bring it back."
    assert facts[1] == "sample 2 has the label 2; allowed is 0 to 1."
    assert facts[2] == "sample 3 raises ValueError: bad value"
    assert facts[6] == "sample 7 (train) has the same content as sample 0 (train)."
    assert check(Boxed(train=WithoutFetch(), val=Fetched([(4, 1)]))) == []
    assert check.census.num_samples == {"train": 3, "val": 1}


@pytest.mark.parametrize(
    "error, said",
    [
        (DataError("Nothing is there. Bring it."), "Nothing is there. Bring it."),
        (PermissionError(13, "Permission denied", "/secret"), "'/secret' cannot be read: Permission denied."),
        (KeyError("x"), "KeyError: 'x'"),
    ],
)
def test_error_on_opening_is_the_only_problem(check, error, said):
    class Closed(BaseDataset):
        def open(self) -> Splits:
            raise error

    assert check(Closed()) == [("cannot_open", "Closed", None)]
    assert check.problems[0].fact == said and check.census == DatasetCounts()


def test_open_raises_the_first_problem_that_examine_finds():
    class Examined(BaseDataset):
        def examine(self, findings):
            findings.refuse(Problem(INVERTED_BOX, DataLocation("a"), "the first.", "Mend it."))
            raise AssertionError("not reached")

    with pytest.raises(DataError, match="the first"):
        Examined().open()


def test_a_dataset_without_open_and_examine_says_so():
    class Neither(BaseDataset):
        pass

    with pytest.raises(NotImplementedError):
        Neither().open()


def test_few_of_each_kind_are_kept(check):
    samples = [LoaderError(f"{n} broke.") for n in range(MAX_SHOWN + 7)]
    assert len(check(Boxed(train=Fetched(samples), val=Fetched([(0, 0)])))) == MAX_SHOWN + 7
    assert check.findings.counts == {"unreadable": MAX_SHOWN + 7}
    assert [problem.fact for problem in check.findings.shown["unreadable"]] == [f"{n} broke." for n in range(MAX_SHOWN)]


def test_samples_are_not_read_far_ahead(check):
    """Otherwise the findings of a slow dataset would fill the memory."""
    began: List[int] = []
    seen: List[int] = []

    class Counted(Boxes):
        def check(self, index: int) -> Checked:
            began.append(index)
            return Checked()

    for _ in dataset_check._in_order(Counted([[]] * 1000, ""), 2):
        seen.append(len(began) - len(seen))
    assert len(seen) == 1000 and max(seen) <= 100


def test_a_long_table_shows_both_ends():
    counts = np.arange(50) ** 2
    census = DatasetCounts({"train": int(counts.sum())}, [f"c{n}" for n in range(50)], {"train": counts})
    (table,) = census.tables()
    assert table.header[0] == "most and least frequent of 50" and len(table.rows) == 20
    assert [row[0] for row in table.rows][:2] == ["c49", "c48"] and table.rows[-1][0] == "c0"
    assert DatasetCounts({"train": 5}, ["width"], {"train": np.zeros(1, int)}).tables() == []


def test_kinds_of_problems_have_distinct_names():
    assert len(set(KINDS)) == len(KINDS)
