"""task=recommendation: what it learns, ranks, reports and predicts; against loops in NumPy."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any, Callable, Dict, List, Set, Tuple

import numpy as np
import pytest
from low_precision import needs_bfloat16

from mxtrain.callback.protocol import CommandLine
from mxtrain.cli.dispatch import run
from mxtrain.data.spec import open_splits
from mxtrain.engine.backend import nd
from mxtrain.recommendation import all_items
from mxtrain.recommendation.baselines import item_neighbours, mean_ratings, popularity, ranks_of, sampled_ranks
from mxtrain.recommendation.interactions import InteractionTable
from mxtrain.recommendation.loader import RecommendationDraw
from mxtrain.recommendation.source import Interactions
from mxtrain.terminal.report import next_commands
from mxtrain.training.loaders import build_loader
from mxtrain.training.remarks import constant_metrics
from mxtrain.training.verification import verify

pytestmark = pytest.mark.usefixtures("own_cache")

USERS, ITEMS, GROUPS, OTHERS = 60, 40, 4, 15
SMALL = (
    f"dataset.sampled_negatives={OTHERS}",
    "dataset.batch_size=32",
    "model.units=8",
    "optimizer.lr=0.02",
    "trainer.max_epochs=8",
    "trainer.val_interval=8",
    "logger=[]",
    "early_stopping=off",
)


@pytest.fixture(scope="module")
def table(tmp_path_factory: Any) -> Path:
    """Users who have items of their own group alone, and rate the even ones higher."""
    draw, path = np.random.RandomState(0), tmp_path_factory.mktemp("data") / "x.csv"
    rows = []
    for user in range(USERS):
        for item in draw.permutation(ITEMS // GROUPS)[:7] * GROUPS + user % GROUPS:
            rows.append(f"user{user},item{item},{2 + 2 * (item // GROUPS % 2 == 0)},{draw.randint(1000)}")
    path.write_text("\n".join(["user,item,rating,timestamp", *rows]) + "\n")
    return path


def overrides_of(table: Path) -> Tuple[str, ...]:
    return ("task=recommendation", "dataset=interactions", f"dataset.path={table}", *SMALL)


@pytest.fixture
def splits(table: Path) -> Any:
    return InteractionTable(path=str(table), sampled_negatives=OTHERS).open()


def candidates_of(source: Interactions) -> np.ndarray:
    others = source.all_items.draw_different(source.user_N, OTHERS, 0, RecommendationDraw.CANDIDATES)
    return np.concatenate([source.item_N[:, None], others], axis=1)


def loop_ranks(score: Callable[[int, int], float], source: Interactions, candidates: np.ndarray) -> List[List[int]]:
    """The number of others that are not below, item by item: of candidates, and of all items in no split."""
    found: List[List[int]] = [[], []]
    for user, item, row in zip(source.user_N.tolist(), source.item_N.tolist(), candidates.tolist()):
        seen = set(source.all_items.items_of(user).tolist())
        among_all = [other for other in range(len(source.catalog.items)) if other not in seen]
        for place, others in enumerate((row[1:], among_all)):
            found[place].append(sum(not score(user, other) < score(user, item) for other in others))
    return found


def test_popularity_and_item_neighbours_are_ranked_as_a_loop_ranks_them(splits: Any) -> None:
    test: Interactions = splits.test
    has: Dict[int, Set[int]] = {user: set(test.train_items.items_of(user).tolist()) for user in range(USERS)}
    users = {item: {user for user in has if item in has[user]} for item in range(len(test.catalog.items))}

    def cosine(item: int, other: int) -> float:
        product = len(users[item]) * len(users[other])
        return len(users[item] & users[other]) / product**0.5 if product and item != other else 0.0

    def neighbours(user: int, item: int) -> float:
        return round(sum(cosine(item, other) for other in sorted(has[user])), 9)

    def as_rounded(user_B: np.ndarray) -> np.ndarray:
        return item_neighbours(test.train_items)(user_B).round(9)  # sums in another order

    candidates = candidates_of(test)
    popular = popularity(test.train_items)
    for scores, score in ((popular, lambda user, item: len(users[item])), (as_rounded, neighbours)):
        expected = loop_ranks(score, test, candidates)
        assert [one.tolist() for one in ranks_of(scores, test, candidates)] == expected
        assert len(set(map(tuple, expected))) == 2 and len(set(expected[1])) > 3


def test_means_of_ratings_are_damped_as_a_loop_damps_them(table: Path) -> None:
    dataset = InteractionTable(path=str(table), rating="rating", timestamp="timestamp", feedback="explicit")
    splits = dataset.open()
    train, test = splits.train, splits.test
    assert isinstance(train, Interactions) and isinstance(test, Interactions)
    triples = list(zip(train.user_N.tolist(), train.item_N.tolist(), train.rating_N.tolist()))
    mean = sum(rating for _, _, rating in triples) / len(triples)

    def of_item(item: int) -> float:
        left = [rating - mean for _, other, rating in triples if other == item]
        return sum(left) / (len(left) + 25)

    def of_user(user: int) -> float:
        left = [rating - mean - of_item(item) for other, item, rating in triples if other == user]
        return sum(left) / (len(left) + 10)

    expected = [mean + of_item(item) + of_user(user) for user, item in zip(test.user_N.tolist(), test.item_N.tolist())]
    all_mean, means = mean_ratings(test, test)
    assert means == pytest.approx(expected, abs=1e-9) and all_mean == pytest.approx(np.full(USERS, mean))
    assert splits.mean == [pytest.approx(mean)]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["fism", "matrix_factorization", "neumf"])
def test_model_learns_common_items_of_users(train_run: Any, table: Path, model: str) -> None:
    _, result = train_run(*overrides_of(table), f"model={model}", "model.units=8")
    assert result.metrics["test/hr_at_k_sampled"] > 0.9 and result.metrics["test/ndcg_at_k"] > 0.4


@pytest.mark.slow
def test_all_items_are_scored_like_candidates_without_the_items_of_the_user(
    train_run: Any, describe_run: Any, table: Path, splits: Any, monkeypatch: Any
) -> None:
    words = overrides_of(table)
    made, _ = train_run(*words)
    strategy = made.runner.context.step.strategy
    description = describe_run(*words)
    signature = description.dataset.infer_signature(splits, description.model)
    loader = build_loader(description, splits.test, signature, strategy.layout.devices[0][0], prefetch=0)
    (batch,) = loader.epoch(0)
    (outputs,) = strategy.predict(batch.inputs)
    decode = description.task.build_decode(description, signature, strategy)
    fast = decode((outputs,), batch).asnumpy()
    for row, user in enumerate(splits.test.user_N.tolist()):
        has = set(splits.test.all_items.items_of(user).tolist()) - {int(splits.test.item_N[row])}
        assert set(np.flatnonzero(np.isneginf(fast[row])).tolist()) == has
    chosen = np.take_along_axis(fast, batch.targets[0].asnumpy().astype(int), axis=1)
    assert chosen == pytest.approx(outputs.asnumpy(), abs=1e-5)
    monkeypatch.setattr(type(description.model), "score_all", lambda *given: None)
    monkeypatch.setattr(all_items, "SCORES_AT_ONCE", 7 * len(fast))  # parts of seven items, the last shorter
    assert decode((outputs,), batch).asnumpy() == pytest.approx(fast, abs=1e-5)


@pytest.mark.slow
def test_eval_shows_the_network_beside_simple_rules(train_run: Any, table: Path, splits: Any, tmp_path: Path) -> None:
    made, result = train_run(*overrides_of(table))
    assert run(["eval", str(tmp_path / "run"), "split=test"]) == 0
    folder = tmp_path / "run" / "eval" / "test"
    with open(folder / "recommenders.csv", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    assert header == ["model", "HR@10, 15 sampled", "NDCG@10, 15 sampled", "HR@10, all items", "NDCG@10, all items"]
    assert [row[0] for row in rows] == ["this network", "popularity", "item neighbours (cosine)"]
    names = ("hr_at_k_sampled", "ndcg_at_k_sampled", "hr_at_k", "ndcg_at_k")
    measured = json.loads((folder / "metrics.json").read_text())
    assert [float(cell) for cell in rows[0][1:]] == [pytest.approx(measured[name], abs=1e-4) for name in names]
    sampled, among_all = ranks_of(popularity(splits.test.train_items), splits.test, candidates_of(splits.test))
    assert [float(cell) for cell in rows[1][1::2]] == [
        pytest.approx(np.mean(one < 10), abs=1e-4) for one in (sampled, among_all)
    ]
    signatures = made.info.metric_signatures
    assert signatures["hr_at_k_sampled"] == "k=10,among=15_sampled_unseen_items,ties=worst"
    assert signatures["hr_at_k"] == "k=10,among=all_unseen_items,ties=worst"
    assert sampled_ranks(np.array([[0.0, 2, 1]]), np.array([[2, 0, 1]])).tolist() == [1]


@pytest.mark.slow
def test_predict_names_the_best_items_that_a_user_has_not(
    train_run: Any, table: Path, splits: Any, tmp_path: Path, capsys: Any
) -> None:
    made, result = train_run(*overrides_of(table))
    typed = dict(next_commands(result, tmp_path / "run", {}, CommandLine(), predict_inputs=made.info.predict_inputs))
    assert typed["predict"].endswith("/run all")
    (tmp_path / "users.txt").write_text("user7\n\nuser3\n")
    capsys.readouterr()
    assert run(["predict", str(tmp_path / "run"), str(tmp_path / "users.txt"), "top_k=5"]) == 0
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (first["user"], second["user"]) == ("user7", "user3")
    assert first["file"].endswith("users.txt:1") and second["file"].endswith("users.txt:3")
    catalog = splits.train.catalog
    for row in (first, second):
        user = catalog.users.index(row["user"])
        has = {catalog.items[item] for item in splits.train.all_items.items_of(user).tolist()}
        named, scores = [one["item"] for one in row["items"]], [one["score"] for one in row["items"]]
        assert len(set(named)) == 5 and not set(named) & has and scores == sorted(scores, reverse=True)
        group = int(row["user"][4:]) % GROUPS
        assert sum(int(name[4:]) % GROUPS == group for name in named[:3]) == 3, "its group has three items left"
    assert run(["predict", str(tmp_path / "run"), "all", "top_k=2", f"output={tmp_path / 'all.csv'}"]) == 0
    with open(tmp_path / "all.csv", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    assert header == ["file", "user", "item_1", "score_1", "item_2", "score_2"] and len(rows) == USERS
    assert ["all:8", "user7", *(str(cell) for one in first["items"][:2] for cell in one.values())] in rows


@pytest.mark.slow
def test_unknown_users_are_named_by_line(train_run: Any, table: Path, tmp_path: Path, capsys: Any) -> None:
    train_run(*overrides_of(table))
    users = tmp_path / "users.txt"
    users.write_text("user7\nuser777\n")
    assert run(["predict", str(tmp_path / "run"), str(users)]) == 2
    assert f"{users}, line 2: there is no user 'user777'. Did you mean 'user7'" in capsys.readouterr().err
    assert run(["predict", str(tmp_path / "run"), str(users), "skip_unreadable=true"]) == 0
    out = capsys.readouterr()
    assert [json.loads(line)["user"] for line in out.out.splitlines()] == ["user7"] and "user777" in out.err
    assert run(["predict", str(tmp_path / "run"), str(tmp_path / "nothing.txt")]) == 2
    assert "Name a file of user ids, one a line, or type all." in capsys.readouterr().err


@pytest.mark.slow
def test_other_data_are_refused(train_run: Any, table: Path, tmp_path: Path, capsys: Any) -> None:
    copied = tmp_path / "x.csv"
    copied.write_text(table.read_text())
    train_run(*overrides_of(copied))
    copied.write_text(table.read_text() + "user7,new,3,5000\n")
    assert run(["eval", str(tmp_path / "run")]) == 2
    assert "41 items instead of 40, 1 of them new: new." in capsys.readouterr().err
    assert run(["predict", str(tmp_path / "run"), "all"]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("model", ["svd_pp", "neumf", "deepfm"])
def test_gradients_of_the_rows_of_a_batch_alone_give_the_same_bits(describe_run: Any, table: Path, model: str) -> None:
    words = ("trainer.sparse_grad=true", "optimizer.lazy_update=false", "dataset.batch_size=8", "parallel=data")
    found = verify(describe_run(*overrides_of(table), f"model={model}", "model.units=4", *words), 2, 1e-6)
    assert found.passed, found


@pytest.mark.slow
@needs_bfloat16
@pytest.mark.parametrize("model", ["fism", "deepfm"])
def test_bfloat16_learns_as_much_and_is_the_same_under_a_placement(
    train_run: Any, describe_run: Any, table: Path, model: str
) -> None:
    words = (*overrides_of(table), f"model={model}", "amp=bfloat16")
    _, result = train_run(*words)
    assert result.metrics["test/hr_at_k_sampled"] > 0.9
    form = "true" if model == "deepfm" else "false"
    placed = ("dataset.batch_size=8", "parallel=data", f"trainer.sparse_grad={form}")
    found = verify(describe_run(*words, *placed), 2, 1e-6)
    assert found.passed and found.low is not None, found


@pytest.mark.zoo
def test_all_items_are_scored_in_parts_that_the_rows_of_a_batch_have_room_for(
    train_run: Any, table: Path, monkeypatch: Any
) -> None:
    """Room for the ids of two users with six candidates, and forty items."""
    words = ("dataset.batch_size=2", "dataset.sampled_negatives=5", "trainer.max_epochs=1", "trainer.val_interval=1")
    for model in ("neumf", "deepfm"):
        found = []
        for form in ("true", "false"):
            given = (*overrides_of(table), *words, f"model={model}", f"trainer.sparse_grad={form}")
            made, result = train_run(*given, "optimizer.lazy_update=false", run_dir=table.parent / f"{model}-{form}")
            found.append(result.metrics)
            room = made.runner.context.step.strategy.id_limits.distinct
            assert (room is not None and room < ITEMS) == (form == "true")
        assert found[0] == found[1]


RATED = (
    "dataset.feedback=explicit",
    "dataset.rating=rating",
    "dataset.timestamp=timestamp",
    "loss=l2",
    "metric=[root_mean_squared_error,mean_absolute_error]",
    "trainer.monitor=val/root_mean_squared_error",
)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["matrix_factorization", "svd_pp"])
def test_ratings_are_predicted(train_run: Any, table: Path, tmp_path: Path, capsys: Any, model: str) -> None:
    made, result = train_run(*overrides_of(table), *RATED, f"model={model}", "model.units=4")
    assert result.metrics["test/root_mean_squared_error"] < 0.6, "of 2 and 4"
    assert run(["eval", str(tmp_path / "run")]) == 0
    folder = tmp_path / "run" / "eval" / "test"
    with open(folder / "raters.csv", encoding="utf-8") as file:
        header, network, mean, _ = csv.reader(file)
    measured = json.loads((folder / "metrics.json").read_text())
    assert header == ["model", "RMSE", "MAE"] and 0.8 < float(mean[1]) < 1.2
    assert float(network[1]) == pytest.approx(measured["root_mean_squared_error"], abs=1e-4)
    assert float(network[2]) == pytest.approx(measured["mean_absolute_error"], abs=1e-4)
    dataset = InteractionTable(
        path=str(table), feedback="explicit", rating="rating", timestamp="timestamp", sampled_negatives=OTHERS
    )
    test = open_splits(dataset).test
    assert isinstance(test, Interactions)
    inputs = [nd.array(test.user_N, dtype="int32"), nd.array(test.item_N[:, None], dtype="int32")]
    if model == "svd_pp":
        rows = [test.train_items.items_of(user).tolist() for user in test.user_N.tolist()]
        inputs.append(nd.array([row + [0] * (7 - len(row)) for row in rows], dtype="int32"))
        inputs.append(nd.array([len(row) for row in rows]))
    (found,) = made.runner.context.step.strategy.predict(inputs)
    wrong = found.asnumpy()[:, 0] - test.rating_N
    with open(folder / "predictions.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    users, items = (
        [names[index] for index in index_N]
        for names, index_N in ((test.catalog.users, test.user_N), (test.catalog.items, test.item_N))
    )
    assert [(row["user"], row["item"], float(row["true"])) for row in rows] == [*zip(users, items, test.rating_N)]
    assert [float(row["predicted"]) for row in rows] == pytest.approx(found.asnumpy()[:, 0], abs=1e-5)
    assert "rank" not in rows[0]
    assert result.metrics["test/root_mean_squared_error"] == pytest.approx(float(np.sqrt((wrong**2).mean())), abs=1e-5)
    capsys.readouterr()
    assert run(["predict", str(tmp_path / "run"), "all", "top_k=1"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == USERS


@pytest.mark.slow
def test_table_for_tensorboard_has_known_and_highest_ranked_items(train_run: Any, table: Path, splits: Any) -> None:
    made, _ = train_run(*overrides_of(table))
    samples = made.runner.context.data.samples
    (shown,) = samples.artifacts(made.runner.context.evaluator)
    assert shown.header == ("user", "has", "held out (rank)", "first 10") and len(shown.rows) == 16
    source, items = splits.val, splits.val.catalog.items
    for name, has, ranked, first in shown.rows:
        held_out, rank = re.fullmatch(r"(\w+) \((\d+)\)", ranked).groups()
        user = source.catalog.users.index(name)
        assert set(has.split(", ")) == {items[item] for item in source.train_items.items_of(user).tolist()}
        assert held_out == items[source.item_N[source.user_N.tolist().index(user)]]
        assert not set(first.split(", ")) & set(has.split(", "))
        assert int(rank) > 10 or first.split(", ")[int(rank) - 1] == held_out


@pytest.mark.slow
def test_a_hit_rate_among_fewer_items_than_its_k_is_warned_of(table: Path, describe_run: Any) -> None:
    description = describe_run(*overrides_of(table), "dataset.sampled_negatives=4")
    splits = description.dataset.open()
    signature = description.dataset.infer_signature(splits, description.model)
    (said,) = constant_metrics(description, signature)
    assert said.startswith("metric.hr_at_k_sampled.k=10: of 5 choices, so it is always 1.")
