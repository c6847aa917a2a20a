"""The only home of what depends on the MXNet version. Import it inside functions: importing it imports MXNet.

`mxtrain.runtime` must have set the environment before: MXNet reads it once, at import.
"""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    # MXNet 1.9.1 uses numpy aliases that numpy deprecated (notes: Installing).
    warnings.simplefilter("ignore", DeprecationWarning)
    import numpy

    if "bool" not in vars(numpy):
        numpy.bool = numpy.bool_  # numpy 1.24 and later
    import scipy.sparse

    # MXNet looks `scipy.sparse.csr.csr_matrix` up for every array it makes; the module's own lookup warns each time.
    scipy.sparse.csr.csr_matrix = scipy.sparse.csr_matrix
    import mxnet as mx

autograd = mx.autograd
gluon = mx.gluon
nd = mx.nd

__all__ = ["autograd", "gluon", "mx", "nd"]
