"""Makes the inference of hybridized graphs with recurrent operators deterministic under `static_shape`."""

from __future__ import annotations

from typing import Any, Callable, Sequence, Tuple

Flags = Sequence[Tuple[str, Any]]


def repeatable(cached_op: Any, is_training: Callable[[], bool]) -> Any:
    """Returns a subclass of MXNet's CachedOp whose inference is deterministic.

    Under static_shape MXNet 1.9.1 leaves `need_grad` of an operator uninitialised: `CachedOp::StaticRunOps` in
    src/imperative/cached_op.cc sets only `is_train`. In inference the recurrent operator then uses oneDNN's kernel for
    training or the one for inference, depending on earlier content of the memory, and their last bits differ. So graphs
    with this operator run inference without static shapes. In training only `is_train` matters, so it is unchanged.

    Args:
        cached_op: mxnet.nd.CachedOp.
        is_training: mxnet.autograd.is_training.
    """

    class CachedOp(cached_op):
        __slots__ = ("_inference",)

        def __init__(self, sym: Any, flags: Flags = ()) -> None:
            super().__init__(sym, flags)
            self._inference = None
            if dict(flags).get("static_shape") and '"op": "RNN"' in sym.tojson():
                self._inference = cached_op(sym, [flag for flag in flags if flag[0] != "static_shape"])

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            if self._inference is None or is_training():
                return super().__call__(*args, **kwargs)
            return self._inference(*args, **kwargs)

        def _register_op_hook(self, callback: Any, monitor_all: bool = False) -> None:
            super()._register_op_hook(callback, monitor_all)
            if self._inference is not None:
                self._inference._register_op_hook(callback, monitor_all)

    return CachedOp
