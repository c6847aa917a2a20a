"""Records with any number of classes each, as MXNet's own writers make them."""

from __future__ import annotations

import io
import logging
import runpy
import sys
from pathlib import Path
from typing import Any, List, Sequence

import mxnet as mx
import numpy as np
import pytest
from PIL import Image

from mxtrain.cli.dispatch import run
from mxtrain.config.options import own_classes
from mxtrain.data.checking.dataset_check import CollectedFindings
from mxtrain.data.recognition import FileTree, best_first, recognise_all
from mxtrain.errors import ConfigError, DataError, LoaderError
from mxtrain.types.kinds import ClassIndex, ClassSet
from mxtrain.vision.classification.image_record import ImageRecord
from mxtrain.vision.images.record_file import may_be_vector

pytestmark = pytest.mark.filterwarnings("ignore:tostring:DeprecationWarning")  # of MXNet's writer

NAN = float("nan")
VECTORS = [[1, 0, 1], [0, 0, 0], [0, 1, 0], [1, 1, 1], [0, 0, 1], [1, 0, 0], [0, 1, 1], [1, 1, 0]]
LISTS = [[0, 2], [1], [2, 1], [0, 1, 2], [2], [0], [1, 2], [2, 0]]


def png(number: int) -> bytes:
    content = io.BytesIO()
    Image.new("RGB", (8, 8), (9 * number, 0, 0)).save(content, "PNG")
    return content.getvalue()


def write_records(folder: Path, labels: Sequence[Any], part: str = "train") -> Path:
    """Writes an image for each label with MXNet's writer; a label is a number or a list."""
    path = folder / f"{part}.rec"
    writer = mx.recordio.MXIndexedRecordIO(str(path.with_suffix(".idx")), str(path), "w")
    for number, label in enumerate(labels):
        writer.write_idx(number, mx.recordio.pack(mx.recordio.IRHeader(0, label, number, 0), png(number)))
    writer.close()
    return path


def records_of(folder: Path, **settings: Any) -> Any:
    settings = {"prefix": "", "image_size": [8, 8], "val_fraction": 0.25, **settings}
    return ImageRecord(root=str(folder), **settings).for_run(ClassSet)


def sets_of(source: Any) -> List[List[int]]:
    """Returns the classes of all samples as batches have them."""
    target_NK = source.fetch(np.arange(len(source)), seed=0, epoch=0, train=False)[1]
    assert np.array_equal(target_NK, source.read_labels()) and target_NK.dtype == np.int32
    return [np.flatnonzero(target_K).tolist() for target_K in target_NK]


@pytest.mark.parametrize(
    "labels, form, expected",
    [
        (VECTORS, "vectors of 0 and 1", [[0, 2], [], [1], [0, 1, 2], [2], [0], [1, 2], [0, 1]]),
        (LISTS, "lists of class indices", [sorted(numbers) for numbers in LISTS]),
        ([[0, 1], [1, 0], [1, 1], [0, 0]], "vectors of 0 and 1", [[1], [0], [0, 1], []]),
        ([[0, 1], [1, 0], [1], [0, 1]], "lists of class indices", [[0, 1], [0, 1], [1], [0, 1]]),
        ([[0, 1], [1, 0], [2, 0], [0, 1]], "lists of class indices", [[0, 1], [0, 1], [0, 2], [0, 1]]),
        ([0, 1, 1.0, 2], "lists of class indices", [[0], [1], [1], [2]]),
    ],
)
def test_labels_decide_their_form(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, labels: Any, form: str, expected: Any
) -> None:
    write_records(tmp_path, labels)
    write_records(tmp_path, labels, "val")
    with caplog.at_level(logging.INFO):
        splits = records_of(tmp_path).open()
    assert f"labels are {form} (dataset.label_form=" in caplog.text
    assert sets_of(splits.train) == sets_of(splits.val) == expected
    assert list(splits.class_names) == [str(index) for index in range(splits.train.read_labels().shape[1])]


