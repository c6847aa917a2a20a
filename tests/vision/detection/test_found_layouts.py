"""Layouts and spellings of other tools that are read as they are meant, or refused in one sentence."""

from __future__ import annotations

import gzip
import json
import logging
import unicodedata
from pathlib import Path
from typing import Any, List, Sequence

import numpy as np
import pytest
from PIL import Image

from mxtrain.data.checking.problems import STRICT
from mxtrain.errors import DataError
from mxtrain.tables.criteo import NAMES, Criteo
from mxtrain.vision.classification.image_folder import ImageFolder
from mxtrain.vision.detection.coco import Coco
from mxtrain.vision.detection.list_file import read_list
from mxtrain.vision.detection.voc import Voc, VocInstances
from mxtrain.vision.pose.coco_key_points import CocoKeyPoints
from mxtrain.vision.segmentation.segmentation_folder import SegmentationFolder

BOX = "<bndbox><xmin>2</xmin><ymin>3</ymin><xmax>12</xmax><ymax>13</ymax></bndbox>"
SIZE = "<size><width>24</width><height>16</height></size>"
XML = f"<annotation>{SIZE}<object><name>dog</name>{BOX}</object></annotation>"


def make_image(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (24, 16), (hash(path.name) % 255, 0, 0)).save(path)


# XML beside images.


def test_voc_files_beside_images_are_read_by_split(tmp_path: Path) -> None:
    for split, count in (("train", 3), ("valid", 2), ("test", 1)):
        for number in range(count):
            make_image(tmp_path / split / f"{number}.jpg")
            (tmp_path / split / f"{number}.xml").write_text(XML)
    splits = Voc(root=str(tmp_path), classes=["dog"]).open()
    assert splits.test is not None
    assert [len(splits.train), len(splits.val), len(splits.test)] == [3, 2, 1]
    assert splits.train.boxes(0)[0, :5].tolist() == [1, 2, 12, 13, 0]  # type: ignore[attr-defined]
    with pytest.raises(DataError, match="has no mask"):
        VocInstances(root=str(tmp_path), classes=["dog"]).open()


def test_images_without_annotation_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(4):
        make_image(tmp_path / f"{number}.jpg")
        if number:
            (tmp_path / f"{number}.xml").write_text(XML)
    dataset = Voc(root=str(tmp_path), classes=["dog"], val_fraction=0.4)
    with caplog.at_level(logging.INFO):
        splits = dataset.open()
    assert len(splits.train) + len(splits.val) == 3
    assert "1 of 4 images" in caplog.text and "have no annotation and are left out" in caplog.text
    (tmp_path / "alone.xml").write_text(XML)
    with pytest.raises(DataError, match="alone.xml' is the annotation of no image"):
        dataset.open()


# Masks beside images.


def make_masks(folder: Path, count: int) -> None:
    for number in range(count):
        make_image(folder / f"{number}.jpg")
        Image.fromarray(np.full((16, 24), number % 2, np.uint8)).save(folder / f"{number}_mask.png")


def test_masks_beside_images_are_read_with_their_table_of_classes(tmp_path: Path) -> None:
    for split, count in (("train", 4), ("valid", 2)):
        make_masks(tmp_path / split, count)
    table = tmp_path / "train/_classes.csv"
    table.write_text('Pixel Value, Class\n0, background\n1, "cat, ""tame"""\n')
    dataset = SegmentationFolder(root=str(tmp_path), image_size=[16, 24])
    splits = dataset.open()
    assert splits.class_names == ["background", 'cat, "tame"'] and [len(splits.train), len(splits.val)] == [4, 2]
    mask = splits.val.fetch(np.arange(2), seed=0, epoch=0, train=False)[1]
    assert [np.unique(one).tolist() for one in mask] == [[0], [1]]
    table.write_text("Pixel Value, Class\n0, background\n2, cat\n")
    with pytest.raises(DataError, match="must give the values 0, 1, 2 and so on"):
        dataset.open()
    (tmp_path / "train/3_mask.png").unlink()
    with pytest.raises(DataError, match="3.jpg' has no mask: there is no '.*3_mask.png'"):
        SegmentationFolder(root=str(tmp_path), classes=["background", "cat"]).open()


