"""Exported folders read files as `mxtrain predict` does, without MXNet and mxtrain."""

from __future__ import annotations

import base64
import io
import json
import re
import subprocess
import sys
import wave
from pathlib import Path
from typing import Any, Callable, Dict, List

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as coco_mask
from served_folders import Served
from small_runs import CASES, FOUR
from test_export_contract import export, folder  # noqa: F401  # fixtures

import mxtrain
from mxtrain.cli.dispatch import run
from mxtrain.errors import DataError

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_cache")]


def predicted(exported: Path, *files: Path) -> List[Dict[str, Any]]:
    """The rows of predict.py in a process that can import neither MXNet nor mxtrain."""
    blocked = "import sys, runpy; sys.modules.update(mxnet=None, mxtrain=None, scipy=None); del sys.argv[0]; "
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"{blocked}sys.path[0] = {str(exported)!r}; runpy.run_path(sys.argv[0], run_name='__main__')",
            str(exported / "predict.py"),
            *map(str, files),
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def require_equal(found: Any, expected: Any) -> None:
    """The same JSON, but for the last digits of numbers."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name in expected:
            require_equal(found[name], expected[name])
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for pair in zip(found, expected):
            require_equal(*pair)
    else:
        assert found == (pytest.approx(expected, rel=1e-6, abs=2e-4) if isinstance(expected, float) else expected)


TEXTS = {
    "bert": "w1 w2 w3\nw4 w19 w2 w2 w7 w1 w3 w5 w7 w9 w11 w13 w15\n",
    "lstm": "one two three\nseven\n",
    "gpt": "one two three\nseven eight\n",
    "transformer": "one w1 w2\n\none w7\n",
    "gnmt": "one w1 w2\none w7 w8\n",
    "transformer, summaries": f"Oslo met Riga . Anna scored in minute 7 .\n{'It rained . ' * 40}\n",
    "bert, tags": "w1 w2 w3\nw4 w5 w6 w7\n",
    "bert, numbers": "two hundred and five\nsix thousand\n",
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name == "gpt" else pytest.mark.zoo) for name in TEXTS])
def test_texts_are_predicted_as_by_the_run(export: Callable[..., Path], name: str, tmp_path: Path) -> None:
    exported = export(*CASES[name])
    file = tmp_path / "given.txt"
    file.write_text(TEXTS[name])
    expected = mxtrain.load(exported.parent).predict(file)
    require_equal(predicted(exported, file), [dict(row) for row in expected])


IMAGES = {
    "lenet": (),
    "lenet, numbers": (),
    "fpn": (),
    "centernet_fpn": ("task.score_threshold=0.0",),
    "yolact": ("task.score_threshold=0.0",),
    "pose_fpn": (),
    "mask_rcnn": ("task.score_threshold=0.0",),
}
IN_ZOO = pytest.mark.zoo


def require_same_objects(found: List[Dict[str, Any]], expected: List[Dict[str, Any]]) -> None:
    """The same detections in any order: of nearly equal scores it hangs on the last bit."""
    assert len(found) == len(expected) > 0
    for one in expected:
        alike = [
            other
            for other in found
            if other["class"] == one["class"]
            and other["score"] == pytest.approx(one["score"], abs=2e-4)
            and other["box"] == pytest.approx(one["box"], abs=0.05)
        ]
        assert alike, one
        if "mask" in one:
            masks = [coco_mask.decode(each["mask"]) for each in (one, *alike)]
            assert min((masks[0] != other).mean() for other in masks[1:]) < 0.002


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name == "fpn" else IN_ZOO) for name in IMAGES])
def test_images_are_predicted_as_by_the_run(export: Callable[..., Path], name: str, tmp_path: Path) -> None:
    exported = export(*CASES[name], *IMAGES[name])
    files = [tmp_path / "wide.png", tmp_path / "high.png", tmp_path / "small.png"]
    for number, (file, size) in enumerate(zip(files, ((40, 90), (70, 33), (20, 24)))):
        pixels = np.random.default_rng(number).integers(0, 256, (5, 5), dtype=np.uint8)
        Image.fromarray(pixels).resize(size[::-1], Image.BILINEAR).save(file)
    words = [f"output={tmp_path}/right.jsonl", *[f"folder={tmp_path}/right"] * (name == "fpn")]
    assert run(["predict", str(exported.parent), *map(str, files), *words]) == 0
    expected = list(map(json.loads, (tmp_path / "right.jsonl").read_text().splitlines()))
    found = predicted(exported, Path("--out"), tmp_path / "out", *files)
    for row, other in zip(found, expected):
        for one in (row, other):
            one.update({key: Path(one[key]).read_bytes() for key in ("mask",) if key in one})
        require_same_image(row, other)
    with Served(exported) as server:
        for file, other in zip(files, expected):
            status, row, _ = server.ask("/v2/models/export/predict", file.read_bytes(), "image/png")
            assert status == 200, row
            row.update({key: base64.b64decode(row[key]) for key in ("mask",) if key in row})
            if "probability" not in other:  # the server names more classes
                require_same_image({"file": str(file), **row}, other)
        damaged = files[0].read_bytes()[:-30]
        status, row, _ = server.ask("/v2/models/export/predict", damaged, "image/png")
        assert status == 400 and "cannot be read as an image" in row["error"]


def require_same_image(row: Dict[str, Any], other: Dict[str, Any]) -> None:
    """The same answer for an image, but for the last digits."""
    if "found" in other:
        require_same_objects(row["found"], other["found"])
        return
    if "mask" in other:
        mask, right = (np.asarray(Image.open(io.BytesIO(one["mask"]))) for one in (row, other))
        assert mask.shape == right.shape and (mask != right).mean() < 0.002
    require_equal({**row, "mask": b""}, {**other, "mask": b""})


@pytest.mark.parametrize("name", ["wide_deep", pytest.param("regression", marks=IN_ZOO)])
def test_rows_of_a_table_are_predicted_as_by_the_run(
    export: Callable[..., Path],
    name: str,
    tmp_path: Path,
) -> None:
    exported = export(*CASES[name])
    own = json.loads((exported / "signature.json").read_text())["signature"]
    columns = own.get("columns", [{"name": one, "kind": "number"} for one in own["class_names"]])
    cells = [
        [
            ",".join(
                [str(0.5 * row + place), ""][row == 2 and place == 1]
                if one["kind"] == "number"
                else [*one.get("vocabulary", ["x"]), "never seen", ""][row]
                for place, one in enumerate(columns)
            )
        ]
        for row in range(3)
    ]
    file = tmp_path / "rows.csv"
    file.write_text("\n".join([",".join(one["name"] for one in columns), *(row for (row,) in cells)]) + "\n")
    expected = mxtrain.load(exported.parent).predict(file)
    require_equal(predicted(exported, file), [dict(row) for row in expected])


def test_cells_of_a_table_are_read_as_the_run_reads_them(export: Callable[..., Path], tmp_path: Path) -> None:
    rows = [f"{['-9', '1,5', '-0,25', '3'][row % 4]}\t{['-9', 'NA', 'x'][row % 3]}\t{row % 2}" for row in range(60)]
    (tmp_path / "train.tsv").write_text("\n".join(["size\tkind\ttarget", *rows]) + "\n")
    exported = export(
        "task=tabular",
        "dataset=feature_table",
        f"dataset.train={tmp_path}/train.tsv",
        "model.units=4",
        *FOUR,
        "dataset.columns={size: number, kind: category}",
        "dataset.missing=['-9']",
        "dataset.decimal=','",
    )
    file = tmp_path / "rows.tsv"
    file.write_text("size\tkind\n2,25\tx\n-9\tNA\n-\t-9\n-1,5e1\tnew\n")
    expected = [dict(row) for row in mxtrain.load(exported.parent).predict(file)]
    assert len({row["probability"] for row in expected}) == 4
    rows = predicted(exported, file)
    require_equal(rows, expected)
    answers = [{name: value for name, value in row.items() if name != "file"} for row in rows]
    header, *lines = [line.split("\t") for line in file.read_text().splitlines()]
    given = [dict(zip(header, line)) for line in lines]
    with Served(exported) as server:
        table = file.read_bytes()
        for body, kind in ((table, "text/tab-separated-values"), ({"rows": given}, "application/json")):
            status, found, _ = server.ask("/v2/models/export/predict", body, kind)
            assert status == 200, found
            require_equal(found["predictions"], answers)
        require_equal(server.ask("/v2/models/export/predict", {"size": 2.25, "kind": "x"})[1], answers[0])


def test_cells_that_the_run_refuses_are_refused(export: Callable[..., Path], tmp_path: Path) -> None:
    rows = [f"{row % 7},{row % 2}" for row in range(60)]
    (tmp_path / "train.csv").write_text("\n".join(["size,target", *rows]) + "\n")
    exported = export(
        "task=tabular",
        "dataset=feature_table",
        f"dataset.train={tmp_path}/train.csv",
        "model.units=4",
        *FOUR,
        "dataset.columns={size: number}",
        "dataset.missing=['']",
    )
    trained = mxtrain.load(exported.parent)
    for cell, value, why in (
        ("1e400", "inf", "no finite number"),
        ("1e39", "1e+39", "and the largest number that is read is 3.4e+38"),
        ("-1e39", "-1e+39", "and the largest number that is read is 3.4e+38"),
        ("inf", "inf", "no finite number"),
        ("nan", "nan", "no finite number"),
    ):
        file = _written(tmp_path, f"size\n1\n{cell}")
        with pytest.raises(DataError, match=re.escape(f"'size' is {value}, {why}")):
            list(trained.predict(file))
        done = subprocess.run(
            [sys.executable, str(exported / "predict.py"), str(file)], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 2 and done.stdout.count("\n") == 1
        assert f"given.csv:3: '{cell}' in column 'size' is no finite number of 32 bits" in done.stderr


def test_pairs_of_a_recommender_are_scored(export: Callable[..., Path], tmp_path: Path) -> None:
    exported = export(*CASES["neumf"])
    (row,) = mxtrain.load(exported.parent).predict(_written(tmp_path, "u3"))
    best = dict(row)["items"][0]
    found = predicted(exported, _written(tmp_path, f"user,item\nu3,{best['item']}"))
    assert [one["score"] for one in found] == [pytest.approx(best["score"], abs=2e-5)]


def _written(folder: Path, text: str) -> Path:
    file = folder / "given.csv"
    file.write_text(text + "\n")
    return file


def write_wav(path: Path, rate: int, channels: int, width: int) -> None:
    """A second of a tone that wanders, in so many bytes a sample."""
    draw = np.random.default_rng(rate + channels)
    tone = np.sin(np.cumsum(draw.uniform(0.02, 0.3, rate)))[:, None] * draw.uniform(0.2, 0.9, channels)
    whole = (tone * 127 + 128 if width == 1 else tone * (2 ** (8 * width - 1) - 1)).astype(np.int64)
    with wave.open(str(path), "wb") as file:
        file.setparams((channels, width, rate, 0, "NONE", ""))
        file.writeframes(b"".join(int(one).to_bytes(width, "little", signed=width > 1) for one in whole.ravel()))


@pytest.mark.parametrize("name", ["deep_speech2", pytest.param("conformer", marks=IN_ZOO)])
def test_recordings_are_recognised_as_by_the_run(
    export: Callable[..., Path],
    name: str,
    tmp_path: Path,
) -> None:
    spoken = [tmp_path / f"{number}.wav" for number in range(12)]
    for number, path in enumerate(spoken):
        write_wav(path, 8000 + number, 1, 2)
    lines = [
        {"audio_filepath": path.name, "duration": 1.0, "text": "abc"[: 1 + number % 3]}
        for number, path in enumerate(spoken)
    ]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, lines)))
    kept = [word for word in CASES[name] if not word.startswith(("dataset.num", "dataset.length", "dataset.height"))]
    exported = export(
        *kept,
        "dataset=speech_manifest",
        f"dataset.train={tmp_path}/train.jsonl",
        "dataset.val_fraction=0.3",
        "dataset.features.sample_rate=8000",
        "dataset.features.num_mels=16",
    )
    assert json.loads((exported / "export.json").read_text())["files"] == 4
    files = [tmp_path / f"given{number}.wav" for number in range(4)]
    for path, form in zip(files, ((8000, 1, 2), (44100, 2, 2), (8000, 1, 1), (16000, 1, 3))):
        write_wav(path, *form)
    expected = mxtrain.load(exported.parent).predict(files)
    found = predicted(exported, *files)
    assert [row["text"] for row in found] == [row["text"] for row in expected] and any(row["text"] for row in found)
