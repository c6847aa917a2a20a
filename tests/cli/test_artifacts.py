"""Artifacts of tasks, as shown in a terminal and as files."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mxtrain.cli.artifacts import MAX_SHOWN_ROWS, show_artifacts
from mxtrain.types import Figure, Table, TextLines
from mxtrain.workflows.eval_folder import MAX_SHOWN_SAMPLES, write_artifacts


def test_tables_and_texts_are_printed_and_figures_are_not(capsys: Any) -> None:
    show_artifacts(
        [
            Table("rates", ["name", "rate"], [["a [b] [/c] :cat:", 0.123456], ["c", 2]]),
            TextLines("said", ["1 x [a] taken for b " * 9]),
            Table("counts", ["left out"], [[7]], is_shown=False),
            Figure("drawn", lambda most: 1 / 0),
        ]
    )
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[:3] == [["name", "rate"], ["a", "[b]", "[/c]", ":cat:", "0.1235"], ["c", "2"]]
    assert lines[3] == ("1 x [a] taken for b " * 9).split() and lines[4:] == [[]]


def test_long_table_is_cut_with_the_name_of_its_file(capsys: Any) -> None:
    show_artifacts([Table("rates", ["n"], [[n] for n in range(MAX_SHOWN_ROWS + 2)])])
    said = capsys.readouterr().out
    assert f"\n{MAX_SHOWN_ROWS - 1}" in said and f"\n{MAX_SHOWN_ROWS} " not in said
    assert "... and 2 more rows in rates.csv" in said


def test_no_artifacts_print_no_output(capsys: Any) -> None:
    show_artifacts([])
    assert capsys.readouterr().out == ""


def test_tables_and_figures_become_files_that_replace_earlier_ones(tmp_path: Path) -> None:
    asked = []

    def draw(most: int) -> Image.Image:
        asked.append(most)
        return Image.fromarray(np.zeros((2, 3, 3), np.uint8))

    folder = tmp_path / "not" / "there"
    for _ in range(2):
        write_artifacts([Table("a", ["x,", "y"], [["1", 2.5]]), Figure("b", draw), TextLines("c", ["d"])], folder)
    assert sorted(path.name for path in folder.iterdir()) == ["a.csv", "b.png"] and asked == [MAX_SHOWN_SAMPLES] * 2
    with open(folder / "a.csv", newline="") as file:
        assert list(csv.reader(file)) == [["x,", "y"], ["1", "2.5"]]
    with Image.open(folder / "b.png") as image:
        assert image.size == (3, 2)
