"""All code that depends on the MXNet version. Importing this module imports MXNet, so import it inside functions.

`mxtrain.runtime` must have set the environment before, because MXNet reads its variables once, at import.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import sys
import threading
import warnings
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence

from mxtrain.engine import native
from mxtrain.engine.cached_op import corrected
from mxtrain.engine.collection import collection_paused
from mxtrain.engine.deconvolution import with_computed_weights
from mxtrain.engine.fused_norms import in_two_operators
from mxtrain.engine.gradient_sums import OVERWRITES, has_gradient, with_copied_arrays
from mxtrain.engine.late_functions import compiled_late
from mxtrain.engine.late_modules import distutils_of_python, imported_late
from mxtrain.engine.max_pooling import with_stored_positions
from mxtrain.engine.zero_gradients import ZERO_GRADIENTS, is_result
from mxtrain.runtime import cuda_libraries, spinning
from mxtrain.runtime.apply import lets_threads_spin
from mxtrain.runtime.memory import return_freed_memory

if TYPE_CHECKING:
    import mxnet as mx

with warnings.catch_warnings(), collection_paused(freeze=True):
    # MXNet 1.9.1 uses numpy aliases that numpy deprecated (notes: Installing).
    warnings.simplefilter("ignore", DeprecationWarning)
    import numpy

    if "bool" not in vars(numpy):
        numpy.bool = numpy.bool_  # type: ignore[attr-defined]  # numpy 1.24 and later
    with imported_late(("scipy.sparse.csgraph",)):
        import scipy.sparse

    # MXNet reads `scipy.sparse.csr.csr_matrix` for each new array, and SciPy's deprecated module warns each time.
    scipy.sparse.csr.csr_matrix = scipy.sparse.csr_matrix
    # MXNet imports these if they are installed, but does not need them: mxnet.model inherits from a class of
    # scikit-learn, and mxnet.contrib.quantization and mxnet.test_utils import scipy.stats. Together with pandas, which
    # scikit-learn imports, that is 40 % of the import time. None in sys.modules makes their import fail; afterwards
    # they can be imported as usual.
    hidden = [name for name in ("sklearn", "scipy.stats") if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    generators = ("_make_ndarray_function", "_make_symbol_function")
    # The loader reuses a library of the same name that is in the process, so this precedes the import of MXNet.
    cuda_libraries.load()
    with compiled_late(generators), imported_late(("requests",)), distutils_of_python():
        import mxnet as mx

    for name in hidden:
        del sys.modules[name]

return_freed_memory()
if lets_threads_spin():
    spinning.start()


def _without_cudnn(operator: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps MXNet's dropout so that it never uses cuDNN, whose random state is neither seeded nor in checkpoints.

    gluon.nn.Dropout passes `cudnn_off=False` explicitly, so the wrapper overrides the argument.
    """

    @functools.wraps(operator)
    def dropout(data: Any = None, *args: Any, **kwargs: Any) -> Any:
        # A positional `cudnn_off` also has to be overridden; as a second keyword it would raise a TypeError.
        if len(args) > 3:  # p, mode, axes, cudnn_off
            args = (*args[:3], True, *args[4:])
        else:
            kwargs["cudnn_off"] = True
        return operator(data, *args, **kwargs)

    return dropout


# Gluon's layers read the function from the package, array methods from `op`: both names have to be replaced.
for _module in (mx.nd, mx.sym, mx.nd.op, mx.sym.op):
    setattr(_module, "Dropout", _without_cudnn(getattr(_module, "Dropout")))  # noqa: B009, B010


def _copy(array: mx.nd.NDArray) -> mx.nd.NDArray:
    """Returns a differentiable copy of an array of `mx.nd` or `mx.np`."""
    return mx.np.copy(array) if isinstance(array, mx.np.ndarray) else mx.nd.identity(array)


for _module in (mx.nd, mx.nd.op):
    setattr(_module, "Pooling", with_stored_positions(getattr(_module, "Pooling"), mx.autograd, _copy))  # noqa: B009, B010
for _module in (mx.npx, mx.nd.numpy_extension):
    setattr(_module, "pooling", with_stored_positions(getattr(_module, "pooling"), mx.autograd, _copy))  # noqa: B009, B010
