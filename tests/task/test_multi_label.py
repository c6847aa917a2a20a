"""Multi-label classification: decisions by thresholds, which checkpoints keep; and decisions between two classes."""

import csv
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.metrics import f1_score, recall_score

from mxtrain.checkpoint import open_checkpoint
from mxtrain.cli.dispatch import run
from mxtrain.data.class_rows import binary_row, class_set_row, described_classes, ranked_classes
from mxtrain.data.features.exported_rows import predicted_row
from mxtrain.data.signature import Signature
from mxtrain.engine.backend import nd
from mxtrain.errors import ConfigError, DamagedCheckpoint, DataError
from mxtrain.metric.multi_label import choose_thresholds
from mxtrain.tables.task import TabularClassification
from mxtrain.task.classification import Classification, ConfusionReport
from mxtrain.task.evaluated_sample import EvaluatedSample
from mxtrain.task.multi_label import MultiLabel
from mxtrain.task.multi_label_report import MultiLabelReport, curve_artifacts
from mxtrain.task.regression import Regression
from mxtrain.training.restored_run import RestoredRun
from mxtrain.types import Batch
from mxtrain.workflows import average

NAMES = ["a", "b", "c"]
SIGNATURE = Signature((2,), class_names=NAMES)
SCORES = np.array([2.0, -1.0, 0.2], "float32")
PROBABILITIES = [0.880797, 0.268941, 0.549834]


def restored(values):
    return MultiLabel().restored({"thresholds": {"values": values}})


def test_rows_have_the_classes_whose_probability_reaches_their_threshold():
    row = restored([0.9, 0.2, 0.5]).row(SIGNATURE, SCORES, 2)
    top = [{"class": "a", "probability": 0.880797}, {"class": "c", "probability": 0.549834}]
    assert row == {"classes": ["b", "c"], "top": top}
    form = MultiLabel().prediction_format()
    cells = {"classes": "b|c", "class_1": "a", "probability_1": 0.880797, "class_2": "c", "probability_2": 0.549834}
    assert form.cells(row) == cells
    assert class_set_row(NAMES, np.array([0.5, 0.4, 0.3]), [0.5, 0.5, 0.5])["classes"] == ["a"]


def test_thresholds_are_those_of_the_setting_of_the_checkpoint_or_one_half(caplog):
    assert MultiLabel().thresholds(SIGNATURE) == [0.5] * 3
    training = MultiLabel()
    training.build_states(None)["thresholds"].values = [0.1, 0.2, 0.8]
    assert training.thresholds(SIGNATURE) == [0.1, 0.2, 0.8]
    assert training.restored({}).thresholds(SIGNATURE) == [0.5] * 3
    caplog.clear()
    assert MultiLabel(threshold=0.3).thresholds(SIGNATURE) == [0.3] * 3
    task = restored([0.1, 0.2, 0.9])
    assert task.thresholds(SIGNATURE) == [0.1, 0.2, 0.9]
    assert task.with_threshold(0.25, SIGNATURE).thresholds(SIGNATURE) == [0.25] * 3
    MultiLabel(threshold=0.3).restored({})
    assert not caplog.records
    assert MultiLabel().restored({}).thresholds(SIGNATURE) == [0.5] * 3
    assert "predicted from the probability 0.5 on" in caplog.text
    assert task.export_form().facts(None, SIGNATURE, None)["thresholds"] == [0.1, 0.2, 0.9]


@pytest.mark.parametrize("values", ["0.5", [0.5, "0.5", 0.5], [0.5, 0.0, 0.5], [0.5, 1.5, 0.5], [True, 0.5, 0.5]])
def test_damaged_thresholds_are_refused(values):
    with pytest.raises(DamagedCheckpoint, match="its thresholds are"):
        restored(values)
    with pytest.raises(DamagedCheckpoint, match="2 thresholds, and there are 3 classes"):
        restored([0.5, 0.5]).thresholds(SIGNATURE)


