"""COCO's key points: what becomes a sample, in which pixels, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import pytest
from boxed_files import draw

from mxtrain.cli.dispatch import run
from mxtrain.data.spec import open_splits
from mxtrain.errors import DataError
from mxtrain.vision.images.affine import transform_points
from mxtrain.vision.pose.coco_key_points import CocoKeyPoints
from mxtrain.vision.pose.key_points import KeypointMeta

NAMES = ["nose", "left_hand", "right_hand"]
POINTS = [12, 14, 2, 20, 30, 1, 0, 0, 0]


def person(number: int, image: int, box: List[float], points: Any = POINTS, **more: Any) -> Dict[str, Any]:
    return {
        "id": number,
        "image_id": image,
        "category_id": 1,
        "bbox": box,
        "area": 321.5,
        "iscrowd": 0,
        "keypoints": points,
        "num_keypoints": 2,
        "segmentation": [[1, 2, 3, 4, 5, 6]],
        **more,
    }


def write(root: Path, annotations: Any = None, splits: Any = ("train2017", "val2017"), **more: Any) -> Path:
    """Three images in each split; of six annotations three are samples."""
    (root / "annotations").mkdir(parents=True)
    for seed, split in enumerate(splits):
        for number in (5, 7, 9):
            draw(root / split / f"{number:012d}.jpg", (60, 48), [("person", 8, 6, 40, 40)], seed=10 * seed + number)
        given = (
            [
                person(1, 9, [8, 6, 32, 34]),
                person(2, 5, [-0.5, 0, 20, 30], [5, 6, 2, 0, 0, 0, 7, 8, 2]),
                person(3, 5, [10, 5, 30, 40]),
                person(4, 5, [1, 1, 50, 40], iscrowd=1),
                person(5, 7, [2, 2, 20, 20], [0] * 9),
                person(6, 7, [2, 2, 20, 20], category_id=3),
            ]
            if annotations is None
            else annotations
        )
        category = {"id": 1, "name": "person", "keypoints": NAMES, "skeleton": [[1, 2], [1, 3]], **more}
        content = {
            "images": [{"id": n, "file_name": f"{n:012d}.jpg", "width": 60, "height": 48} for n in (9, 5, 7)],
            "categories": [category, {"id": 3, "name": "chair"}],
            "annotations": given,
        }
        (root / "annotations" / f"person_keypoints_{split}.json").write_text(json.dumps(content))
    return root


def test_persons_with_key_points_are_samples(tmp_path: Path) -> None:
    splits = CocoKeyPoints(root=str(write(tmp_path / "coco"))).open()
    assert splits.class_names == NAMES and splits.category_ids == [1] and splits.shape == (3, 256, 192)
    points = splits.key_points
    assert points is not None and points.flip_pairs == [(1, 2)] and points.skeleton == [(0, 1), (0, 2)]
    assert points.object_names == ["person"] and list(points.sigmas) == [0.05] * 3
    for source in (splits.train, splits.val):
        assert len(source) == 3
        image_BCHW, point_BJ3, fact_BF = source.fetch(np.arange(3), seed=0, epoch=0, train=False)  # type: ignore[attr-defined]
        assert image_BCHW.shape == (3, 3, 256, 192)
        # In the order of the file; images are numbered in the order of their ids.
        assert fact_BF[:, KeypointMeta.IMAGE].tolist() == [2, 0, 0] and set(fact_BF[:, KeypointMeta.AREA]) == {321.5}
        assert fact_BF[0, KeypointMeta.LEFT : KeypointMeta.AREA].tolist() == [8, 6, 40, 40]
        assert fact_BF[1, KeypointMeta.LEFT : KeypointMeta.AREA].tolist() == [0, 0, 19.5, 30]
        back_23 = fact_BF[0, KeypointMeta.MATRIX : KeypointMeta.LEFT].reshape(2, 3)
        # COCO names a pixel; here its middle is meant. What was not marked is nothing.
        place_22 = transform_points(point_BJ3[0, :2, :2], back_23)
        np.testing.assert_allclose(place_22, [[12.5, 14.5], [20.5, 30.5]], atol=1e-3)
        assert point_BJ3[..., 2].tolist() == [[2, 1, 0], [2, 0, 2], [2, 1, 0]] and not point_BJ3[0, 2].any()


def test_held_out_split_has_complete_images(tmp_path: Path) -> None:
    root = write(tmp_path / "coco", splits=["train2017"])
    splits = CocoKeyPoints(root=str(root), val_annotations=None, val_fraction=0.5).open()
    of_split = [
        set(source.fetch(np.arange(len(source)), seed=0, epoch=0, train=False)[2][:, KeypointMeta.IMAGE])  # type: ignore[attr-defined]
        for source in (splits.train, splits.val)
    ]
    assert len(splits.train) + len(splits.val) == 3 and not of_split[0] & of_split[1]


@pytest.mark.slow
def test_coco_run_trains_evaluates_and_predicts(tmp_path: Path, train_run: Any, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    where = f"dataset.root={write(tmp_path / 'coco')}"
    _, result = train_run(
        "task=pose_estimation",
        "dataset=coco_key_points",
        where,
        "dataset.image_size=[64,32]",
        "dataset.batch_size=2",
        "model.channels=[8,8,8]",
        "model.width=8",
        "trainer.max_steps=3",
    )
    assert result.step == 3 and np.isfinite(result.metrics["val/loss"]), result.cause
    assert run(["eval", "run"]) == 0
    table = (tmp_path / "run/eval/val/key_points.csv").read_text().splitlines()
    cells = [line.split(",") for line in table[1:]]
    assert [row[0] for row in cells] == NAMES and [row[3] for row in cells] == ["3", "2", "1"]
    image = str(tmp_path / "coco/val2017/000000000005.jpg")
    detections = [
        {
            "file": image,
            "found": [
                {"class": "person", "score": 0.5, "box": [10, 5, 40, 45]},
                {"class": "chair", "score": 0.9, "box": [1, 1, 9, 9]},
                {"class": "person", "score": 0.4, "box": [0, 0, 19.5, 30]},
            ],
        },
        {"file": image, "found": []},
    ]
    (tmp_path / "found.jsonl").write_text("\n".join(map(json.dumps, detections)) + "\n\n")
    assert run(["predict", "run", "found.jsonl", "output=rows.jsonl", "folder=drawn"]) == 0
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [(row["file"], row["box"]) for row in rows] == [(image, [10, 5, 40, 45]), (image, [0, 0, 19.5, 30])]
    for row, score in zip(rows, (0.5, 0.4)):
        sure = np.mean([point[2] for point in row["key_points"].values()])
        assert list(row["key_points"]) == NAMES and row["score"] == pytest.approx(score * sure, abs=1e-5)
    assert len({row["picture"] for row in rows}) == 2 and all(Path(row["picture"]).is_file() for row in rows)
    # A box that fills the image is the image.
    whole = {"file": image, "found": [{"class": "person", "score": 1, "box": [0, 0, 60, 48]}]}
    (tmp_path / "whole.jsonl").write_text(json.dumps(whole))
    capsys.readouterr()
    assert run(["predict", "run", "whole.jsonl"]) == 0 and run(["predict", "run", image]) == 0
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first == second
    assert run(["predict", "run", "found.jsonl", "format=coco", "output=results.json"]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert [(one["image_id"], one["category_id"], len(one["keypoints"])) for one in results] == [(5, 1, 9)] * 2
    assert run(["predict", "run", "found.jsonl", "output=found.jsonl"]) == 2
    assert "it is one of the files to predict for" in capsys.readouterr().err
    nose = rows[0]["key_points"]["nose"]
    np.testing.assert_allclose(results[0]["keypoints"][:3], [nose[0] - 0.5, nose[1] - 0.5, nose[2]], atol=0.011)
    assert run(["data", "check", "dataset=coco_key_points", where]) == 0


def found_row(name: str, score: float, box: List[int]) -> str:
    return json.dumps({"file": "a.jpg", "found": [{"class": name, "score": score, "box": box}]})


@pytest.mark.parametrize(
    "line, said",
    [
        ('{"file": "a.jpg"}', "line 1: this is no output"),
        ("[1]", "line 1: this is no output"),
        ("{", "line 1: this is no output"),
        ("[" * 9000, "line 1: this is no output"),
        (found_row("person", 1, [5, 5, 5, 9]), "line 1: this is no output"),
        (found_row("person", 2, [5, 5, 8, 9]), "line 1: this is no output"),
        (found_row("person", float("nan"), [5, 5, 8, 9]), "line 1: this is no output"),
        (found_row("person", 1, [5, 5, 8]), "line 1: this is no output"),
        (found_row("person", 1, [5, 5, 10**400, 9]), "line 1: this is no output"),
        (found_row("person", 1, [5, 5, "1_0", 9]), "line 1: this is no output"),
        (found_row("chair", 1, [5, 5, 8, 9]), "no box of person was found"),
    ],
)
def test_files_that_are_not_detections_are_refused(tmp_path: Path, line: str, said: str) -> None:
    from mxtrain.vision.pose.key_point_dataset import read_detections

    (tmp_path / "found.jsonl").write_text(line)
    with pytest.raises(DataError, match=said):
        read_detections([str(tmp_path / "found.jsonl")], ["person"])


def test_a_validation_split_without_the_category_or_with_other_key_points_is_refused(tmp_path: Path) -> None:
    root = write(tmp_path / "coco")
    path = root / "annotations" / "person_keypoints_val2017.json"
    content = json.loads(path.read_text())
    for change, said in (
        ({"keypoints": ["a", "b", "c"]}, "are a, b, c, and the ones of the training data .nose"),
        ({"keypoints": []}, "names no key points of 'person'"),
        ({"name": "rider"}, "names no key points of 'person'"),
    ):
        content["categories"][0] = {**content["categories"][0], **change}
        path.write_text(json.dumps(content))
        with pytest.raises(DataError, match=said):
            CocoKeyPoints(root=str(root)).open()


def test_pairs_of_other_skeletons_can_be_named(tmp_path: Path) -> None:
    root = str(write(tmp_path / "coco", keypoints=["tip", "wing_a", "wing_b"]))
    assert CocoKeyPoints(root=root).open().key_points.flip_pairs == []
    pairs = [["wing_b", "wing_a"]]
    assert CocoKeyPoints(root=root, flip_pairs=pairs).open().key_points.flip_pairs == [(2, 1)]
    with pytest.raises(DataError, match=r"has no key point 'wing_c'. Did you mean 'wing_.'\? There are: tip, wing_a"):
        CocoKeyPoints(root=root, flip_pairs=[["wing_a", "wing_c"]]).open()
    with pytest.raises(ValueError, match="flip_pairs names a key point twice"):
        CocoKeyPoints(root=root, flip_pairs=[["tip", "wing_a"], ["wing_b", "wing_a"]])
    with pytest.raises(ValueError, match="flip_pairs"):
        CocoKeyPoints(root=root, flip_pairs=[["tip", "wing_a", "wing_b"]])


def test_boxes_outside_of_the_image_are_left_out_on_request(tmp_path: Path) -> None:
    given = [person(1, 9, [70, 5, 20, 30]), person(2, 9, [40, 5, 90, 30]), person(3, 5, [1, 1, 9, 9])]
    splits = CocoKeyPoints(root=str(write(tmp_path / "coco", given)), wrong_boxes="mend").open()
    facts_NF = splits.train.fetch(np.arange(2), seed=0, epoch=0, train=False)[2]  # type: ignore[attr-defined]
    assert len(splits.train) == 2 and facts_NF[0, KeypointMeta.LEFT : KeypointMeta.AREA].tolist() == [40, 5, 60, 35]


@pytest.mark.parametrize(
    "annotations, more, settings, said",
    [
        ([person(1, 9, [1, 1, 9, 9], [1, 2, 2])], {}, {}, "has no 3 key points of x, y and 0, 1 or 2"),
        ([person(1, 9, [1, 1, 9, 9], [1, 2, 3] * 3)], {}, {}, "has no 3 key points of x, y and 0, 1 or 2"),
        ([person(1, 9, [1, 1, 9, 9], [None] * 9)], {}, {}, "has no 3 key points of x, y and 0, 1 or 2"),
        ([person(1, 9, [1, 1, 99, 9])], {}, {}, "reaches 40 pixels beyond its image"),
        ([person(1, 9, [1, 1, 9, 9], [0] * 9)], {}, {}, "has no person with a key point"),
        (None, {"keypoints": None}, {}, "no category of .* has key points"),
        (None, {"keypoints": ["a", "a", "b"]}, {}, "key points without names of their own"),
        (None, {"skeleton": [[1, 4]]}, {}, "a skeleton that joins others"),
        (None, {"keypoints": 3}, {}, "key points without names of their own"),
        ([person(1, 9, [8, 6, 32, 34], ["1_2", *POINTS[1:]])], {}, {}, "has no 3 key points of x, y"),
        (None, {"skeleton": [[1]]}, {}, "a skeleton that joins others"),
        (None, {}, {"classes": ["chair"]}, "chair in .* has no key points"),
        (None, {}, {"classes": ["persn"]}, "has no category 'persn'. Did you mean 'person'"),
    ],
)
def test_untrainable_annotations_are_refused(
    tmp_path: Path, annotations: Any, more: Any, settings: Any, said: str
) -> None:
    root = write(tmp_path / "coco", annotations, **more)
    with pytest.raises(DataError, match=said):
        open_splits(CocoKeyPoints(root=str(root), **settings))


def test_key_points_that_no_object_has_are_named(tmp_path: Path, caplog: Any) -> None:
    annotations = [person(number, image, [8, 6, 32, 34]) for number, image in enumerate((5, 7, 9))]
    open_splits(CocoKeyPoints(root=str(write(tmp_path / "coco", annotations))))
    assert "person_keypoints_train2017.json': none of the 3 objects has the key point right_hand" in caplog.text


def test_key_points_in_shares_of_their_image_are_refused(tmp_path: Path) -> None:
    points = [0.1, 0.2, 2, 0.5, 0.9, 1, 0, 0, 0]
    root = write(tmp_path / "coco", [person(1, 9, [8, 6, 32, 34], points)])
    with pytest.raises(DataError, match="the key points seem to be shares of width and height"):
        CocoKeyPoints(root=str(root)).open()


def test_image_size_different_from_its_annotation_is_warned_about(tmp_path: Path, caplog: Any) -> None:
    root = write(tmp_path / "coco")
    draw(root / "train2017/000000000009.jpg", (120, 96))
    source = CocoKeyPoints(root=str(root)).open().train
    for _ in range(2):
        source.fetch(np.arange(len(source)), seed=0, epoch=0, train=False)
    assert caplog.text.count("has 120 x 96 pixels, but its annotation says 60 x 48") == 1
