"""Boxes in two stages, and a mask for each detection.

Source: He et al., "Mask R-CNN" (2017).

Legend: B batch, M true boxes of an image, R regions, Q regions that masks are made of, K classes, S squares along a
side of a mask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional, Sequence, Tuple

from mxtrain.types import Shape
from mxtrain.vision.detection.boxes import NUM_COLUMNS
from mxtrain.vision.detection.heads.operators import operators
from mxtrain.vision.detection.heads.regions import ProposalSettings, RegionAnchors, RegionCoding
from mxtrain.vision.detection.heads.suppression import Suppression

if TYPE_CHECKING:
    import numpy as np

    from mxtrain.annotations import Array, OperatorModule


class MaskedRegionCoding(RegionCoding):
    """Outputs: those of `RegionCoding`; boxes of the masks, (B, Q, 6): class, score, left, top, right, bottom; and the
    masks before the sigmoid, (B, Q, S, S). In training, boxes are regions, with the class of their object, and a score
    of 1, or 0 for regions without an object.

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
        """Returns the result of `RegionCoding`; the loss compares masks for its regions."""
        return super().encode(box_BMD[..., :NUM_COLUMNS])

    def decode(self, outputs: Sequence[Array], F: Optional[OperatorModule] = None) -> Array:
        """Detections (B, N, 6 + S * S), see `InstanceDetector`."""
        F = operators(F)
        found_BQ6, mask_BQSS = (F.cast(output, dtype="float32") for output in outputs[5:7])
        mask_BQS = F.sigmoid(F.reshape(mask_BQSS, shape=(0, 0, -1)))
        is_one_BQ1 = F.slice_axis(found_BQ6, axis=2, begin=0, end=1) >= 0
        return F.concat(found_BQ6, F.broadcast_mul(mask_BQS, is_one_BQ1), dim=2)
