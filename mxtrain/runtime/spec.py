"""Settings of the group `runtime`, see conf/runtime/*.yaml."""

from __future__ import annotations

from typing import Dict, Literal, Union

import pydantic
from typing_extensions import Annotated

from mxtrain.types import NonNegative, Positive, Spec

Auto = Literal["auto"]
WorkspaceCount = Annotated[int, pydantic.Field(gt=0, le=256)]
"""Number of workspaces; limited because each one needs memory."""
MACHINE_FIELDS = {
    "threads": "OMP_NUM_THREADS",
    "cpu_temp_copy": "MXNET_CPU_TEMP_COPY",
    "cpu_workers": "MXNET_CPU_WORKER_NTHREADS",
}
"""Fields that depend on the machine, so that runs on other machines do not inherit them -> the variable of each."""
REMOVED_FIELDS = ("huge_pages",)
"""Fields that earlier versions recorded; they had no effect on results."""
VariableName = Annotated[str, pydantic.StringConstraints(pattern=r"^[A-Z_][A-Z0-9_]*$")]


class Runtime(Spec):
    """Use of this machine by MXNet. Changes no results, except for the last bits of sums and the random numbers of
    dropout (`operators`).

    A field with the value "auto" is chosen for the machine if `mode` is "auto", and not set if it is "manual". A field
    with another value is set in both modes. Only such fields replace variables that the user has set in the
    environment.
    """

    mode: Literal["auto", "manual"] = "auto"
    """auto: also set what is not configured: waiting threads sleep (OMP_WAIT_POLICY), after spinning for a moment if no
    other process needs the cores (GOMP_SPINCOUNT), and OpenBLAS's kernels (OPENBLAS_CORETYPE); manual: set only
    configured values."""
    threads: Union[Auto, Positive] = "auto"
    """OpenMP threads of each CPU device (OMP_NUM_THREADS); auto: usable cores / CPU devices. At most four times
    the usable cores."""
    cpu_temp_copy: Union[Auto, WorkspaceCount] = "auto"
    """Number of temporary workspaces that all CPU devices share (MXNET_CPU_TEMP_COPY); auto: 64 for several devices,
    otherwise MXNet's 4."""
    cpu_workers: Union[Auto, Positive] = "auto"
    """Engine threads of each CPU device (MXNET_CPU_WORKER_NTHREADS); auto: MXNet's own 1. At most four times the
    usable cores."""
    amx: Union[Auto, bool] = "auto"
    """Allow AMX matrix instructions; auto: for bfloat16, if the processor has them and the kernel permits them."""
    bulk_size: Union[Auto, NonNegative] = "auto"
    """Operators handed to the engine at once (MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN); 0: one by one; auto: MXNet's 15."""
    operators: Union[Auto, bool] = "auto"
    """Use mxtrain's native operators (BERT's attention and norms, AdamW, regions of detectors) instead of MXNet's, on
    CPUs; auto: if there is a C++ compiler, which compiles them once."""
    tf32: Union[Auto, bool] = "auto"
    """Let GPUs from compute capability 8.0 on round the factors of float32 products and convolutions to TF32, which
    keeps 10 of 23 bits of the mantissa (false sets NVIDIA_TF32_OVERRIDE=0 for cuBLAS and cuDNN). auto: the default of
    MXNet and NVIDIA, which is yes, but no for `verify`."""
    deterministic: bool = False
    """Use only deterministic GPU kernels (MXNET_ENFORCE_DETERMINISM), chosen without autotuning
    (MXNET_CUDNN_AUTOTUNE_DEFAULT=0): slower, but runs are reproducible bit by bit."""
    env: Dict[VariableName, Union[str, int]] = {}
    """Further environment variables, set before MXNet is imported, e.g. {DNNL_VERBOSE: 1}."""
