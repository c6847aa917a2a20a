"""Runs on videos: predicted, exported and served, by the same frames."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import cv2
import numpy as np
import pytest
from running import train_here
from served_here import ask

from mxtrain.cli.dispatch import run
from mxtrain.exporting.standalone import OpenedExport
from mxtrain.serving.models import ServedModel
from mxtrain.vision.video import exported_videos


@pytest.mark.slow
def test_exported_and_served_networks_read_videos(tmp_path: Path, capfd: Any) -> None:
    draw = np.random.default_rng(0)
    for label, name in enumerate(("dark", "light")):
        (tmp_path / "data" / name).mkdir(parents=True)
        for number in range(6):
            path = str(tmp_path / "data" / name / f"{number}.mp4")
            writer = cv2.VideoWriter(path, cv2.VideoWriter_fourcc(*"mp4v"), 10, (40, 32))
            for _ in range(7):
                writer.write(draw.integers(100 * label, 100 * label + 156, (32, 40, 3), dtype=np.uint8))
            writer.release()
    settings = ["dataset=video_folder", "model=lenet", "dataset.frames=3", "dataset.image_size=28"]
    train_here(tmp_path / "run", *settings, f"dataset.root={tmp_path / 'data'}", "trainer.max_epochs=2")
    path = tmp_path / "data" / "light" / "2.mp4"
    capfd.readouterr()
    assert run(["predict", str(tmp_path / "run"), str(path)]) == 0
    (row,) = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert run(["export", str(tmp_path / "run"), f"out={tmp_path / 'exported'}"]) == 0
    report = json.loads((tmp_path / "exported" / "export.json").read_text())
    assert report
    folder = OpenedExport(str(tmp_path / "exported"))
    assert folder.signature["samples"] == "videos" and folder.signature["reader"] == "exported_videos"
    (found,) = exported_videos.predict(folder, path.read_bytes(), str(path))
    assert found["file"] == row["file"] and found["class"] == row["class"]
    assert found["probability"] == pytest.approx(row["probability"], abs=2e-6)
    model = ServedModel("clips", str(tmp_path / "exported"), 1, False, 8, 4.0)
    url, octets = "/v2/models/clips/predict", {"content-type": "application/octet-stream"}
    answers = ask(
        [model],
        ("POST", url, {"content-type": "video/mp4"}, path.read_bytes()),
        ("POST", url, octets, path.read_bytes()),
        ("POST", url, octets, path.read_bytes()[:500]),
        ("POST", url, octets, f"#EXTM3U\n#EXTINF:9,\n{path}\n".encode()),
    )
    for status, answer, _ in answers[:2]:
        assert status == 200 and json.loads(answer)["class"] == row["class"]
        assert json.loads(answer)["probability"] == pytest.approx(row["probability"], abs=2e-6)
    said = (
        "the body cannot be read as a video (FFmpeg finds no frames",
        "the body cannot be read as a video (it begins",
    )
    for (status, answer, _), reason in zip(answers[2:], said):
        assert status == 400 and json.loads(answer)["error"].startswith(reason)
    for limit, reason in ((1279, "has frames of 40 x 32 pixels, and at most 1,279"), (1280, "")):
        ((status, answer, _),) = ask([model], ("POST", url, octets, path.read_bytes()), max_pixels=limit)
        assert status == (413 if reason else 200) and reason in json.loads(answer).get("error", "")