def test_exported_folders_name_the_same_classes():
    probabilities = np.array(PROBABILITIES, "float32")
    signature = {"class_names": NAMES, "targets": ["ClassSet"], "facts": {"thresholds": [0.9, 0.2, 0.5]}}
    assert described_classes(signature, probabilities)["classes"] == ["b", "c"]
    with pytest.raises(ValueError, match="a threshold for each of 3 classes"):
        described_classes({**signature, "facts": {}}, probabilities)
    two = {"class_names": ["no", "yes"], "targets": ["ClassIndex"], "facts": {"threshold": 0.2}}
    assert described_classes(two, np.array([0.7, 0.3]))["class"] == "yes"
    assert described_classes({**two, "facts": {"threshold": None}}, np.array([0.7, 0.3]))["class"] == "no"


def test_weights_of_classes_are_a_second_target():
    task = MultiLabel(class_weights={"b": 3.0})
    collate = task.build_collate(None, SIGNATURE, True)
    batch = collate(Batch((nd.zeros((2, 2)),), (nd.array([[1, 0, 1], [0, 1, 0]]),), 2, 4, np.array([5, 6])), 0)
    assert batch.targets[1].asnumpy().tolist() == [[1, 3, 1]] * 2 and batch.global_size == 4
    assert batch.index_B.tolist() == [5, 6]
    unlabelled = Batch((nd.zeros((2, 2)),), (nd.array([-1, -1]),), 2)
    assert collate(unlabelled, 0) is unlabelled
    assert MultiLabel().build_collate(None, SIGNATURE, True) is None
    with pytest.raises(ConfigError, match=r"there is no class 'B'.* They are: a, b, c"):
        MultiLabel(class_weights={"B": 3.0}).build_collate(None, SIGNATURE, True)


def test_report_of_each_class():
    report = MultiLabelReport(NAMES, [0.5, 0.2, 0.6])
    scores, targets = np.array([[2, -1, 0.2], [1, -3, 0], [-1, 0, 0]]), np.array([[1, 1, 0], [0, 0, 0], [1, 1, 0]])
    report.update(Batch((), (nd.array(targets),), 3), (nd.array(scores),))
    (table,) = report.artifacts("")
    assert table.rows == [
        ["a", 2, 2, 0.8333, 0.5, 0.5, 0.5, 0.5],
        ["b", 2, 2, 1.0, 0.2, 1.0, 1.0, 1.0],
        ["c", 0, 0, "", 0.6, "", "", ""],
    ]


def test_curve_of_two_classes_ends_with_the_best_threshold():
    draw = np.random.RandomState(0)
    target_N = draw.rand(50) < 0.3
    score_N = draw.randn(50) + 2 * target_N - 1
    table, figure = curve_artifacts(score_N, target_N, "title")
    *rows, (threshold, precision, recall, f1, note) = table.rows
    assert [row[0] for row in rows] == [round(0.05 * step, 2) for step in range(1, 20)] and note == "best F1"
    assert threshold == pytest.approx(choose_thresholds(score_N[:, None], target_N[:, None])[0], abs=1e-4)
    assert f1 == max(row[3] for row in table.rows) and f1 == pytest.approx(
        2 * precision * recall / (precision + recall), abs=1e-3
    )
    assert figure.name == "threshold_curve"
    assert curve_artifacts(score_N, np.zeros(50), "") == []


