from __future__ import annotations

import os
import subprocess
import sys

import pytest

from mxtrain.runtime.amx import cpu_flags
from mxtrain.runtime.apply import OPENBLAS_CORE, openblas_core

HASWELL = {"avx2", "fma"}
SKYLAKE = {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
KERNELS_IN_MXNET = """
from mxtrain.runtime import Runtime, apply
apply(Runtime())
import ctypes, pathlib, mxnet
blas = ctypes.CDLL(str(pathlib.Path(mxnet.__file__).parent / "libopenblas.so.0"))
blas.openblas_get_corename.restype = ctypes.c_char_p
print(blas.openblas_get_corename().decode())
"""


def test_the_newest_kernels_that_run_are_named() -> None:
    assert openblas_core(frozenset({"sse3", "avx", "fma"})) == ""
    assert openblas_core(frozenset(HASWELL | {"sse3"})) == "Haswell"
    assert openblas_core(frozenset(HASWELL | {"avx512f"})) == "Haswell"
    assert openblas_core(frozenset(HASWELL | SKYLAKE)) == "SkylakeX"


@pytest.mark.slow
@pytest.mark.skipif(not openblas_core(cpu_flags()), reason="this processor has no AVX2")
def test_mxnets_openblas_takes_kernels_of_this_processor() -> None:
    clean = {name: value for name, value in os.environ.items() if name not in (OPENBLAS_CORE, "MXTRAIN_RUNTIME_SET")}
    command = [sys.executable, "-W", "ignore", "-c", KERNELS_IN_MXNET]
    done = subprocess.run(command, env=clean, capture_output=True, text=True, check=True)
    assert done.stdout.strip() in ("Haswell", "SkylakeX")
