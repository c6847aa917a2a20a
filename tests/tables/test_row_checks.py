"""Problems that `data check` finds in tables of numbers."""

from __future__ import annotations

from mxtrain.tables.number_table import NumberTable

HEAD = "width,height,target"
ROWS = [f"{n},{n * n},{n / 2}" for n in range(40)]


def test_every_cell_that_is_no_number_is_named(tmp_path, check):
    path = tmp_path / "t.csv"
    dataset = NumberTable(train=str(path))
    path.write_text("\n".join([HEAD, *ROWS]))
    assert check(dataset) == [] and check.census.num_samples == {"train": 28, "val": 6, "test": 6}
    rows = list(ROWS)
    rows[3], rows[5], rows[7] = "x,y,1", "1,inf,1", "1e39,2,3"
    rows[9], rows[11], rows[13] = "9,81", "11,121,5,5", rows[12]
    path.write_text("\n".join([HEAD, *rows]))
    found = check(dataset)
    assert found[:5] == [
        ("short_row", "t.csv", 11),
        ("long_row", "t.csv", 13),
        ("not_a_number", "t.csv", 5),
        ("not_a_number", "t.csv", 5),
        ("not_a_number", "t.csv", 7),
    ]
    assert found[5] == ("not_a_number", "t.csv", 9) and "the largest number that is read" in check.problems[5].fact
    assert len(found) == 7 and found[6][0].startswith("duplicate") and found[6][2] in (14, 15)
    assert [problem.fact.partition(": ")[2] for problem in check.problems[2:5]] == [
        "'width' is 'x', no number.",
        "'height' is 'y', no number.",
        "'height' is inf, no finite number.",
    ]


def test_a_csv_that_cannot_be_divided_into_rows_hides_no_other(tmp_path, check):
    (tmp_path / "t.csv").write_text("\n".join([HEAD, *ROWS, '"1,2']))
    (tmp_path / "v.csv").write_text("\n".join([HEAD, "1,2,three", *ROWS[1:3]]))
    found = check(NumberTable(train=str(tmp_path / "t.csv"), val=str(tmp_path / "v.csv")))
    assert found == [("cannot_open", "t.csv", None), ("not_a_number", "v.csv", 2)]
    assert "line 42 begins a row that cannot be read" in check.problems[0].fact
