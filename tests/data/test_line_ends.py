"""Lists of names that have a name in each line: separators of Unicode and form feeds are characters of a line."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from mxtrain.cluster.hosts import read_hosts
from mxtrain.errors import ConfigError
from mxtrain.logger.csv import prepare_table
from mxtrain.text.base import open_lines
from mxtrain.text.tokenizing.wordpiece import SPECIAL, read_vocab
from mxtrain.vision.detection.boxed_classes import choose_class_names
from mxtrain.vision.detection.voc_layout import read_names
from mxtrain.vision.segmentation.ade20k import read_object_names
from mxtrain.vision.segmentation.segmentation_folder import read_class_names

SEPARATORS = ["\u2028", "\u2029", "\x85", "\x0c", "\x0b", "\x1c", "\x1d", "\x1e"]
pytestmark = pytest.mark.parametrize("separator", SEPARATORS, ids=[f"U+{ord(one):04X}" for one in SEPARATORS])


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_names_of_classes(tmp_path: Path, separator: str, end: str) -> None:
    names = [f"a{separator}b", "c"]
    path = tmp_path / "classes.txt"
    path.write_bytes(end.join([*names, ""]).encode())
    assert read_class_names(path) == names and choose_class_names((), tmp_path) == names
    rows = [f"{number}\t0.1\t{names[0]}{number}" for number in range(1, 151)]
    path.write_bytes(end.join(rows).encode())
    assert read_object_names(path)[149] == f"{names[0]}150"


def test_tokens_keep_their_ids(tmp_path: Path, separator: str) -> None:
    vocab = [*SPECIAL, separator, f"x{separator}", "last"]
    (tmp_path / "vocab.txt").write_bytes("\n".join([*vocab, ""]).encode())
    assert list(read_vocab(str(tmp_path / "vocab.txt"), SPECIAL)) == vocab


def test_lines_to_predict(tmp_path: Path, separator: str) -> None:
    name = str(tmp_path / "x")
    Path(name).write_bytes(f"a{separator}b\r\n\nc\n".encode())
    assert open_lines([name], False, {}) == ([f"a{separator}b", "c"], [f"{name}:1", f"{name}:3"])


def test_names_of_voc(tmp_path: Path, separator: str) -> None:
    (tmp_path / "train.txt").write_bytes(f"a{separator}b\nc\n".encode())
    found = read_names(tmp_path, "train", "dataset.train_split")
    assert list(found) == [f"a{separator}b", "c"]


def test_hosts(tmp_path: Path, separator: str) -> None:
    (tmp_path / "hosts").write_bytes(f"localhost\n# a{separator}b c\nx y z\n".encode())
    with pytest.raises(ConfigError, match="hosts, line 3"):
        read_hosts(str(tmp_path / "hosts"))


def test_rows_of_a_run(tmp_path: Path, separator: str) -> None:
    path = tmp_path / "metrics.csv"
    path.write_bytes(f"step,note\r\n1,a{separator}b\r\n2,c\r\n".encode())
    prepare_table(path, ["step", "note"], 2)
    with path.open(newline="", encoding="utf-8") as file:
        assert list(csv.reader(file))[1:] == [["1", f"a{separator}b"], ["2", "c"]]
