"""`data check`: what it prints and writes, its exit codes, and what it refuses."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from mxtrain.cli import main
from mxtrain.cli.commands import help_of
from mxtrain.terminal.tables import on_one_line

pytestmark = pytest.mark.usefixtures("own_cache")

HEAD = "sentence\tlabel"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_texts(path: Path, num_empty: int = 0) -> None:
    rows = [f"{'' if n < num_empty else f'text {n}'}\t{n % 2}" for n in range(100)]
    path.write_text("\n".join([HEAD, *rows]) + "\n")


def checked(capsys: pytest.CaptureFixture, *arguments: str) -> tuple:
    code = main(["data", "check", *arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_clean_data_give_a_line_and_a_table(folder: Path, capsys: pytest.CaptureFixture) -> None:
    write_texts(folder / "t.tsv")
    code, out, err = checked(capsys, "dataset=text", "dataset.train=t.tsv")
    assert code == 0 and err == ""
    first, *table = out.splitlines()
    assert first.startswith("dataset=text: nothing is wrong (train 70, val 15, test 15 samples, read in ")
    assert [line.split()[0] for line in table if line] == ["class", "0", "1"]
    assert [path.name for path in folder.iterdir()] == ["t.tsv"]  # nothing else is written


def test_problems_are_listed_by_kind(folder: Path, capsys: pytest.CaptureFixture) -> None:
    write_texts(folder / "t.tsv", num_empty=25)
    (folder / "t.tsv").write_text((folder / "t.tsv").read_text() + "text 99\t0\nalone\n")
    code, out, err = checked(capsys, "dataset=text", "dataset.train=t.tsv", "dataset.val_fraction=0.3")
    lines = out.splitlines()
    assert code == 2
    assert lines[:2] == ["short_row: 1", "  t.tsv, line 103 has 1 columns, and the first row 2."]
    begin = lines.index("empty_text: 25")
    # A file is read in the order of the splits.
    assert sum("the text is empty." in line for line in lines) == 20
    assert lines[begin + 21 : begin + 23] == ["  and 5 more; output=FILE lists all", "  -> Complete or remove it."]
    assert err == "error: dataset=text has 27 problems, listed above by kind.\n"
    assert [path.name for path in folder.iterdir()] == ["t.tsv"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["found.csv", "found.jsonl"])
def test_all_problems_are_written(folder: Path, capsys: pytest.CaptureFixture, name: str) -> None:
    write_texts(folder / "t.tsv", num_empty=25)
    words = ("dataset=text", "dataset.train=t.tsv", f"output=below/{name}")
    code, out, err = checked(capsys, *words)
    assert code == 2 and f"  and 5 more in below/{name}\n" in out
    assert err.endswith(f"; all are listed in below/{name}.\n")
    with open(folder / "below" / name, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file)) if name.endswith("csv") else list(map(json.loads, file))
    assert len(rows) == 25 and list(rows[0]) == ["kind", "file", "line", "record", "fact", "remedy"]
    assert {int(row["line"]) for row in rows} == set(range(2, 27)) and {row["kind"] for row in rows} == {"empty_text"}
    write_texts(folder / "t.tsv")
    assert checked(capsys, *words)[0] == 0
    assert (folder / "below" / name).read_text().count("\n") == (1 if name.endswith("csv") else 0)
    assert [path.name for path in (folder / "below").iterdir()] == [name]


@pytest.mark.slow
def test_kinds_can_be_ignored(folder: Path, capsys: pytest.CaptureFixture) -> None:
    write_texts(folder / "t.tsv", num_empty=3)
    words = ("dataset=text", "dataset.train=t.tsv")
    code, out, _ = checked(capsys, *words, "ignore=duplicate,empty_text")
    assert code == 0 and "nothing is wrong, 3 empty_text ignored (" in out
    code, _, err = checked(capsys, *words, "ignore=emptytext")
    assert code == 2 and "ignore=emptytext: there is no such kind of problem. Did you mean 'empty_text'?" in err
    assert "'cannot_open'" not in checked(capsys, *words, "ignore=cannot_open")[2]


@pytest.mark.slow
def test_unreadable_folder_is_reported(folder: Path, capsys: pytest.CaptureFixture) -> None:
    code, out, err = checked(capsys, "dataset=mnist", "dataset.root=none")
    assert code == 2 and out.startswith("cannot_open: 1\n  dataset=mnist: 'none' lacks train-images")
    assert err == "error: dataset=mnist has 1 problem, listed above by kind.\n"


@pytest.mark.parametrize(
    "arguments, parts",
    [
        ("data", ["data takes a sub-command. Sub-commands: check"]),
        ("data chek", ["no sub-command 'chek'", "Did you mean 'check'?"]),
        ("data dataset=digits", ["data takes a sub-command"]),
        ("data check folder", ["not 'folder'", "dataset.root=FOLDER"]),
        ("data check dataset=digit", ["dataset=digit", "'digits'"]),
        ("data check dataset.val_fraction=2", ["dataset.val_fraction=2"]),
        ("dat check", ["no command 'dat'", "'data'"]),
    ],
)
def test_wrong_arguments_are_refused(refused, arguments: str, parts: list) -> None:
    said = refused(*arguments.split())
    assert [part for part in parts if part not in said] == [], said


@pytest.mark.slow
def test_mxnet_is_not_imported(mxtrain, write_images_of_two_classes: Path) -> None:
    """Holds for clean and for damaged data; an import would change the exit code."""
    done = mxtrain("data", "check", f"dataset.root={write_images_of_two_classes}", "dataset=image_folder")
    assert done.returncode == 2 and done.stdout.startswith("unreadable_image: 1\n"), done.stderr
    assert list(mxtrain.folder.iterdir()) == [write_images_of_two_classes]


@pytest.fixture
def write_images_of_two_classes(tmp_path: Path) -> Path:
    from PIL import Image

    for label, name in enumerate(("blue", "red")):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(8):
            Image.new("RGB", (9, 9), (label, number, 0)).save(tmp_path / "images" / name / f"{number}.png")
    (tmp_path / "images/red/0.png").write_bytes(b"")
    return tmp_path / "images"


def test_control_characters_in_file_names_are_escaped() -> None:
    assert on_one_line("'caf\xe9/\x1b[2Ja\nb\udcff.png'") == "'caf\xe9/\\x1b[2Ja\\nb\\udcff.png'"


def test_help_names_settings_and_examples(capsys: pytest.CaptureFixture) -> None:
    text = help_of("data")
    assert "data check" in text and "output=null" in text and "ignore=" in text
    assert main(["data", "check", "--help"]) == 0 and capsys.readouterr().out.strip() == text.strip()
