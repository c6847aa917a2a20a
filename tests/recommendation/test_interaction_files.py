"""Interactions from files: every format gives the same, held out by time, and what is wrong is said by line."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any, Dict, List, Set, Tuple

import mxnet as mx
import numpy as np
import pytest

from mxtrain.cli.dispatch import run
from mxtrain.data.checking.dataset_check import CollectedFindings
from mxtrain.data.loading.loader import LoaderOptions
from mxtrain.data.spec import Splits
from mxtrain.errors import ConfigError, DataError
from mxtrain.recommendation import interactions, movielens
from mxtrain.recommendation.base import InteractionDataset
from mxtrain.recommendation.interactions import InteractionTable
from mxtrain.recommendation.movielens import MovieLens
from mxtrain.recommendation.recommenders import MatrixFactorization
from mxtrain.recommendation.rows import read_pairs
from mxtrain.recommendation.source import Interactions

pytestmark = pytest.mark.usefixtures("own_cache")

BIG = 99_999_999_999
"""An id beyond 2^31: ids are names."""
ROWS = [(user, item, (user + item) % 5 + 1, 1000 - 7 * item + user) for user in (1, 2, BIG) for item in range(10, 15)]
"""User, item, rating and time: the lowest item is the newest."""
Found = Dict[str, Set[Tuple[str, str, float]]]


def found_in(dataset: InteractionDataset) -> Found:
    splits = dataset.open()
    return {name: pairs_of(getattr(splits, name)) for name in ("train", "val", "test")}


def pairs_of(source: Interactions) -> Set[Tuple[str, str, float]]:
    users, items = source.catalog.users, source.catalog.items
    return {
        (users[user], items[item], float(rating))
        for user, item, rating in zip(source.user_N, source.item_N, source.rating_N)
    }


EXPECTED: Found = {
    "train": {(str(user), str(item), float(rating)) for user, item, rating, _ in ROWS if item > 11},
    "val": {(str(user), str(item), float(rating)) for user, item, rating, _ in ROWS if item == 11},
    "test": {(str(user), str(item), float(rating)) for user, item, rating, _ in ROWS if item == 10},
}


def write(path: Path, form: str) -> Dict[str, Any]:
    """Writes the rows; returns what of the dataset's settings differs."""
    names = ("who", "what", "stars", "when")
    named = {"user": "who", "item": "what", "rating": "stars", "timestamp": "when"}
    order = np.random.RandomState(0).permutation(len(ROWS))
    rows = [ROWS[number] for number in order]
    if form == "parquet":
        pa = pytest.importorskip("pyarrow")
        import pyarrow.parquet as parquet

        parquet.write_table(pa.table(dict(zip(names, map(list, zip(*rows))))), path)
    elif form == "jsonl":
        path.write_text("".join(json.dumps(dict(zip(names, row))) + "\n" for row in rows))
    else:
        between = "\t" if "tsv" in form else ","
        lines = [between.join(map(str, row)) for row in ([names] if "bare" not in form else []) + rows]
        content = ("\n".join(lines) + "\n").encode()
        path.write_bytes(gzip.compress(content) if form.endswith("gz") else content)
        if "bare" in form:
            return {"header": False, **dict(zip(named, range(4)))}
    return named


@pytest.mark.parametrize("form", ["csv", "tsv", "bare.csv", "csv.gz", "jsonl", "parquet"])
@pytest.mark.parametrize("feedback", ["implicit", "explicit"])
def test_tables_with_named_columns(tmp_path: Path, form: str, feedback: str) -> None:
    path = tmp_path / f"x.{form}"
    settings = write(path, form)
    dataset = InteractionTable(path=str(path), feedback=feedback, sampled_negatives=1, **settings)
    if feedback == "implicit":  # every user has every item: nothing is left to compare with
        with pytest.raises(DataError, match=r"user \d+ has all 5 items.*Leave that user out"):
            dataset.open()
        return
    assert found_in(dataset) == EXPECTED
    assert dataset.open().mean == [pytest.approx(np.mean([rating for _, _, rating in EXPECTED["train"]]))]


