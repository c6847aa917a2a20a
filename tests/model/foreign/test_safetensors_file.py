"""The reader of safetensors: every type, and every kind of damage."""

import json
import struct

import numpy as np
import pytest
from foreign_files import content_of, write

from mxtrain.errors import WeightsError
from mxtrain.model.foreign.safetensors_file import (
    DamagedTensors,
    check_safetensors,
    is_safetensors,
    parse_safetensors,
    read_safetensors,
)

ARRAYS = {
    "b": np.arange(6, dtype="float32").reshape(2, 3),
    "a": np.array([True, False]),
    "c": np.array(3, "int64"),
    "d": np.zeros((0, 4), "float16"),
}


def test_arrays_are_read_as_written(tmp_path):
    found = read_safetensors(write(tmp_path / "x.safetensors", ARRAYS))
    assert {name: (array.dtype, array.shape) for name, array in found.items()} == {
        name: (array.dtype, array.shape) for name, array in ARRAYS.items()
    }
    assert all(np.array_equal(found[name], array) for name, array in ARRAYS.items())
    assert all(array.flags.aligned and not array.flags.writeable for array in found.values())


def test_bfloat16_becomes_float32():
    values = np.array([1.0, -2.5, 3.140625], "float32")
    header = {"x": {"dtype": "BF16", "shape": [3], "data_offsets": [0, 6]}}
    found = parse_safetensors(content_of({}, header, (values.view("<u4") >> 16).astype("<u2").tobytes()))["x"]
    assert found.dtype == np.float32 and np.array_equal(found, values)


@pytest.mark.parametrize("name", ["F64", "F32", "F16", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8"])
def test_the_package_reads_the_same(name):
    package = pytest.importorskip("safetensors.numpy")
    kinds = {"F": "f", "I": "i", "U": "u"}
    array = np.arange(12).reshape(3, 4).astype(f"{kinds[name[0]]}{int(name[1:]) // 8}")
    found = parse_safetensors(package.save({"x": array}))["x"]
    assert found.dtype == array.dtype and np.array_equal(found, array)


def entry(shape=(2,), offsets=(0, 8), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


EIGHT = {"x": np.arange(2, dtype="float32")}
DAMAGED = {
    "empty": (b"", "it is empty"),
    "short": (b"\x01\x02\x03", "it has 3 bytes"),
    "zip": (b"PK\x03\x04" + bytes(20), "zip archive"),
    "pickle": (b"\x80\x02}q\x00" + bytes(20), "pickle, which is never loaded"),
    "git lfs": (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    "huge header": (struct.pack("<Q", 1 << 40) + b"{}", f"its header claims {1 << 40} bytes, and 2 follow"),
    "cut header": (content_of(EIGHT)[:30], "its header claims"),
    "no json": (struct.pack("<Q", 2) + b"{x", "its header is not JSON"),
    "list": (struct.pack("<Q", 2) + b"[]", "its header is no object"),
    "twice": (struct.pack("<Q", 14) + b'{"a":1,"a": 2}', 'key "a" twice'),
    "no entry": (content_of({}, {"x": 3}), "entry of 'x' has no type"),
    "no offsets": (content_of({}, {"x": {"dtype": "F32", "shape": []}}), "entry of 'x' has no type"),
    "type": (content_of({}, {"x": entry(dtype="F8_E4M3")}, bytes(8)), "'x' has the type F8_E4M3; those that are read"),
    "shape": (content_of({}, {"x": entry(shape=(-2,))}, bytes(8)), r"'x' has the shape \[-2\]"),
    "dimensions": (content_of({}, {"x": entry(shape=(1,) * 33, offsets=(0, 4))}, bytes(4)), "'x' has the shape"),
    "true": (content_of({}, {"x": entry(shape=(True,), offsets=(0, 4))}, bytes(4)), r"'x' has the shape \[True\]"),
    "behind": (content_of({}, {"x": entry(offsets=(0, 9))}, bytes(8)), r"'x' lies at \[0, 9\], but the data have 8"),
    "backwards": (content_of({}, {"x": entry(offsets=(8, 0))}, bytes(8)), r"'x' lies at \[8, 0\]"),
    "size": (content_of({}, {"x": entry(shape=(3,))}, bytes(8)), r"'x' needs 12 bytes for its shape \[3\], and has 8"),
    "impossible": (content_of({}, {"x": entry(shape=(0, 1 << 62), offsets=(0, 0))}, b""), "impossible shape"),
    "overlap": (
        content_of({}, {"x": entry(), "y": entry(offsets=(4, 12))}, bytes(12)),
        "'y' begins at 4, within 'x', which ends at 8",
    ),
    "hole": (content_of({}, {"x": entry(offsets=(4, 12))}, bytes(12)), "bytes 0 to 4 of the data belong to no array"),
    "rest": (content_of(EIGHT) + b"abc", "3 bytes follow the last array"),
    "cut": (content_of(EIGHT)[:-1], r"'x' lies at \[0, 8\], but the data have 7"),
}


@pytest.mark.parametrize("content, said", DAMAGED.values(), ids=DAMAGED)
def test_damage_is_named(content, said):
    with pytest.raises(DamagedTensors, match=said):
        parse_safetensors(content)


def test_messages_name_the_file(tmp_path):
    path = tmp_path / "x.safetensors"
    with pytest.raises(WeightsError, match=f"{path} cannot be read: No such file"):
        read_safetensors(path)
    path.write_bytes(b"abc")
    with pytest.raises(WeightsError, match=f"{path} is damaged or no safetensors file: it has 3 bytes"):
        read_safetensors(path)
    assert is_safetensors(path) and is_safetensors(f"{path}.index.json") and not is_safetensors("x.params")


def test_whole_files_are_told_without_reading_them(tmp_path):
    path = write(tmp_path / "x.safetensors", ARRAYS)
    check_safetensors(path)
    for content in (b"", path.read_bytes()[:-1], path.read_bytes() + b"x"):
        path.write_bytes(content)
        with pytest.raises(DamagedTensors):
            check_safetensors(path)


def test_files_of_an_index_are_joined(tmp_path):
    index = tmp_path / "model.safetensors.index.json"
    for number, name in enumerate(("b", "a")):
        write(tmp_path / f"model-{number}.safetensors", {name: ARRAYS[name]})
    files = {"a": "model-1.safetensors", "b": "model-0.safetensors"}
    index.write_text(json.dumps({"metadata": {}, "weight_map": files}))
    assert list(read_safetensors(index)) == ["b", "a"]
    index.write_text(json.dumps({"weight_map": {**files, "c": "model-1.safetensors"}}))
    with pytest.raises(WeightsError, match="lists 'c' in model-1.safetensors, which does not have it"):
        read_safetensors(index)
    for content in (
        '{"weight_map": {"a": "../x.safetensors"}}',
        "[]",
        "{}",
        '{"weight_map": {}}',
        "{",
        '{"weight_map": {"a": 3}}',
        *(f'{{"weight_map": {{"a": "{name}"}}}}' for name in ("..", ".x", "", "/x", "a/b", "a\\u0000b", "\\ud800")),
    ):
        index.write_text(content)
        with pytest.raises(WeightsError, match="is no index of safetensors files"):
            read_safetensors(index)
