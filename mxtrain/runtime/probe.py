"""Imports MXNet in a separate process and reports what it can do, one JSON object per line.

    python -m mxtrain.runtime.probe FILE

Each line is written to the file before the next step is tried, so that the last line names the step in which a crash
happened.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Callable, List, Mapping

from mxtrain.runtime.apply import apply
from mxtrain.runtime.given_mxnet import loaded_versions, reads_s3
from mxtrain.runtime.hidden_torch import hidden_torch
from mxtrain.runtime.spec import Runtime

if TYPE_CHECKING:
    from mxtrain.types.annotations import Json


STEPS: List[Callable[[], Mapping[str, Json]]] = []


def _step(function: Callable[[], Mapping[str, Json]]) -> Callable[[], Mapping[str, Json]]:
    STEPS.append(function)
    return function


@_step
def environment() -> Mapping[str, Json]:
    """Applies the settings of runtime=auto, with AMX; the later steps test them."""
    report = apply(Runtime(), bfloat16=True)
    return {"runtime": report.lines(), "amx": report.amx}


@_step
def mxnet() -> Mapping[str, Json]:
    """Imports MXNet."""
    from mxtrain.engine.backend import mx

    features = {feature.name: bool(feature.enabled) for feature in mx.runtime.feature_list()}
    return {"mxnet": mx.__version__, "path": mx.__file__, "features": features}


@_step
def libraries() -> Mapping[str, Json]:
    """Asks the libraries that MXNet has loaded for their versions, and MXNet's own for a flag that it does not list."""
    from mxtrain.engine.backend import mx

    versions = loaded_versions(Path("/proc/self/maps").read_text("utf-8", "replace"))
    return {"libraries": versions, "s3": reads_s3(Path(mx.libinfo.find_lib_path()[0]))}


@_step
def operators() -> Mapping[str, Json]:
    """Compiles and loads mxtrain's native operators."""
    from mxtrain.engine.backend import native_operators

    library = native_operators()
    return {"operators": {"compiled": library.path is not None, "why": library.why}}


@_step
def compute() -> Mapping[str, Json]:
    """Trains one step of a small convolution."""
    from mxtrain.engine.backend import autograd, mx, nd

    data_BCHW = nd.ones((2, 3, 8, 8))
    weight = nd.ones((4, 3, 3, 3))
    weight.attach_grad()
    with autograd.record():
        loss = nd.Convolution(data_BCHW, weight, num_filter=4, kernel=(3, 3), no_bias=True).mean()
    loss.backward()
    mx.nd.waitall()
    return {"gradient": float(weight.grad.sum().asscalar())}


@_step
def bfloat16() -> Mapping[str, Json]:
    """Multiplies in bfloat16, which uses AMX if the environment allows it."""
    import numpy

    from mxtrain.engine.backend import mx, nd

    short = numpy.dtype([("bfloat16", numpy.uint16)])  # MXNet's own name for it
    try:
        ones = nd.amp_cast(nd.ones((64, 64)), dtype=short)
        product = nd.FullyConnected(ones, ones, num_hidden=64, no_bias=True)
        return {"bfloat16": float(nd.amp_cast(product, dtype="float32").asnumpy()[0, 0]) == 64.0}
    except mx.MXNetError as error:  # oneDNN has no kernel for this processor; the remaining steps still run
        return {"bfloat16": False, "bfloat16_error": str(error).splitlines()[-1]}


@_step
def gpus() -> Mapping[str, Json]:
    """Computes on each GPU that MXNet counts, since it also counts GPUs for which it has no machine code."""
    from mxtrain.engine.backend import mx

    try:
        count = mx.context.num_gpus()
    except mx.MXNetError as error:  # a CUDA build on a machine whose driver can't be reached
        return {"gpus": 0, "gpu_error": str(error).splitlines()[-1]}
    failures = {str(index): failure for index in range(count) if (failure := _try_gpu(index))}
    return {"gpus": count, "gpu_failures": failures}


def _try_gpu(index: int) -> str:
    """Returns why a GPU does not work; empty if it works."""
    from mxtrain.engine.backend import mx, nd

    try:
        product = nd.dot(nd.ones((8, 8), ctx=mx.gpu(index)), nd.ones((8, 8), ctx=mx.gpu(index))).sum().asscalar()
    except mx.MXNetError as error:
        return str(error).splitlines()[-1]
    return "" if product == 8.0**3 else f"it gave {product:g} where {8.0**3:g} is right"


@_step
def gluoncv() -> Mapping[str, Json]:
    """Imports GluonCV."""
    with hidden_torch():
        import gluoncv

    return {"gluoncv": gluoncv.__version__}


@_step
def horovod() -> Mapping[str, Json]:
    """Sums an array with Horovod over a ring of one process, if Horovod is installed."""
    try:
        import horovod
        import horovod.mxnet as ring
    except (ImportError, OSError) as error:
        return {"horovod": "", "horovod_error": str(error)}
    from mxtrain.engine.backend import nd

    ring.init()
    works = float(ring.allreduce(nd.ones((2,)), op=ring.Sum).sum().asscalar()) == 2.0
    ring.shutdown()
    if not works:
        return {"horovod": "", "horovod_error": "gave wrong numbers"}
    built = {"Gloo": ring.gloo_built(), "MPI": ring.mpi_built(), "NCCL": ring.nccl_built()}
    return {"horovod": horovod.__version__, "horovod_with": ", ".join(name for name, is_in in built.items() if is_in)}


def main() -> int:
    """Runs all steps; a step that raises is reported and ends the probe."""
    warnings.simplefilter("ignore")
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        for step in STEPS:
            # Flushed before the step: an illegal instruction or a segmentation fault leaves no time to say where.
            print(json.dumps({"trying": step.__name__}), file=file, flush=True)
            try:
                result = step()
            except Exception as error:  # whatever it is, it is what the reader wants to know
                failure = {"failed": step.__name__, "error": f"{type(error).__name__}: {error}"}
                print(json.dumps(failure), file=file, flush=True)
                return 1
            print(json.dumps(result), file=file, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
