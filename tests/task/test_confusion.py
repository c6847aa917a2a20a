"""The table of classes and the confusion matrix, against counts by hand."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from sklearn.metrics import precision_recall_fscore_support

from mxtrain.task.confusion import confusion_artifacts, worst_confusions
from mxtrain.types import Figure, Table, TextLines

TRUE = np.array([0, 0, 0, 1, 1, 2])
PREDICTED = np.array([0, 1, 1, 1, 0, 0])


def test_rates_confusions_and_counts() -> None:
    rates, worst, counts, image = confusion_artifacts(TRUE, PREDICTED, ["a", "b", "c", "d"], "val, step 3")
    assert isinstance(rates, Table) and rates.header == ["class", "samples", "precision", "recall", "f1"]
    assert [row[:2] for row in rates.rows] == [["a", 3], ["b", 2], ["c", 1], ["d", 0]]
    expected = [[1 / 3, 1 / 3, 1 / 3], [1 / 3, 1 / 2, 2 / 5], [0, 0, 0], [0, np.nan, np.nan]]
    np.testing.assert_allclose([row[2:] for row in rates.rows], expected)
    assert isinstance(worst, TextLines)
    assert worst.lines == ["2 x a taken for b", "1 x b taken for a", "1 x c taken for a"]
    assert isinstance(counts, Table) and not counts.is_shown and counts.header[1:] == ["a", "b", "c", "d"]
    assert counts.rows == [["a", 1, 2, 0, 0], ["b", 1, 1, 0, 0], ["c", 1, 0, 0, 0], ["d", 0, 0, 0, 0]]
    assert isinstance(image, Figure) and image.name == "confusion"


def test_the_most_frequent_confusions_are_named() -> None:
    counts = np.arange(16).reshape(4, 4)
    assert worst_confusions(counts, "abcd", 2) == [["d", "c", 14], ["d", "b", 13]]
    assert worst_confusions(np.eye(3, dtype=int), "abc") == []


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 21, 60])
def test_a_matrix_of_any_size_is_drawn(size: int) -> None:
    label_N = np.arange(size)
    *_, image = confusion_artifacts(label_N, label_N, [f"a class ${n}_{{" for n in label_N], "val")
    drawn = np.asarray(image.draw(16))
    blue = (drawn[..., 2] > drawn[..., 0].astype(int) + 60).sum()
    assert 300 < drawn.shape[0] == drawn.shape[1] < 2000 and blue > 50, drawn.shape


def test_rates_are_those_of_scikit_learn() -> None:
    """Class 5 is never predicted, class 6 never true, class 7 neither."""
    rng = np.random.default_rng(0)
    label_N, predicted_N = rng.integers(0, 6, 300), rng.choice([0, 1, 2, 3, 4, 6], 300)
    expected = precision_recall_fscore_support(label_N, predicted_N, labels=np.arange(8), zero_division=0)
    table = confusion_artifacts(label_N, predicted_N, list("abcdefgh"), "")[0]
    assert isinstance(table, Table)
    rate_K3 = np.array([row[2:] for row in table.rows])
    assert [row[1] for row in table.rows] == expected[3].tolist()
    assert np.isnan(rate_K3).sum(axis=1).tolist() == [0] * 6 + [2] * 2
    assert np.nan_to_num(rate_K3).tolist() == np.transpose(expected[:3]).tolist()


def test_reports_do_not_import_scikit_learn(monkeypatch) -> None:
    """It would take 115 MiB while the network is in memory."""
    monkeypatch.setitem(sys.modules, "sklearn.metrics", None)
    assert len(confusion_artifacts(TRUE, PREDICTED, ["a", "b", "c", "d"], "")) == 4
