"""meta.json: what made a run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mxtrain.archive.provenance import write_meta


@pytest.mark.slow
def test_provenance_records_the_variant_of_a_metric(describe_run: Any, tmp_path: Path) -> None:
    report = SimpleNamespace(amx=False, settings=[], lines=list)
    write_meta(tmp_path, describe_run("metric=[accuracy,f1,top_k_accuracy]"), report)
    meta = json.loads((tmp_path / "meta.json").read_text())
    assert meta["metric_signatures"] == {"f1": "average=macro", "top_k_accuracy": "top_k=5"}
    assert meta["working_folder"] == os.getcwd()
    write_meta(tmp_path, describe_run("task=segmentation", "metric=[mean_iou,mean_iou_all_classes]"), report)
    meta = json.loads((tmp_path / "meta.json").read_text())
    assert meta["metric_signatures"] == {
        "mean_iou": "absent_classes=left_out",
        "mean_iou_all_classes": "absent_classes=zero",
    }