@pytest.mark.parametrize(
    "name, between, header",
    [
        ("ratings.csv", ",", "userId,movieId,rating,timestamp\n"),
        ("u.data", "\t", ""),
        ("ratings.dat", "::", ""),
    ],
)
def test_movielens_in_each_form(tmp_path: Path, name: str, between: str, header: str) -> None:
    (tmp_path / name).write_text(header + "".join(between.join(map(str, row)) + "\n" for row in ROWS))
    for root in (tmp_path, tmp_path / name):
        assert found_in(MovieLens(root=str(root), feedback="explicit")) == EXPECTED
    liked = MovieLens(root=str(tmp_path), feedback="explicit", min_rating=2)
    assert all(rating >= 2 for part in found_in(liked).values() for _, _, rating in part)


def test_missing_movielens_names_the_expected_files(tmp_path: Path) -> None:
    (tmp_path / "ml-1m").mkdir()
    with pytest.raises(DataError, match=r"none of ratings.csv, u.data, ratings.dat in it. Name .* unpacks to\.$"):
        MovieLens(root=str(tmp_path)).open()
    (tmp_path / "ml-1m" / "ratings.dat").write_text("1::2::3::4\n")
    with pytest.raises(DataError, match=r"unpacks to: dataset.root=.*/ml-1m\.$"):
        MovieLens(root=str(tmp_path)).open()
    with pytest.raises(DataError, match=r"ml-2m: there is no such folder. Did you mean 'ml-1m'\? Name the"):
        MovieLens(root=str(tmp_path / "ml-2m")).open()


@pytest.mark.parametrize(
    "name, content, said",
    [
        ("x.csv", "usr,item\n1,2\n", "dataset.user=user: .*no column 'user'. Did you mean 'usr'?"),
        ("x.csv", "user,item,item\n1,2,3\n", "two columns are called 'item'"),
        ("x.csv", "user;item\n1;2\n", "no user has 3 items, so none can be held out"),
        ("x.tsv", "user,item\n1,2\n", "It seems to be separated by commas"),
        ("x.jsonl", '{"usr": 1, "item": 2}\n', "x.jsonl, line 1: there is no column 'user'. Did you mean 'usr'?"),
        ("x.jsonl", '\n{"user": 1, \n', "line 2 is no JSON object: Expecting property name enclosed in double quotes."),
        ("x.jsonl", "[1, 2]\n", "line 1 is no JSON object: it is [1, 2]."),
        ("x.txt", "", "rows are read from files that"),
        ("gone/x.csv", "", "x.csv: there is no such file. Did you mean 'gone.csv'?"),
    ],
)
def test_tables_that_are_not_as_described(tmp_path: Path, name: str, content: str, said: str) -> None:
    (tmp_path / "gone.csv").touch()
    if content or name == "x.txt":
        (tmp_path / name).write_text(content)
    with pytest.raises(DataError) as error:
        InteractionTable(path=str(tmp_path / name)).open()
    assert re.search(re.escape(said).replace(r"\.\*", ".*"), str(error.value))


def test_split_seed_chooses_without_times(tmp_path: Path) -> None:
    write(tmp_path / "x.csv", "csv")

    def held_out(seed: int) -> Splits:
        dataset = InteractionTable(
            path=str(tmp_path / "x.csv"), user="who", item="what", rating="stars", feedback="explicit", split_seed=seed
        )
        found = found_in(dataset)
        everything = [pair for part in found.values() for pair in part]
        assert sorted(everything) == sorted((str(u), str(i), float(r)) for u, i, r, _ in ROWS)
        assert all(len({user for user, _, _ in found[name]}) == len(found[name]) == 3 for name in ("val", "test"))
        return found  # type: ignore[return-value]

    assert held_out(0) == held_out(0) and held_out(0) != held_out(1)


def test_the_last_of_repeated_interactions_counts(tmp_path: Path) -> None:
    rows = [("a", "x", 1, 5), ("a", "x", 4, 9), ("a", "x", 2, 7), ("a", "y", 3, 1), ("a", "z", 3, 2)]
    (tmp_path / "x.csv").write_text("user,item,rating,time\n" + "".join(",".join(map(str, row)) + "\n" for row in rows))
    dataset = InteractionTable(path=str(tmp_path / "x.csv"), rating="rating", timestamp="time", feedback="explicit")
    assert found_in(dataset) == {"train": {("a", "y", 3.0)}, "val": {("a", "z", 3.0)}, "test": {("a", "x", 4.0)}}
    findings = CollectedFindings()
    dataset.examine(findings)
    facts = [problem.fact for problem in findings.shown["duplicate"]]
    assert [int(re.findall(r"line (\d)", fact)[0]) for fact in facts] == [2, 4]


