"""task=sequential_recommendation: evaluation, prediction for users and for histories, and messages."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, List, Tuple

import numpy as np
import pytest

import mxtrain
from mxtrain.cli.dispatch import run
from mxtrain.errors import DataError
from mxtrain.recommendation.item_sequences import ItemSequences

pytestmark = pytest.mark.usefixtures("own_cache")
WORDS = (
    "task=sequential_recommendation",
    "model.units=8",
    "model.hidden_size=8",
    "dataset.batch_size=16",
    "trainer.max_epochs=1",
    "logger=[]",
)
SMALL = (*WORDS, "dataset.num_users=30", "dataset.num_items=20", "dataset.length=[4,9]")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: Any) -> Path:
    folder: Path = tmp_path_factory.mktemp("run") / "run"
    assert run([*SMALL, f"hydra.run.dir={folder}"]) == 0
    return folder


def scored(path: Path, split: str) -> Tuple[Any, np.ndarray, np.ndarray]:
    """Samples of a split, the scores of all items and the next items."""
    trained = mxtrain.load(path)._trained()
    from mxtrain.training.loaders import build_loader

    source: Any = getattr(trained.description.dataset.open(), split)
    loader = build_loader(trained.description, source, trained.signature, trained.device, in_order=True)
    parts = [outputs[0].asnumpy() for _, outputs in trained.evaluator.predict(loader)]
    return source, np.concatenate(parts), source.item_N


def recbole(score_NI: np.ndarray, item_N: np.ndarray, k: int) -> List[float]:
    """Hit@k, NDCG@k and MRR@k by the lists of the first k items, as RecBole 1.2.1 computes them."""
    top_NK = np.argsort(-score_NI, axis=1)[:, :k]
    found = [[], [], []]  # type: List[List[float]]
    for first, item in zip(top_NK.tolist(), item_N.tolist()):
        place = first.index(item) + 1 if item in first else math.inf
        found[0].append(float(place <= k))
        found[1].append((1 / math.log2(place + 1)) / (1 / math.log2(2)))
        found[2].append(1 / place)
    return [float(np.mean(values)) for values in found]


@pytest.mark.slow
@pytest.mark.parametrize("split, k", [("test", 10), ("val", 3)])
def test_metrics_equal_those_of_recbole(trained: Path, split: str, k: int) -> None:
    words = [f"metric.{name}.k={k}" for name in ("hr_at_k", "ndcg_at_k", "mrr_at_k")]
    assert run(["eval", str(trained), f"split={split}", *words]) == 0
    found = json.loads((trained / "eval" / split / "metrics.json").read_text())
    _, score_NI, item_N = scored(trained, split)
    expected = recbole(score_NI, item_N, k)
    assert [found[name] for name in ("hr_at_k", "ndcg_at_k", "mrr_at_k")] == pytest.approx(expected, abs=1e-9)
    assert found["samples"] == 30


@pytest.mark.slow
def test_report_has_baselines_and_excludes_seen_items(trained: Path, capsys: Any) -> None:
    assert run(["eval", str(trained), "task.exclude_seen=true"]) == 0
    said = capsys.readouterr().out
    assert "most frequent next items" in said and "popularity" in said and "HR@10, unseen items" in said
    found = json.loads((trained / "eval" / "test" / "metrics.json").read_text())
    source, score_NI, item_N = scored(trained, "test")
    for row, item in enumerate(item_N.tolist()):
        score_NI[row, [seen for seen in source.history_of(row) if seen != item]] = -np.inf
    assert found["ndcg_at_k"] == pytest.approx(recbole(score_NI, item_N, 10)[1], abs=1e-9)


@pytest.mark.slow
def test_users_and_histories_get_equal_predictions(trained: Path, tmp_path: Path, capsys: Any) -> None:
    rows = ItemSequences(num_users=30, num_items=20, length=[4, 9]).read(None)  # type: ignore[arg-type]
    items = [f"item{item}" for item in rows.item_P[rows.user_P == 7]]
    users, lines = tmp_path / "users.txt", tmp_path / "histories.jsonl"
    users.write_text("user7\n")
    lines.write_text(json.dumps({"user": "user7", "history": items}) + "\n\n" + json.dumps({"history": ["item3"]}))
    loaded = mxtrain.load(trained)
    (of_user,), of_lines = (list(loaded.predict(str(path), top_k=4)) for path in (users, lines))
    assert of_user["user"] == "user7" and of_user["items"] == of_lines[0]["items"] and len(of_user["items"]) == 4
    assert (of_lines[1]["user"], of_lines[1]["file"]) == ("3", f"{lines}:3")
    objects = [{"history": items}, {"history": ["item3"]}]
    assert [row["items"] for row in loaded.predict(objects, top_k=4)] == [row["items"] for row in of_lines]
    assert list(loaded.predict({"user": "user7"}, top_k=4))[0]["items"] == of_user["items"]
    with pytest.raises(DataError, match="input 0: there is no item 'item33'. Did you mean 'item"):
        loaded.predict([{"history": ["item33"]}])
    lines.write_text('{"history": ["item1"]}\n{"history": []}\n')
    assert run(["predict", str(trained), str(lines)]) == 2
    assert f"{lines}:2: the history is empty" in capsys.readouterr().err
    assert run(["predict", str(trained), str(lines), "skip_unreadable=true"]) == 0
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 1 and "the history is empty" in said.err
    for content, error in (
        ("", "there is no history in it"),
        ("[1]\n", 'no JSON object such as {"history"'),
        ('{"history": ["item1"], "usr": 1}\n', "no key 'usr'. Did you mean 'user'"),
        ("{\n", "histories.jsonl:1"),
    ):
        lines.write_text(content)
        assert run(["predict", str(trained), str(lines)]) == 2
        assert error in capsys.readouterr().err
    assert run(["predict", str(trained), str(tmp_path / "none.jsonl")]) == 2
    assert "there is no such file" in capsys.readouterr().err


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table whose rows are in the order of time, and a column of times in the opposite order."""
    lines = [f"u{user},i{(user + 2 * step) % 7},{9 - step},{step}" for user in range(9) for step in range(5)]
    (tmp_path / "x.csv").write_text("\n".join(["user,item,time,rating", *lines, "one,i0,3,1"]) + "\n")
    return tmp_path / "x.csv"