for _module in (mx.nd, mx.sym):
    _relu = functools.partial(_module.Activation, act_type="relu")
    _module.contrib.BatchNormWithReLU = in_two_operators(_module.contrib.BatchNormWithReLU, _module.BatchNorm, _relu)


def _copy_arrays(path: str, *options: Any) -> None:
    """Replaces a function of `mx.nd`, and of the module that array methods call, by one that reads copies of arrays."""
    part, _, name = path.rpartition(".")
    for module in (getattr(mx.nd, part),) if part else (mx.nd, mx.nd.op):
        setattr(module, name, with_copied_arrays(getattr(module, name), mx.autograd, *options))


for _path in (path for paths in OVERWRITES.values() for path in paths):
    _copy_arrays(_path, _copy, has_gradient)
for _path, _input in ZERO_GRADIENTS.items():
    _copy_arrays(_path, mx.nd.add_n, is_result, _input)


def _has_inputs(symbol: mx.sym.Symbol) -> bool:
    return symbol.get_children() is not None


def _is_computed(weight: mx.nd.NDArray) -> bool:
    """Returns True for an array that recorded operators have computed, so that its gradient goes on to these."""
    if not mx.autograd.is_recording():
        return False
    try:
        return _has_inputs(mx.autograd.get_symbol(weight))
    except mx.MXNetError:  # autograd has not recorded anything that reads or computes it
        return False


def _without_length_gradients(operator: Callable[..., Any], F: Any, is_computed: Callable[[Any], bool]) -> Any:
    """Wraps an operator on sequences: lengths get the gradient 0, which its backward pass does not write.

    Args:
        operator: function of `mxnet.nd` or `mxnet.sym`.
        F: that module.
        is_computed: returns True for an array whose gradient goes on to other operators.
    """

    @functools.wraps(operator)
    def sequence(data: Any = None, sequence_length: Any = None, *args: Any, **kwargs: Any) -> Any:
        if sequence_length is not None and is_computed(sequence_length):
            sequence_length = F.BlockGrad(sequence_length)
        return operator(data, sequence_length, *args, **kwargs)

    return sequence


_WRAPPERS = {
    "Deconvolution": with_computed_weights,
    **dict.fromkeys(("SequenceMask", "SequenceLast", "SequenceReverse"), _without_length_gradients),
}
for _name, _wrapper in _WRAPPERS.items():
    for _F, _computes in ((mx.nd, _is_computed), (mx.sym, _has_inputs)):
        for _module in (_F, _F.op):
            setattr(_module, _name, _wrapper(getattr(_module, _name), _F, _computes))

# Gluon looks the class up at each hybridization, so blocks created later get the corrected one.
mx.nd.CachedOp = corrected(mx.nd.CachedOp, mx.autograd, mx.sym.load_json, _copy)

autograd = mx.autograd
gluon = mx.gluon
nd = mx.nd


STATISTICS = ("running_mean", "running_var")
"""Last part of the names of batch-norm statistics, which have no gradient and change in every step."""

__all__ = [
    "MAX_ARRAYS_PER_CHECK",
    "STATISTICS",
    "all_finite",
    "autograd",
    "gluon",
    "has_asked_for_operators",
    "mx",
    "nd",
    "operator_handle",
    "operators_in_use",
    "native_operators",
    "same_device_runs",
]


def same_device_runs(arrays: Sequence[mx.nd.NDArray], limit: Optional[int] = None) -> List[List[int]]:
    """Groups the indices of `arrays` by device, in lists of at most `limit`: the arguments of one fused operator."""
    by_device: Dict[mx.Context, List[int]] = {}
    for index, array in enumerate(arrays):
        by_device.setdefault(array.context, []).append(index)
    return [
        indices[start : start + (limit or len(indices))]
        for indices in by_device.values()
        for start in range(0, len(indices), limit or len(indices))
    ]


# multi_all_finite has room for 200 arrays and does not check: with one more it overwrites memory and aborts.
MAX_ARRAYS_PER_CHECK = 200


def all_finite(arrays: Sequence[mx.nd.NDArray]) -> bool:
    """Returns True if no element of any array is infinite or NaN. Waits for the devices once, not once per array."""
    if not arrays:
        return True
    runs = [[arrays[index] for index in run] for run in same_device_runs(arrays, MAX_ARRAYS_PER_CHECK)]
    first = arrays[0].context
    # Flags of all devices meet on the first one, so the host waits once instead of once per device.
    flags = [nd.multi_all_finite(*run, num_arrays=len(run)).as_in_context(first) for run in runs]
    return float(nd.add_n(*flags).asscalar()) == len(flags)


