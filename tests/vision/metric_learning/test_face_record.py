"""insightface's records of faces, written with MXNet's writer in the layout of insightface's face2rec2.py."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path
from typing import Any, Sequence

import numpy as np
import pytest
from PIL import Image

from mxtrain.cli.dispatch import run
from mxtrain.data.checking.dataset_check import CollectedFindings
from mxtrain.engine.backend import mx
from mxtrain.errors import DataError, LoaderError
from mxtrain.vision.images.record_file import RecordFile
from mxtrain.vision.metric_learning.face_record import FaceRecord, FaceRecordFile
from mxtrain.vision.metric_learning.verification_pairs import VerificationPairs

# MXNet's `pack` calls it.
pytestmark = pytest.mark.filterwarnings("ignore:tostring:DeprecationWarning")
SIDE = 8
IDENTITIES, IMAGES = 3, 4


def encoded(grey: int) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.full((SIDE, SIDE, 3), grey, np.uint8)).save(stream, "PNG")
    return stream.getvalue()


def write_faces(folder: Path, labels: Sequence[Any], first_identity: int = 0, header: bool = True) -> Path:
    """Writes a header, an image for each label, and a record for each identity; image k has the grey value 10 * k."""
    writer = mx.recordio.MXIndexedRecordIO(str(folder / "train.idx"), str(folder / "train.rec"), "w")
    end = len(labels) + 1
    # The order of records in the file is not that of their numbers: face2rec2.py writes the header last.
    for key, label in enumerate(labels, start=1):
        writer.write_idx(key, mx.recordio.pack(mx.recordio.IRHeader(0, label, key, 0), encoded(10 * key)))
    for identity in range(IDENTITIES if header else 0):
        bounds = [1 + identity * IMAGES, 1 + (identity + 1) * IMAGES]
        key = (first_identity or end) + identity
        writer.write_idx(key, mx.recordio.pack(mx.recordio.IRHeader(2, bounds, key, 0), b""))
    if header:
        bounds = [first_identity or end, (first_identity or end) + IDENTITIES]
        writer.write_idx(0, mx.recordio.pack(mx.recordio.IRHeader(2, bounds, 0, 0), b""))
    writer.close()
    return folder / "train.rec"


def usual_labels() -> list[Any]:
    """Every second label is a list, whose first entry is the identity."""
    labels = np.repeat(np.arange(IDENTITIES), IMAGES).tolist()
    return [[float(label), 0.25, 7.0] if number % 2 else float(label) for number, label in enumerate(labels)]


def test_images_are_those_before_the_identity_records(tmp_path: Path) -> None:
    records = FaceRecordFile(write_faces(tmp_path, usual_labels()))
    assert len(records) == IDENTITIES * IMAGES
    assert records.read_labels().tolist() == np.repeat(np.arange(IDENTITIES), IMAGES).tolist()
    for index in range(len(records)):
        content, label = records.read(index)
        assert content == encoded(10 * (index + 1)) and label == index // IMAGES
    assert records.location(2).record == 3 and records.name(2).startswith("Record 3 of ")


def test_records_without_header_are_all_images(tmp_path: Path) -> None:
    records = FaceRecordFile(write_faces(tmp_path, [1.0, 0.0, [2.0, 5.0]], header=False))
    assert records.read_labels().tolist() == [1, 0, 2]


def test_first_record_with_one_label_is_an_image(tmp_path: Path) -> None:
    writer = mx.recordio.MXIndexedRecordIO(str(tmp_path / "train.idx"), str(tmp_path / "train.rec"), "w")
    for key, label in enumerate([2.0, 0.0, 1.0]):
        writer.write_idx(key, mx.recordio.pack(mx.recordio.IRHeader(0, label, key, 0), encoded(key)))
    writer.close()
    assert FaceRecordFile(tmp_path / "train.rec").read_labels().tolist() == [2, 0, 1]


def test_header_that_says_more_images_than_there_are(tmp_path: Path) -> None:
    path = write_faces(tmp_path, usual_labels(), first_identity=20)
    with pytest.raises(DataError, match="records 1 to 19 are images, and 12 of them are in its .idx"):
        FaceRecordFile(path)


@pytest.mark.parametrize("label", [-1.0, 0.5, 3.0, float("nan")])
def test_labels_that_are_no_identities(tmp_path: Path, label: float) -> None:
    labels = usual_labels()
    labels[4] = label
    records = FaceRecordFile(write_faces(tmp_path, labels), num_classes=IDENTITIES)
    with pytest.raises(DataError, match="Record 5 of .* has the identity .*; allowed is 0 to 2"):
        records.read_labels()
    with pytest.raises(LoaderError, match="Record 5"):
        records.read(4)


def test_header_without_images(tmp_path: Path) -> None:
    path = write_faces(tmp_path, [])
    with pytest.raises(DataError, match="holds no images, only a header. Copy train.rec and train.idx again.$"):
        FaceRecordFile(path)
    path.with_suffix(".idx").write_text("")
    with pytest.raises(DataError, match="holds no records. Copy train.rec and train.idx again.$"):
        FaceRecordFile(path)
    with pytest.raises(DataError, match="holds no records. Make it again: python -m mxtrain.vision.images.make_record"):
        RecordFile(path)


def test_keys_that_are_no_numbers(tmp_path: Path) -> None:
    path = write_faces(tmp_path, usual_labels())
    index = path.with_suffix(".idx")
    index.write_text(index.read_text().replace("3\t", "x\t", 1))
    with pytest.raises(DataError, match=r"train\.idx': the key 'x"):
        FaceRecordFile(path)


@pytest.mark.parametrize("number", [0, 1])
def test_images_are_read_once_with_their_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Record 1 has one number as label, and record 2 three."""
    records = FaceRecordFile(write_faces(tmp_path, usual_labels()))
    positions: list[int] = []
    read = os.pread

    def counted(file: int, length: int, position: int) -> bytes:
        positions.append(position)
        return read(file, length, position)

    monkeypatch.setattr(os, "pread", counted)
    assert records.read(number) == (encoded(10 * (number + 1)), 0)
    assert len(positions) == len(set(positions)) == 2, "the frame and the record"