# Splits without training.


def test_layout_without_a_training_folder_is_reported(tmp_path: Path) -> None:
    for split in ("validation", "testing"):
        (tmp_path / split / "images").mkdir(parents=True)
    with pytest.raises(DataError, match="holds testing/ and validation/, but no folder of the training split"):
        SegmentationFolder(root=str(tmp_path), classes=["a", "b"]).open()


# Names of macOS, whose accented letters are two characters each.


def decomposed(name: str) -> str:
    return unicodedata.normalize("NFD", name)


def test_decomposed_names_of_images(tmp_path: Path) -> None:
    names = [f"ä{number}.jpg" for number in range(4)]
    for name in names:
        make_image(tmp_path / "i" / decomposed(name))
    write_coco(tmp_path, [4, 4, 2, 5, 6, 1], names)
    dataset = Coco(root=str(tmp_path), **COCO)
    splits = dataset.open()
    assert len(splits.train) + len(splits.val) == 4
    place = str(tmp_path / "i" / decomposed(names[3]))
    assert dataset.sample_ids([place]) == {place: 3}
    assert len(CocoKeyPoints(root=str(tmp_path), **COCO).open().train) == 2
    (tmp_path / "a.lst").write_text("0\t2\t5\t0\t0.1\t0.2\t0.6\t0.7\tä0.jpg\n", encoding="utf-8")
    assert len(read_list(tmp_path / "a.lst", tmp_path / "i", STRICT).encoded) == 1


def test_decomposed_names_of_masks_and_annotations(tmp_path: Path) -> None:
    for number in range(4):
        make_image(tmp_path / f"images/ä{number}.jpg")
        (tmp_path / "masks").mkdir(exist_ok=True)
        Image.new("L", (24, 16), number % 2).save(tmp_path / "masks" / decomposed(f"ä{number}.png"))
        make_image(tmp_path / f"voc/ä{number}.jpg")
        (tmp_path / "voc" / decomposed(f"ä{number}.xml")).write_text(XML)
    splits = SegmentationFolder(root=str(tmp_path), classes=["a", "b"]).open()
    assert len(splits.train) + len(splits.val) == 4
    splits = Voc(root=str(tmp_path / "voc"), classes=["dog"]).open()
    assert len(splits.train) + len(splits.val) == 4


def test_decomposed_names_of_classes(tmp_path: Path) -> None:
    for split, name in (("train", "ä"), ("val", decomposed("ä"))):
        for number in range(2):
            make_image(tmp_path / split / name / f"{number}.jpg")
            make_image(tmp_path / split / "b" / f"{number}.jpg")
    splits = ImageFolder(root=str(tmp_path)).open()
    assert splits.class_names == ["b", "ä"] and [len(splits.train), len(splits.val)] == [4, 4]


# Paths of Windows.


def write_coco(root: Path, points: List[float], names: Sequence[str] = (), **more: Any) -> None:
    category = {"id": 1, "name": "person", "keypoints": ["nose", "tail"], "skeleton": [[1, 2]]}
    for number in range(0 if names else 4):
        make_image(root / f"i/sub/{number}.jpg")
    names = names or [f"sub\\{number}.jpg" for number in range(4)]
    (root / "a.json").write_text(
        json.dumps(
            {
                "images": [{"id": n, "file_name": one, "width": 24, "height": 16} for n, one in enumerate(names)],
                "categories": [category],
                "annotations": [
                    {
                        "id": n,
                        "image_id": n,
                        "category_id": 1,
                        "bbox": [2, 3, 10, 9],
                        "area": 90,
                        "iscrowd": 0,
                        "keypoints": points if n == 0 else [4, 4, 2, 5, 6, 1],
                        "num_keypoints": 2,
                    }
                    for n in range(4)
                ],
            }
        )
    )


COCO = {"train_annotations": "a.json", "train_images": "i", "val_annotations": None, "val_fraction": 0.5}


