"""Networks with different graphs in training and prediction, over the same parameters. Imports MXNet.

GluonCV's blocks ask autograd whether gradients are recorded, but a hybridized block keeps the graph of the first call.
Here the number of inputs selects the graph: in prediction there are only the inputs of samples; in training there are
additional inputs, such as targets. Each graph is traced, partitioned and computed like that of any network.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mxtrain.engine.backend import gluon

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, OperatorModule, Returned


class TrainPredictBlock(gluon.HybridBlock):
    """Base class of networks with different graphs in prediction, `network(x)`, and training, `network(x,
    *annotations)`.

    Both graphs return the same arrays, whose lengths may differ.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # object.__setattr__, since Gluon would register a child, with the same parameters under other names.
        object.__setattr__(self, "_prediction_form", _PredictionForm(self))

    def predict_forward(self, F: OperatorModule, x: Array) -> Returned:
        """Computes the forward pass of prediction."""
        raise NotImplementedError

    def train_forward(self, F: OperatorModule, x: Array, *annotations: Array) -> Returned:
        """Computes the forward pass of training, from inputs and their annotations."""
        raise NotImplementedError

    def hybrid_forward(self, F: OperatorModule, x: Array, *annotations: Array) -> Returned:
        return self.train_forward(F, x, *annotations)

    def forward(self, x: Array, *annotations: Array) -> Any:
        return super().forward(x, *annotations) if annotations else self._prediction_form(x)  # type: ignore[misc]  # Gluon has it

    def hybridize(self, active: bool = True, **flags: Any) -> None:
        self._prediction_form.hybridize(active, **flags)
        super().hybridize(active, **flags)  # type: ignore[misc]

    def _clear_cached_op(self) -> None:
        super()._clear_cached_op()  # type: ignore[misc]
        if hasattr(self, "_prediction_form"):
            self._prediction_form._clear_cached_op()


class _PredictionForm(gluon.HybridBlock):
    """The prediction graph as a separate block, since a hybridized block caches only one graph."""

    def __init__(self, owner: TrainPredictBlock):
        super().__init__(prefix=owner.prefix)
        object.__setattr__(self, "_owner", owner)
        self._children = owner._children  # shared, so that later children are included

    def hybrid_forward(self, F: OperatorModule, x: Array) -> Array:
        return self._owner.predict_forward(F, x)
