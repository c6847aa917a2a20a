"""Task of a custom training loop, whose own functions define losses and metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, List, Mapping, Sequence, Tuple

from mxtrain.errors import ConfigError
from mxtrain.task.spec import Task

if TYPE_CHECKING:
    from mxtrain.config.parts import RunParts
    from mxtrain.data.signature import Signature
    from mxtrain.engine.predictions import Predictions
    from mxtrain.metric.meter import LossWeights, Meter
    from mxtrain.metric.spec import Metric
    from mxtrain.types import Batch
    from mxtrain.types.annotations import LossBlock


class CustomLoop(Task):
    """Any dataset and any network or networks. It has no loss and no metrics: `Session.step` is given a function."""

    predicts: ClassVar[bool] = False

    def check(self, description: RunParts) -> None:
        description.model.require_known(description.dataset.signature_class.known_names)

    def output_names(self, signature: Signature) -> Sequence[str]:
        return ()

    def output_shapes(self, description: RunParts, signature: Signature) -> List[Tuple[int, ...]]:
        return []

    def build_loss(self, description: RunParts, signature: Signature, training: bool) -> LossBlock:
        from mxtrain.engine.backend import gluon

        class NoLoss(gluon.Block):
            """Takes the place of a loss; only `eval` of such a run calls it."""

            def forward(self, *arrays: object) -> None:
                raise ConfigError("a custom loop is measured by its own functions: Session.evaluate(FUNCTION).")

        return NoLoss()

    def build_meter(self, description: RunParts, signature: Signature, weights: LossWeights, training: bool) -> Meter:
        from mxtrain.metric.meter import LossWeights as Weights
        from mxtrain.metric.meter import Meter

        return Meter({}, 0, Weights(are_given=True), training=training)

    def metrics(self, description: RunParts, signature: Signature) -> Mapping[str, Metric]:
        return {}

    def decode(self, outputs: Tuple[object, ...], batch: Batch) -> Predictions:
        raise NotImplementedError("a custom loop predicts nothing")
