"""Titles of items in predictions, and tables of interactions of new users as histories."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict

import numpy as np
import pytest

import mxtrain
from mxtrain.cli.dispatch import run
from mxtrain.errors import DamagedCheckpoint, DataError
from mxtrain.files.json_form import problems_of
from mxtrain.recommendation.atomic_files import AtomicFiles
from mxtrain.recommendation.exported_users import top_items
from mxtrain.recommendation.interactions import InteractionTable
from mxtrain.recommendation.kinds import NextItem
from mxtrain.recommendation.movielens import MovieLens
from mxtrain.recommendation.sequence_models import SASRec
from mxtrain.recommendation.signature import RecommendationSignature

pytestmark = pytest.mark.usefixtures("own_cache")
NUM_USERS, NUM_ITEMS = 30, 12
FILMS: Dict[str, bytes] = {
    "u.item": b"1|Toy Story (1995)|01-Jan-1995||http://x" + b"|0" * 19 + b"\n",
    "movies.dat": "1::Misérables, Les (1995)::Drama|Musical\n".encode("latin-1"),
    "movies.csv": b'movieId,title,genres\n1,"Heat, a (1995)",Action|Crime\n',
}


@pytest.mark.parametrize(
    "name,title",
    [("u.item", "Toy Story (1995)"), ("movies.dat", "Misérables, Les (1995)"), ("movies.csv", "Heat, a (1995)")],
)
def test_titles_of_movielens(name: str, title: str, tmp_path: Path) -> None:
    (tmp_path / "u.data").write_text("1\t1\t3\t1\n")
    assert MovieLens(root=str(tmp_path)).item_titles() == {}
    (tmp_path / name).write_bytes(FILMS[name])
    assert MovieLens(root=str(tmp_path)).item_titles() == {"1": title}


def test_titles_of_recbole(tmp_path: Path) -> None:
    (tmp_path / "x.inter").write_text("user_id:token\titem_id:token\ttimestamp:float\n1\t7\t1\n")
    dataset = AtomicFiles(root=str(tmp_path))
    assert dataset.item_titles() == {}
    (tmp_path / "x.item").write_text("item_id:token\tmovie_title:token_seq\tplace:token\n7\tToy Story\tRome\n")
    assert dataset.item_titles() == {"7": "Toy Story"}
    assert AtomicFiles(root=str(tmp_path), title="place").item_titles() == {"7": "Rome"}
    with pytest.raises(DataError, match="dataset.title=plase: .*no such field. Did you mean 'place'"):
        AtomicFiles(root=str(tmp_path), title="plase").item_titles()
    (tmp_path / "x.item").write_text("itemid:token\tmovie_title:token_seq\n7\tToy Story\n")
    assert dataset.item_titles() == {}
    with pytest.raises(DataError, match="dataset.title=movie_title: .*x.item has no field 'item_id' with the ids.*Did"):
        AtomicFiles(root=str(tmp_path), title="movie_title").item_titles()
    (tmp_path / "x.item").unlink()
    with pytest.raises(DataError, match="there is no file .*x.item with the titles"):
        AtomicFiles(root=str(tmp_path), title="place").item_titles()


def write_tables(folder: Path) -> InteractionTable:
    rows = [
        {"user": f"u{user}", "item": f"{(user * 5 + place * place) % NUM_ITEMS}", "time": 100 * user + place}
        for user in range(NUM_USERS)
        for place in range(6)
    ]
    write_csv(folder / "bought.csv", rows)
    write_csv(folder / "goods.csv", [{"item": f"{item}.0", "title": f"Good {item}"} for item in range(NUM_ITEMS - 1)])
    dataset = InteractionTable(path=str(folder / "bought.csv"), timestamp="time", titles=str(folder / "goods.csv"))
    return dataset.for_run(NextItem)  # type: ignore[return-value]


def write_csv(path: Path, rows: Any) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def test_titles_of_a_table_are_in_the_signature(tmp_path: Path) -> None:
    dataset = write_tables(tmp_path)
    signature = RecommendationSignature.cast(dataset.infer_signature(dataset.open(), SASRec()))
    title_of = dict(zip(signature.catalog.items, signature.item_titles))
    assert title_of["3"] == "Good 3" and title_of[f"{NUM_ITEMS - 1}"] == ""
    values = json.loads(json.dumps(signature.to_json()))
    assert not list(problems_of(values, RecommendationSignature.form))
    assert list(RecommendationSignature.from_json(values).item_titles) == list(signature.item_titles)
    values["item_titles"].pop()
    with pytest.raises(DamagedCheckpoint, match="has 11 titles for 12 items"):
        RecommendationSignature.from_json(values)
    del values["item_titles"]
    assert list(RecommendationSignature.from_json(values).item_titles) == []
    with pytest.raises(DataError, match="dataset.title=name: .*goods.csv.*no column 'name'"):
        dataset.model_copy(update={"title": "name"}).item_titles()


def test_two_titles_of_an_item_are_refused(tmp_path: Path) -> None:
    """In all three kinds of files; a repeated row is allowed."""
    dataset = write_tables(tmp_path)
    rows = [{"item": id_, "title": title} for id_, title in (("3", "Good"), ("", "x"), (" 3", "Good "), ("", "y"))]
    write_csv(tmp_path / "goods.csv", rows)
    assert dataset.item_titles() == {"3": "Good"}
    write_csv(tmp_path / "goods.csv", [*rows, {"item": "3", "title": "Bad"}])
    with pytest.raises(DataError, match="goods.csv, line 6: item 3 has the title 'Bad', and 'Good' in a row before"):
        dataset.item_titles()
    (tmp_path / "u.data").write_text("1\t1\t3\t1\n")
    (tmp_path / "u.item").write_bytes(FILMS["u.item"] + FILMS["u.item"].replace(b"Toy", b"A Toy"))
    with pytest.raises(DataError, match="u.item, line 2: item 1 has the title 'A Toy Story .1995.', and 'Toy Story"):
        MovieLens(root=str(tmp_path)).item_titles()
    (tmp_path / "x.inter").write_text("user_id:token\titem_id:token\ttimestamp:float\n1\t7\t1\n")
    (tmp_path / "x.item").write_text("item_id:token\ttitle:token_seq\n7\tToy Story\n7\tHeat\n")
    with pytest.raises(DataError, match="x.item, line 3: item 7 has the title 'Heat', and 'Toy Story' in a row"):
        AtomicFiles(root=str(tmp_path)).item_titles()


def test_titles_of_other_items_are_a_warning(tmp_path: Path, caplog: Any) -> None:
    dataset = write_tables(tmp_path)
    write_csv(tmp_path / "goods.csv", [{"item": "A-1", "title": "Good"}])
    signature = RecommendationSignature.cast(dataset.infer_signature(dataset.open(), SASRec()))
    assert list(signature.item_titles) == []
    assert "file of titles (such as 'A-1') are none of the data's (such as '0')" in caplog.text


def test_top_items() -> None:
    scores = np.array([1.0, 3.0, -np.inf, 3.0], np.float32)
    assert top_items(["a", "b", "c", "d"], scores, ["A", "B", "C", ""], 9) == [
        {"item": "b", "title": "B", "score": 3.0},
        {"item": "d", "title": "", "score": 3.0},
        {"item": "a", "title": "A", "score": 1.0},
    ]
    assert top_items(["a", "b", "c", "d"], scores, count=1) == [{"item": "b", "score": 3.0}]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: Any) -> Path:
    folder: Path = tmp_path_factory.mktemp("titles")
    write_tables(folder)
    words = ["task=sequential_recommendation", "dataset=interactions", f"dataset.path={folder}/bought.csv"]
    words += ["dataset.timestamp=time", f"dataset.titles={folder}/goods.csv", "model.units=8", "model.hidden_size=8"]
    words += ["dataset.batch_size=16", "trainer.max_epochs=1", "logger=[]", f"hydra.run.dir={folder}/run"]
    assert run(words) == 0
    return folder


@pytest.mark.slow
def test_a_table_of_new_users_is_answered_as_eval_ranks(trained: Path, tmp_path: Path, capsys: Any) -> None:
    rows = list(csv.DictReader((trained / "bought.csv").read_text().splitlines()))
    by_user: Dict[str, Any] = {}
    for row in rows:
        by_user.setdefault(row["user"], []).append(row)
    # Without the last item of each user, which `eval` predicts; newest first, under other names.
    shortened = [{**row, "user": f"new {user}"} for user, own in by_user.items() for row in own[-2::-1]]
    write_csv(tmp_path / "new.csv", shortened)
    loaded = mxtrain.load(trained / "run")
    found = list(loaded.predict(str(tmp_path / "new.csv"), top_k=NUM_ITEMS))
    assert [row["user"] for row in found] == [f"new {user}" for user in by_user]
    assert [row["file"] for row in found] == [f"{tmp_path}/new.csv:{2 + 5 * number}" for number in range(NUM_USERS)]
    assert run(["eval", str(trained / "run"), "split=test"]) == 0
    metrics = json.loads((trained / "run/eval/test/metrics.json").read_text())
    ranks = [
        1 + [one["item"] for one in row["items"]].index(own[-1]["item"]) for row, own in zip(found, by_user.values())
    ]
    assert metrics["mrr_at_k"] == pytest.approx(np.mean([1 / rank if rank <= 10 else 0 for rank in ranks]), abs=1e-6)
    assert all(one["title"] == ("" if one["item"] == "11" else f"Good {one['item']}") for one in found[0]["items"])
    write_csv(tmp_path / "wrong.csv", [{"user": "x", "item": "99", "time": 1}, {"user": "y", "item": "3", "time": 1}])
    capsys.readouterr()
    assert run(["predict", str(trained / "run"), str(tmp_path / "wrong.csv")]) == 2
    assert "wrong.csv, line 2: there is no item '99'" in capsys.readouterr().err
    assert run(["predict", str(trained / "run"), str(tmp_path / "wrong.csv"), "skip_unreadable=true"]) == 0
    output = tmp_path / "rows.csv"
    (tmp_path / "users.csv").write_text("u3\n")
    assert run(["predict", str(trained / "run"), str(tmp_path / "users.csv"), f"output={output}", "top_k=1"]) == 0
    assert output.read_text().splitlines()[0] == "file,user,item_1,title_1,score_1"


@pytest.mark.slow
def test_exported_folders_answer_with_titles(trained: Path, tmp_path: Path) -> None:
    assert run(["export", str(trained / "run"), f"out={tmp_path}/out"]) == 0
    (tmp_path / "new.jsonl").write_text('{"history": ["3", "4"]}\n')
    (expected,) = mxtrain.load(trained / "run").predict(str(tmp_path / "new.jsonl"), top_k=3)
    command = [sys.executable, "predict.py", str(tmp_path / "new.jsonl")]
    done = subprocess.run(command, cwd=tmp_path / "out", capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    (row,) = map(json.loads, done.stdout.splitlines())
    assert [(one["item"], one["title"]) for one in row["items"]] == [
        (one["item"], one["title"]) for one in expected["items"]
    ]
