"""Boxes in CSV files: columns and formats that are recognised, and those that are asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from boxed_files import draw
from recognised import recognised

from mxtrain.data.checking.dataset_check import CollectedFindings
from mxtrain.errors import DataError
from mxtrain.vision.objects.box_csv import BoxCsv

SIZE = (40, 20)
BOX = [[4, 2, 24, 12, 0]]
CORNERS = "4,2,24,12"
SHARES = "0.1,0.1,0.6,0.6"


def write(root: Path, text: str, name: str = "train.csv") -> Path:
    for number, image in enumerate("abc"):
        draw(root / f"{image}.png", SIZE, seed=number)
    (root / name).write_text(text)
    return root


def opened(root: Path, findings: Any = None, **settings: Any) -> Any:
    dataset = BoxCsv(root=str(root), **{"image_size": [32, 32], "val_fraction": 0.34, **settings})
    return dataset.examine(findings) if findings else dataset.open()


def boxes_of(*sources: Any) -> dict:
    return {
        source.name(index)[-6:-5]: source.boxes(index)[:, :5].round(4).tolist()
        for source in sources
        for index in range(len(source))
    }


def both(header: str, row: str) -> str:
    """A box in a.png and in b.png, and c.png without one."""
    return f"{header}\na.png,{row}\nb.png,{row}\n" + "c.png" + "," * row.count(",") + ",\n"


@pytest.mark.parametrize(
    "text",
    [
        both("filename,xmin,ymin,xmax,ymax,class", f"{CORNERS},cat"),
        both("image,x1,y1,x2,y2,label", f"{SHARES},cat"),
        both("ImageID,XMin,XMax,YMin,YMax,LabelName", "0.1,0.6,0.1,0.6,cat"),  # Open Images
        both("path,left,top,width,height,name", "4,2,20,10,cat"),
        both("file,cx,cy,w,h,category", "14,7,20,10,cat"),
        both("file,x_center,y_center,width,height,class", "14,7,20,10,cat").replace(",", ";"),
        both("image,x,y,width,height,class", "4,2,20,10,cat"),  # as centres these leave the image
        both("filename,width,height,class,xmin,ymin,xmax,ymax", f"40,20,cat,{CORNERS}"),  # TensorFlow, Roboflow
    ],
)
def test_formats_are_recognised_by_names_or_by_the_boxes(text, tmp_path) -> None:
    splits = opened(write(tmp_path, text))
    assert list(splits.class_names) == ["cat"]
    assert boxes_of(splits.train, splits.val) == {"a": BOX, "b": BOX, "c": []}


@pytest.mark.parametrize(
    "text, found",
    [
        ("a.png,30,12,39,19,cat\nb.png,1,1,9,9,cat\nc.png,,,,,\n", [30, 12, 39, 19]),  # keras-retinanet
        ("a.png,cat,30,12,39,19\nb.png,cat,1,1,9,9\nc.png,,,,,\n", [30, 12, 39, 19]),
        ('image,bbox,label\na.png,"[22, 12, 18, 8]",cat\nb.png,"[1, 1, 30, 15]",cat\nc.png,,\n', [22, 12, 40, 20]),
        ('image_id,width,bbox\na.png,40,"[22, 12, 18, 8]"\nb.png,40,"[1, 1, 30, 15]"\nc.png,,\n', [22, 12, 40, 20]),
    ],
)
def test_files_without_names_are_recognised_by_the_only_format_in_which_boxes_fit(
    text, found, tmp_path, caplog
) -> None:
    with caplog.at_level("INFO"):
        splits = opened(write(tmp_path, text))
    boxes = boxes_of(splits.train, splits.val)
    assert boxes["a"] == [[*found, 0]] and len(boxes["b"]) == 1 and boxes["c"] == []
    assert list(splits.class_names) == (["object"] if text.startswith("image_id") else ["cat"])
    assert "all are inside of their images only so" in caplog.text


@pytest.mark.parametrize(
    "settings, expected",
    [
        ({"box_format": "xyxy"}, [4, 2, 10, 6]),
        ({"box_format": "xywh"}, [4, 2, 14, 8]),
        ({"box_format": "cxcywh"}, [-1, -1, 9, 5]),
    ],
)
def test_formats_that_fit_alike_are_asked_for(settings, expected, tmp_path) -> None:
    root = write(tmp_path, both("image,x,y,w,h,class", "14,8,10,6,cat"))
    with pytest.raises(DataError, match="The boxes fit their images as xywh and as cxcywh. Type dataset.box_format=FO"):
        opened(root)
    root = write(tmp_path, both("image,x,y,w,h,class", "4,2,10,6,cat"))
    edges = [max(edge, 0) for edge in expected]
    assert boxes_of(opened(root, wrong_boxes="mend", **settings).train)["a"][0][:4] == edges


def test_formats_that_do_not_fit_are_asked_for(tmp_path) -> None:
    root = write(tmp_path, both("image,x,y,w,h,class", "30,8,90,6,cat"))
    with pytest.raises(
        DataError, match="The boxes fit their images in no format. Type dataset.box_format=FORMAT: xyxy ="
    ):
        opened(root)


def test_columns_can_be_named_or_numbered(tmp_path) -> None:
    root = write(tmp_path, both("photo,kind,p,q,r,s", f"cat,{CORNERS}"))
    with pytest.raises(
        DataError, match="which columns are image, class and the four numbers. The first row is photo, k"
    ):
        opened(root)
    names = {"columns": ["photo", "kind", "p", "q", "r", "s"], "box_format": "xyxy"}
    assert boxes_of(opened(root, **names).train)["a"] == BOX
    numbers = {"columns": ["0", "1", "2", "3", "4", "5"], "box_format": "xyxy"}
    assert boxes_of(opened(root, **numbers).train)["a"] == BOX
    with pytest.raises(DataError, match="has no column 'kinds'. Did you mean 'kind'"):
        opened(root, columns=["photo", "kinds", "p", "q", "r", "s"])
    with pytest.raises(DataError, match="has 6 columns, 0 to 5"):
        opened(root, columns=["0", "1", "2", "3", "4", "6"])
    with pytest.raises(DataError, match="name six: image, class, and four numbers"):
        opened(root, columns=["photo", "kind"])


def test_splits_are_files_or_folders(tmp_path) -> None:
    head = "filename,width,height,class,xmin,ymin,xmax,ymax\n"
    for split, name in (("train", "a"), ("valid", "b"), ("test", "c")):
        draw(tmp_path / "roboflow" / split / f"{name}.png", SIZE, seed=ord(name))
        (tmp_path / "roboflow" / split / "_annotations.csv").write_text(f"{head}{name}.png,40,20,cat,{CORNERS}\n")
    splits = opened(tmp_path / "roboflow")
    assert [boxes_of(part) for part in (splits.train, splits.val, splits.test)] == [{name: BOX} for name in "abc"]
    root = write(tmp_path / "files", f"{head}a.png,40,20,cat,{CORNERS}\n")
    write(root, f"{head}b.png,40,20,cat,{CORNERS}\n", "val.csv")
    assert boxes_of(opened(root).val) == {"b": BOX}
    (root / "train.csv").rename(root / "labels_of_mine.csv")
    with pytest.raises(DataError, match="holds no train.csv. There are: labels_of_mine.csv, val.csv. Name the file"):
        opened(root)
    write(root, f"{head}a.png,40,20,cat,{CORNERS}\nc.png,40,20,cat,{CORNERS}\n", "labels_of_mine.csv")
    assert boxes_of(opened(root / "labels_of_mine.csv", val_fraction=0.5).train) == {"a": BOX}
    with pytest.raises(DataError, match="there is no folder '.*nowhere'. Name yours with dataset.root=FOLDER"):
        opened(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "row, message",
    [
        (
            f"d.png,{CORNERS},cat",
            "line 4 names 'd.png', and there is no file '.*d.png'. Add it, or say with dataset.im",
        ),
        ("c.png,4,2,24,cat", "line 4 has 5 columns, and needs 6."),
        ("c.png,4,2,24,x,cat", "line 4: '4, 2, 24, x' are not four numbers."),
        (f"c.png,{CORNERS},", "line 4: the box has no class."),
        (
            "c.png,-3,2,4,12,cat",
            "line 4: the box -3, 2, 4, 12 .* reaches 3 pixels beyond the left or top edge of its im",
        ),
        ("c.png,24,2,4,12,cat", "line 4: the box 24, 2, 4, 12 .* of 'cat' ends before it begins"),
        (f"c.png,{CORNERS},cut", "line 4: there is no class 'cut'. Did you mean 'cat'. Classes are cat."),
        ("c.png,nan,2,4,12,cat", "line 4: the box nan, 2, 4, 12 .* holds a number that is not finite"),
    ],
)
def test_wrong_rows_are_refused_with_their_line(row, message, tmp_path) -> None:
    head = "image,xmin,ymin,xmax,ymax,class"
    root = write(tmp_path, f"{head}\na.png,{CORNERS},cat\nb.png,{CORNERS},cat\n{row}\n")
    with pytest.raises(DataError, match=message):
        opened(root, classes=["cat"])
    findings = CollectedFindings()
    splits = opened(root, findings, classes=["cat"])
    assert sum(findings.counts.values()) == 1
    assert {name: rows for name, rows in boxes_of(splits.train, splits.val).items() if rows} == {"a": BOX, "b": BOX}


def test_shares_can_be_said(tmp_path) -> None:
    root = write(tmp_path, both("image,xmin,ymin,xmax,ymax,class", "0,0,1,1,cat"))
    assert boxes_of(opened(root).train)["a"] == [[0, 0, 1, 1, 0]]
    assert boxes_of(opened(root, relative=True).train)["a"] == [[0, 0, 40, 20, 0]]


def test_shares_that_fit_only_as_centres_are_centres(tmp_path) -> None:
    splits = opened(write(tmp_path, both("image,x,y,w,h,class", "0.5,0.5,0.4,0.6,cat")))
    assert boxes_of(splits.train)["a"] == [[12, 4, 28, 16, 0]]


def test_empty_files_are_refused_and_the_form_is_guessed(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("data"), both("image,xmin,ymin,xmax,ymax,class", f"{CORNERS},cat"))
    typed = "task=detection dataset=box_csv dataset.root=data/train.csv"
    assert recognised(BoxCsv, "data", "box_csv") == ("a CSV table of boxes", typed)
    with pytest.raises(DataError, match="train.csv' has no rows"):
        opened(write(tmp_path / "data", "\n,,\n"))


def test_classes_of_the_root_are_those_of_folders_of_splits(tmp_path) -> None:
    (tmp_path / "classes.txt").write_text("dog\ncat\n")
    for split, name in (("train", "a"), ("valid", "b")):
        draw(tmp_path / split / f"{name}.png", SIZE, seed=ord(name))
        (tmp_path / split / "boxes.csv").write_text(f"filename,xmin,ymin,xmax,ymax,class\n{name}.png,{CORNERS},cat\n")
    assert list(opened(tmp_path).class_names) == ["dog", "cat"]
    (tmp_path / "classes.txt").rename(tmp_path / "train" / "classes.txt")
    assert list(opened(tmp_path).class_names) == ["dog", "cat"]