def test_users_of_few_items_only_train_and_are_listed(tmp_path: Path) -> None:
    pairs = [("a", item) for item in "vwxyz"] + [("b", "v"), ("b", "w")]
    (tmp_path / "x.csv").write_text("user,item\n" + "".join(f"{user},{item}\n" for user, item in pairs) + "c,u\n")
    dataset = InteractionTable(path=str(tmp_path / "x.csv"), sampled_negatives=1)
    found = found_in(dataset)
    assert {user for user, _, _ in found["val"]} == {"a"} and {("b", "v", 1.0), ("b", "w", 1.0)} <= found["train"]
    findings = CollectedFindings()
    dataset.examine(findings)
    few_b, few_c = findings.shown["few_items"]
    assert few_b.fact.endswith("user b has 2 items, and 3 are needed to hold any out.") and few_b.location.line in (
        7,
        8,
    )
    assert few_c.fact.endswith("line 9: user c has 1 items, and 3 are needed to hold any out.")


WRONG: List[Tuple[str, str, str]] = [
    ("ratings.csv", "userId,movieId,rating,timestamp\n1,2,good,3\n", "line 2: its rating 'good' is no number."),
    ("ratings.csv", "userId,movieId,rating,timestamp\n1,2,4_5,3\n", "line 2: its rating '4_5' is no number."),
    (
        "ratings.csv",
        "userId,movieId,rating,timestamp\n1,2,4,1_0\n",
        "line 2: its timestamp '1_0' is no number and no date such as",
    ),
    ("ratings.csv", "userId,movieId,rating,timestamp\n1,2,nan,3\n", "line 2: its rating nan is no finite number"),
    (
        "ratings.csv",
        "userId,movieId,rating,timestamp\n1,2,3,noon\n",
        "line 2: its timestamp 'noon' is no number and no date such as",
    ),
    ("ratings.csv", "userId,movieId,rating,timestamp\nNA,2,3,4\n", "line 2: its user is 'NA', a missing value."),
    ("ratings.csv", "userId,movieId,rating,timestamp\n1,None,3,4\n", "line 2: its item is 'None', a missing value."),
    ("ratings.csv", "userId,movieId,rating,timestamp\n0,1,2,3,4\n", "'0' is below 'userId', and '4' below none."),
    ("ratings.csv", "userId,movieId,rating,timestamp\n1,,3,4\n", "line 2: its item is empty."),
    ("ratings.csv", "userId,movieId,rating,timestamp\n1,2\n", "line 2: it has 2 columns, so there is none for "),
    ("ratings.csv", "userId,movieid,rating,timestamp\n1,2,3,4\n", "no column 'movieId'. Did you mean 'movieid'?"),
    ("u.data", "1\t2\t3\t4\n1\t2\t3\n", "line 2: it has 3 columns between tabs, and 4 are needed."),
    ("ratings.dat", "1::2::3::4\n1:2:3:4\n", "line 2: it has 1 columns between '::', and 4 are needed."),
    ("u.data", "", "there is no interaction in it."),
    ("u.data", "1\t2\t3\t4\n", "no user has 3 items, so none can be held out."),
]


@pytest.mark.parametrize("name, content, said", WRONG)
def test_mistakes_are_named_by_file_and_line(tmp_path: Path, name: str, content: str, said: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError) as error:
        MovieLens(root=str(tmp_path)).open()
    assert said in str(error.value) and str(tmp_path) in str(error.value)
    findings = CollectedFindings()
    with pytest.raises(DataError):  # nothing is left
        MovieLens(root=str(tmp_path)).examine(findings)
    lines = [problem.location.line for found in findings.shown.values() for problem in found]
    assert 2 in lines or "line 2" not in said


