"""Reading `.params` files: as MXNet reads them, and never trusting them."""

import os
import struct

import numpy as np
import pytest

from mxtrain.engine.backend import mx, nd
from mxtrain.errors import WeightsError
from mxtrain.model.params_file import read_params


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "net.params"
    nd.save(str(path), {"a.weight": nd.arange(12).reshape((3, 4)), "arg:b": nd.array([1.5, -2.0], dtype="float16")})
    return path


def test_mxnet_params_file_is_read(saved):
    arrays = read_params(saved)
    assert list(arrays) == ["a.weight", "arg:b"]
    np.testing.assert_array_equal(arrays["a.weight"], np.arange(12, dtype="float32").reshape(3, 4))
    np.testing.assert_array_equal(arrays["arg:b"], np.array([1.5, -2.0], "float16"))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "uint8", "int32", "int8", "int64"])
def test_every_type(dtype, tmp_path):
    path = tmp_path / "x.params"
    nd.save(str(path), {"x": nd.array([[0, 1, 2]], dtype=dtype)})
    array = read_params(path)["x"]
    assert array.dtype == dtype and array.tolist() == [[0, 1, 2]]


def test_bfloat16_becomes_float32(tmp_path):
    path = tmp_path / "x.params"
    nd.save(str(path), {"x": nd.array([1.0, -2.5, 0.0]).astype(np.dtype([("bfloat16", np.uint16)]))})
    array = read_params(path)["x"]
    assert array.dtype == "float32" and array.tolist() == [1.0, -2.5, 0.0]


def test_numpy_arrays_of_mxnet(tmp_path):
    path = tmp_path / "x.params"
    with mx.util.np_shape(True), mx.util.np_array(True):
        mx.npx.save(str(path), {"x": mx.np.ones((2, 3)), "scalar": mx.np.array(2.0)})
    assert read_params(path)["scalar"] == 2.0
    assert read_params(path)["x"].shape == (2, 3)


def test_every_truncation_is_refused_by_name(saved):
    content = saved.read_bytes()
    for length in range(len(content)):
        saved.write_bytes(content[:length])
        with pytest.raises(WeightsError, match=r"net\.params is damaged"):
            read_params(saved)


@pytest.mark.slow
def test_no_damage_crashes_or_asks_for_memory(saved):
    content = saved.read_bytes()
    rng = np.random.RandomState(0)
    refused = 0
    for _ in range(2000):
        damaged = bytearray(content)
        damaged[rng.randint(len(content))] = rng.randint(256)
        saved.write_bytes(damaged)
        try:
            read_params(saved)
        except WeightsError:
            refused += 1
    assert refused > 500


@pytest.mark.parametrize(
    "content,reason",
    [
        (b"", "empty"),
        (b"PK\x03\x04rest of it", "zip archive"),
        (b"\x80\x04rest of it", "pickle"),
        (b"hello, this is text", "does not begin"),
        (struct.pack("<QQQ", 0x112, 0, 2**60), "claims to hold"),
        (struct.pack("<QQQIiiqq", 0x112, 0, 1, 0xF993FAC9, 0, 2, 2**20, 2**20) + bytes(12), "more are expected"),
        (struct.pack("<QQQIiiqq", 0x112, 0, 1, 0xF993FAC9, 0, 2, 2**40, 2**40) + bytes(12), "impossible shape"),
        (struct.pack("<QQQIi", 0x112, 0, 1, 0xF993FAC9, 1) + bytes(40), "sparse"),
    ],
)
def test_other_files_are_explained(content, reason, tmp_path):
    path = tmp_path / "other.params"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=reason):
        read_params(path)


def test_missing_and_nameless(tmp_path):
    with pytest.raises(WeightsError, match="No such file"):
        read_params(tmp_path / "none.params")
    path = tmp_path / "list.params"
    nd.save(str(path), [nd.ones((2,))])
    with pytest.raises(WeightsError, match="1 arrays without names"):
        read_params(path)


def test_file_without_end_is_rejected(tmp_path):
    os.mkfifo(tmp_path / "w.params")
    for path, kind in ((tmp_path / "w.params", "a named pipe"), ("/dev/zero", "a device")):
        with pytest.raises(WeightsError, match=f"it is {kind}, and only regular files are read"):
            read_params(path)
