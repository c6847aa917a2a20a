"""Results of single samples: losses and predictions add up to the loss and metrics of the split, in every task."""

from __future__ import annotations

import csv
import html.parser
import io
import json
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import pytest
from PIL import Image
from small_runs import CASES, with_data, write_data

from mxtrain.cli import main
from mxtrain.data.checking.checks import SourceChecks
from mxtrain.data.checking.problems import DataLocation, DataLocations
from mxtrain.task.confusion_page import render_confusion
from mxtrain.task.sample_results import NUM_WORST, ResultReader, SampleResults, csv_line, location_text, location_texts
from mxtrain.types import Batch

pytestmark = pytest.mark.usefixtures("own_cache")

COLUMNS = {
    "mlp": ["true", "predicted", "probability"],
    "regression": ["true", "predicted"],
    "wide_deep": ["true", "predicted", "probability"],
    "bert": ["true", "predicted", "probability", "text"],
    "bilstm": ["words", "true", "predicted", "wrong", "entity_f1"],
    "bilstm, questions": ["question", "true", "predicted", "exact_match", "answer_f1"],
    "lenet, numbers": ["true", "predicted"],
    "bert, numbers": ["true", "predicted"],
    "bert, masked": [],
    "lstm": [],
    "transformer": ["source", "reference", "hypothesis"],
    "fpn": ["pixel_accuracy", "mean_iou"],
    "pose_fpn": ["score", "key_points", "mean_error", "pck"],
    "centernet_fpn": ["objects", "found", "matched", "missed", "false_positives"],
    "yolact": ["objects", "found", "matched", "missed", "false_positives"],
    "deep_speech2": ["reference", "hypothesis"],
    "fastspeech": [],
    "fism": ["user", "item", "rank"],
    "sasrec": ["user", "item", "rank"],
}


def read_rows(content: bytes) -> List[Dict[str, str]]:
    return list(csv.DictReader(io.StringIO(content.decode())))


@pytest.mark.zoo_except("regression", "bilstm, questions", "transformer", "yolact", "fastspeech", "fism", "sasrec")
@pytest.mark.slow
@pytest.mark.parametrize("case", list(COLUMNS))
def test_results_of_samples_add_up_to_those_of_the_split(case: str, describe_run: Any, tmp_path: Path) -> None:
    from mxtrain.engine.backend import mx
    from mxtrain.training.build import build_run
    from mxtrain.training.loaders import build_loader, open_data

    write_data(tmp_path)
    description = describe_run("logger=jsonl", *with_data(CASES[case], tmp_path), "dataset.eval_batch_size=3")
    run = build_run(description, tmp_path / "run")
    evaluator = run.runner.context.evaluator
    splits, signature = open_data(description)
    source = splits.val
    loader = build_loader(description, source, signature, mx.cpu())
    results = SampleResults(
        ResultReader(description, signature, source, "val", evaluator.decode), io.BytesIO(), evaluator.losses
    )
    values = evaluator.measure(loader, results.update)
    stream = io.BytesIO()
    results.copy_to(stream)
    rows = read_rows(stream.getvalue())
    named = [name for name in rows[0] if name not in ("file", "sample", "loss", "weight")]
    assert named[: len(COLUMNS[case])] == COLUMNS[case]
    assert [int(row["sample"]) for row in rows] == list(range(loader.num_samples))
    weight_N = np.array([float(row.get("weight", 1.0)) for row in rows])
    loss_N = np.array([float(row["loss"]) for row in rows])
    assert (loss_N @ weight_N) / max(weight_N.sum(), 1e-9) == pytest.approx(values["loss"], rel=1e-5)
    for name in {"entity_f1", "wer", "cer", "sentence_accuracy"} & set(values):
        assert all(0 <= float(row[name]) for row in rows)
    if "accuracy" in values and "probability" in named:
        right = [row["true"] == row["predicted"] for row in rows]
        assert np.mean(right) == pytest.approx(values["accuracy"])
    if "root_mean_squared_error" in values:
        errors = [float(row["true"]) - float(row["predicted"]) for row in rows]
        assert np.sqrt(np.square(errors).mean()) == pytest.approx(values["root_mean_squared_error"], rel=1e-4)
    if "hr_at_k" in values:
        assert np.mean([int(row["rank"]) <= 10 for row in rows]) == pytest.approx(values["hr_at_k"])
    if "pck" in values and case == "pose_fpn":
        weights = np.array([int(row["key_points"]) for row in rows])
        assert np.array([float(row["pck"]) for row in rows]) @ weights / weights.sum() == pytest.approx(values["pck"])
    worst = [row["loss"] for row in results.worst]
    assert worst == sorted(loss_N.tolist(), reverse=True)[:NUM_WORST] or worst == pytest.approx(
        sorted(loss_N, reverse=True)[:NUM_WORST]
    )