@pytest.mark.slow
def test_check_lists_all_problems_and_continues(tmp_path: Path, capsys: Any) -> None:
    good = [f"{user}\t{item}\t3\t{item}" for user in range(3) for item in range(user, user + 4)]
    (tmp_path / "u.data").write_text("\n".join([*good, "7\t8\tx\t9", "1\t2"]) + "\n")
    words = ["dataset=movielens", f"dataset.root={tmp_path}", "dataset.sampled_negatives=1"]
    assert run(["data", "check", *words]) == 2
    printed = capsys.readouterr().out
    assert "line 13: its rating 'x' is no number" in printed and "line 14: it has 2 columns" in printed
    (tmp_path / "u.data").write_text("\n".join(good) + "\n")
    assert run(["data", "check", *words]) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "words, said",
    [
        (("dataset.feedback=explicit",), "feedback=explicit needs rating=COLUMN"),
        (("dataset.min_rating=3",), "min_rating needs rating=COLUMN"),
        (("dataset.negatives=0",), "dataset.negatives"),
        (("dataset.header=false", "dataset.user=3"), "Type e.g. dataset.user=0 dataset.item=1"),
        (
            ("dataset.feedback=explicit", "dataset.rating=r"),
            "type loss=l2 metric=[root_mean_squared_error,mean_absolute_error] "
            "trainer.monitor=val/root_mean_squared_error.",
        ),
        (
            (
                "dataset.feedback=explicit",
                "dataset.rating=r",
                "metric=[mean_absolute_error]",
                "trainer.monitor=val/mean_absolute_error",
            ),
            "have no sampled items: type loss=l2.",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused(describe_run: Any, words: Tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        describe_run("dataset=interactions", *words)


def test_negatives_are_limited_by_the_items_that_a_user_lacks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [f"{user},{item}" for user in range(3) for item in range(user, user + 4)]
    (tmp_path / "x.csv").write_text("\n".join(["user,item", *rows]) + "\n")
    dataset = InteractionTable(path=str(tmp_path / "x.csv"))
    splits = dataset.open()
    assert "dataset.sampled_negatives=99: of 6 items user 0 lacks only 2, so metrics" in caplog.text
    signature = dataset.infer_signature(splits, MatrixFactorization())
    assert signature.shape == ((), (3,))
    options = LoaderOptions(batch_size=4, prefetch=0, device=mx.cpu())
    (batch,) = dataset.build_loader(splits.val, signature, options).epoch(0)
    user_B, item_BC = (value.asnumpy().astype(int).tolist() for value in batch.inputs)
    assert all(sorted({*items, *range(user, user + 4)}) == list(range(6)) for user, items in zip(user_B, item_BC))


def test_user_with_all_items_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("user,item\n" + "".join(f"7,{item}\n" for item in range(4)))
    with pytest.raises(DataError, match="user 7 has all 4 items, so there is none to compare"):
        InteractionTable(path=str(tmp_path / "x.csv")).open()


@pytest.mark.parametrize("form", ["csv", "bare.csv", "ratings.dat"])
def test_second_start_uses_prepared_data(tmp_path: Path, form: str, monkeypatch: Any) -> None:
    """Other settings or another file are read from the text again."""
    path = tmp_path / (form if form == "ratings.dat" else f"x.{form}")
    if form == "ratings.dat":
        path.write_text("".join("::".join(map(str, row)) + "\n" for row in ROWS))
        kind: Any = MovieLens
        settings: Dict[str, Any] = {"root": str(path)}
    else:
        kind, settings = InteractionTable, {"path": str(path), **write(path, form)}
    settings["feedback"] = "explicit"
    before = kind(**settings).open()
    read: List[int] = []
    for module in (interactions, movielens):
        monkeypatch.setattr(module, "read_pairs", lambda *given: read.append(1) or read_pairs(*given))
    after = kind(**settings).open()
    assert not read
    for name in ("train", "val", "test"):
        one, other = getattr(before, name), getattr(after, name)
        assert pairs_of(one) == pairs_of(other) == EXPECTED[name] and one.catalog == other.catalog
        assert [str(one.locations[index]) for index in range(len(one))] == [
            str(other.locations[index]) for index in range(len(other))
        ]
    assert len(kind(min_rating=2.0, **settings).open().train) < len(before.train) and len(read) == 1
    path.write_text(path.read_text().replace(f"{BIG}", "anna"))
    assert "anna" in kind(**settings).open().train.catalog.users and len(read) == 2
