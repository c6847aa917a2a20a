"""The rows and files that `predict` writes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, Iterator

import pytest

from mxtrain.cli.predict import print_counts
from mxtrain.errors import ConfigError
from mxtrain.task.prediction_format import PredictionFormat
from mxtrain.workflows.predict import (
    PredictedFiles,
    PredictResult,
    PredictSettings,
    files_folder,
    numbered,
    predict_rows,
    refuse_overwriting,
    refuse_streams,
)


def test_copied_columns_must_not_have_the_names_of_predictions() -> None:
    written = SimpleNamespace(prepare=lambda trained: None, rows=lambda *given: [(0, {"value": 1.0})])
    task = SimpleNamespace(prediction_format=lambda: written)
    trained: Any = SimpleNamespace(description=SimpleNamespace(task=task), signature=None)
    given: Any = (trained, None, ["table:2"], iter(()), 1)
    (row,) = predict_rows(*given, copied={"table:2": {"id": "a"}})
    assert row == {"file": "table:2", "id": "a", "value": 1.0}
    for name in ("value", "file"):
        with pytest.raises(ConfigError, match=f"keep={name}: predictions have a column '{name}' of their own"):
            list(predict_rows(*given, copied={"table:2": {name: "a"}}))


class Volume:
    """A joined file of samples, whose content is their predictions."""

    location, ending = "a.nii", ".nii"

    def __init__(self, samples: range) -> None:
        self.samples, self.added = samples, bytearray()

    def add(self, index: int, prediction: Any) -> bool:
        self.added.append(prediction)
        return len(self.added) == len(self.samples)

    def encode(self) -> bytes:
        return bytes(self.added)


@pytest.mark.parametrize("unreadable, written", [([], ["v", "w", "x"]), ([1, 2], ["w", "x"]), ([2, 3, 6], ["x"])])
def test_files_of_several_samples_are_complete_and_counted(unreadable: Any, written: Any, tmp_path: Path) -> None:
    """Two volumes of three slices, and an image."""
    joined: Any = [Volume(range(3)), Volume(range(3, 6))]
    form = SimpleNamespace(encode_file=lambda signature, prediction, source, index: bytes([prediction]))
    task = SimpleNamespace(prediction_format=lambda: form)
    trained: Any = SimpleNamespace(description=SimpleNamespace(task=task), signature=None)
    source: Any = None
    samples = range(7 + (6 in unreadable))
    files = PredictedFiles([tmp_path / name for name in "vvvwwwxx"[: len(samples)]], joined, unreadable)
    rows = list(numbered(trained, source, iter(samples), files))  # type: ignore[arg-type]
    assert [number for number, _ in rows] == [number for number in samples if number not in unreadable]
    assert sorted(path.name for path in tmp_path.iterdir()) == written
    assert files.count(len(rows)) == len(written)


@pytest.mark.parametrize("bad, masks", [(2, "--wwwx"), (5, "vvv--x"), (6, "vvvwww")])
def test_rows_do_not_name_a_file_that_is_not_written(bad: int, masks: str, tmp_path: Path) -> None:
    """Two volumes of three slices, and an image. The last slice of a volume is found to be unreadable after the rows of
    its other slices were computed."""
    unreadable: Dict[int, str] = {}
    joined: Any = [Volume(range(3)), Volume(range(3, 6))]
    form = PredictionFormat(SimpleNamespace(row=lambda signature, prediction, top_k: {"area": prediction}))
    form.writes = "mask"  # type: ignore[misc]  # of this object
    form.encode_file = lambda *given: b""  # type: ignore[method-assign]
    task = SimpleNamespace(prediction_format=lambda: form)
    trained: Any = SimpleNamespace(description=SimpleNamespace(task=task), signature=None)
    source: Any = None

    def read() -> Iterator[Any]:
        for number in range(7):
            if number == bad:
                unreadable[number] = "a file is damaged"
            yield number

    files = PredictedFiles([tmp_path / name for name in "vvvwwwx"], joined, unreadable)
    predictions = numbered(trained, source, read(), files)
    rows = list(predict_rows(trained, source, [str(number) for number in range(7)], predictions, 1, files))
    assert [row["area"] for row in rows] == [number for number in range(7) if number != bad]
    assert [row["mask"] for row in rows] == [None if name == "-" else str(tmp_path / name) for name in masks]
    assert {path.name for path in tmp_path.iterdir()} == set(masks) - {"-"}


@pytest.mark.parametrize("num_files, said", [(0, "0 files"), (1, "1 file"), (2, "2 files")])
def test_files_are_counted_and_not_rows(num_files: int, said: str, capsys: Any) -> None:
    task: Any = SimpleNamespace(prediction_format=lambda: SimpleNamespace(list_field=("", "")))
    print_counts(task, PredictSettings(), PredictResult(5, 0, Path("masks"), [], num_files))
    assert capsys.readouterr() == ("", f"{said} written to masks\n")


def test_only_tasks_that_write_files_take_a_folder(tmp_path: Path) -> None:
    checkpoint: Any = SimpleNamespace(path=tmp_path / "checkpoints/step-1")
    form = SimpleNamespace(writes="", writes_by_default=False)
    task: Any = SimpleNamespace(name="regression", prediction_format=lambda: form)
    assert files_folder(task, PredictSettings(), checkpoint) is None
    with pytest.raises(ConfigError, match="predict: folder=out, and task=regression writes no files. Leave it out."):
        files_folder(task, PredictSettings(folder="out"), checkpoint)
    form.writes = "mask"
    assert files_folder(task, PredictSettings(), checkpoint) is None
    assert files_folder(task, PredictSettings(folder="out"), checkpoint) == Path("out")
    form.writes_by_default = True
    assert files_folder(task, PredictSettings(), checkpoint) == tmp_path / "predict"


def test_no_input_is_overwritten(tmp_path: Path) -> None:
    image, link = tmp_path / "a.png", tmp_path / "link.png"
    image.touch()
    link.symlink_to(image)
    refuse_overwriting([tmp_path / "b.png"], [str(image)])
    for output in (image, link):
        with pytest.raises(ConfigError, match=f"'{output}' would be written, and it is one of the files to predict"):
            refuse_overwriting([output], [str(image)])


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_splits(split: Any) -> None:
    assert PredictSettings(split=split).split == split


def test_unreadable_files_may_be_skipped_but_not_standard_input() -> None:
    with pytest.raises(ConfigError, match="/dev/null"):
        refuse_streams(["/dev/null"], skip_unreadable=False)
    refuse_streams(["/dev/null"], skip_unreadable=True)
    with pytest.raises(ConfigError, match="predict reads files, not standard input"):
        refuse_streams(["-"], skip_unreadable=True)
