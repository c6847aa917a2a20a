"""Recognition of an MXNet that was installed by others."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any, Callable, Dict

import pytest

from mxtrain.engine.backend import mx
from mxtrain.runtime import probe
from mxtrain.runtime.given_mxnet import find_container, loaded_versions, reads_s3

MAPS = """\
7f00-7f10 r--p 00000000 08:01 1  /usr/lib/x86_64-linux-gnu/libc.so.6
7f10-7f20 r--p 00000000 08:01 2  /usr/local/cuda-12.4/lib64/libcudart.so.12.4.127
7f20-7f30 r-xp 00001000 08:01 2  /usr/local/cuda-12.4/lib64/libcudart.so.12.4.127
7f30-7f40 r--p 00000000 08:01 3  /usr/lib/x86_64-linux-gnu/libcudnn_ops.so.9.1.0
7f40-7f50 r--p 00000000 08:01 4  /usr/lib/x86_64-linux-gnu/libcudnn.so.9.1.0
7f50-7f60 r--p 00000000 08:01 5  /usr/lib/x86_64-linux-gnu/libnccl.so.2.21.5
"""


class Writer:
    """Stands in for a function of C that writes its answer where the argument points."""

    def __init__(self, number: int, status: int = 0) -> None:
        self.number, self.status = number, status

    def __call__(self, pointer: Any) -> int:
        ctypes.cast(pointer, ctypes.POINTER(ctypes.c_int))[0] = self.number
        return self.status


class Returner:
    """Stands in for a function of C that returns its answer."""

    def __init__(self, number: int) -> None:
        self.number, self.restype = number, None

    def __call__(self) -> int:
        assert self.restype is ctypes.c_size_t
        return self.number


def loader(cuda: int, cudnn: int, nccl: int, status: int = 0) -> Callable[[str], Any]:
    functions: Dict[str, Dict[str, Any]] = {
        "/usr/local/cuda-12.4/lib64/libcudart.so.12.4.127": {"cudaRuntimeGetVersion": Writer(cuda, status)},
        "/usr/lib/x86_64-linux-gnu/libcudnn.so.9.1.0": {"cudnnGetVersion": Returner(cudnn)},
        "/usr/lib/x86_64-linux-gnu/libnccl.so.2.21.5": {"ncclGetVersion": Writer(nccl)},
    }
    return lambda path: type("Library", (), {name: staticmethod(one) for name, one in functions[path].items()})


@pytest.mark.parametrize(
    "numbers, versions",
    [
        ((12040, 90100, 22105), ("12.4", "9.1.0", "2.21.5")),  # NVIDIA's container 24.05
        ((11080, 8904, 22105), ("11.8", "8.9.4", "2.21.5")),  # NVIDIA's wheels of CUDA 11.8
        ((10020, 8005, 2708), ("10.2", "8.0.5", "2.7.8")),
        ((11070, 90000, 20000), ("11.7", "9.0.0", "2.0.0")),
    ],
)
def test_libraries_report_their_versions(numbers, versions) -> None:
    assert loaded_versions(MAPS, loader(*numbers)) == dict(zip(("cuda", "cudnn", "nccl"), versions))


def test_libraries_that_do_not_answer_are_left_out() -> None:
    assert "cuda" not in loaded_versions(MAPS, loader(12040, 90100, 22105, status=35))
    assert loaded_versions(MAPS, lambda path: object()) == {}
    assert loaded_versions("7f00-7f10 r--p 0 08:01 1 /usr/lib/libc.so.6\n") == {}


def test_published_wheel_reads_no_s3(tmp_path: Path) -> None:
    found = probe.libraries()
    assert found["s3"] is False
    assert found["libraries"] == {} or "torch" in sys.modules  # an earlier test may have imported PyTorch for CUDA
    with pytest.raises(mx.MXNetError, match="DMLC_USE_S3=1"):  # why the text in the library decides
        mx.recordio.MXRecordIO("s3://bucket/photos.rec", "r")
    (tmp_path / "libmxnet.so").write_bytes(b"another library")
    assert reads_s3(tmp_path / "libmxnet.so")


def test_container_is_found_by_its_variable() -> None:
    assert find_container({}) is None and find_container({"NVIDIA_MXNET_VERSION": " "}) is None
    known, other = (find_container({"NVIDIA_MXNET_VERSION": release}) for release in ("24.06", "22.05"))
    assert known is not None and known.is_known and str(known) == "NVIDIA's MXNet container 24.06"
    assert other is not None and not other.is_known


@pytest.mark.slow
def test_versions_are_those_that_pytorch_names() -> None:
    """PyTorch for CUDA loads the same libraries, also on a machine without a GPU."""
    torch = pytest.importorskip("torch")
    found = loaded_versions(Path("/proc/self/maps").read_text())
    assert found["cuda"] == torch.version.cuda
    number = torch.backends.cudnn.version()
    assert found["cudnn"] == f"{number // 10000}.{number % 10000 // 100}.{number % 100}"
    assert found["nccl"] == ".".join(map(str, torch.cuda.nccl.version()))