@pytest.mark.parametrize("kind", [RecordFile, FaceRecordFile])
def test_wrong_labels_are_0_while_all_problems_are_collected(tmp_path: Path, kind: type[RecordFile]) -> None:
    records = kind(write_faces(tmp_path, [1.0, -1.0, 2.0], header=False), 3, CollectedFindings())
    assert records.read_labels().tolist() == [1, 0, 2]


def test_truncated_file_keeps_the_numbers_of_its_records(tmp_path: Path) -> None:
    path = write_faces(tmp_path, [0.0, 1.0, 2.0], header=False)
    index = path.with_suffix(".idx")
    lines = index.read_text().splitlines()
    index.write_text("\n".join(lines[::-1]))  # the record that is cut off comes first
    path.write_bytes(path.read_bytes()[: int(lines[-1].split("\t")[1])])
    records = FaceRecordFile(path, findings=CollectedFindings())
    assert [records.location(position).record for position in range(len(records))] == [1, 2]
    assert records.read_labels().tolist() == [0, 1]


@pytest.fixture
def faces(tmp_path: Path) -> Path:
    write_faces(tmp_path, usual_labels())
    (tmp_path / "property").write_text(f"{IDENTITIES},{SIDE},{SIDE}\n")
    (tmp_path / "lfw.bin").write_bytes(
        pickle.dumps(([encoded(grey) for grey in range(0, 60, 10)], [True, False, True]))
    )
    return tmp_path


def test_dataset_of_faces(faces: Path) -> None:
    splits = FaceRecord(root=str(faces), val_fraction=0.25).open()
    assert list(splits.class_names) == ["0", "1", "2"] and tuple(splits.shape) == (3, SIDE, SIDE)
    assert len(splits.train) == 9 and len(splits.val) == 3  # type: ignore[arg-type]
    assert sorted(splits.val.read_labels().tolist()) == [0, 1, 2]  # type: ignore[attr-defined]
    assert list(splits.mean) == [0.5] * 3 and list(splits.std) == pytest.approx([128 / 255] * 3)


@pytest.mark.parametrize("name", ["lfw.bin", "FOLDER/lfw.bin"])
def test_pairs_as_validation_split(faces: Path, name: str) -> None:
    splits = FaceRecord(root=str(faces), verification=name.replace("FOLDER", str(faces))).open()
    assert len(splits.train) == 12 and splits.val.read_labels().tolist() == [-2, -2, -5, -5, -6, -6]  # type: ignore[attr-defined]
    image_BCHW, label_B = splits.val.fetch(np.array([3]), seed=0, epoch=0, train=False)  # type: ignore[attr-defined]
    assert (image_BCHW == 30).all() and label_B.tolist() == [-5]


def test_pairs_to_evaluate(faces: Path) -> None:
    splits = VerificationPairs(path=str(faces / "lfw.bin"), image_size=[SIDE, SIDE]).open()
    assert len(splits.train) == 0 and len(splits.val) == 6 and splits.test is None


def test_identities_without_property(faces: Path) -> None:
    (faces / "property").unlink()
    assert len(FaceRecord(root=str(faces), image_size=[SIDE, SIDE]).open().class_names) == IDENTITIES


@pytest.mark.parametrize(
    "name, content, said",
    [
        ("property", "3,8", "property' holds '3,8'; it must hold the number of identities, height and width"),
        ("property", "3,8,many", "it must hold the number"),
        ("property", "1,8,8", "has the identity 1; allowed is 0 to 0"),
        ("train.idx", None, "there is no file"),
        ("train.rec", None, "there is no file"),
    ],
)
def test_damaged_folders_are_refused(faces: Path, name: str, content: str | None, said: str) -> None:
    (faces / name).unlink()
    if content is not None:
        (faces / name).write_text(content)
    with pytest.raises(DataError) as caught:
        FaceRecord(root=str(faces)).open()
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_single_identity_is_refused(tmp_path: Path) -> None:
    write_faces(tmp_path, [0.0, 0.0], header=False)
    with pytest.raises(DataError, match="has a single identity"):
        FaceRecord(root=str(tmp_path)).open()


def test_image_record_names_the_dataset_of_faces(faces: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(faces)
    assert run(["dataset=image_record", f"dataset.root={faces}", "dataset.prefix=''", "logger=[]"]) == 2
    said = capsys.readouterr().err
    assert "has 3 labels; one class index is allowed. " in said
    assert f"type dataset=face_record dataset.root={faces}.\n" in said


@pytest.mark.parametrize("length, names_boxes", [(2, False), (6, False), (7, True), (12, True)])
def test_boxes_in_records_have_seven_labels_or_more(tmp_path: Path, length: int, names_boxes: bool) -> None:
    path = write_faces(tmp_path, [[0.0] * length], header=False)
    with pytest.raises(LoaderError) as caught:
        RecordFile(path).read(0)
    assert ("For boxes in records type task=detection dataset=image_list" in str(caught.value)) == names_boxes
    assert f"dataset=face_record dataset.root={tmp_path}." in str(caught.value)


def test_pairs_cannot_be_trained_on(faces: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(faces)
    assert run(["dataset=verification_pairs", "dataset.path=lfw.bin", "model=lenet", "logger=[]"]) == 2
    assert "pairs have no identities to learn from. Train on dataset=face_record" in capsys.readouterr().err
