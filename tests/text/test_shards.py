"""Several files as one split of each dataset of texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

import numpy as np
import pytest

from mxtrain.data.loading.folds import Fold
from mxtrain.data.spec import open_splits, with_fold
from mxtrain.errors import DataError
from mxtrain.text.classification.text import Text
from mxtrain.text.language_modeling.plain_text import PlainText
from mxtrain.types.kinds import ClassSet, Number

pytestmark = pytest.mark.usefixtures("own_cache")
ROWS = [{"sentence": f"text {row}", "label": row % 3, "weight": row + 1} for row in range(30)]
SIZES = (14, 0, 16)


def write_table(
    path: Path,
    rows: Sequence[Dict[str, Any]],
    classes: Optional[List[str]] = None,
    names: Sequence[str] = (*ROWS[0],),
) -> None:
    names = list(rows[0]) if rows else names
    if path.suffix == ".parquet":
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        types = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64()}
        columns = {
            name: pyarrow.array([row[name] for row in rows], types[type((rows or ROWS)[0][name])]) for name in names
        }
        feature = {"label": {"names": classes, "_type": "ClassLabel"}} if classes else {}
        metadata = {b"huggingface": json.dumps({"info": {"features": feature}}).encode()}
        parquet.write_table(pyarrow.table(columns).replace_schema_metadata(metadata), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        sign = "," if path.suffix == ".csv" else "\t"
        path.write_text("".join(sign.join(map(str, row)) + "\n" for row in [names, *(row.values() for row in rows)]))


def write_shards(folder: Path, ending: str, rows: Sequence[Dict[str, Any]] = ROWS, **settings: Any) -> List[str]:
    """Writes rows as shards, of which the second is empty, and as one file `all`."""
    write_table(folder / f"all{ending}", rows, **settings)
    paths, begin = [], 0
    for number, size in enumerate(SIZES):
        paths.append(folder / f"train-{number:05d}-of-00003{ending}")
        write_table(paths[-1], rows[begin : begin + size], names=list(rows[0]), **settings)
        begin += size
    return list(map(str, paths))


def all_texts(splits: Any) -> List[List[str]]:
    return [[text for text, _ in part.pairs] for part in (splits.train, splits.val, splits.test)]


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_shards_of_texts_are_read_as_one_table(tmp_path: Path, ending: str) -> None:
    paths = write_shards(tmp_path, ending, classes=["a", "b", "c"] if ending == ".parquet" else None)
    one = open_splits(Text(train=str(tmp_path / f"all{ending}"), weight="weight"))
    for train in (paths, str(tmp_path / f"train-*-of-00003{ending}")):
        for _ in range(2):  # the second time from the store
            many = open_splits(Text(train=train, weight="weight"))
            assert all_texts(many) == all_texts(one)
            assert many.class_names == one.class_names == (list("abc") if ending == ".parquet" else list("012"))
            for part, other in ((many.train, one.train), (many.test, one.test)):
                np.testing.assert_array_equal(part.read_labels(), other.read_labels())
                numbers = [int(text.split()[1]) for text, _ in part.pairs]
                assert part.read_weights().tolist() == [number + 1 for number in numbers]
                location = part.locations[0]
                file, row = (0, numbers[0]) if numbers[0] < SIZES[0] else (2, numbers[0] - SIZES[0])
                assert location.file == paths[file]
                assert (location.record if ending == ".parquet" else location.line - (ending != ".jsonl") - 1) == row


def test_shards_of_other_targets_are_read_as_one_table(tmp_path: Path) -> None:
    rows = [{**row, "label": ("a", "a;b", "b;c")[row["label"]]} for row in ROWS]
    paths = write_shards(tmp_path, ".csv", rows)
    one, many = (
        open_splits(Text(train=train, label="label").for_run(ClassSet)) for train in (str(tmp_path / "all.csv"), paths)
    )
    assert many.class_names == one.class_names == ["a", "b", "c"] and all_texts(many) == all_texts(one)
    np.testing.assert_array_equal(many.train.read_labels(), one.train.read_labels())
    paths = write_shards(tmp_path, ".csv")
    for label in ("label", ["label", "weight"]):
        one, many = (
            open_splits(Text(train=train, label=label).for_run(Number)) for train in (str(tmp_path / "all.csv"), paths)
        )
        assert all_texts(many) == all_texts(one)
        np.testing.assert_array_equal(many.train.read_labels(), one.train.read_labels())


def test_groups_of_folds_are_those_of_all_shards(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, ".csv", [{**row, "group": row["weight"] % 5} for row in ROWS])
    one, many = (
        open_splits(with_fold(Text(train=train, test_fraction=0.0), Fold(3, 1, groups="group")))
        for train in (str(tmp_path / "all.csv"), paths)
    )
    assert [text for text, _ in many.val.pairs] == [text for text, _ in one.val.pairs] != []


@pytest.mark.parametrize(
    "ending, changed, message",
    [
        (
            ".csv",
            [{"sentence": "a", "class": 1}],
            "columns sentence, class, and .*00000-of-00003.csv has sentence, ",
        ),
        (".parquet", [{"sentence": "a", "label": 1}], "columns sentence, label, and .*has sentence, label, weight"),
    ],
)
def test_shards_with_other_columns_are_refused(tmp_path: Path, ending: str, changed: Any, message: str) -> None:
    paths = write_shards(tmp_path, ending)
    write_table(Path(paths[2]), changed)
    with pytest.raises(DataError, match=f"00002-of-00003{ending} has the {message}"):
        open_splits(Text(train=paths))


def test_columns_may_have_another_order_unless_numbers_name_them(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, ".csv")
    write_table(Path(paths[2]), [dict(reversed(row.items())) for row in ROWS[14:]])
    assert all_texts(open_splits(Text(train=paths))) == all_texts(open_splits(Text(train=str(tmp_path / "all.csv"))))
    with pytest.raises(DataError, match="has the columns weight, label, sentence"):
        open_splits(Text(train=paths, sentence=0, label=1))


def test_shards_of_other_classes_or_kinds_are_refused(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, ".parquet", classes=["a", "b", "c"])
    write_table(Path(paths[2]), ROWS[14:], ["b", "a", "c"])
    with pytest.raises(DataError, match=r"00002.*classes of 'label' \[b, a, c\], and those of .*00000.* \[a, b, c\]"):
        open_splits(Text(train=paths))
    write_table(Path(paths[2]), ROWS[14:])
    with pytest.raises(DataError, match="classes of 'label' not at all, and"):
        open_splits(Text(train=paths))
    write_shards(tmp_path, ".csv")
    with pytest.raises(DataError, match="all.csv and .*all.parquet are one split"):
        open_splits(Text(train=[str(tmp_path / "all.parquet"), str(tmp_path / "all.csv")], header=False))


def test_problems_name_the_shard(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, ".csv")
    (tmp_path / "again.csv").symlink_to(paths[2])
    with pytest.raises(DataError, match="00002-of-00003.csv' .train. and '.*again.csv' .val. are the same file"):
        open_splits(Text(train=paths, val=str(tmp_path / "agai*.csv")))
    rows = Path(paths[2]).read_text().splitlines()
    Path(paths[2]).write_text("\n".join([*rows[:3], "text 16,,17", *rows[4:]]))
    with pytest.raises(DataError, match="00002-of-00003.csv, line 4: 'label' is empty"):
        open_splits(Text(train=paths))
    Path(paths[1]).unlink()
    with pytest.raises(DataError, match="train-00001-of-00003.csv' is missing"):
        open_splits(Text(train=str(tmp_path / "train-*.csv")))


def test_the_first_empty_text_is_named_with_its_shard(tmp_path: Path, caplog: Any) -> None:
    rows = [{**row, "sentence": "" if row["weight"] in (17, 18) else row["sentence"]} for row in ROWS]
    paths = write_shards(tmp_path, ".csv", rows)
    open_splits(Text(train=paths))
    assert "3 files: 2 rows have an empty text, of which" in caplog.text
    assert "00002-of-00003.csv, line 4 is the first" in caplog.text


def test_running_text_is_read_from_shards(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, ".parquet")
    Path(paths[1]).unlink()
    with pytest.raises(DataError, match="train-00001-of-00003.parquet' is missing"):
        open_splits(PlainText(train=str(tmp_path / "train-*.parquet"), column="sentence"))
    write_table(Path(paths[1]), ROWS[:1])
    splits = open_splits(PlainText(train=str(tmp_path / "train-*.parquet"), column="sentence", val_fraction=0.2))
    texts = [text for part in (splits.train, splits.val) for text in part.training_texts().texts()]
    assert [text.strip() for text in texts] == [f"text {row}" for row in [*range(14), 0, *range(14, 30)]]
