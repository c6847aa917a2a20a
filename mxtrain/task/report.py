"""Reports over one pass of a split."""

from __future__ import annotations

from typing import TYPE_CHECKING, List, Mapping, Tuple

from mxtrain.types import Artifact

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

    from mxtrain.engine.predictions import Decode
    from mxtrain.types import Batch


class Report:
    """Report over one pass of a split, in addition to loss and metrics. This base class reports nothing.

    Call `update` with each batch, then `artifacts`.
    """

    def update(self, batch: Batch, outputs: Tuple[NDArray, ...]) -> None:
        """Records a batch. It must not wait for the device, which would slow the pass down."""

    def decode_by(self, decode: Decode) -> None:
        """Sets the function that converts outputs to predictions. The pass calls it before the first batch with the
        function of the metrics, so that each batch is decoded once.

        Args:
            decode: (outputs, batch) -> predictions, still on the device; returns the same arrays for the same batch.
        """

    def values(self) -> Mapping[str, float]:
        """Returns further numbers by name. A number with the name of a metric replaces the value measured on the
        device."""
        return {}

    def artifacts(self, title: str) -> List[Artifact]:
        """Returns the artifacts to show after the pass; waits for the device.

        Args:
            title: split and step, for captions.
        """
        return []
