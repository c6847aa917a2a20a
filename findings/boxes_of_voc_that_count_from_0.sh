#!/usr/bin/env bash
# datumaro 1.13.12
# Guess: its VOC format counts pixels as PASCAL VOC does, from 1 with the last one included.
# What happened: by default it takes over the numbers. A COCO box that fills a picture of 80 x 60 is written as 0, 0,
# 80, 60, which readers of VOC, who subtract 1, put at -1, -1, a pixel larger than the picture; datumaro itself gives
# back what it wrote. The other way round, a box of VOC that fills the picture (1, 1, 80, 60) is read as one of 79 x 59
# at 1, 1. coordinate_mode="voc-one-based" makes both right, and has to be given in each place: written with it and read
# without it, the box is the smaller one again. Source: datumaro/plugins/data_formats/voc, _write_xml_bbox and
# _parse_bbox. Exit code 0 as long as this is so.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q datumaro==1.13.12 numpy==2.4.6
cd "$folder"
venv/bin/python -W ignore - <<'PYTHON'
import importlib.metadata
import json
import logging
import pathlib
import xml.etree.ElementTree

from datumaro import AnnotationType, Dataset

logging.disable()
path = pathlib.Path("coco/annotations/instances_train.json")
path.parent.mkdir(parents=True)
pathlib.Path("coco/images/train").mkdir(parents=True)
box = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [0, 0, 80, 60], "area": 4800, "iscrowd": 0, "segmentation": []}
image = {"id": 1, "width": 80, "height": 60, "file_name": "a.png"}
path.write_text(json.dumps({"images": [image], "categories": [{"id": 1, "name": "cat"}], "annotations": [box]}))
coco = Dataset.import_from("coco", "coco_instances")
ONE_BASED = {"coordinate_mode": "voc-one-based"}


def written(folder):
    element = xml.etree.ElementTree.parse(f"{folder}/Annotations/a.xml").find(".//bndbox")
    return [float(element.find(name).text) for name in ("xmin", "ymin", "xmax", "ymax")]


def read(folder, **options):
    """Returns the box [x, y, width, height] that datumaro reads from a VOC folder."""
    items = Dataset.import_from(folder, "voc", **options)
    return [box.get_bbox() for item in items for box in item.annotations if box.type == AnnotationType.bbox][0]


def read_by_devkit(folder):
    """Returns the same as PASCAL VOC defines it: the first pixel is 1 and the last one belongs to the box."""
    left, top, right, bottom = written(folder)
    return [left - 1, top - 1, right - left + 1, bottom - top + 1]


coco.export("default", "voc")
coco.export("one_based", "voc", **ONE_BASED)
print(f"datumaro {importlib.metadata.version('datumaro')}: the box 0, 0, 80, 60 (x, y, width, height) as VOC")
found = {}
for folder in ("default", "one_based"):
    found[folder] = written(folder), read(folder), read(folder, **ONE_BASED), read_by_devkit(folder)
    names = "written", "read by default", "read one-based", "read as the devkit says"
    print(f"  {folder}:", *(f"{name} {numbers}" for name, numbers in zip(names, found[folder])), sep="\n    ")
full, smaller = [0, 0, 80, 60], [1, 1, 79, 59]
assert found["default"][0] == found["default"][1] == full and found["default"][3] == [-1, -1, 81, 61]
assert found["one_based"] == ([1, 1, 80, 60], smaller, full, full)
PYTHON