@pytest.mark.slow
@pytest.mark.parametrize("words, first", [(["dataset.row_order=true"], "i0"), (["dataset.timestamp=time"], "i1")])
def test_tables_are_ordered_by_rows_or_times(table: Path, tmp_path: Path, words: List[str], first: str) -> None:
    arguments = [*WORDS, "dataset=interactions", f"dataset.path={table}", *words, f"hydra.run.dir={tmp_path}/run"]
    assert run(arguments) == 0
    source = mxtrain.load(tmp_path / "run")._trained().description.dataset.open()
    last = source.test.item_N[source.test.catalog.users.index("u6")]
    assert source.test.catalog.items[last] == ("i0" if first == "i0" else "i6")
    log = (tmp_path / "run" / "train.log").read_text()
    assert "46 interactions of 10 users with 7 items in order: 18 next items to train on" in log
    assert "1 users have fewer than 3 and are only trained on" in log


@pytest.mark.parametrize(
    "words, said",
    [
        (
            ["dataset=interactions"],
            "needs the order of the interactions. Type dataset.timestamp=COLUMN, or",
        ),
        (["dataset=interactions", "dataset.row_order=true", "dataset.timestamp=time"], "both tell the order"),
        (["dataset=imported_names"], "dataset=item_sequences, dataset=interactions, dataset=movielens or dataset="),
        (["dataset=movielens", "dataset.feedback=explicit"], "predicts no ratings"),
        (["loss=l2"], "Type loss=full_softmax. Other options that fit: bpr, sampled_bce, sampled_softmax."),
        (["metric=[hr_at_k_sampled]"], "not for task=sequential_recommendation. Type metric=[hr_at_k]."),
        (["model=fism"], "Type task=recommendation, or model=sasrec. Other options that fit: gru4rec."),
        (["model.num_heads=5"], "units=64 must be a multiple of num_heads=5"),
        (["loss.label_smoothing=0.1"], "label_smoothing"),
        (["dataset.length=[9,4]"], "dataset.length"),
    ],
)
def test_mistakes_are_refused_in_one_sentence(words: List[str], said: str, tmp_path: Path, capsys: Any) -> None:
    assert run(["task=sequential_recommendation", *words, f"hydra.run.dir={tmp_path}/run"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line and not (tmp_path / "run").exists()
