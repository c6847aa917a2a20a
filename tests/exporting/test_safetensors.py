"""`export for=safetensors`: the format, byte by byte, and the names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Dict

import numpy as np
import pytest
import running
from small_runs import CASES, SHORT

import mxtrain
from mxtrain.cli.dispatch import run
from mxtrain.errors import DataError
from mxtrain.exporting.pytorch import safetensors_file
from mxtrain.exporting.pytorch.names import torch_names
from mxtrain.exporting.pytorch.safetensors_file import require_written, write_safetensors
from mxtrain.exporting.pytorch.weights import export_weights
from mxtrain.model.foreign.safetensors_file import read_safetensors

FACTS = {"model": "MLP", "dataset": "Digits", "step": 3, "weights_sha256": "0"}


def arrays() -> Dict[str, np.ndarray]:
    """Arrays of several types and memory orders."""
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    return {
        "plain": rows,
        "transposed": rows.T,
        "strided": np.arange(8, dtype=np.float32)[::2],
        "fortran": np.asfortranarray(rows),
        "odd": np.array([1, 2, 3], np.uint8),
        "long": np.array([2**40], np.int64),
        "nan": np.array(np.nan, np.float16),
        "big_endian": np.array([1.5], ">f4"),
    }


def test_bytes_of_the_format(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_safetensors(path, {"b": np.array([1], np.uint8), "a": np.array([[1.5], [2.5]], np.float32)}, {"format": "pt"})
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    assert length % 8 == 0
    assert json.loads(content[8 : 8 + length]) == {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8]},
        "b": {"dtype": "U8", "shape": [1], "data_offsets": [8, 9]},
    }
    assert content[8 + length :] == np.array([1.5, 2.5], "<f4").tobytes() + b"\x01"


def test_arrays_of_all_memory_orders_come_back(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_safetensors(path, arrays(), {})
    found = read_safetensors(path)
    for name, array in arrays().items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].shape == array.shape


def test_a_type_without_a_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="a has the type complex64, and safetensors has float64, float32"):
        write_safetensors(tmp_path / "a", {"a": np.zeros(1, np.complex64)}, {})
    assert not (tmp_path / "a").exists()


def test_a_scrambled_file_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    square = np.arange(4, dtype=np.float32).reshape(2, 2)
    write_safetensors(path, {"a": square, "b": square}, {})
    require_written(path, {"a": square, "b": square})
    for wrong in (
        {"a": square.T, "b": square},
        {"a": square.reshape(4), "b": square},
        {"a": square.view(np.int32), "b": square},
        {"a": square, "b": square, "c": square},
    ):
        with pytest.raises(DataError, match="does not hold . as it was written"):
            require_written(path, wrong)
    with pytest.raises(DataError, match="other arrays"):
        require_written(path, {"a": square})


def test_the_package_reads_the_same(tmp_path: Path) -> None:
    numpy_files = pytest.importorskip("safetensors.numpy")
    path = tmp_path / "a.safetensors"
    write_safetensors(path, arrays(), {"format": "pt"})
    found = numpy_files.load_file(path)
    assert set(found) == set(arrays())
    for name, array in arrays().items():
        np.testing.assert_array_equal(found[name], array)


def test_names_are_those_of_torch_unless_two_would_be_equal() -> None:
    names = [
        "a.0.gamma",
        "a.0.beta",
        "a.0.running_var",
        "a.1.alpha",
        "rnn.l0_i2h_weight",
        "rnn.r12_h2h_bias",
        "c.gamma",
        "c.weight",
    ]
    assert torch_names(names) == {
        "a.0.gamma": "a.0.weight",
        "a.0.beta": "a.0.bias",
        "a.0.running_var": "a.0.running_var",
        "a.1.alpha": "a.1.weight",
        "rnn.l0_i2h_weight": "rnn.weight_ih_l0",
        "rnn.r12_h2h_bias": "rnn.bias_hh_l12_reverse",
        "c.gamma": "c.gamma",
        "c.weight": "c.weight",
    }
    assert torch_names(["gamma", "weight_0"]) == {"gamma": "weight", "weight_0": "weight_0"}


def test_nothing_is_left_if_the_written_file_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safetensors_file, "read_safetensors", lambda path: {})
    with pytest.raises(DataError, match="does not hold"):
        export_weights({"a.gamma": np.ones(1, np.float32)}, tmp_path / "out", FACTS)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [["quantize=int8"], ["dynamic=batch"], ["split=val"], ["limit_batches=2"]])
def test_settings_of_onnx_have_no_effect_and_are_refused(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", "no_such_run", "for=safetensors", *words]) == 2
    assert f"export.{words[0]}: for=safetensors writes no ONNX, and it has no effect" in capsys.readouterr().err


def test_a_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", "no_such_run", "for=safetensors", "name=digits"]) == 2
    assert "it names the network for a server" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("own_cache")
def test_weights_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained = tmp_path / "run"
    running.train_here(trained, *SHORT, *CASES["lenet"])
    assert run(["export", str(trained), "for=safetensors"]) == 0
    assert "read again and the same" in capsys.readouterr().out
    found = read_safetensors(trained / "export" / "model.safetensors")
    names = json.loads((trained / "export" / "names.json").read_text())
    assert names["features.1.gamma"] == "features.1.weight"
    network = mxtrain.load(trained).network
    for name, parameter in network._collect_params_with_prefix().items():
        np.testing.assert_array_equal(found[names[name]], parameter.data().asnumpy())
    assert len(found) == len(names)
    report = mxtrain.export(trained, tmp_path / "again", for_="safetensors")
    assert report.folder == tmp_path / "again" and (report.folder / "README.md").is_file()
