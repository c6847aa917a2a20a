"""`mxtrain.check_data`: problems as a result, with the counts of the command."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

import mxtrain
from mxtrain.cli import main
from mxtrain.errors import ConfigError

ROWS = "".join(f"{number % 7},{(number * number) % 11},{number % 3}\n" for number in range(40))


@pytest.fixture
def words(tmp_path: Path) -> tuple:
    (tmp_path / "table.csv").write_text("a,b,target\n" + ROWS + "x,1,2\n" + "3,4\n")
    return "dataset=number_table", f"dataset.train={tmp_path}/table.csv", "dataset.target=target"


@pytest.mark.slow
def test_problems_are_the_result(words: tuple, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = mxtrain.check_data(*words, output=tmp_path / "problems.csv")
    assert not found.passed and sum(found.num_problems.values()) == len(found.problems) > 0
    assert {one.kind for one in found.problems} == set(found.num_problems)
    with (tmp_path / "problems.csv").open() as stream:
        assert [row["fact"] for row in csv.DictReader(stream)] == [one.fact for one in found.problems]
    assert capfd.readouterr() == ("", "")
    assert main(["data", "check", *words, f"output={tmp_path}/problems.csv"]) == 2
    said = capfd.readouterr()
    assert f"{said.out}error: {found.summary()}" == str(found).replace(found.summary(), f"error: {found.summary()}")
    assert said.err == f"error: {found.summary()}\n"
    ignored = mxtrain.check_data(*words, ignore=list(found.num_problems))
    assert ignored.passed and ignored.num_ignored == found.num_problems and "nothing is wrong" in str(ignored)


@pytest.mark.slow
def test_a_good_dataset(capfd: pytest.CaptureFixture[str]) -> None:
    found = mxtrain.check_data("dataset=digits", ignore="duplicate")
    assert found.passed and found.name == "dataset=digits" and found.counts.num_samples["train"] > 1000
    assert found.duration_s > 0 and capfd.readouterr().out == ""


@pytest.mark.slow
def test_a_full_disk(words: tuple, capfd: pytest.CaptureFixture[str]) -> None:
    full = "'/dev/full' cannot be written: No space left on device. Free some space, then repeat the same command."
    with pytest.raises(mxtrain.DataError, match=full):
        mxtrain.check_data(*words, output="/dev/full")
    assert main(["data", "check", *words, "output=/dev/full"]) == 2
    assert capfd.readouterr().err.endswith(f"error: {full}\n")


def test_wrong_arguments(words: tuple) -> None:
    with pytest.raises(ConfigError, match="Did you mean 'duplicate'"):
        mxtrain.check_data("dataset=digits", ignore="duplicates")
    with pytest.raises(ConfigError, match=r"check_data.output=.*should be a file"):
        mxtrain.check_data("dataset=digits", output=Path.cwd())


@pytest.mark.slow
def test_arrays_and_options_are_given_by_their_group() -> None:
    x, y = np.random.RandomState(0).randn(40, 3).astype("float32"), np.arange(40) % 2
    assert mxtrain.check_data(dataset=(x, y)).counts.num_samples == {"train": 36, "val": 4}
    x[3] = np.nan
    found = mxtrain.check_data(dataset=(x, y))
    assert not found.passed and "x of sample 3 is not finite" in str(found)
    with pytest.raises(mxtrain.ConfigError, match="dataset=digts: there is no such option. Did you mean 'digits'"):
        mxtrain.check_data(dataset="digts")
