"""Written files as MXNet, GluonCV and pycocotools read them."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from annotated import Pictures, random_pictures, values, write_coco
from boxed_files import draw
from conversions import convert

from mxtrain.engine.backend import mx
from mxtrain.vision.images.record_writer import RecordWriter, pack_record

NAMES = ["cat", "dog"]


@pytest.fixture
def pictures() -> Pictures:
    found = random_pictures(11, polygons=True, counts=(12, 6))
    return {split: [picture for picture in listed if picture.things] for split, listed in found.items()}


@pytest.mark.filterwarnings("ignore:tostring:DeprecationWarning")  # of MXNet
def test_mxnet_reads_records_that_contain_its_magic_number(tmp_path) -> None:
    magic = (0xCED7230A).to_bytes(4, "little")
    images = [magic * 2 + b"ab", b"abcd" + magic, b"x" + magic + b"yz" + magic, b"plain"]
    with RecordWriter(tmp_path / "a.rec") as writer:
        for number, content in enumerate(images):
            writer.write(pack_record(number, [number] if number % 2 else [4, 5, 6], content))
    theirs = mx.recordio.MXIndexedRecordIO(str(tmp_path / "b.idx"), str(tmp_path / "b.rec"), "w")
    for number, content in enumerate(images):
        label = float(number) if number % 2 else np.array([4, 5, 6], np.float32)
        theirs.write_idx(number, mx.recordio.pack(mx.recordio.IRHeader(0, label, number, 0), content))
    theirs.close()
    assert all((tmp_path / f"a.{end}").read_bytes() == (tmp_path / f"b.{end}").read_bytes() for end in ("rec", "idx"))
    record = mx.recordio.MXIndexedRecordIO(str(tmp_path / "a.idx"), str(tmp_path / "a.rec"), "r")
    read = [mx.recordio.unpack(record.read_idx(number)) for number in range(len(images))]
    record.close()
    assert [content for _, content in read] == images
    assert [np.ravel(header.label).tolist() for header, _ in read] == [[4, 5, 6], [1], [4, 5, 6], [3]]
    assert [header.id for header, _ in read] == [0, 1, 2, 3]


@pytest.mark.slow  # the import of GluonCV takes seconds
def test_gluoncv_reads_records_and_voc(tmp_path, pictures) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from gluoncv.data import RecordFileDetection, VOCDetection

    class Detection(VOCDetection):
        CLASSES = tuple(NAMES)

    source = write_coco(tmp_path / "source", pictures, NAMES)
    convert(source, tmp_path / "records", to="records", drop="masks")
    convert(source, tmp_path / "VOC2007", to="voc", drop="masks")
    records = RecordFileDetection(str(tmp_path / "records" / "train.rec"), coord_normalized=True)
    listed = Detection(root=str(tmp_path), splits=((2007, "train"),))
    expected = list(values(pictures, "train").values())
    assert len(records) == len(listed) == len(expected)
    for index, rows in enumerate(expected):
        wanted_M5 = np.array([row[:5] for row in rows])
        image, label = records[index]
        assert image.shape[:2] == pictures["train"][index].size[::-1]
        np.testing.assert_allclose(label[:, [4, 0, 1, 2, 3]], wanted_M5, atol=1e-4)
        label = listed[index][1]
        # GluonCV's right edge is the index of the last pixel.
        np.testing.assert_allclose(label[:, [4, 0, 1, 2, 3]] + [0, 0, 0, 1, 1], wanted_M5, atol=1e-9)


def test_mxnet_reads_records_with_classes(tmp_path) -> None:
    for number, name in enumerate(("train/cat/a", "train/dog/b", "train/dog/c")):
        draw(tmp_path / "source" / f"{name}.png", (9, 8), seed=number)
    convert(tmp_path / "source", tmp_path / "records", to="records")
    dataset = mx.gluon.data.vision.ImageRecordDataset(str(tmp_path / "records" / "images_train.rec"))
    assert [(image.shape, label) for image, label in dataset] == [((8, 9, 3), 0), ((8, 9, 3), 1), ((8, 9, 3), 1)]


def test_pycocotools_reads_boxes_and_masks(tmp_path, pictures, capsys) -> None:
    from pycocotools.coco import COCO

    source = write_coco(tmp_path / "source", pictures, NAMES)
    convert(source, tmp_path / "coco", to="coco")
    files = [str(root / "annotations" / "instances_train2017.json") for root in (source, Path(tmp_path / "coco"))]
    first, second = (COCO(file) for file in files)
    assert capsys.readouterr().out.count("index created!") == 2
    masks = [[coco.annToMask(each).sum() for each in coco.loadAnns(coco.getAnnIds())] for coco in (first, second)]
    assert masks[0] == masks[1] and sum(masks[0]) > 100
    assert second.getCatIds(catNms=["dog"]) == [2]
