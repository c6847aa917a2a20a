"""The kernels of OpenBLAS, which multiplies where oneDNN has no operator: `dot`, `batch_dot`, attention."""

from __future__ import annotations

from typing import FrozenSet

CORE = "OPENBLAS_CORETYPE"
_KERNELS = (
    ("SkylakeX", frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "fma"})),
    ("Haswell", frozenset({"avx2", "fma"})),
)


def openblas_core(flags: FrozenSet[str]) -> str:
    """The name of the newest kernels that a processor with these instruction sets can run, or "" for OpenBLAS's choice.

    OpenBLAS chooses by the processor's model number. The version in MXNet's wheel, 0.3.13, is older than many
    processors and takes these for one without AVX (its core is then called Prescott): products take two to three times
    as long. Asked for SkylakeX, it takes its Haswell kernels, the newest that it was built with.

    Source: OpenBLAS, driver/others/dynamic.c.
    """
    return next((name for name, needed in _KERNELS if needed <= flags), "")
