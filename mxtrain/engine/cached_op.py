"""Corrects hybridized graphs of MXNet 1.9.1: inference of recurrent operators, moving statistics, and gradients.

With static shapes, MXNet sets only `is_train` before it runs a graph (`CachedOp::StaticRunOps` in
src/imperative/cached_op.cc). The recurrent operator also reads `need_grad`, which is whatever the memory held, and
selects another oneDNN kernel: 70 of 2,041 calls gave other bits. So inference of such graphs has a graph of its own
without static shapes.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Callable, Sequence, Tuple

from mxtrain.engine.fused_norms import FUSED, separated
from mxtrain.engine.gradient_sums import with_copied_inputs
from mxtrain.engine.max_pooling import has_max_pooling, inference_in_training_mode, pooled_inputs

if TYPE_CHECKING:
    from mxtrain.types.annotations import SymbolGraph

Flags = Sequence[Tuple[str, Any]]


def corrected(cached_op: Any, autograd: Any, load_json: Callable[[str], Any], copy: Callable[[Any], Any]) -> Any:
    """Returns a subclass of MXNet's CachedOp whose inference is deterministic, and whose gradients are right.

    Under static_shape MXNet 1.9.1 leaves `need_grad` of an operator uninitialised: `CachedOp::StaticRunOps` in
    src/imperative/cached_op.cc sets only `is_train`. In inference the recurrent operator then uses oneDNN's kernel for
    training or the one for inference, depending on earlier content of the memory, and their last bits differ. So graphs
    with this operator run inference without static shapes. In training only `is_train` matters, so it is unchanged.

    Moving statistics: see `mxtrain.engine.fused_norms`. Gradients: see `mxtrain.engine.max_pooling` (arrays inside of a
    graph are no views, only its inputs can be) and `mxtrain.engine.gradient_sums`.

    Args:
        cached_op: mxnet.nd.CachedOp.
        autograd: mxnet.autograd.
        load_json: mxnet.sym.load_json.
        copy: operator that copies an array.
    """

    class CachedOp(cached_op):
        __slots__ = ("_flags", "_inference", "_pooled", "_pools", "_recorded_inference", "_sym")

        def __init__(self, sym: Any, flags: Flags = ()) -> None:
            # MXNet removes amp_cast nodes by default, which would undo mixed precision in every rebuilt graph.
            text = sym.tojson(remove_amp_cast=False)
            graph: SymbolGraph = json.loads(text)
            if f'"op": "{FUSED}"' in text:
                sym = load_json(json.dumps(separated(graph)))
                graph = json.loads(sym.tojson(remove_amp_cast=False))
            copied = with_copied_inputs(graph)
            # Most graphs need no copy, and keep the symbol that MXNet was given.
            if copied is not None:
                sym = load_json(copied)
            super().__init__(sym, flags)
            self._sym, self._flags = sym, flags
            self._inference = self._recorded_inference = None
            # `static_alloc` alone gave equal bits in 1,515 calls, so only `static_shape` is dropped.
            if dict(flags).get("static_shape") and '"op": "RNN"' in text:
                self._inference = cached_op(sym, [flag for flag in flags if flag[0] != "static_shape"])
            self._pools, self._pooled = has_max_pooling(graph), pooled_inputs(graph)

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            if self._pools and autograd.is_recording():
                given = list(args)
                for position in self._pooled:
                    given[position] = copy(given[position])
                args = tuple(given)
                # Recorded inference gets a second graph: oneDNN stores the maxima's positions in training mode only.
                if not autograd.is_training():
                    with autograd.train_mode():
                        return self._as_inference()(*args, **kwargs)
            if self._inference is None or autograd.is_training():
                return super().__call__(*args, **kwargs)
            return self._inference(*args, **kwargs)

        def _as_inference(self) -> Any:
            # The graph is built at first use: few runs record inference, and each graph has memory of its own.
            if self._recorded_inference is None:
                changed = inference_in_training_mode(json.loads(self._sym.tojson(remove_amp_cast=False)))
                self._recorded_inference = cached_op(load_json(changed), self._flags)
            return self._recorded_inference

        def _register_op_hook(self, callback: Any, monitor_all: bool = False) -> None:
            super()._register_op_hook(callback, monitor_all)
            # A hook on the first graph alone would see no call of inference.
            if self._inference is not None:
                self._inference._register_op_hook(callback, monitor_all)
            if self._pools:
                self._as_inference()._register_op_hook(callback, monitor_all)

    return CachedOp
