"""Verification sets: pickles of which nothing is unpickled, and tables."""

from __future__ import annotations

import datetime
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mxtrain.errors import DataError
from mxtrain.vision.metric_learning.pair_files import NotAllowed, read_bin, read_pickle, read_table
from mxtrain.vision.metric_learning.verification import given_pairs

PYTHON_2 = b"\x80\x02]q\x00(U\x03abcq\x01T\x02\x00\x00\x00dfq\x02e]q\x03\x88a\x86q\x04."
"""The bytes that pickle of Python 2.7 writes for (["abc", "df"], [True])."""


@pytest.mark.parametrize("protocol", [3, 4, 5])
@pytest.mark.parametrize(
    "value",
    [
        ([b"one", b"two"], [True]),
        [[b"", b"x" * 300, b"y" * 70000], [True, False]],
        ([], []),
        ([b"one"] * 3, [[b"inner"], (True, False)]),
        (True, [False]),
    ],
)
def test_lists_of_bytes_and_booleans_are_read(value: Any, protocol: int) -> None:
    assert read_pickle(pickle.dumps(value, protocol=protocol)) == value


def test_strings_of_python_2_are_bytes() -> None:
    assert read_pickle(PYTHON_2) == ([b"abc", b"df"], [True])


@pytest.mark.parametrize(
    "value, instruction",
    [
        ({"a": 1}, "EMPTY_DICT"),
        ([1], "BININT1"),
        (["text"], "SHORT_BINUNICODE"),
        ([1.5], "BINFLOAT"),
        ([None], "NONE"),
        ({1}, "EMPTY_SET"),
        (datetime.date(2020, 1, 1), "SHORT_BINUNICODE"),
        (np.zeros(1), "SHORT_BINUNICODE"),
        (bytearray(b"a"), "BYTEARRAY8"),
    ],
)
def test_everything_else_is_refused(value: Any, instruction: str) -> None:
    with pytest.raises(NotAllowed, match=f"instruction {instruction}"):
        read_pickle(pickle.dumps(value, protocol=5))


def test_calls_of_python_objects_are_refused() -> None:
    for protocol in (0, 2):
        with pytest.raises(NotAllowed, match="instruction GLOBAL"):
            read_pickle(pickle.dumps(datetime.date(2020, 1, 1), protocol=protocol))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80\x04",
        b"\x80\x04]",
        b"\x80\x04C\x05ab.",
        b"T\xff\xff\xff\xff.",
        b"\x8e\xff\xff\xff\xff\xff\xff\xff\xff.",
        b".",
        b"]].",
        b"(.",
        b"a.",
        b"]a.",
        b"\x88\x88a.",
        b"]e.",
        b"(e.",
        b"t.",
        b"\x88\x86.",
        b"h\x00.",
        b"q\x00.",
        b"(q\x00.",
        b"(\x94.",
        b"\xff",
        b"\x95\x01.",
    ],
)
def test_damaged_pickles_are_refused(content: bytes) -> None:
    with pytest.raises(NotAllowed):
        read_pickle(content)


def written(folder: Path, value: Any) -> str:
    (folder / "lfw.bin").write_bytes(value if isinstance(value, bytes) else pickle.dumps(value))
    return str(folder / "lfw.bin")


def test_verification_set(tmp_path: Path) -> None:
    images = read_bin(written(tmp_path, ([b"a", b"b", b"c", b"d"], [True, False])))
    assert len(images) == 4
    contents = [images.read(index) for index in range(4)]
    assert [content for content, _ in contents] == [b"a", b"b", b"c", b"d"]
    assert [label for _, label in contents] == images.read_labels().tolist()
    first, second, is_same_P = given_pairs(images.read_labels())
    assert (first.tolist(), second.tolist(), is_same_P.tolist()) == ([0, 2], [1, 3], [True, False])
    assert images.name(3) == f"Image 3 of '{tmp_path}/lfw.bin'" and images.location(3).record == 3


@pytest.mark.parametrize(
    "value, reason",
    [
        (b"\x80\x04}.", "it has the instruction EMPTY_DICT"),
        (b"PK\x03\x04", "it has the instruction"),
        (b"", "it ends too early"),
        ([b"a", b"b"], "it does not hold two lists"),
        (([b"a", b"b"], True), "it does not hold two lists"),
        ([[], [], []], "it does not hold two lists"),
        (b"\x88.", "it does not hold two lists"),
        (([b"a", True], [True]), "image 1 is not bytes"),
        (([b"a", b"b"], [b"c"]), "pair 0 has no boolean"),
        (([b"a", b"b", b"c"], [True]), "it has 3 images and 1 booleans"),
        (([], []), "it has 0 images and 0 booleans"),
    ],
)
def test_other_files_are_refused_in_one_sentence(tmp_path: Path, value: Any, reason: str) -> None:
    with pytest.raises(DataError) as caught:
        read_bin(written(tmp_path, value))
    assert f"lfw.bin' is not a verification set: {reason}" in str(caught.value) and "\n" not in str(caught.value)


def test_table_of_pairs(tmp_path: Path) -> None:
    table = tmp_path / "pairs.csv"
    table.write_text("same,first,second\n1,a.png,b.png\nfalse,c/d.png,/e.png\n")
    files = read_table(str(table))
    assert files.paths == [str(tmp_path / "a.png"), str(tmp_path / "b.png"), str(tmp_path / "c/d.png"), "/e.png"]
    assert given_pairs(files.read_labels())[2].tolist() == [True, False]
    assert read_table(str(table), "/other").paths[0] == "/other/a.png"


def test_rows_that_are_no_pairs(tmp_path: Path) -> None:
    table = tmp_path / "pairs.csv"
    table.write_text("first,second,same\na.png,b.png,maybe\n")
    with pytest.raises(DataError, match="line 2.*same=maybe is no truth value"):
        read_table(str(table))
    table.write_text("first,second,same\n")
    with pytest.raises(DataError, match="has no pairs"):
        read_table(str(table))
    table.write_text("first,other,same\na,b,1\n")
    with pytest.raises(DataError, match="second"):
        read_table(str(table))
