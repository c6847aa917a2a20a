"""The only home of what depends on the MXNet version. Import it inside functions: importing it imports MXNet.

`mxtrain.runtime` must have set the environment before: MXNet reads it once, at import.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any, Dict, List, Optional, Sequence

with warnings.catch_warnings():
    # MXNet 1.9.1 uses numpy aliases that numpy deprecated (notes: Installing).
    warnings.simplefilter("ignore", DeprecationWarning)
    import numpy

    if "bool" not in vars(numpy):
        numpy.bool = numpy.bool_  # numpy 1.24 and later
    import scipy.sparse

    # MXNet looks `scipy.sparse.csr.csr_matrix` up for every array it makes; the module's own lookup warns each time.
    scipy.sparse.csr.csr_matrix = scipy.sparse.csr_matrix
    # MXNet looks for these without needing them: mxnet.model inherits from a class of scikit-learn's if it is there,
    # and mxnet.contrib.quantization and mxnet.test_utils take scipy.stats along. With pandas, which scikit-learn
    # brings, that is 40 % of the whole import. Whoever needs them later can import them.
    hidden = [name for name in ("sklearn", "scipy.stats") if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    import mxnet as mx

    for name in hidden:
        del sys.modules[name]

autograd = mx.autograd
gluon = mx.gluon
nd = mx.nd

STATISTICS = ("running_mean", "running_var")
"""Last names of batch norms' parameters that have no gradient and change in every step."""

__all__ = ["ARRAYS_PER_LOOK", "STATISTICS", "all_finite", "autograd", "gluon", "mx", "nd", "same_device_runs"]


def same_device_runs(arrays: Sequence[Any], limit: Optional[int] = None) -> List[List[int]]:
    """Indices of `arrays` in lists of at most `limit`, each of one device: what one fused operator takes."""
    by_device: Dict[Any, List[int]] = {}
    for index, array in enumerate(arrays):
        by_device.setdefault(array.context, []).append(index)
    return [
        indices[start : start + (limit or len(indices))]
        for indices in by_device.values()
        for start in range(0, len(indices), limit or len(indices))
    ]


# MXNet's kernel has room for 200 arrays and does not check: one more overwrites memory and aborts the process.
ARRAYS_PER_LOOK = 200


def all_finite(arrays: Sequence[Any]) -> bool:
    """Whether no element is infinite or not a number. Waits for the devices once for all arrays."""
    if not arrays:
        return True
    runs = [[arrays[index] for index in run] for run in same_device_runs(arrays, ARRAYS_PER_LOOK)]
    first = arrays[0].context
    found = [nd.multi_all_finite(*run, num_arrays=len(run)).as_in_context(first) for run in runs]
    return float(nd.add_n(*found).asscalar()) == len(found)