def test_a_threshold_decides_between_two_classes():
    assert ranked_classes(["no", "yes"], np.array([0.7, 0.3]), 3, 0.3)["class"] == "yes"
    assert ranked_classes(["no", "yes"], np.array([0.7, 0.3]), 3, 0.31)["class"] == "no"
    assert binary_row(["no", "yes"], 0.3, 0.3) == {
        "class": "yes",
        "probability": 0.3,
        "top": [{"class": "yes", "probability": 0.3}, {"class": "no", "probability": 0.7}],
    }
    assert binary_row(["no", "yes"], 0.5)["class"] == "yes" and binary_row(["no", "yes"], 0.4)["class"] == "no"
    two = Signature((2,), class_names=["no", "yes"])
    task = Classification().with_threshold(0.2, two)
    assert task.row(two, np.array([0.75, 0.25]), 2)["class"] == "yes"
    (samples,) = task.show(two, SimpleNamespace(pairs=[("x", None)]), [np.array([0.75, 0.25])], [np.array([0])])
    assert samples.rows == [["x", "no", "yes", "0.25"]]
    with pytest.raises(ConfigError, match="decides between two classes, and there are 3"):
        Classification().with_threshold(0.2, SIGNATURE)
    with pytest.raises(ConfigError, match="task=regression decides by no threshold"):
        RestoredRun(None, SimpleNamespace(task=Regression()), None, two).with_threshold(0.2)


def test_a_threshold_decides_between_two_classes_of_a_table():
    two = Signature((2,), class_names=["no", "yes"])
    score = np.float32(np.log(0.3 / 0.7))
    assert TabularClassification().row(two, score, 2)["class"] == "no"
    task = TabularClassification().with_threshold(0.29, two)
    assert task.row(two, score, 2)["class"] == "yes"
    result = task.result(two, None, EvaluatedSample(0, score, [np.array(0)], None))
    assert result["predicted"] == "yes" and result["probability"] == pytest.approx(0.3)
    exported = {"class_names": ["no", "yes"], "targets": ["RowClass"], "signature": {}, "facts": {"threshold": 0.29}}
    assert predicted_row(exported, {"output": score})["class"] == "yes"
    assert predicted_row({**exported, "facts": {"threshold": 0.31}}, {"output": score})["class"] == "no"
    with pytest.raises(ConfigError, match="decides between two classes, and there are 3"):
        TabularClassification().with_threshold(0.2, SIGNATURE)


def test_report_of_two_classes_decides_by_the_threshold():
    report = ConfusionReport(["no", "yes"], 0.2)
    scores, labels = np.array([[1.0, 0.0], [3.0, 0.0], [0.0, 1.0]]), np.array([1, 0, 1])
    report.update(Batch((), (nd.array(labels),), 3), (nd.array(scores),))
    artifacts = report.artifacts("")
    assert "thresholds" in [artifact.name for artifact in artifacts]
    table = next(artifact for artifact in artifacts if artifact.name == "per_class")
    recall_K = recall_score(labels, [1, 0, 1], average=None)  # 0.27 is yes
    assert [row[3] for row in table.rows] == recall_K.tolist() == [1, 1]