def test_backslashes_of_coco_part_folders(tmp_path: Path) -> None:
    write_coco(tmp_path, [4, 4, 2, 5, 6, 1])
    dataset = Coco(root=str(tmp_path), **COCO)
    splits = dataset.open()
    assert len(splits.train) + len(splits.val) == 4
    place = str(tmp_path / "i/sub/3.jpg")
    assert dataset.sample_ids([place]) == {place: 3}


def test_backslashes_of_a_list_part_folders(tmp_path: Path) -> None:
    make_image(tmp_path / "sub/0.jpg")
    (tmp_path / "a.lst").write_text("0\t2\t5\t0\t0.1\t0.2\t0.6\t0.7\tsub\\0.jpg\n")
    assert len(read_list(tmp_path / "a.lst", tmp_path, STRICT).encoded) == 1


def test_backslashes_of_a_manifest_part_folders() -> None:
    from mxtrain.data.checking.problems import DataLocation
    from mxtrain.speech.utterances import utterance_of

    found = utterance_of({"audio_filepath": "clips\\a.wav", "text": "yes"}, "data", DataLocation("m.jsonl", 1))
    assert found.path == "data/clips/a.wav"


# Numbers that say something else.


def test_other_sixth_numbers_of_a_list_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from mxtrain.data.checking.dataset_check import CollectedFindings

    make_image(tmp_path / "0.jpg")
    objects = "0\t0.1\t0.2\t0.6\t0.7\t{}\t0\t0.1\t0.2\t0.6\t0.8\t1\t0\t0.1\t0.2\t0.6\t0.9\t0"
    for number, said in ((1, ""), (7, "sixth number of an object is 7 (1 such objects)")):
        (tmp_path / "a.lst").write_text(f"0\t2\t6\t{objects.format(number)}\t0.jpg\n")
        caplog.clear()
        found = read_list(tmp_path / "a.lst", tmp_path, STRICT)
        assert (found.object_R6[:, 5] > 0).tolist() == [number == 1, True, False]
        assert said in caplog.text and bool(caplog.text) == bool(said)
    findings = CollectedFindings()
    read_list(tmp_path / "a.lst", tmp_path, findings)
    assert findings.counts == {"label_range": 1}


@pytest.mark.parametrize("x, is_outside", [(23, False), (24.4, False), (26, True), (-3, True)])
def test_marked_key_point_outside_its_image_is_refused_or_taken_for_unmarked(
    tmp_path: Path, x: float, is_outside: bool
) -> None:
    write_coco(tmp_path, [x, 4, 2, 5, 6, 1])
    dataset = CocoKeyPoints(root=str(tmp_path), **COCO)
    mending = dataset.model_copy(update={"wrong_boxes": "mend"})
    if is_outside:
        with pytest.raises(DataError, match=f"marked key point at {x:g}, 4, which is outside.*wrong_boxes=mend"):
            dataset.open()
    else:
        dataset.open()
    splits = mending.open()
    objects = [source.objects if hasattr(source, "objects") else source for source in (splits.train, splits.val)]
    assert len(objects) == 2
    visible = [
        int((source.fetch(np.arange(len(source)), seed=0, epoch=0, train=False)[1] > 0).any())
        for source in (splits.train, splits.val)
    ]
    assert visible == [1, 1]


def test_unmarked_key_point_may_be_outside(tmp_path: Path) -> None:
    write_coco(tmp_path, [-100, 4, 0, 5, 6, 1])
    splits = CocoKeyPoints(root=str(tmp_path), **COCO).open()
    parts = [part.fetch(np.arange(len(part)), seed=0, epoch=0, train=False)[1] for part in (splits.train, splits.val)]
    assert sorted((np.concatenate(parts)[..., 2] > 0).sum(axis=1).tolist()) == [1, 2, 2, 2]


def test_header_of_criteo_is_answered_once(tmp_path: Path) -> None:
    row = "\t".join(["1", *["5"] * 13, *["ab"] * 26])
    header = "\t".join(["label", *NAMES])
    path = tmp_path / "day_0.gz"
    with gzip.open(path, "wt") as file:
        file.write("\n".join([header, *[row] * 20]) + "\n")
    with pytest.raises(DataError, match=r"line 1 holds names, label, I1, I2 \.\.\.: .*tail -n \+2 FILE > NEW"):
        Criteo(train=str(path)).open()
