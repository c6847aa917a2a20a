"""bfloat16 in tests: a processor without AVX-512 does not compute it."""

from __future__ import annotations

import pytest

from mxtrain.runtime.amx import computes_bfloat16, cpu_flags

HAS_BFLOAT16 = computes_bfloat16(cpu_flags())
needs_bfloat16 = pytest.mark.skipif(not HAS_BFLOAT16, reason="this processor has no AVX-512")
BFLOAT16 = ("amp=bfloat16",) if HAS_BFLOAT16 else ()
"""Setting of a run that is in bfloat16 where the processor computes it, and about something else."""
