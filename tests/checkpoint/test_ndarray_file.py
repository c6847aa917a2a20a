"""The array file: the same bytes as MXNet's own, and nothing in it is believed."""

from __future__ import annotations

import hashlib
import os
import struct

import numpy as np
import pytest

from mxtrain.checkpoint import canonical_sha256, read_ndarrays, write_ndarrays
from mxtrain.checkpoint.ndarray_file import FLAG_BY_DTYPE, parse_ndarrays
from mxtrain.errors import CheckpointError
from mxtrain.model.parameters import distinct_parameters


def example() -> dict[str, np.ndarray]:
    """Every dtype, an odd number of bytes in front of the others, a name beyond ASCII."""
    random = np.random.RandomState(3)
    arrays = {f"0.{dtype}": (random.rand(2, 3, 5) * 100).astype(dtype) for dtype in FLAG_BY_DTYPE}
    arrays["0.a_first"] = np.arange(3, dtype="uint8")
    arrays["1.gewicht_\u00e4"] = np.array([np.inf, -np.inf, np.nan, -0.0], dtype="float32")
    return arrays


def assert_same(left, right) -> None:
    assert sorted(left) == sorted(right)
    for name in left:
        assert left[name].dtype == right[name].dtype and left[name].shape == right[name].shape
        assert left[name].tobytes() == right[name].tobytes()


def test_bytes_match_mxnet(tmp_path):
    from mxtrain.engine.backend import nd

    arrays = example()
    digest = write_ndarrays(tmp_path / "ours.params", arrays)
    nd.save(
        str(tmp_path / "theirs.params"),
        {name: nd.array(arrays[name], dtype=arrays[name].dtype) for name in sorted(arrays)},
    )
    ours = (tmp_path / "ours.params").read_bytes()
    assert ours == (tmp_path / "theirs.params").read_bytes()
    assert (digest.size, digest.sha256) == (len(ours), hashlib.sha256(ours).hexdigest())
    assert_same(arrays, read_ndarrays(tmp_path / "theirs.params"))
    assert_same(arrays, {name: array.asnumpy() for name, array in nd.load(str(tmp_path / "ours.params")).items()})


@pytest.mark.parametrize("nested", [True, False])
def test_opens_in_gluon_and_back(tmp_path, nested):
    from mxtrain.engine.backend import gluon, nd

    def build():
        net = gluon.nn.HybridSequential() if nested else gluon.nn.Dense(3, in_units=4)
        if nested:
            net.add(gluon.nn.Dense(3, in_units=4), gluon.nn.BatchNorm(in_channels=3))
        net.initialize()
        return net

    source, target = build(), build()
    parameters = distinct_parameters(source)
    write_ndarrays(tmp_path / "x.params", {name: p.data().asnumpy() for name, p in parameters.items()})
    target.load_parameters(str(tmp_path / "x.params"))
    x = nd.arange(8).reshape((2, 4))
    assert (source(x).asnumpy() == target(x).asnumpy()).all()
    source.save_parameters(str(tmp_path / "y.params"))
    assert_same({name: p.data().asnumpy() for name, p in parameters.items()}, read_ndarrays(tmp_path / "y.params"))


def test_any_memory_layout_is_written_right(tmp_path):
    base = np.arange(24, dtype="float32").reshape(4, 6)
    arrays = {"strided": base[::2, ::3], "fortran": np.asfortranarray(base), "big": base.astype(">f4"), "row": base[1]}
    write_ndarrays(tmp_path / "x.params", arrays)
    read = read_ndarrays(tmp_path / "x.params")
    for name in arrays:
        assert (read[name] == arrays[name]).all()


def test_arrays_are_aligned_and_read_only(tmp_path):
    write_ndarrays(tmp_path / "x.params", example())
    for array in read_ndarrays(tmp_path / "x.params").values():
        assert array.flags.aligned and not array.flags.writeable


def test_order_of_the_mapping_does_not_matter(tmp_path):
    arrays = example()
    backwards = dict(reversed(list(arrays.items())))
    assert write_ndarrays(tmp_path / "a", arrays) == write_ndarrays(tmp_path / "b", backwards)


def test_no_arrays_at_all(tmp_path):
    write_ndarrays(tmp_path / "x.params", {})
    assert read_ndarrays(tmp_path / "x.params") == {}


@pytest.mark.parametrize("array", [np.float32(1).reshape(()), np.zeros((0, 3)), np.zeros(2, "bool"), np.zeros(2, "U3")])
def test_unsupported_arrays_are_refused(tmp_path, array):
    with pytest.raises(CheckpointError, match="'odd'"):
        write_ndarrays(tmp_path / "x.params", {"odd": array})
    assert not (tmp_path / "x.params").exists()


