"""Formats that list boxes line by line, of which a user's class reads the lines only."""

from __future__ import annotations

from typing import ClassVar

import pytest
from boxed_files import draw

from mxtrain.data.checking.dataset_check import CollectedFindings
from mxtrain.errors import DataError
from mxtrain.vision.detection.box_lines import BoxLine, BoxLines


class Words(BoxLines):
    """IMAGE CLASS LEFT TOP RIGHT BOTTOM."""

    option: ClassVar[str] = "dataset=words"
    ending: ClassVar[str] = ".words"

    def read(self, path):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            image, *rest = line.split()
            yield BoxLine(number, image, rest[0], rest[1:]) if rest else BoxLine(number, image)


TRAIN = ("a.png cat 1 2 30 40", "b.png dog 5 6 20 30", "a.png dog 3 3 9 9", "c.png")


def opened(root, *lines, findings=None, **options):
    for name in "abc":
        draw(root / f"{name}.png", (64, 48), seed=ord(name))
    (root / "train.words").write_text("\n".join(lines or TRAIN))
    dataset = Words(root=str(root), image_size=[32, 32], val_fraction=0.34, **options)
    return dataset.examine(findings) if findings else dataset.open()


def boxes_of(source):
    return [source.boxes(index)[:, :5].tolist() for index in range(len(source))]


def test_boxes_belong_to_their_images_and_classes(tmp_path) -> None:
    draw(tmp_path / "d.png", (64, 48), seed=4)
    (tmp_path / "val.words").write_text("d.png dog 1 1 9 9")
    splits = opened(tmp_path)
    assert list(splits.class_names) == ["cat", "dog"] and splits.test is None
    assert boxes_of(splits.train) == [[[1, 2, 30, 40, 0], [3, 3, 9, 9, 1]], [[5, 6, 20, 30, 1]], []]
    assert boxes_of(splits.val) == [[[1, 1, 9, 9, 1]]]


def test_validation_images_are_held_out_and_classes_are_ordered_by_the_setting(tmp_path) -> None:
    splits = opened(tmp_path, classes=["dog", "cat"])
    assert (len(splits.train), len(splits.val)) == (2, 1) and list(splits.class_names) == ["dog", "cat"]


@pytest.mark.parametrize(
    "line, message",
    [
        ("d.png cat 1 2 3 4", r"train.words, line 1 names 'd.png', and there is no file '.*d.png'. Add it"),
        ("a.png cot 1 2 3 4", r"line 1: there is no class 'cot'. Did you mean 'cat'\? Classes are cat, dog."),
        ("a.png cat 1 2 3", r"line 1: \['1', '2', '3'\] are not four numbers: left, top, right, bottom."),
        ("a.png cat 1 2 3 x", r"line 1: \['1', '2', '3', 'x'\] are not four numbers"),
        ("a.png cat 9 2 3 4", r"line 1: the box 9, 2, 3, 4 .* ends before it begins"),
        ("\na.png cat 1 2 3 4", r"train.words' cannot be read: ValueError: not enough values"),
    ],
)
def test_wrong_lines_are_named(tmp_path, line: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        opened(tmp_path, line, *TRAIN, classes=["cat", "dog"])


def test_data_check_collects_all_of_them(tmp_path) -> None:
    findings = CollectedFindings()
    splits = opened(tmp_path, *TRAIN, "d.png cat 1 2 3 4", "a.png cat x 2 3 4", "b.png dog 3 2 1 4", findings=findings)
    assert len(splits.train) + len(splits.val) == 3
    assert findings.counts == {"missing_counterpart": 1, "unreadable_row": 1, "inverted_box": 1}


def test_a_missing_file_is_named(tmp_path) -> None:
    with pytest.raises(DataError, match=r"dataset=words: there is no file '.*train.words'."):
        Words(root=str(tmp_path)).open()
