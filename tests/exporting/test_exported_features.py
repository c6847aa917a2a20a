"""Networks that read features of users and items: their exported folders and the server recommend as the run does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import pytest
from served_folders import Served
from small_runs import BOUGHT, FOUR
from test_export_contract import export, folder  # noqa: F401  # fixtures
from test_exported_inputs import in_folder, rows_of_run
from test_exported_readers import predicted, require_equal

from mxtrain.cli.dispatch import run
from mxtrain.data.features.exported_rows import input_sizes
from mxtrain.data.features.feature_columns import FeatureColumns
from mxtrain.errors import DataError
from mxtrain.exporting import standalone

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_cache")]
Export = Callable[..., Path]
TOWNS = ("Ulm", "Bonn", "", "Kiel")
USERS = 39
"""Users with a row; one has none."""


def users_table(shift: int = 0) -> str:
    ages = ["" if user % 5 == 4 else 20 + user + shift for user in range(USERS)]
    rows = [f"{TOWNS[(user + shift) % 4]},u{user},{age}" for user, age in enumerate(ages)]
    return "\n".join(["town,user,age", *rows]) + "\n"


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    (tmp_path / "users.csv").write_text(users_table())
    rows = [f"i{item}\t{item * item}\tkind{item % 3}" for item in range(20)]
    (tmp_path / "items.tsv").write_text("\n".join(["name\tprice\tsort", *rows]) + "\n")
    pairs = [
        f"u{user},i{(user * 5 + place * place) % 20},{(user + place) % 5 + 1}"
        for user in range(40)
        for place in range(6)
    ]
    (tmp_path / "rated.csv").write_text("\n".join(["user,item,stars", *pairs]) + "\n")
    return tmp_path


USER_WORDS = ("dataset.user_features=TABLES/users.csv", "dataset.user_columns={town: category, age: number}")
ITEM_WORDS = (
    "dataset.item_features=TABLES/items.tsv",
    "dataset.item_id=name",
    "dataset.item_columns={price: count, sort: {kind: hashed, buckets: 5}}",
)
RATED = (
    "dataset.path=TABLES/rated.csv",
    "dataset.rating=stars",
    "dataset.feedback=explicit",
    "loss=l2",
    "metric=[root_mean_squared_error,mean_absolute_error]",
    "trainer.monitor=val/root_mean_squared_error",
)
RUNS: Dict[str, Tuple[str, ...]] = {
    "both": ("model=deepfm", *USER_WORDS, *ITEM_WORDS),
    "users, ratings": ("model=factorization_machine", "model.units=4", *USER_WORDS, *RATED),
    "items": ("model=wide_deep", *ITEM_WORDS),
    "categories": (
        "model=deepfm",
        "dataset.user_features=TABLES/users.csv",
        "dataset.user_columns={town: category, age: ignore}",
    ),
}


def overrides_of(name: str, tables: Path) -> List[str]:
    return [word.replace("TABLES", str(tables)) for word in (*BOUGHT[:-2], *RUNS[name], *FOUR)]


def write_lines(tables: Path, users: List[str], **more: Any) -> Path:
    pairs = [line.split(",")[:2] for line in (tables / "rated.csv").read_text().splitlines()[1:]]
    history = {user: [item for own, item in pairs if own == user] for user in users}
    file = tables / "users.jsonl"
    file.write_text("\n".join(json.dumps({"user": user, "history": history[user], **more}) for user in users) + "\n")
    return file


def without_places(rows: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "file"} for row in rows]


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name == "both" else pytest.mark.zoo) for name in RUNS])
def test_folders_and_the_server_recommend_as_the_run(export: Export, name: str, tables: Path) -> None:
    exported = export(*overrides_of(name, tables))
    users = ["u3", "u11", "u4", "u39"]
    lines, ids = write_lines(tables, users), tables / "users.txt"
    ids.write_text("\n".join(users))
    expected = without_places(rows_of_run(exported, ids))
    assert len({row["items"][0]["score"] for row in expected}) == len(users)
    require_equal(without_places(predicted(exported, lines)), expected)
    pairs = tables / "pairs.csv"
    pairs.write_text("user,item\n" + "".join(f"{row['user']},{row['items'][0]['item']}\n" for row in expected))
    scores = [row["items"][0]["score"] for row in expected]
    assert [row["score"] for row in predicted(exported, pairs)] == pytest.approx(scores, abs=2e-4)
    with Served(exported, "max_batch=2") as server:  # all items are several batches
        for line, row in zip(lines.read_text().splitlines(), expected):
            status, found, _ = server.ask("/v2/models/export/predict", line.encode())
            assert status == 200, found
            require_equal(found, row)
        status, found, _ = server.ask("/v2/models/export/predict", {"user": "u3", "histroy": []})
        assert status == 400 and '{"user": "...", "history": ["...", ...]}' in found["error"]
        status, found, _ = server.ask("/v2/models/export/predict", {"user": "u3x", "history": []})
        assert (status, found) == (400, {"error": "the body: there is no user 'u3x'."}), "names no other user"
        inputs, outputs = standalone.cases_of(standalone.read_arrays(str(exported)))[0]
        arrays = {name: array.tolist() for name, array in inputs.items()}
        status, found, _ = server.ask("/v2/models/export/predict", arrays)
        assert (status, found["output"]) == (200, pytest.approx(outputs["output"][0].tolist(), abs=1e-5))


def test_a_line_has_newer_features_than_the_folder(export: Export, tables: Path) -> None:
    exported = export(*overrides_of("both", tables))
    (tables / "newer.csv").write_text(users_table(shift=2))
    (tables / "users.txt").write_text("u5\n")
    newer = [f"dataset.user_features={tables}/newer.csv", f"output={tables}/right.jsonl"]
    assert run(["predict", str(exported.parent), str(tables / "users.txt"), *newer]) == 0
    expected = without_places(list(map(json.loads, (tables / "right.jsonl").read_text().splitlines())))
    features = {"town": "Kiel", "age": 27}
    before = without_places(predicted(exported, write_lines(tables, ["u5"])))
    found = without_places(predicted(exported, write_lines(tables, ["u5"], features=features)))
    require_equal(found, expected)
    assert found != before
    (exported / "user_features.npz").unlink()  # they are personal data
    require_equal(without_places(predicted(exported, write_lines(tables, ["u5"], features=features))), expected)
    (tables / "pairs.csv").write_text("user,item\nu5,i9\n")
    for file in (write_lines(tables, ["u5"]), tables / "pairs.csv"):
        done = in_folder(exported, file)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert 'no user_features.npz, so a line of JSON needs the features of its user: "features"' in done.stderr
    (exported / "item_features.npz").unlink()
    done = in_folder(exported, write_lines(tables, ["u5"], features=features))
    assert done.returncode == 2 and "item_features.npz is missing" in done.stderr
    said = (exported / "README.md").read_text()
    assert '"features": {"town": "...", "age": "..."} replaces what user_features.npz says of the user' in said


def test_unreadable_tables_are_refused_before_the_export(
    tables: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import running
    from small_runs import SHORT, with_data

    import mxtrain

    running.train_here(folder / "run", *SHORT, *with_data(overrides_of("items", tables), folder))
    trained = mxtrain.load(folder / "run")
    monkeypatch.setattr(standalone, "MAX_ARRAY_BYTES", 50)
    with pytest.raises(DataError, match=r"item_features.npz would hold \d+ bytes, and predict.py reads .* at most 50"):
        trained.export(folder / "out")
    assert not (folder / "out").exists()


def test_sizes_of_columns_match_training() -> None:
    values = [
        {"name": "town", "kind": "category", "vocabulary": ["a", "b"]},
        {"name": "age", "kind": "number"},
        {"name": "sort", "kind": "hashed", "buckets": 5},
        {"name": "price", "kind": "number", "indicator": True},
    ]
    columns = FeatureColumns.from_json(values)
    assert input_sizes(values) == (list(columns.field_sizes), columns.num_numbers) == ([4, 6], 3)
