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
        """Notes a batch. It must not wait for the device: that would hold the pass up."""

    def decode_by(self, decode: Decode) -> None:
        """Is called before the pass with what makes predictions for the metrics: whoever needs the same asks it, so
        that each batch is decoded once."""

    def values(self) -> Mapping[str, float]:
        """Further numbers, by name; one that is called like a metric replaces what the pass measured on the device."""
        return {}

    def artifacts(self, title: str) -> List[Artifact]:
        """Returns the artifacts to show after the pass; waits for the device.

        Args:
            title: names split and step.
        """
        return []