def test_every_truncation_is_refused(tmp_path):
    write_ndarrays(tmp_path / "x.params", {"0.weight": np.ones((2, 2), "float32"), "0.bias": np.ones(2, "float32")})
    data = (tmp_path / "x.params").read_bytes()
    for size in range(len(data)):
        with pytest.raises(CheckpointError):
            parse_ndarrays(data[:size], source="x.params")
    with pytest.raises(CheckpointError, match="1 bytes follow its end"):
        parse_ndarrays(data + b"\0", source="x.params")


def test_every_flipped_bit_is_refused_or_harmless(tmp_path):
    """Without a manifest a flip in a number or a name cannot be seen, but nothing may crash or take memory."""
    write_ndarrays(tmp_path / "x.params", {"0.weight": np.ones((2, 2), "float32"), "0.bias": np.ones(2, "uint8")})
    data = bytearray((tmp_path / "x.params").read_bytes())
    refused = 0
    for bit in range(8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        try:
            arrays = parse_ndarrays(bytes(data), source="x.params")
            assert len(arrays) == 2 and sum(array.nbytes for array in arrays.values()) <= len(data)
        except CheckpointError:
            refused += 1
        data[bit // 8] ^= 1 << bit % 8
    assert refused > 4 * len(data)  # most of so small a file is lengths and magic numbers


@pytest.mark.parametrize(
    "layout, values, said",
    [
        ("<QQQ", (0x113, 0, 0), "does not begin with the number 0x112"),
        ("<QQQ", (0x112, 0, 2**63), "claims to hold"),
        ("<QQQIiI", (0x112, 0, 1, 0xF993FAC9, 0, 0), "it ends at byte"),
        ("<QQQIiI", (0x112, 0, 1, 0xF993FAC9, 0, 2**32 - 1), "dimensions"),
        ("<QQQI", (0x112, 0, 1, 0xF993FAD0), "dimensions"),
        ("<QQQIiI", (0x112, 0, 1, 0xF993FAC9, 1, 1), "sparse"),
        ("<QQQIiI3qiii", (0x112, 0, 1, 0xF993FAC9, 0, 3, 2**62, 2**62, 2**62, 1, 0, 0), "impossible shape"),
        ("<QQQIiI3qiii", (0x112, 0, 1, 0xF993FAC9, 0, 3, 2**62, 0, 2**62, 1, 0, 0), "impossible shape"),
        ("<QQQIiI1qiii", (0x112, 0, 1, 0xF993FAC9, 0, 1, 2**40, 1, 0, 0), "it ends at byte"),
        ("<QQQIiI2qiii", (0x112, 0, 1, 0xF993FAC9, 0, 2, -1, -4, 1, 0, 0), "shape"),
        ("<QQQIiI1qiii", (0x112, 0, 1, 0xF993FAC9, 0, 1, 1, 1, 0, 13), "unknown type 13"),
        ("<QQQQ", (0x112, 0, 0, 1), "it ends at byte"),
    ],
)
def test_lengths_are_not_believed(layout, values, said):
    with pytest.raises(CheckpointError, match=said):
        parse_ndarrays(struct.pack(layout, *values), source="x.params")


def test_names_are_checked():
    def file(*names: bytes) -> bytes:
        array = struct.pack("<IiI1qiiif", 0xF993FAC9, 0, 1, 1, 1, 0, 0, 1.0)
        tail = b"".join(struct.pack("<Q", len(name)) + name for name in names)
        return struct.pack("<QQQ", 0x112, 0, len(names)) + array * len(names) + struct.pack("<Q", len(names)) + tail

    assert sorted(parse_ndarrays(file(b"a", b"b"), source="x")) == ["a", "b"]
    with pytest.raises(CheckpointError, match="twice"):
        parse_ndarrays(file(b"a", b"a"), source="x")
    with pytest.raises(CheckpointError, match="a name is not text"):
        parse_ndarrays(file(b"\xff"), source="x")


def test_special_files_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name, said in [("pipe", "not a regular file"), ("none", "No such file"), (".", "not a regular file")]:
        with pytest.raises(CheckpointError, match=said):
            read_ndarrays(tmp_path / name)


def test_a_full_device_is_noticed():
    """MXNet's own writer returns success here."""
    with pytest.raises(OSError, match="No space left"):
        write_ndarrays("/dev/full", {"a": np.zeros(1000, "float32")})
    assert os.path.exists("/dev/full")


def test_canonical_hash_is_of_little_endian_float32_in_name_order():
    params = {"b": np.array([[1.0, 2.0]], "float64"), "a": np.array([3], "int32")}
    assert canonical_sha256(params) == hashlib.sha256(struct.pack("<3f", 3.0, 1.0, 2.0)).hexdigest()
    assert canonical_sha256({"b": np.array([1.0, 2.0], ">f4"), "a": np.array(3.0)}) == canonical_sha256(params)
