"""Folds against the properties of scikit-learn's KFold, StratifiedKFold, GroupKFold and StratifiedGroupKFold, which are
computed here again, without the code that makes them."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from typing import Any, List, Optional, Tuple

import numpy as np
import pytest
from PIL import Image

from mxtrain.data.loading.folds import Fold, split_fold
from mxtrain.data.spec import with_fold
from mxtrain.errors import ConfigError, DataError
from mxtrain.tables.feature_table import FeatureTable
from mxtrain.tables.number_table import NumberTable
from mxtrain.text.classification.text import Text
from mxtrain.vision.classification.digits import Digits
from mxtrain.vision.segmentation.segmentation_folder import SegmentationFolder

Parts = List[Tuple[np.ndarray, np.ndarray, np.ndarray]]


def folds_of(
    label_N: Any,
    count: int,
    repeats: int = 1,
    test_fraction: float = 0.0,
    groups: Any = None,
    stratify: Any = "auto",
    seed: int = 0,
) -> Parts:
    return [
        split_fold(
            np.asarray(label_N),
            Fold(count, number, stratify, None if groups is None else "g"),
            0.1,
            test_fraction,
            seed,
            None if groups is None else np.asarray(groups),
        )
        for number in range(1, count * repeats + 1)
    ]


def require_partition(parts: Parts, total: int) -> None:
    """Each sample is held out by one fold and trained on by all others, and the test samples are those of all folds."""
    test = set(parts[0][2].tolist())
    held: Counter = Counter()
    for train, val, own_test in parts:
        pieces = [set(piece.tolist()) for piece in (train, val, own_test)]
        assert [len(piece) for piece in pieces] == [len(train), len(val), len(own_test)] and pieces[1]
        assert set().union(*pieces) == set(range(total)) and sum(map(len, pieces)) == total
        assert pieces[2] == test
        held.update(pieces[1])
    assert set(held.values()) == {1} and set(held) == set(range(total)) - test


@pytest.mark.parametrize("total, count", [(100, 5), (7, 7), (23, 4), (1001, 10)])
def test_plain_folds_differ_by_one_sample(total: int, count: int) -> None:
    parts = folds_of(np.zeros(total, int), count)
    require_partition(parts, total)
    sizes = [len(val) for _, val, _ in parts]
    assert max(sizes) - min(sizes) <= 1
    other = folds_of(np.zeros(total, int), count, seed=1)
    assert total == count or any(one[1].tolist() != two[1].tolist() for one, two in zip(parts, other))


@pytest.mark.parametrize("count", [2, 3, 5, 10])
@pytest.mark.parametrize("test_fraction", [0.0, 0.2])
def test_stratified_folds_have_equal_shares_of_each_class(count: int, test_fraction: float) -> None:
    label_N = np.random.RandomState(0).choice(6, 500, p=[0.5, 0.2, 0.15, 0.1, 0.04, 0.01])
    parts = folds_of(label_N, count, test_fraction=test_fraction)
    require_partition(parts, 500)
    assert abs(len(parts[0][2]) - 500 * test_fraction) <= 1
    sizes = [len(val) for _, val, _ in parts]
    assert max(sizes) - min(sizes) <= 1
    for label in range(6):
        counts = [int((label_N[val] == label).sum()) for _, val, _ in parts]
        assert max(counts) - min(counts) <= 1, (label, counts)
    # Without stratification the same samples have unequal shares, so the property is none of chance.
    plain = [int((label_N[val] == 0).sum()) for _, val, _ in folds_of(label_N, count, stratify=False)]
    assert count == 2 or max(plain) - min(plain) > 1


@pytest.mark.parametrize("test_fraction", [0.0, 0.25])
def test_groups_are_never_divided(test_fraction: float) -> None:
    rng = np.random.RandomState(1)
    sizes = rng.randint(1, 20, 60)
    group_N = rng.permutation(np.repeat(np.arange(60), sizes))
    label_N = rng.randint(0, 3, 60)[group_N]
    parts = folds_of(label_N, 5, 2, test_fraction, group_N)
    for repetition in (parts[:5], parts[5:]):
        require_partition(repetition, len(group_N))
        for pieces in repetition:
            groups = [set(group_N[piece].tolist()) for piece in pieces]
            assert not groups[0] & groups[1] and not groups[0] & groups[2] and not groups[1] & groups[2]
        held = [len(val) for _, val, _ in repetition]
        assert max(held) < 1.5 * min(held), held
        for label in range(3):  # shares within a largest group of each other
            shares = [(label_N[val] == label).mean() for _, val, _ in repetition]
            assert max(shares) - min(shares) < 0.2, shares
    assert any(set(one[1].tolist()) != set(two[1].tolist()) for one, two in zip(parts[:5], parts[5:]))


def test_groups_of_different_classes_are_in_different_folds() -> None:
    """Their classes do not decide, so the sizes of the folds do."""
    parts = folds_of([0] * 8 + [1] * 6 + [2] * 4, 2, groups=[0] * 8 + [1] * 6 + [2] * 4)
    assert sorted(len(val) for _, val, _ in parts) == [8, 10]


def test_repetitions_draw_new_folds() -> None:
    parts = folds_of(np.arange(60) % 3, 5, repeats=3)
    for first in (0, 5, 10):
        require_partition(parts[first : first + 5], 60)
    assert len({tuple(val.tolist()) for _, val, _ in parts}) == 15


def test_impossible_folds_are_refused(caplog: Any) -> None:
    with pytest.raises(DataError, match="folds=5: there are 4 training samples"):
        folds_of(np.zeros(4, int), 5)
    with pytest.raises(DataError, match="there are 2 groups in the column 'g'.*trainer.folds=2 or less"):
        folds_of(np.zeros(9, int), 3, groups=[0] * 4 + [1] * 5)
    with pytest.raises(ConfigError, match="fold_stratify=true: these samples do not have one class each"):
        folds_of(np.zeros(9, int), 3, stratify=True)
    with caplog.at_level(logging.WARNING):
        folds_of([0] * 20 + [1] * 2, 3)
    assert caplog.text.count("1 of 2 classes have fewer samples") == 1


# Datasets: what is measured of training samples comes from the training folds alone.


def write_numbers(path: Path) -> np.ndarray:
    rng = np.random.RandomState(3)
    patient_N, value_N2 = np.repeat(np.arange(20), 4), rng.normal(5, 3, (80, 2)).round(3)
    rows = [f"p{patient},{a},{b},{a + b:.3f}" for patient, (a, b) in zip(patient_N, value_N2)]
    path.write_text("patient,a,b,target\n" + "\n".join(rows) + "\n")
    return value_N2


def opened(dataset: Any, number: int, count: int = 4, groups: Optional[str] = None) -> Any:
    return with_fold(dataset, Fold(count, number, groups=groups))


def test_standardisation_is_of_the_training_folds(tmp_path: Path) -> None:
    value_N2 = write_numbers(tmp_path / "table.csv")
    dataset = NumberTable(train=str(tmp_path / "table.csv"), test_fraction=0.0)
    held = []
    for number in range(1, 5):
        splits = opened(dataset, number, groups="patient").open()
        rows = splits.train.locations.number_N - 2  # the header is line 1
        assert splits.class_names == ["a", "b"]  # not the patient
        np.testing.assert_allclose(splits.mean, value_N2[rows].mean(axis=0), rtol=1e-5)
        np.testing.assert_allclose(splits.std, value_N2[rows].std(axis=0), rtol=1e-5)
        assert np.abs(np.array(splits.mean) - value_N2.mean(axis=0)).max() > 1e-3  # it would differ if it leaked
        own = splits.val.locations.number_N - 2
        assert not set(own // 4) & set(rows // 4)  # patients
        held += own.tolist()
    assert sorted(held) == list(range(80))


def test_columns_of_a_table_are_measured_on_the_training_folds(tmp_path: Path) -> None:
    lines = ["town,size,target", *(f"t{row},{row * row},{row % 2}" for row in range(40))]
    (tmp_path / "table.csv").write_text("\n".join(lines) + "\n")
    dataset = FeatureTable(
        train=str(tmp_path / "table.csv"),
        test_fraction=0.0,
        columns={"town": {"kind": "category"}, "size": {"kind": "number"}},
    )
    for number in range(1, 5):
        splits = opened(dataset, number).open()
        rows = splits.train.row_N
        town, size = sorted(splits.build_columns().columns, key=lambda one: one.kind)  # category, number
        assert set(town.vocabulary) == {f"t{row}" for row in rows}
        assert size.mean == pytest.approx(float((rows.astype(float) ** 2).mean()))
        assert abs((splits.train.read_labels() == 1).mean() - 0.5) < 0.05


def test_the_vocabulary_is_of_the_training_folds(tmp_path: Path) -> None:
    lines = [
        "doc,sentence,label",
        *(f"d{row // 2},word{'abcdefghijklmnopqrstuvwxyz'[row // 2]} text,c{row % 2}" for row in range(40)),
    ]
    (tmp_path / "texts.csv").write_text("\n".join(lines) + "\n")
    dataset = Text(train=str(tmp_path / "texts.csv"), test_fraction=0.0, val_fraction=0.1)
    for number in range(1, 5):
        splits = opened(dataset, number, groups="doc").open()
        trained, held = ({text for text, _ in source.pairs} for source in (splits.train, splits.val))
        assert len(held) == 5 and not trained & held
        vocabulary = set(splits.build_tokenizer_config().to_json()["vocab"])
        words = {text.split()[0] for text in trained}
        assert words <= vocabulary and not {text.split()[0] for text in held} & vocabulary


def test_images_are_standardised_by_the_training_folds() -> None:
    images = Digits().open()
    found = [opened(Digits(), number, 3).open() for number in (1, 2, 3)]
    for splits in found:
        images_NCHW = splits.train.image_NCHW / 255
        assert splits.mean[0] == pytest.approx(images_NCHW.mean(), rel=1e-9)
        assert splits.std[0] == pytest.approx(images_NCHW.std(), rel=1e-6)
        assert len(splits.test) == len(images.test)
        assert (splits.test.image_NCHW == images.test.image_NCHW).all()
    assert len({splits.mean[0] for splits in found}) == 3


def test_an_own_validation_split_is_not_used(tmp_path: Path, caplog: Any) -> None:
    rng = np.random.RandomState(0)
    for split, count in (("train", 9), ("val", 3)):
        for kind in ("images", "masks"):
            (tmp_path / split / kind).mkdir(parents=True)
        for number in range(count):
            image, mask = (rng.randint(0, high, size, np.uint8) for high, size in ((256, (8, 8, 3)), (2, (8, 8))))
            for kind, pixels in (("images", image), ("masks", mask)):
                Image.fromarray(pixels).save(tmp_path / split / kind / f"{split}{number}.png")
    dataset = SegmentationFolder(root=str(tmp_path), classes=["a", "b"])
    assert len(dataset.open().val) == 3
    with caplog.at_level(logging.INFO):
        parts = [opened(dataset, number, 3).open() for number in (1, 2, 3)]
    assert "the validation split is not used" in caplog.text
    held = [splits.val.index_N.tolist() for splits in parts]
    assert sorted(sum(held, [])) == list(range(9)) and all(len(splits.train) == 6 for splits in parts)


def test_test_groups_fill_the_fraction() -> None:
    """Groups are added until the next one would exceed the fraction; a group that is larger than it is taken alone."""
    group_N = np.repeat(np.arange(10), 10)
    for test_fraction, size in ((0.3, 30), (0.39, 30), (0.05, 10), (0.0, 0)):
        parts = folds_of(np.zeros(100, int), 2, 1, test_fraction, group_N)
        require_partition(parts, 100)
        assert len(parts[0][2]) == size


def test_the_seed_draws_the_test_groups_and_they_stay_the_same_in_later_versions() -> None:
    group_N = np.arange(20)
    drawn = [folds_of(np.zeros(20, int), 2, 1, 0.2, group_N, seed=seed)[0][2].tolist() for seed in (0, 1)]
    assert drawn == [[4, 9, 11, 18], [3, 4, 7, 19]]
