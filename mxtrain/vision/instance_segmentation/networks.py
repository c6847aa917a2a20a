"""Mask R-CNN as a Gluon block: Faster R-CNN with a mask head. Imports MXNet.

Blocks and parameters have the names of GluonCV's, so files can be exchanged.

Source: He et al., "Mask R-CNN" (2017), figure 4.

Legend: B batch, M true boxes of an image, D columns of `boxes.Column`, R regions, Q regions with masks,
K classes, C channels, S cells along a side of a mask, T = B Q.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Sequence, Tuple

from mxtrain.engine.backend import gluon, mx
from mxtrain.model.weights_report import ClassRows
from mxtrain.vision.detection.box_arithmetic import REGION_IOU, bound_edges, columns_of, match_boxes, take_rows
from mxtrain.vision.detection.boxes import Column
from mxtrain.vision.detection.heads.regions import decode_regions
from mxtrain.vision.detection.networks.faster_rcnn import TwoStageNetwork

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, OperatorModule
    from mxtrain.vision.detection.heads.suppression import Suppression
    from mxtrain.vision.detection.networks.gluoncv_detectors import MaskParts

nn = gluon.nn


class MaskHead(gluon.HybridBlock):
    """Maps features of regions (B Q, C, h, w) to mask logits of each class, (B Q, K, 2 h, 2 w).

    Args:
        num_classes: K.
        parts: settings of the layers.
    """

    def __init__(self, num_classes: int, parts: MaskParts, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        start = {"weight_initializer": mx.init.Xavier(rnd_type="gaussian", factor_type="out", magnitude=2)}
        with self.name_scope():
            upsampling = nn.Conv2DTranspose(parts.channels, 2, strides=2, **start)
            if parts.convs:
                self.deconv = nn.HybridSequential()
                for _ in range(parts.convs):
                    self.deconv.add(nn.Conv2D(parts.channels, 3, padding=1, **start), nn.Activation("relu"))
                self.deconv.add(upsampling)
            else:
                self.deconv = upsampling
            self.mask = nn.Conv2D(num_classes, 1, **start)

    def hybrid_forward(self, F: OperatorModule, x: Array) -> Array:
        return self.mask(F.relu(self.deconv(x)))


class MaskedTwoStageNetwork(TwoStageNetwork):
    """Maps images (B, 3, H, W) to the outputs of `MaskedRegionCoding`: in prediction, masks of detections, whose
    regions are pooled again; in training, masks of the sampled regions with an object.

    Args:
        masks: settings of the mask head.
        suppression: non-maximum suppression of detections.
        args, kwargs: arguments of `TwoStageNetwork`.
    """

    def __init__(self, *args: Any, masks: MaskParts, suppression: Suppression, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._suppression = suppression
        with self.name_scope():
            self.mask = MaskHead(self._num_classes, masks)
        self.class_heads = {**self.class_heads, "mask.mask": ClassRows(1, 0)}

    def _predict_extra(self, F: OperatorModule, maps: Sequence[Array], regions: Sequence[Array]) -> Tuple[Array, ...]:
        """Returns the detections (B, Q, 6), and their mask logits (B, Q, S, S)."""
        detection_BQ6 = F.BlockGrad(
            decode_regions(
                F, regions, self._num_classes, self._post_nms, self._settings.max_log_scale, self._suppression
            )
        )
        count = self._suppression.count(self._num_classes, self._post_nms)
        # Edges that an untrained network detects may be NaN or huge, which RoIAlign must not be given.
        features = self._features_of(F, maps, bound_edges(F, columns_of(F, detection_BQ6, 2, 6)), count)
        return detection_BQ6, self._masks(F, features, detection_BQ6, count)

    def _train_extra(self, F: OperatorModule, features: Array, region_BR5: Array, box_BMD: Array) -> Tuple[Array, ...]:
        """Returns the sampled regions that may have an object, in the form of detections, and their mask logits."""
        # Regions with an object come first, so the others need no masks.
        max_regions = self._max_positives
        region_BQ5 = F.slice_axis(region_BR5, axis=1, begin=0, end=max_regions)
        edge_BQ4, is_region_BQ1 = columns_of(F, region_BQ5, 0, 4), columns_of(F, region_BQ5, 4, 5)
        matches = match_boxes(F, edge_BQ4, box_BMD)
        class_BQ1 = columns_of(F, take_rows(F, box_BMD, matches.index_BN), Column.CLASS, Column.CLASS + 1)
        is_positive_BQ1 = is_region_BQ1 * F.expand_dims(matches.iou_BN >= REGION_IOU, axis=2)
        detection_BQ6 = F.BlockGrad(F.concat(class_BQ1, is_positive_BQ1, edge_BQ4, dim=2))
        # (B R, C, h, w) -> (B, R, C, h, w) -> (B Q, C, h, w)
        features = F.reshape(features, shape=(-4, -1, self._num_samples, -2))
        features = F.slice_axis(features, axis=1, begin=0, end=max_regions)
        return detection_BQ6, self._masks(F, F.reshape(features, shape=(-3, -2)), detection_BQ6, max_regions)

    def _masks(self, F: OperatorModule, features: Array, detection_BQ6: Array, count: int) -> Array:
        """Computes the mask logits of the class of each region, (B, Q, S, S); of any class for class -1."""
        mask_TKSS = self.mask(features)
        # Padding has class -1; the mask that it gets counts nowhere.
        class_T11 = F.reshape(F.relu(columns_of(F, detection_BQ6, 0, 1)), shape=(-1, 1, 1))
        class_TSS = F.broadcast_like(class_T11, mask_TKSS, lhs_axes=(1, 2), rhs_axes=(2, 3))
        return F.reshape(F.pick(mask_TKSS, class_TSS, axis=1), shape=(-4, -1, count, -2))