def write_images(folder: Path) -> None:
    """Writes images of two classes, one of which has a name with characters of HTML."""
    for number in range(24):
        path = folder / ("a<b" if number % 2 else "dark") / f"image {number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (12, 12), 230 if number % 2 else 10 + number).save(path)


class Links(html.parser.HTMLParser):
    """Collects ids of sections, links and texts of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.ids: List[str] = []
        self.links: List[str] = []
        self.tags: List[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        values = dict(attrs)
        self.tags.append(tag)
        self.ids += [values["id"]] if "id" in values else []
        self.links += [values["href"]] if "href" in values else []


@pytest.mark.slow
def test_eval_writes_predictions_worst_images_and_a_page(train_run: Any, tmp_path: Path, capsys: Any) -> None:
    write_images(tmp_path / "photos")
    train_run(
        "dataset=image_folder",
        f"dataset.root={tmp_path}/photos",
        "dataset.image_size=[12,12]",
        "model=mlp",
        "model.hidden=[4]",
        "dataset.val_fraction=0.5",
        "dataset.test_fraction=0",
        "trainer.max_epochs=1",
        "dataset.batch_size=4",
    )
    run = tmp_path / "run"
    assert main(["eval", str(run), "split=val"]) == 0
    folder = run / "eval" / "val"
    measured = json.loads((folder / "metrics.json").read_text())
    rows = read_rows((folder / "predictions.csv").read_bytes())
    assert all(Path(row["file"]).is_file() and Path(row["file"]).parent.name == row["true"] for row in rows)
    assert np.mean([float(row["loss"]) for row in rows]) == pytest.approx(measured["loss"], rel=1e-5)
    assert {"predictions.csv", "worst.csv", "worst.png", "confusion.html"} <= set(measured["files"])
    worst = read_rows((folder / "worst.csv").read_bytes())
    assert [row["file"] for row in worst] == [row["file"] for row in sorted(rows, key=lambda r: -float(r["loss"]))]
    with Image.open(folder / "worst.png") as sheet:
        assert sheet.size[1] > 300
    page = (folder / "confusion.html").read_text()
    links = Links(page)
    anchors = {link[1:] for link in links.links if link.startswith("#")}
    assert (
        anchors
        == set(links.ids)
        == {
            f"cell-{i}-{j}"
            for i, j in {(("a<b", "dark").index(row["true"]), ("a<b", "dark").index(row["predicted"])) for row in rows}
        }
    )
    files = {link for link in links.links if link.startswith("file:")}
    assert files == {Path(row["file"]).as_uri() for row in rows} and "a<b<" not in page and "script" not in links.tags
    assert main(["predict", str(run), "split=val", f"output={tmp_path}/out.csv"]) == 0
    predicted = read_rows((tmp_path / "out.csv").read_bytes())
    assert [(row["file"], row["class_1"]) for row in predicted] == [(row["file"], row["predicted"]) for row in rows]
    assert main(["predict", str(run), "split=val", "sample=3", f"output={tmp_path}/three.csv"]) == 0
    assert read_rows((tmp_path / "three.csv").read_bytes()) == predicted[:3]
    assert main(["predict", str(run), "split=test"]) == 2
    assert "split=test: this dataset has no such split" in capsys.readouterr().err
    assert main(["predict", str(run), "split=val", "x.png"]) == 2
    assert "split= takes samples of the run's own data, and 'x.png' is named" in capsys.readouterr().err
    from mxtrain import load

    own = list(load(run).results(split="val"))
    assert [row["file"] for row in own] == [row["file"] for row in rows]
    np.testing.assert_allclose([row["loss"] for row in own], [float(row["loss"]) for row in rows], rtol=1e-6)


def test_results_are_written_in_the_order_of_the_samples() -> None:
    """Two batches out of order, one sample twice, and a cell with quotes and the end of a line."""

    class Reader:
        has_one_class = True

        def predictions(self, batch: Any, outputs: Any) -> None:
            return None

        def rows(self, batch: Any, predictions: Any, losses: Any) -> Any:
            for index in batch.index_B.tolist():
                yield (
                    index,
                    {
                        "text": f'one "{index}"\ntwo',
                        "true": "a",
                        "predicted": "ab"[index % 2],
                        "loss": float("nan") if index == 2 else float(index),
                    },
                )

    results = SampleResults(Reader(), io.BytesIO(), lambda batch, outputs: [])  # type: ignore[arg-type]
    for indices in ([3, 4], [0, 1], [1, 2]):
        results.update(Batch((), (), len(indices), index_B=np.array(indices)), ())
    stream = io.BytesIO()
    results.copy_to(stream)
    rows = read_rows(stream.getvalue())
    assert [row["text"] for row in rows] == [f'one "{index}"\ntwo' for index in range(5)]
    assert [row["text"][5] for row in results.worst][:3] == ["2", "4", "3"]  # a loss that is NaN is the worst
    assert results.confusion == {("a", "b"): 2, ("a", "a"): 3}  # a repeated sample counts once
    assert len(results.worst) == 5 and [len(rows) for rows in results.listed.values()] == [2, 3]


def test_locations_match_predict() -> None:
    assert location_text(DataLocation("a/b.csv", 7), "val", 3) == "a/b.csv:7"
    assert location_text(DataLocation("x.parquet", record=0), "val", 3) == "x.parquet:0"
    assert location_text(DataLocation("x.png"), "val", 3) == "x.png"
    assert location_text(DataLocation(record=3), "val", 3) == location_text(None, "val", 3) == "val:3"
    assert csv_line(["a\udcff", 'b"', 1.5]) == b'a\\udcff,"b""",1.5\n'