def test_records_of_im2rec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`im2rec.py --pack-label` writes a list of one index as a bare number."""
    rows = []
    for number, label in enumerate(LISTS):
        (tmp_path / f"{number}.png").write_bytes(png(number))
        rows.append("\t".join([str(number), *map(str, label), f"{number}.png"]))
    (tmp_path / "train.lst").write_text("\n".join(rows) + "\n")
    script = Path(mx.__file__).parent / "tools" / "im2rec.py"
    monkeypatch.setattr(sys, "argv", ["im2rec", "--pack-label", "--pass-through", f"{tmp_path}/train", str(tmp_path)])
    runpy.run_path(str(script), run_name="__main__")["record"].close()  # as the end of the process does
    (tmp_path / "classes.txt").write_text("cat\ndog\ncow\nowl\n")
    splits = records_of(tmp_path).open()
    assert list(splits.class_names) == ["cat", "dog", "cow", "owl"]
    train, val = splits.train, splits.val
    found = {int(round(part.fetch(np.array([i]), seed=0, epoch=0, train=False)[0][0, 0, 0, 0] / 9)): sets_of(part)[i]
             for part in (train, val) for i in range(len(part))}  # fmt: skip
    assert found == {number: sorted(label) for number, label in enumerate(LISTS)}


def test_two_classes_are_asked_for(tmp_path: Path) -> None:
    write_records(tmp_path, [[0, 1], [1, 0], [0, 1], [1, 0]])
    with pytest.raises(DataError, match=r"all labels are 0 1 or 1 0.*Type dataset.label_form=vector or dataset.label"):
        records_of(tmp_path).open()
    for form, expected in (("vector", [[1], [0], [1], [0]]), ("indices", [[0, 1]] * 4)):
        splits = records_of(tmp_path, label_form=form).open()
        assert sorted(sets_of(splits.train) + sets_of(splits.val)) == sorted(expected)
    (tmp_path / "classes.txt").write_text("a\nb\nc\n")  # a vector would have three numbers
    assert all(classes == [0, 1] for classes in sets_of(records_of(tmp_path).open().train))


def test_empty_list_is_asked_for_where_lists_have_one_index(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """MXNet writes an empty list as the number 0."""
    write_records(tmp_path, [[1], [], [0, 2], [2]])
    with pytest.raises(DataError, match=r"Record 1 of .* has the number 0 outside of a list, as MXNet writes an empty"):
        records_of(tmp_path).open()
    write_records(tmp_path, [[1, 2], 0, [0, 2], [2, 1]])
    with caplog.at_level(logging.INFO):
        records_of(tmp_path).open()
    assert "1 records have the number 0 alone: class 0. MXNet writes an empty list in the same way" in caplog.text


@pytest.mark.parametrize(
    "labels, bad, said",
    [
        (
            VECTORS,
            [1, 0],
            "has 2 numbers; a vector of 3 classes has 3. For lists of class indices type dataset.label_f",
        ),
        (VECTORS, [1, 2], "a list of class indices, 1 2. Type dataset.label_form=vector or dataset.label_form=indices"),
        (VECTORS, [1, 1, 0, 0], "Record 8 of '{path}' (byte {byte}) has 4 numbers; a vector of 3 classes has 3. "),
        (VECTORS, [0, 0, 2], "has 2 in its vector of classes; allowed are 0 and 1."),
        (VECTORS, [0, 0, 0.5], "has 0.5 in its vector of classes; allowed are 0 and 1."),
        (VECTORS, [0, 0, NAN], "has nan in its vector of classes; allowed are 0 and 1."),
        (LISTS, [1, -1], "has the class index -1; allowed are whole numbers from 0 to 2. Lists may differ in length"),
        (LISTS, [1, NAN], "has the class index nan; allowed are whole numbers from 0 to 2."),
        (LISTS, [1, float("inf")], "has the class index inf; allowed are whole numbers from 0 to 2."),
        (LISTS, [1, 0.5], "has the class index 0.5; allowed are whole numbers from 0 to 2."),
        (LISTS, [1, 16384], "has the class index 16384; allowed are whole numbers from 0 to 2."),
        (LISTS, [1, 2, 2], "names the class index 2 twice. For vectors of 0 and 1 type dataset.label_form=vector."),
        (LISTS, [0, 0], "has a vector of 0 and 1, and Record 0 of '{path}' (byte 0) a list of class indices, 0 2."),
    ],
)
def test_wrong_labels_are_refused(tmp_path: Path, labels: Any, bad: Any, said: str) -> None:
    path = write_records(tmp_path, [*labels, bad])
    byte = path.with_suffix(".idx").read_text().splitlines()[-1].split("\t")[1]
    with pytest.raises(DataError) as caught:
        records_of(tmp_path).open()
    assert said.format(path=path, byte=byte) in str(caught.value) and "\n" not in str(caught.value)


def test_validation_labels_have_the_form_of_training(tmp_path: Path) -> None:
    write_records(tmp_path, LISTS)
    write_records(tmp_path, [[0, 3]], "val")
    with pytest.raises(DataError, match=r"Record 0 of '.*val.rec' .* has the class index 3; .* from 0 to 2"):
        records_of(tmp_path).open()
    write_records(tmp_path, VECTORS)
    (tmp_path / "classes.txt").write_text("a\nb\nc\nd\n")
    with pytest.raises(DataError, match=r"Record 0 of '.*train.rec' .* has 3 numbers; a vector of 4 classes has 4"):
        records_of(tmp_path).open()


def test_check_reports_a_bad_label_with_its_record(tmp_path: Path) -> None:
    write_records(tmp_path, [*VECTORS, [0, 0, 7]])
    write_records(tmp_path, VECTORS, "val")
    splits = records_of(tmp_path).examine(CollectedFindings())
    assert sets_of_first(splits.train, 8) == [0, 2]
    with pytest.raises(LoaderError, match="Record 8 of .* has 7 in its vector"):
        splits.train.fetch(np.array([8]), seed=0, epoch=0, train=False)


def sets_of_first(source: Any, count: int) -> List[int]:
    target_NK = source.fetch(np.arange(count), seed=0, epoch=0, train=False)[1]
    return np.flatnonzero(target_NK[0]).tolist()


@pytest.mark.parametrize("labels", [[[NAN, 1]] * 3, [[-1]] * 3, [[0.5, 0]] * 3])
def test_labels_of_no_form_are_refused(tmp_path: Path, labels: Any) -> None:
    write_records(tmp_path, labels)
    with pytest.raises(
        DataError, match=r"has no label of class indices or of 0 and 1; that of record 0 is (nan|-1|0.5)"
    ):
        records_of(tmp_path).open()


def test_single_class_is_refused(tmp_path: Path) -> None:
    write_records(tmp_path, [0, 0, 0, 0])
    with pytest.raises(DataError, match="has a single class, and task=multi_label needs at least two"):
        records_of(tmp_path).open()


def test_first_class_without_an_image_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_records(tmp_path, [[1, 2], [3], [2, 1], [3, 1]])
    records_of(tmp_path).open()
    assert "the smallest label is 1, and classes count from 0: class 0 has no image." in caplog.text
    caplog.clear()
    write_records(tmp_path, [[0, 1, 1], [0, 0, 1]] * 2)  # a class of a vector has a place of its own
    records_of(tmp_path).open()
    assert "has no image" not in caplog.text


def test_tasks_of_one_class_name_the_task_to_type(tmp_path: Path) -> None:
    write_records(tmp_path, VECTORS)
    with pytest.raises(
        DataError, match="has 3 labels; one class index is allowed. For several classes an image type ta"
    ):
        ImageRecord(root=str(tmp_path), prefix="").open()
    with pytest.raises(ConfigError, match="dataset.label_form=vector is read by task=multi_label"):
        ImageRecord(root=".", label_form="vector").for_run(ClassIndex)


@pytest.mark.slow
def test_run_from_records(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    write_records(tmp_path, VECTORS)
    monkeypatch.chdir(tmp_path)
    options = ["task=multi_label", "dataset=image_record", "dataset.root=.", "dataset.prefix=''", "logger=[]"]
    small = ["dataset.image_size=8", "model=lenet", "model.channels=[4]", "trainer.max_epochs=1", "hydra.run.dir=run"]
    assert run([*options, *small]) == 0
    assert run(["eval", "run"]) == 0
    assert "mean_average_precision" in capsys.readouterr().out


def guess_of(folder: Path) -> List[str]:
    """Returns the task and dataset of each answer of `data guess`."""
    answers = best_first(recognise_all(own_classes("dataset"), FileTree(str(folder))))
    return [" ".join(guess.overrides(option)[:2]) for option, guess in answers]


@pytest.mark.parametrize(
    "labels, expected",
    [
        (VECTORS, ["task=multi_label dataset=image_record"]),
        (LISTS, ["task=multi_label dataset=image_record"]),
        ([[0], 1, [0, 2]], ["task=multi_label dataset=image_record"]),
        ([0, 1, [2]], ["task=classification dataset=image_record"]),
        ([[2, 5, 0, 0.1, 0.1, 0.5, 1]], ["task=detection dataset=image_list"]),
        ([[2, 5, 3, 0, 0, 1, 1]], ["task=detection dataset=image_list"]),
        ([[2, 5], [2, 4]], ["task=multi_label dataset=image_record"]),
        ([[2, 5], [3, 5]], ["task=multi_label dataset=image_record"]),
        ([[2, 5], [2, 5, 0, 0.1, 0.1, 0.5, 1]], ["task=detection dataset=image_list"]),
        # Images without objects, or with the classes 2 and 5.
        ([[2, 5], [2, 5]], ["task=detection dataset=image_list", "task=multi_label dataset=image_record"]),
        # Boxes behind many images of several classes are not read.
        ([[0, 1, 0]] * 16 + [[2, 5, 0, 0.1, 0.1, 0.5, 1]], ["task=multi_label dataset=image_record"]),
    ],
)
def test_guess_tells_records_apart(tmp_path: Path, labels: Any, expected: List[str]) -> None:
    write_records(tmp_path, labels)
    assert guess_of(tmp_path) == expected


@pytest.mark.parametrize("content", [b"", b"no record", b"\x0a\x23\xd7\xce" + bytes(8), b"\x0a\x23\xd7\xce"])
def test_guess_of_damaged_records_has_no_answer(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "train.rec").write_bytes(content)
    assert guess_of(tmp_path) == []


@pytest.mark.parametrize("numbers, is_vector", [([1], False), ([0, 1], True), ([0, 2], False)])
def test_a_vector_has_several_numbers_of_0_and_1(numbers: List[int], is_vector: bool) -> None:
    assert may_be_vector(np.array(numbers, float)) is is_vector
