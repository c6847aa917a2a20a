"""Losses that were passed from Python as Gluon blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Dict, Optional, Tuple

from mxtrain.config.placeholders import Given, plain_attributes
from mxtrain.errors import ConfigError
from mxtrain.loss.custom import CustomLoss, without_further_gradients

if TYPE_CHECKING:
    from mxnet import gluon

    from mxtrain.types.annotations import LossBlock

OF_EVERY_BLOCK = frozenset(
    (
        "_empty_prefix",
        "_prefix",
        "_name",
        "_active",
        "_backend",
        "_v2",
        "_partition_if_dynamic",
        "_first_forward",
        "_out_format",
        "_called_infer_shape_already",
    )
)
"""Attributes of Gluon blocks that do not affect the computation."""


class GivenLoss(Given, CustomLoss):
    """Wraps a Gluon loss block; see `CustomLoss` for its arguments and result."""

    argument: ClassVar[str] = "loss"

    target: Any = None
    """Not used: the block itself was passed."""

    @classmethod
    def describe_object(cls, block: Any) -> Dict[str, Any]:
        """Returns the attributes that identify a loss in addition to its class: numbers, texts and lists of these.

        Raises:
            ConfigError: the object is not a Gluon block.
        """
        from mxtrain.engine.backend import gluon

        if not isinstance(block, gluon.Block):
            raise ConfigError(
                f"loss={block!r:.60}: must be a gluon.loss.Loss or another gluon.Block of (scores, labels) -> (B,), "
                f'and is a {type(block).__name__}. To choose a loss by its name, give an override: "loss=hinge". '
                "mxtrain.session takes functions."
            )
        return {"arguments": plain_attributes(block, without=OF_EVERY_BLOCK)}

    @property
    def name(self) -> str:
        return self.object

    def block(self) -> gluon.Block:
        if self.is_given:
            return without_further_gradients(self.require())
        from mxtrain.engine.backend import gluon

        class MissingLoss(gluon.Block):
            """Stands in for the loss of a network that only predicts; raises if it is called."""

            def forward(block, *arrays: object) -> None:
                self.require()

        return MissingLoss()

    def check(
        self,
        block: LossBlock,
        score_shape: Tuple[int, ...],
        target_shape: Optional[Tuple[int, ...]] = None,
        num_outputs: int = 1,
    ) -> bool:
        return self.is_given and super().check(block, score_shape, target_shape, num_outputs)
