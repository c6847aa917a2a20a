"""Boxes in two stages, and a mask for what is detected.

Source: He et al., "Mask R-CNN" (2017).

Legend: B batch, M true boxes of a picture, R regions, Q regions that masks are made of, K classes, S squares along a
side of a mask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Sequence, Tuple

from mxtrain.dataset.image.boxes import NUM_COLUMNS
from mxtrain.model.detection.regions import ProposalSettings, RegionAnchors, RegionCoding
from mxtrain.model.detection.suppression import Suppression
from mxtrain.types import Shape

if TYPE_CHECKING:
    import numpy as np
    from mxnet.ndarray import NDArray


class MaskedRegionCoding(RegionCoding):
    """Outputs: those of `RegionCoding`; what masks are of, (B, Q, 6): class, score, left, top, right, bottom; and
    these masks before the sigmoid, (B, Q, S, S). In training it is regions that masks are of, with the class of their
    thing, and 1 in the place of a score, or 0 where they hold none.

    Args:
        side: S.
        others: as of `RegionCoding`.
    """

    def __init__(
        self, num_classes: int, input_shape: Shape, maps: Sequence[RegionAnchors], settings: ProposalSettings,
        suppression: Suppression, side: int,
    ):  # fmt: skip
        super().__init__(num_classes, input_shape, maps, settings, suppression)
        most = suppression.count(num_classes, self._count)
        self.output_shapes: Sequence[Shape] = (*self.output_shapes, (most, 6), (most, side, side))

    def encode(self, box_BMD: np.ndarray) -> Tuple[np.ndarray, ...]:
        """What `RegionCoding` makes of boxes; masks are compared by the loss, of the regions that it is given."""
        return super().encode(box_BMD[..., :NUM_COLUMNS])

    def decode(self, outputs: Tuple[NDArray, ...]) -> NDArray:
        """Detections (B, N, 6 + S * S), see `InstanceDetector`."""
        from mxtrain.engine.backend import nd

        found_BQ6, mask_BQSS = (output.astype("float32") for output in outputs[5:7])
        mask_BQS = nd.sigmoid(mask_BQSS.reshape((0, 0, -1)))
        is_one_BQ1 = found_BQ6.slice_axis(axis=2, begin=0, end=1) >= 0
        return nd.concat(found_BQ6, nd.broadcast_mul(mask_BQS, is_one_BQ1), dim=2)
