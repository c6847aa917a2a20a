"""Command lines of the first hour, beside those of `test_mistakes`: each answer says what to type."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Callable

import numpy as np
import pytest
from PIL import Image

from mxtrain.errors import DataError, MxtrainError

# (arguments, what the answer holds, what it must not hold)
LINES = [
    ("optimizer lr=0.1", ["no command 'optimizer'", "type optimizer.lr=0.1."], []),
    ("optimizer", ["type optimizer=OPTION."], []),
    ("model=ResNet", ["Did you mean 'resnet'?"], ["GluonCV"]),
    ("task=ner", ["Did you mean 'token_classification'?"], []),
    ("task=detection model=lenet", ["LeNet do not fit", "Type model=centernet_fpn."], []),
    (
        "task=detection dataset=digits",
        ["task=metric_learning. Type that.", "dataset=digit_scenes, dataset=box_csv", "or dataset=yolo."],
        [],
    ),
    (
        "task=translation dataset=text",
        ["task=classification, task=multi_label or task=regression. Type that.", "dataset=parallel_text"],
        ["dataset=text"],
    ),
    ("task=segmentation loss=l2", ["Type loss=pixel_softmax_cross_entropy."], []),
    ("task=detection metric=[accuracy]", ["metric.accuracy", "Type metric=[voc_ap]."], ["monitor", "f1"]),
    ("task=detection metric=[coco_ap]", ["trainer.monitor=val/voc_ap", "Did you mean 'val/coco_ap'?"], ["f1"]),
    ("trainer.monitor=val/acc", ["Did you mean 'val/accuracy'?"], []),
    ("trainer.monitor=val/f1", ["metric=[accuracy,f1] measures more"], ["Did you mean"]),
    (
        "task=regression task.interval=0.9 trainer.monitor=val/interval_width",
        ["root_mean_squared_error,NAME] measures more"],
        ["[pearson,spearman,root_mean_squared_error,interval_width]"],
    ),
    ("dataset=imagefolder", ["Did you mean 'image_folder'?"], []),
    ("cluster.workers=2", ["Type kvstore=dist_sync."], []),
    ("dataset=text dataset.train=x.csv", ["dataset gives text. Type model=bert"], []),
    ("model=bert dataset.label=标签", ["needs quotes: \"dataset.label='标签'\""], []),
    ("dataset=pictures/", ["It is a path: type dataset=image_folder dataset.root=", "pictures/"], ["Did you mean"]),
    (
        "dataset=../rows.csv",
        ["type task=tabular dataset=feature_table", "dataset.target=COLUMN, or task=multi_label", "or dataset=text"],
        [],
    ),
    ("dataset=a/b.tokens", ["It is a path: type task=language_modeling dataset.train="], []),
    ("dataset=data.zip/x.parquet", ["It is a path, and dataset takes the name of an option: see `mxtrain explain"], []),
    ("model=net.params", ["type model=OPTION model.weights=", "net.params"], []),
    ("model=nets.py", ["type model._target_=nets.NAME"], []),
    ("loss=own/losses.py", ["loss._target_=losses.NAME"], []),
    ("experiment=mine/experiment/best.yaml", ["type --config-dir mine experiment=best."], []),
    ("optimizer=own.yaml", ["type --config-dir FOLDER optimizer=own with the file as FOLDER/optimizer/own.yaml."], []),
    ("dataset.class_weights={'1':20}", ['keys have no quotes: "dataset.class_weights={1:20}"'], ["needs quotes"]),
    ("evaluate outputs/x", ["Did you mean 'eval'?"], []),
    ("data", ["Sub-commands: check, guess, convert, cache", "data check dataset=digits"], []),
    ("data chek", ["Did you mean 'check'?"], []),
]


@pytest.mark.parametrize("arguments, parts, absent", LINES, ids=[arguments for arguments, _, _ in LINES])
def test_refusal_names_the_command_to_type(refused: Callable, arguments: str, parts: list, absent: list) -> None:
    said = refused(*arguments.split())
    assert [part for part in parts if part not in said] == [], said
    assert [part for part in absent if part in said] == [], said


def test_dataset_format_is_recognised_from_the_folder(refused: Callable, tmp_path: Path) -> None:
    (tmp_path / "my photos/Annotations").mkdir(parents=True)
    (tmp_path / "plain").mkdir()
    said = refused(f"dataset='{tmp_path}/my photos'")
    assert f"type task=detection dataset=voc 'dataset.root=\"{tmp_path}/my photos\"'." in said
    assert "type dataset=image_folder dataset.root=" in refused(f"dataset={tmp_path}/plain")


def test_quoted_keys_as_advised_are_read(refused: Callable) -> None:
    """The advice itself must be accepted."""
    from mxtrain.composing.composer import Composer

    with Composer([]) as composer:
        for typed, advised in (("{'1': 20}", "{1: 20}"), ("{\"a b\":1,'c' : 2}", "{a b:1,c : 2}")):
            said = refused(f"dataset.class_weights={typed}")
            assert f'keys have no quotes: "dataset.class_weights={advised}"' in said
            (parsed,) = composer.parse([f"dataset.class_weights={advised}"])
            assert len(parsed.value()) == typed.count(":")


def test_missing_path_lists_latest_runs(refused: Callable, tmp_path: Path) -> None:
    (tmp_path / "cwd/outputs/2030-01-31/12-00-00-abcd/checkpoints").mkdir(parents=True)
    for line in ("eval", "eval outputs/none", "eval outputs", "predict outputs/none x.csv"):
        assert f"{line.split()[0]} outputs/2030-01-31/12-00-00-abcd" in refused(*line.split())


def test_settings_of_training_are_answered_in_one_sentence(refused: Callable) -> None:
    said = refused("eval", "outputs/none", "dataset.batch_size=8")
    assert "Leave it out, or type dataset.eval_batch_size=N." in said


# Files.


def write_table(path: Path, *rows: list) -> str:
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    return str(path)


def refusal(dataset: object) -> str:
    with pytest.raises(DataError) as caught:
        dataset.open()  # type: ignore[attr-defined]
    return str(caught.value)


def test_missing_text_column_lists_existing_columns(tmp_path: Path) -> None:
    from mxtrain.text.classification.text import Text

    train = write_table(tmp_path / "a.csv", ["内容", "标签"], ["好", "1"], ["坏", "0"])
    said = refusal(Text(train=train))
    assert "no column 'sentence'. Type 'dataset.sentence=\"内容\"', or another of 内容, 标签." in said
    said = refusal(Text(train=train, sentence="内容"))
    assert "dataset.label=label:" in said and "Type 'dataset.label=\"内容\"'" in said


def test_similar_target_column_is_suggested(tmp_path: Path) -> None:
    from mxtrain.tables.number_table import NumberTable

    train = write_table(tmp_path / "a.csv", ["area", "price"], *([n, n] for n in range(20)))
    assert "Did you mean 'price'? Type dataset.target=price" in refusal(NumberTable(train=train, target="prize"))


def test_single_text_class_is_reported(tmp_path: Path) -> None:
    from mxtrain.text.classification.text import Text

    train = write_table(tmp_path / "a.csv", ["sentence", "label"], *([f"hello {n}", "a"] for n in range(30)))
    assert "has only the class 'a'" in refusal(Text(train=train))


def test_other_suffix_of_parallel_texts_is_suggested(tmp_path: Path) -> None:
    from mxtrain.text.translation.parallel_text import ParallelText

    for ending in ("en", "zh"):
        (tmp_path / f"train.{ending}").write_text("a\n")
    said = refusal(ParallelText(train=str(tmp_path / "train"), source="en", target="de"))
    assert "Type dataset.target=zh for" in said
    said = refusal(ParallelText(train=str(tmp_path / "train.en"), source="en", target="zh"))
    assert f"type {tmp_path}/train." in said


def test_mask_layout_is_checked_before_class_names(tmp_path: Path) -> None:
    from mxtrain.vision.segmentation.segmentation_folder import SegmentationFolder

    (tmp_path / "cat").mkdir()
    assert "It must hold images/ and masks/" in refusal(SegmentationFolder(root=str(tmp_path)))
    for name in ("images", "masks"):
        (tmp_path / name).mkdir()
    assert "dataset.classes=[background,cat]" in refusal(SegmentationFolder(root=str(tmp_path)))


def test_coloured_mask_is_refused_without_a_table(tmp_path: Path) -> None:
    from mxtrain.vision.segmentation.segmentation_folder import SegmentationFolder

    for name in ("images", "masks"):
        (tmp_path / name).mkdir()
        for number in range(4):
            image = np.zeros((8, 8, 3), np.uint8)
            image[number:] = (255, 0, 0)
            Image.fromarray(image).save(tmp_path / name / f"{number}.png")
    dataset = SegmentationFolder(root=str(tmp_path), classes=["background", "cat"], val_fraction=0.3)
    with pytest.raises(MxtrainError) as caught:
        dataset.open().train.fetch(np.arange(2), seed=0, epoch=0, train=False)
    said = str(caught.value)
    assert (
        "it has colours, such as" in said
        and "see dataset.colors in docs/tasks/segmentation.md" in said
        and "Replace" not in said
    )


def write_voc(root: Path, *names: str) -> Path:
    for folder in ("JPEGImages", "Annotations"):
        (root / folder).mkdir(parents=True)
    box = "<bndbox><xmin>2</xmin><ymin>3</ymin><xmax>12</xmax><ymax>13</ymax></bndbox>"
    for number, name in enumerate(names):
        Image.new("RGB", (24, 16)).save(root / f"JPEGImages/{number}.jpg")
        (root / f"Annotations/{number}.xml").write_text(
            f"<annotation><size><width>24</width><height>16</height></size><object><name>{name}</name>{box}</object>"
            "</annotation>"
        )
    return root


def test_unknown_voc_classes_are_all_suggested(tmp_path: Path) -> None:
    from mxtrain.vision.detection.voc import Voc

    root = write_voc(tmp_path / "a", "square box", "circle", "1E5")
    options = {"train_split": None, "val_split": None, "val_fraction": 0.3}
    said = refusal(Voc(root=str(root), **options))
    assert """Type 'dataset.classes=["1E5","circle","square box"]', which are all names""" in said
    root = write_voc(tmp_path / "b", "dog", "circle")
    assert "dataset.other_classes=leave_out" in refusal(Voc(root=str(root), **options))


def test_folders_of_voc_are_recognised_by_the_coco_reader(tmp_path: Path) -> None:
    from mxtrain.vision.detection.coco import Coco

    assert "type dataset=voc." in refusal(Coco(root=str(write_voc(tmp_path, "dog"))))


def test_reversed_corners_are_recognised_and_read(tmp_path: Path) -> None:
    from mxtrain.vision.detection.coco import Coco

    Image.new("RGB", (100, 80)).save(tmp_path / "0.jpg")
    Image.new("RGB", (100, 80)).save(tmp_path / "1.jpg")
    corners = [[90, 70, 50, 40], [60, 50, 30, 20], [95, 75, 80, 60], [30, 30, 10, 20]]
    (tmp_path / "a.json").write_text(
        json.dumps(
            {
                "images": [{"id": n, "file_name": f"{n}.jpg", "width": 100, "height": 80} for n in range(2)],
                "categories": [{"id": 1, "name": "dog"}],
                "annotations": [
                    {"id": n, "image_id": n // 3, "category_id": 1, "bbox": box, "area": 9.0, "iscrowd": 0}
                    for n, box in enumerate(corners)
                ],
            }
        )
    )
    options = {
        "root": str(tmp_path),
        "train_annotations": "a.json",
        "train_images": ".",
        "val_annotations": None,
        "val_fraction": 0.5,
    }
    assert "Type dataset.box_format=xyxy" in refusal(Coco(**options))
    splits = Coco(**options, box_format="xyxy").open()
    boxes = np.concatenate([splits.train.boxes(0)[:, :4], splits.val.boxes(0)[:, :4]])
    wanted = [[50, 40, 90, 70], [30, 20, 60, 50], [80, 60, 95, 75], [10, 20, 30, 30]]
    assert sorted(boxes.tolist()) == sorted(wanted)