_registration = threading.Lock()


def native_operators() -> native.Library:
    """Registers mxtrain's native operators with MXNet, as `nd._internal._mxtrain_*` and `mx.sym._internal._mxtrain_*`.

    The first call compiles them if they are not in the cache; other threads wait for it. If they are not available,
    the returned library has no path, and callers use MXNet's operators.
    """
    # functools.cache alone does not keep two threads from computing the value. MXNet refuses to load a library twice,
    # so the second thread would use MXNet's operators, whose results differ in the last bits.
    with _registration:
        return _native_operators()


@functools.cache
def _native_operators() -> native.Library:
    # One choice serves the whole process, and the operators have no kernels for GPUs.
    library = native.Library(None, "they are for CPUs, and this machine has GPUs") if _has_gpus() else native.library()
    if library.path is not None:
        try:
            with native.loadable(library.path) as path:
                _register_operators(path)
        except (mx.MXNetError, OSError) as error:
            library = native.Library(None, f"MXNet cannot load them: {str(error).splitlines()[-1]}")
    # A user who switched the operators off knows it; a missing compiler is worth a line of the log.
    if library.path is None and library.why != native.SWITCHED_OFF:
        logging.getLogger(__name__).info("MXNet's operators compute, not mxtrain's own: %s", library.why)
    return library


def has_asked_for_operators() -> bool:
    """Returns True if something in this process has asked for mxtrain's native operators."""
    return _native_operators.cache_info().currsize > 0


def operators_in_use() -> str:
    """Returns the file name of the library of native operators; "" if it was not requested or is not available."""
    path = native_operators().path if has_asked_for_operators() else None
    return path.name if path else ""


def _register_operators(path: str) -> None:
    """Loads a library of operators into MXNet, and generates the Python functions of its operators."""
    # MXLoadLib does not say what it registered, so the names before and after are compared.
    registered = set(_operator_names())
    mx.base.check_call(mx.base._LIB.MXLoadLib(mx.base.c_str(path), mx.base.mx_uint(0)))
    # mx.library.load would generate the Python functions of all operators again, which takes a second.
    makers = ((nd, mx.ndarray.register._make_ndarray_function), (mx.sym, mx.symbol.register._make_symbol_function))
    for name in sorted(set(_operator_names()) - registered):
        if name.startswith("_mxtrain_"):
            handle = operator_handle(name)
            for module, make in makers:
                setattr(module._internal, name, make(handle, name, name))


def operator_handle(name: str) -> ctypes.c_void_p:
    """Returns the handle of an operator for MXNet's C functions."""
    handle: ctypes.c_void_p = mx.base.OpHandle()
    mx.base.check_call(mx.base._LIB.NNGetOpHandle(mx.base.c_str(name), ctypes.byref(handle)))
    return handle


def _has_gpus() -> bool:
    try:
        return mx.context.num_gpus() > 0
    except mx.MXNetError:  # a CUDA build without a driver
        return False


def _operator_names() -> List[str]:
    size, names = mx.base.mx_uint(), ctypes.POINTER(ctypes.c_char_p)()
    mx.base.check_call(mx.base._LIB.MXListAllOpNames(ctypes.byref(size), ctypes.byref(names)))
    return [mx.base.py_str(names[i]) for i in range(size.value)]


def host_view(array: mx.nd.NDArray) -> numpy.ndarray:
    """Returns the memory of a dense CPU array as a NumPy array, without a copy.

    Write to it only while no operator in the engine uses the array: the engine does not know of such writes. The view
    is valid as long as the array exists.
    """
    # MXNDArrayGetData gives the address at once, even while an operator still writes there.
    array.wait_to_read()
    pointer = ctypes.c_void_p()
    mx.base.check_call(mx.base._LIB.MXNDArrayGetData(array.handle, ctypes.byref(pointer)))
    dtype = numpy.dtype(array.dtype)
    assert pointer.value is not None
    memory = (ctypes.c_uint8 * (array.size * dtype.itemsize)).from_address(pointer.value)
    return numpy.ctypeslib.as_array(memory).view(dtype).reshape(array.shape)
