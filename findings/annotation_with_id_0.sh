#!/usr/bin/env bash
# pycocotools 2.0.11
# Guess: the ids of annotations are names, and 0 is as good as any other.
# What happened: COCOeval writes the id of the matched annotation beside each detection and takes 0 for "not matched".
# The annotation with id 0 is never found: perfect detections of two objects with ids 0 and 1 have an average precision
# of 0.25, of one with id 0 0. Ids of images may be 0. Source: pycocotools/cocoeval.py, evaluateImg (dtm) and
# accumulate. Exit code 0 as long as this is so.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q pycocotools==2.0.11 numpy==2.4.6
cd "$folder"
venv/bin/python -W ignore - <<'PYTHON'
import contextlib
import importlib.metadata
import io

from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval


def precision(ids, first_image=1):
    """Returns the average precision of perfect detections of one object in each image."""
    box = [10, 10, 20, 20]
    images = range(first_image, first_image + len(ids))
    truth = COCO()
    truth.dataset = {
        "images": [{"id": image, "width": 100, "height": 100} for image in images],
        "categories": [{"id": 1, "name": "a"}],
        "annotations": [
            {"id": id_, "image_id": image, "category_id": 1, "bbox": box, "area": 400, "iscrowd": 0}
            for id_, image in zip(ids, images)
        ],
    }
    truth.createIndex()
    detected = truth.loadRes([{"image_id": image, "category_id": 1, "bbox": box, "score": 0.9} for image in images])
    evaluation = COCOeval(truth, detected, "bbox")
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    return round(float(evaluation.stats[0]), 3)


with contextlib.redirect_stdout(io.StringIO()):
    found = {
        "1, 2": precision((1, 2)),
        "0, 1": precision((0, 1)),
        "0": precision((0,)),
        "1, 2, images from 0": precision((1, 2), 0),
    }
print(
    f"pycocotools {importlib.metadata.version('pycocotools')}: average precision of perfect detections by ids of annotations"
)
for name, value in found.items():
    print(f"  {name:20} {value}")
assert found["1, 2"] == found["1, 2, images from 0"] == 1 and found["0, 1"] < 0.3 and found["0"] == 0
PYTHON
