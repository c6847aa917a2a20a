"""Graphs with recurrent operators, whose bits in inference MXNet leaves to chance where shapes are static."""

from __future__ import annotations

from typing import Any, Callable, Sequence, Tuple

Flags = Sequence[Tuple[str, Any]]


def repeatable(cached_op: Any, is_training: Callable[[], bool]) -> Any:
    """MXNet's class of graphs with what makes them repeatable.

    Under static_shape MXNet 1.9.1 never writes whether an operator needs gradients (`need_grad`): in
    `CachedOp::StaticRunOps` of src/imperative/cached_op.cc it sets `is_train` alone, and the rest is what the memory
    held before. In inference the recurrent operator then takes oneDNN's kernel for training or that for inference,
    whose last bits differ, and another one in each graph that is built. So graphs with that operator infer without
    static shapes. In training `is_train` decides alone, so they train as before.

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
