"""Features of users and items: what a network reads of a user and its candidates, against the files."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import pytest

from mxtrain.cli.dispatch import run
from mxtrain.data.loading.loader import LoaderOptions
from mxtrain.data.signature import Signature
from mxtrain.errors import ConfigError, DataError
from mxtrain.recommendation.interactions import InteractionTable
from mxtrain.recommendation.recommenders import MatrixFactorization
from mxtrain.recommendation.signature import RecommendationSignature
from mxtrain.recommendation.source import Interactions
from mxtrain.tables.feature_models import DeepFM

pytestmark = pytest.mark.usefixtures("own_cache")

USERS, ITEMS = 8, 12
TOWNS = ("Ulm", "Bonn", "Ulm", "", "Kiel", "Ulm", "Bonn")
"""Towns of all users but the last, who is in no row."""
PRICES = [float(item * item) for item in range(ITEMS)]


@pytest.fixture
def settings(tmp_path: Path) -> Dict[str, Any]:
    pairs = [f"u{user},i{(user * 3 + place * 5) % ITEMS}" for user in range(USERS) for place in range(4)]
    (tmp_path / "x.csv").write_text("\n".join(["user,item", *pairs]) + "\n")
    rows = [f"{town},u{user},{20 + user}" for user, town in enumerate(TOWNS)]
    (tmp_path / "users.csv").write_text("\n".join(["town,user,age", *rows[::-1], "Kiel,stranger,99"]) + "\n")
    rows = [f"i{item}\t{price}\tkind{item % 3}" for item, price in enumerate(PRICES)]
    (tmp_path / "items.tsv").write_text("\n".join(["name\tprice\tsort", *rows]) + "\n")
    return {
        "path": str(tmp_path / "x.csv"),
        "sampled_negatives": 3,
        "negatives": 2,
        "user_features": f"{tmp_path}/users.csv",
        "item_features": f"{tmp_path}/items.tsv",
        "item_id": "name",
        "batch_size": 4,
        "user_columns": {"town": "category", "age": "number"},
        "item_columns": {"price": "count", "sort": {"kind": "hashed", "buckets": 5}},
    }


def batches(dataset: InteractionTable, source: Any, signature: Signature, train: bool) -> List[Any]:
    loader = dataset.build_loader(source, signature, LoaderOptions(batch_size=4, train=train, prefetch=0))
    return list(loader.epoch(0))


@pytest.mark.parametrize("train", [True, False])
def test_network_reads_features_of_user_and_candidates(settings: Dict[str, Any], train: bool) -> None:
    """Cell by cell: ids of the joined table and numbers; a user without a row has nothing but himself."""
    from zlib import crc32

    dataset = InteractionTable(**settings)
    splits = dataset.open()
    source: Interactions = splits.train if train else splits.test  # type: ignore[assignment]
    signature = dataset.infer_signature(splits, DeepFM())
    users, items = source.catalog.users, source.catalog.items
    assert signature.num_candidates == 4 and signature.shape == ((2 + 4 * 2,), (4 * 3,))
    ages = [20.0 + user for user in range(USERS - 1)]
    mean, deviation = np.mean(ages), np.std(ages)
    logs = [math.log1p(price) for price in PRICES]
    # After users: missing, unseen, then towns, the most frequent first; after items: missing, then five buckets.
    towns = {"": 0, "Ulm": 2, "Bonn": 3, "Kiel": 4}
    first_item = USERS + 5
    compared = 0
    for batch in batches(dataset, source, signature, train):
        id_BK, number_BM = (array.asnumpy() for array in batch.inputs)
        candidates = batch.targets[0].asnumpy().astype(int)
        assert id_BK.dtype == np.int32 and candidates.shape[1] == (3 if train else 4)
        for row, index in enumerate(batch.index_B.tolist()):
            user = int(users[source.user_N[index]][1:])
            town = TOWNS[user] if user < USERS - 1 else ""
            assert id_BK[row, :2].tolist() == [source.user_N[index], USERS + towns[town]]
            for place, number in enumerate(candidates[row].tolist()):
                item = int(items[number][1:])
                bucket = 1 + crc32(f"kind{item % 3}".encode()) % 5
                assert id_BK[row, 2 + 2 * place :][:2].tolist() == [first_item + number, first_item + ITEMS + bucket]
                # A number that nobody has is the mean, and a further number says so.
                age = (0.0, 1.0) if user == USERS - 1 else ((20 + user - mean) / deviation, 0.0)
                price = (logs[item] - np.mean(logs)) / np.std(logs)
                assert number_BM[row, 3 * place :][:3] == pytest.approx([*age, price], abs=1e-5)
                compared += 1
    assert compared >= 24


def test_columns_that_are_not_described_are_guessed_and_kept(settings: Dict[str, Any]) -> None:
    dataset = InteractionTable(**{**settings, "user_columns": {}, "item_columns": {"sort": "ignore"}})
    signature = dataset.infer_signature(dataset.open(), DeepFM())
    assert signature.user_columns is not None and signature.item_columns is not None
    columns = signature.user_columns.columns + signature.item_columns.columns
    found = [(column.name, column.kind) for column in columns]
    assert found == [("town", "category"), ("age", "number"), ("price", "number")]
    kept = RecommendationSignature.from_json(dict(signature.to_json()))
    assert (kept.user_columns, kept.item_columns) == (signature.user_columns, signature.item_columns)
    assert dataset.infer_signature(dataset.open(), MatrixFactorization()).user_columns is None


@pytest.mark.parametrize(
    "change, said",
    [
        ({"user_columns": {"twon": "category"}}, r"dataset.user_columns: .*no column 'twon'. Did you mean 'town'"),
        ({"user_id": "usr"}, "dataset.user_id: .*no column 'usr'. Did you mean 'user'"),
        ({"item_features": "nothing.csv"}, "nothing.csv: there is no such file"),
        ({"user_columns": {"town": "ignore", "age": "ignore"}}, "no column beside 'user' that is not ignored"),
    ],
)
def test_misfits_are_reported(settings: Dict[str, Any], change: Any, said: str) -> None:
    dataset = InteractionTable(**{**settings, **change})
    with pytest.raises(DataError, match=said):
        dataset.infer_signature(dataset.open(), DeepFM())


def test_duplicate_and_empty_user_ids_are_refused_by_line(settings: Dict[str, Any], check: Any) -> None:
    path = Path(settings["user_features"])
    path.write_text(path.read_text() + "Ulm,u3,50\nUlm,,51\n")
    dataset = InteractionTable(**settings)
    assert [one[:3] for one in check(dataset) if one[0] != "few_items"] == [
        ("unreadable_row", "users.csv", 11),
        ("duplicate", "users.csv", 10),
    ]
    with pytest.raises(DataError, match="users.csv, line 11: its 'user' is empty"):
        dataset.infer_signature(dataset.open(), DeepFM())


@pytest.mark.slow
@pytest.mark.parametrize(
    "words, said",
    [
        (("model=fism",), "dataset.user_features: .*Type model=factorization_machine, deepfm or wide_deep."),
        (("model=deepfm", "dataset.user_features=null"), "user_columns describe user_features=FILE, which"),
        (("model=deepfm", "dataset.user_columns={user: hashed}"), "'user', which says which user a row is of"),
    ],
)
def test_unused_features_are_refused(describe_run: Any, settings: Dict[str, Any], words: Any, said: str) -> None:
    given = (
        "task=recommendation",
        "dataset=interactions",
        f"dataset.path={settings['path']}",
        f"dataset.user_features={settings['user_features']}",
        "dataset.user_columns={town: category}",
    )
    with pytest.raises(ConfigError, match=said):
        describe_run(*given, *words)


def with_ids(tmp_path: Path, settings: Dict[str, Any], write: Any, own: Any) -> InteractionTable:
    pairs = [f"{write(user)},i{(user * 3 + place * 5) % ITEMS}" for user in range(USERS) for place in range(4)]
    (tmp_path / "x.csv").write_text("\n".join(["user,item", *pairs]) + "\n")
    rows = [f"{own(user)},{20 + user}" for user in range(USERS)]
    (tmp_path / "users.csv").write_text("\n".join(["user,age", *rows]) + "\n")
    return InteractionTable(**{**settings, "user_columns": {"age": "number"}})


@pytest.mark.parametrize("write, own", [("{}.0", "{}"), ("{}", "{}.0"), ("{}", "{}"), ("u{}", "u{}")])
def test_ids_join_as_integers(tmp_path: Path, settings: Any, write: str, own: str, caplog: Any) -> None:
    dataset = with_ids(tmp_path, settings, write.format, own.format)
    with caplog.at_level("INFO"):
        signature = dataset.infer_signature(dataset.open(), DeepFM())
    assert signature.user_columns is not None and signature.catalog is not None
    column = signature.user_columns.columns[0]
    assert (column.mean, column.indicator) == (23.5, False)
    said = f"users.csv: {USERS} of {USERS} users have a row"
    number = dataset.join(signature).user_UM[:, 0] * column.std + column.mean
    assert number.round().tolist() == [20.0 + user for user in range(USERS)]
    assert any(said in one and (f"{USERS} of them as 1 for 1.0" in one) == (write != own) for one in caplog.messages)


@pytest.mark.parametrize("own", ["user {}", "x{}.0", "{}.5"])
def test_ids_without_a_match_are_refused(tmp_path: Path, settings: Any, own: str, check: Any) -> None:
    dataset = with_ids(tmp_path, settings, "{}".format, own.format)
    words = "users.csv: none of 8 users has a row in it. Ids of users are like '0'; its 'user'"
    with pytest.raises(DataError, match=words):
        dataset.infer_signature(dataset.open(), DeepFM())
    assert ("cannot_open", "users.csv", None) in check(dataset)


def test_two_spellings_of_a_number_join_only_as_they_are(tmp_path: Path, settings: Any, caplog: Any) -> None:
    dataset = with_ids(tmp_path, settings, lambda user: "1.0" if user == 0 else str(user), str)
    with caplog.at_level("INFO"):
        dataset.infer_signature(dataset.open(), DeepFM())
    assert any("users '1' and '1.0' count as different" in one for one in caplog.messages)
    assert any("users.csv: 7 of 8 users have a row" in one for one in caplog.messages)


TASTES = 4


@pytest.fixture
def tastes(tmp_path: Path) -> Any:
    """Users like items of their own taste; items that are held out have not been seen otherwise by most, so that an id
    says little and a feature all."""
    draw = np.random.RandomState(0)
    pairs = [f"u{user},i{item}" for user in range(60) for item in draw.permutation(50)[:4] * TASTES + user % TASTES]
    (tmp_path / "x.csv").write_text("\n".join(["user,item", *pairs]) + "\n")
    for name, count in (("users", 60), ("items", 200)):
        rows = [f"{name[0]}{number},t{number % TASTES}" for number in range(count)]
        (tmp_path / f"{name}.csv").write_text("\n".join([f"{name[:-1]},taste", *rows]) + "\n")
    return (
        "task=recommendation",
        "dataset=interactions",
        f"dataset.path={tmp_path}/x.csv",
        "dataset.sampled_negatives=30",
        "dataset.batch_size=32",
        "model.units=8",
        "optimizer.lr=0.05",
        "trainer.max_epochs=15",
        "trainer.val_interval=15",
        "logger=[]",
        "early_stopping=off",
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "model, hit_rate, share",
    [
        ("factorization_machine", 0.5, 0.4),
        pytest.param("wide_deep", 0.85, 0.9, marks=pytest.mark.zoo),
        pytest.param("deepfm", 0.85, 0.9, marks=pytest.mark.zoo),
    ],
)
def test_features_improve_on_ids_and_are_used_by_predictions(
    train_run: Any, tastes: Any, tmp_path: Path, model: str, hit_rate: float, share: float, capsys: Any
) -> None:
    """A draw has a third of them among the first ten, and a quarter of all items are of a user's taste. A factorization
    machine learns the few items of each user by heart, too."""
    files = (f"dataset.user_features={tmp_path}/users.csv", f"dataset.item_features={tmp_path}/items.csv")
    _, without = train_run(*tastes, f"model={model}", run_dir=tmp_path / "without")
    _, result = train_run(*tastes, f"model={model}", *files)
    name = "test/hr_at_k_sampled"
    assert result.metrics[name] > hit_rate and result.metrics[name] > without.metrics[name] + 0.1
    capsys.readouterr()
    assert run(["predict", str(tmp_path / "run"), "all", "top_k=5", f"output={tmp_path / 'all.csv'}"]) == 0
    rows = [line.split(",") for line in (tmp_path / "all.csv").read_text().splitlines()[1:]]
    same = [int(cell[1:]) % TASTES == int(row[1][1:]) % TASTES for row in rows for cell in row[2::2]]
    assert len(same) == 60 * 5 and np.mean(same) > share