def test_cells_with_line_ends_are_quoted_and_nan_is_empty() -> None:
    cells = ["a\rb", "c\nd", "e\r\n", "", "=1+1"]
    assert next(csv.reader(io.StringIO(csv_line(cells).decode(), newline=""))) == cells
    assert csv_line([float("nan"), "nan", 1]) == b",nan,1\n"


def test_a_page_of_many_classes_shows_those_with_wrong_samples() -> None:
    names = [f"class{number}" for number in range(300)]
    count_of = {(name, name): 5 for name in names}
    count_of["class299", "class298"] = 7
    rows = [{"file": "val:1", "sample": 1, "true": "class299", "predicted": "class298", "loss": 0.25}] * 2
    page = render_confusion(count_of, {("class299", "class298"): rows}, names, "val, step 3")
    assert "100 classes with fewer wrong samples are left out" in page
    assert "true class299, predicted class298: 7" in page and "The first 2 of 7 samples" in page


def test_locations_are_those_of_the_source_if_it_has_one_for_each_sample() -> None:
    lines = DataLocations(["a.csv"], [5, 6, 7])
    for num_samples, expected in ((3, ["a.csv:7", "a.csv:5"]), (2, ["val:2", "val:0"])):
        source: Any = SourceWithChecks(SourceChecks(range(num_samples), lines))
        assert location_texts(source, "val", [2, 0]) == expected


class SourceWithChecks(list[int]):
    """Three samples."""

    def __init__(self, checks: SourceChecks) -> None:
        super().__init__(range(3))
        self._checks = checks

    def checks(self) -> SourceChecks:
        return self._checks