@pytest.mark.slow
def test_run_with_its_thresholds_is_evaluated_predicts_and_is_exported(train_run, tmp_path, capsys):
    small = ("dataset.num_train=96", "dataset.num_val=40", "model.channels=[4]", "model.hidden=8")
    long = ("trainer.max_epochs=3", "optimizer.lr=0.3")  # at this rate, the first epoch is the best
    _, result = train_run("task=multi_label", *small, *long, "task.class_weights={3:2}")
    assert result.best["step"] < result.step
    folder = str(tmp_path / "run")
    state = json.loads(next(Path(folder).glob("checkpoints/*/state.json")).read_text())["state"]
    assert len(state["states"]["thresholds"]["values"]) == 10
    assert run(["eval", folder, "split=val", "which=last"]) == 0
    measured = json.loads((tmp_path / "run" / "eval" / "val" / "metrics.json").read_text())
    for name in ("macro_f1", "micro_f1", "mean_average_precision", "hamming_loss", "loss"):
        assert measured[name] == pytest.approx(result.metrics[f"val/{name}"], rel=1e-5), name
    assert run(["eval", folder, "split=test"]) == 0
    measured = json.loads((tmp_path / "run" / "eval" / "test" / "metrics.json").read_text())
    for name in ("macro_f1", "hamming_loss"):  # with the thresholds of the best validation
        assert measured[name] == pytest.approx(result.metrics[f"test/{name}"], rel=1e-5), name
    capsys.readouterr()
    assert run(["predict", folder, "split=val", "which=last"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    table = (tmp_path / "run" / "eval" / "val" / "predictions.csv").read_text().splitlines()
    predicted = table[0].split(",").index("predicted")
    assert ["|".join(row["classes"]) for row in rows] == [line.split(",")[predicted] for line in table[1:]]
    assert run(["predict", folder, "sample=2", "threshold=1e-300"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [len(row["classes"]) for row in rows] == [10, 10]


SMALL_RUN = ("task=multi_label", "dataset.num_train=96", "dataset.num_val=40", "model.channels=[4]", "model.hidden=8")


def kept_thresholds(folder):
    return open_checkpoint(folder).state.get("states", {}).get("thresholds", {}).get("values")


def f1_by_class(folder, output):
    """F1 of each class on the validation split at the thresholds of a checkpoint, and at the best thresholds, by
    scikit-learn."""
    assert run(["predict", str(folder), "split=val", "top_k=10", f"output={output}/rows.jsonl"]) == 0
    rows = [json.loads(line) for line in (output / "rows.jsonl").read_text().splitlines()]
    assert run(["eval", str(folder), "split=val", f"output={output}/measured"]) == 0
    table = list(csv.DictReader((output / "measured" / "predictions.csv").read_text().splitlines()))
    found, best = [], []
    for name in map(str, range(10)):
        true_N = [name in row["true"].split("|") for row in table]
        found.append(f1_score(true_N, [name in row["classes"] for row in rows]))
        probability_N = [{one["class"]: one["probability"] for one in row["top"]}[name] for row in rows]
        best.append(max(f1_score(true_N, probability_N >= np.array(cut)) for cut in probability_N))
    assert [row["predicted"] for row in table] == ["|".join(row["classes"]) for row in rows]
    return found, best


@pytest.mark.slow
def test_averages_choose_their_thresholds_and_slim_networks_keep_them(train_run, tmp_path, capsys, caplog):
    folder = tmp_path / "run"
    pruned = ("callback=prune_channels", "callback.prune_channels.start=0", "callback.prune_channels.end=0.5")
    train_run(*SMALL_RUN, *pruned, "trainer.max_epochs=3", "optimizer.lr=0.1", "checkpoint.keep_last=3")
    first, _, last = sorted((folder / "checkpoints").glob("step-*"))
    assert run(["average", str(folder), "last=2"]) == 0
    assert run(["average", str(first), str(last), "soup=uniform"]) == 0
    for path in (folder / "averaged" / "last-2", folder / "averaged" / "uniform-soup"):
        thresholds = kept_thresholds(path)
        assert len(thresholds) == 10 and thresholds not in (kept_thresholds(first), kept_thresholds(last))
        found, best = f1_by_class(path, tmp_path)
        assert found == pytest.approx(best)
    assert run(["slim", str(folder), "which=last"]) == 0
    assert kept_thresholds(folder / "slim") == kept_thresholds(last)
    assert "has no thresholds" not in caplog.text + capsys.readouterr().err


def test_an_average_without_validation_data_says_that_it_has_no_thresholds(tmp_path, monkeypatch):
    newest = SimpleNamespace(step=2, path=tmp_path / "step-2", state={"states": {"thresholds": {"values": [0.3]}}})
    (tmp_path / "checkpoints").mkdir()
    monkeypatch.setattr(average, "last_checkpoints", lambda run_dir, count: [newest])
    monkeypatch.setattr(average, "write_average", lambda run_dir, checkpoints, choose: choose({}))

    def fail(path):
        raise DataError(f"{path}: val.csv is missing.")

    warnings = []
    assert average.average_last(tmp_path, 2, fail, warnings.append).path == {}
    said = "The average has no thresholds, because the validation data cannot be used: "
    assert warnings == [f"{said}{newest.path}: val.csv is missing."]
    newest.state = {"states": {"ema": {}}}
    assert average.average_last(tmp_path, 2, fail, warnings.append).path == {} and len(warnings) == 1
