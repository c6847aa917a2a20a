"""Losses of object detection as Gluon blocks. Imports MXNet.

Each returns the sum over a sample, (B,), and, if the loss is normalised by objects instead of samples, the number of
objects, (B,). `least_weight` is the smallest divisor of a global batch, so that images without objects are used, too.
If images are mixed, the last input is the weight of each object, which multiplies its loss and its count.

Legend: B batch, M boxes of an image, K classes, N predicted boxes of an image, h, w height and width of a map, P
prototypes, or values of a predicted box, T = B M, S cells of a mask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from mxtrain.engine.backend import gluon
from mxtrain.vision.detection.box_arithmetic import areas, columns_of, intersection_areas
from mxtrain.vision.detection.boxes import NUM_COLUMNS
from mxtrain.vision.instance_segmentation.mask_rows import PREDICTED_SIDE, TRUE_SIDE

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, OperatorModule


class CentreLoss(gluon.HybridBlock):
    """Base class of losses with the focal loss of centres, and absolute errors of sizes and offsets.

    Source: Zhou et al., "Objects as Points" (2019), equations 1 to 4, with exponents 2 and 4.

    Args:
        size_weight: weight of the errors of width and height.
        offset_weight: weight of the errors of offsets.
    """

    weighted = True
    least_weight = 1.0

    def __init__(self, size_weight: float, offset_weight: float):
        super().__init__()
        self._size_weight, self._offset_weight = size_weight, offset_weight

    def centre_loss(
        self,
        F: OperatorModule,
        logit_BKhw: Array,
        size_B4hw: Array,
        score_BKhw: Array,
        true_size_B4hw: Array,
        is_centre_B1hw: Array,
        weight_B1hw: Optional[Array] = None,
    ) -> Any:
        """Computes the sum of the loss over a sample, and its number of objects, (B,) each.

        Args:
            F: `nd` or `sym`.
            logit_BKhw: logits of centres.
            size_B4hw: sizes and offsets.
            score_BKhw, true_size_B4hw, is_centre_B1hw, weight_B1hw: result of `HeatmapCoding.encode`.
        """
        # From logits: log(sigmoid(x)) would be -inf if a network is very wrong.
        p_BKhw = F.sigmoid(logit_BKhw)
        log_p_BKhw = -F.Activation(-logit_BKhw, act_type="softrelu")
        log_1_minus_p_BKhw = -F.Activation(logit_BKhw, act_type="softrelu")
        is_one_BKhw = score_BKhw >= 1
        positive_BKhw = is_one_BKhw * F.square(1 - p_BKhw) * log_p_BKhw
        if weight_B1hw is not None:
            positive_BKhw = F.broadcast_mul(positive_BKhw, weight_B1hw)
            is_centre_B1hw = is_centre_B1hw * weight_B1hw
        negative_BKhw = F.square(F.square(1 - score_BKhw)) * F.square(p_BKhw) * log_1_minus_p_BKhw
        difference_B4hw = F.broadcast_mul(F.abs(size_B4hw - true_size_B4hw), is_centre_B1hw)
        size_B2hw, offset_B2hw = F.split(difference_B4hw, 2, axis=1)
        loss_B = -F.sum(positive_BKhw + negative_BKhw, axis=(1, 2, 3))
        loss_B = loss_B + self._size_weight * F.sum(size_B2hw, axis=(1, 2, 3))
        loss_B = loss_B + self._offset_weight * F.sum(offset_B2hw, axis=(1, 2, 3))
        return loss_B, F.sum(is_centre_B1hw, axis=(1, 2, 3))


class HeatmapFocalLoss(CentreLoss):
    """Loss of CenterNets.

    Inputs are logits of centres (B, K, h, w), sizes and offsets (B, 4, h, w), true boxes, which are ignored, and the
    arrays of `HeatmapCoding.encode`.
    """

    def __call__(self, logit_BKhw: Array, size_B4hw: Array, box_BMD: Array, *encoded: Array) -> Any:
        return super().__call__(logit_BKhw, size_B4hw, *encoded)  # drops true boxes, since Gluon warns of unused inputs

    def hybrid_forward(self, F: OperatorModule, logit_BKhw: Array, size_B4hw: Array, *encoded: Array) -> Array:
        return self.centre_loss(F, logit_BKhw, size_B4hw, *encoded)


class PrototypeMaskLoss(CentreLoss):
    """Loss of `HeatmapFocalLoss`, and cross entropy and dice loss of masks.

    Inputs are the outputs in `PrototypeCoding`, true boxes with masks, and the result of `PrototypeCoding.encode`.

    Masks are compared inside the true boxes, with the same number of cells for each, so that all objects have the same
    weight.

    Args:
        size_weight, offset_weight: see `CentreLoss`.
        mask_weight: weight of the mean cross entropy of a mask.
        dice_weight: weight of the dice loss of a mask.
    """

    def __init__(self, size_weight: float, offset_weight: float, mask_weight: float, dice_weight: float):
        super().__init__(size_weight, offset_weight)
        self._mask_weight, self._dice_weight = mask_weight, dice_weight

    def hybrid_forward(
        self,
        F: OperatorModule,
        logit_BKhw: Array,
        size_B4hw: Array,
        coefficient_BPhw: Array,
        prototype_BPHW: Array,
        row_BMR: Array,
        *encoded: Array,
    ) -> Any:
        *centre_targets, object_BM5 = encoded
        loss_B, weight_B = self.centre_loss(F, logit_BKhw, size_B4hw, *centre_targets)
        cell_BM1, edge_BM4 = (F.slice_axis(object_BM5, axis=2, begin=begin, end=end) for begin, end in ((0, 1), (1, 5)))
        is_object_BM1 = cell_BM1 >= 0
        image_BM1 = F.broadcast_like(F.contrib.arange_like(object_BM5, axis=0).reshape((-1, 1, 1)), cell_BM1)
        # Padding (cell -1) becomes cell 0; its loss is multiplied by 0 below. The image index must not be -1: ROIAlign
        # would then write into the mask of another object.
        index_2BM = F.transpose(F.concat(image_BM1, F.relu(cell_BM1), dim=2), axes=(2, 0, 1))
        table_BCP = F.transpose(F.reshape(coefficient_BPhw, (0, 0, -1)), axes=(0, 2, 1))
        coefficient = F.expand_dims(F.reshape(F.gather_nd(table_BCP, index_2BM), (-3, -2)), axis=1)
        part = F.contrib.ROIAlign(
            prototype_BPHW,
            F.reshape(F.concat(image_BM1, edge_BM4, dim=2), (-1, 5)),
            pooled_size=(PREDICTED_SIDE, PREDICTED_SIDE),
            spatial_scale=1.0,
            sample_ratio=TRUE_SIDE // PREDICTED_SIDE,
            aligned=True,
        )
        logit_TS = F.reshape(F.batch_dot(coefficient, F.reshape(part, (0, 0, -1))), (-1, PREDICTED_SIDE**2))
        true_TSS = F.reshape(F.slice_axis(row_BMR, axis=2, begin=NUM_COLUMNS, end=None), (-1, 1, TRUE_SIDE, TRUE_SIDE))
        kernel = (TRUE_SIDE // PREDICTED_SIDE,) * 2
        share_TSS = F.Pooling(true_TSS, kernel=kernel, stride=kernel, pool_type="avg")
        share_TS = F.reshape(share_TSS, (-1, PREDICTED_SIDE**2))
        loss_T = self._mask_weight * F.mean(binary_cross_entropy(F, logit_TS, share_TS), axis=1)
        if self._dice_weight:
            p_TS = F.sigmoid(logit_TS)
            common_T, size_T = F.sum(p_TS * share_TS, axis=1), F.sum(F.square(p_TS) + F.square(share_TS), axis=1)
            # + 1 keeps the quotient defined where both masks are empty.
            loss_T = loss_T + self._dice_weight * (1 - (2 * common_T + 1) / (size_T + 1))
        loss_BM = F.reshape_like(loss_T, F.squeeze(cell_BM1, axis=2)) * F.squeeze(is_object_BM1, axis=2)
        return loss_B + F.sum(loss_BM, axis=1), weight_B


class MultiBoxLoss(gluon.HybridBlock):
    """Loss of SSDs.

    Inputs are logits (B, N, 1 + K), offsets (B, N, 4), true boxes, which are ignored, and the arrays of
    `MultiBoxCoding.encode`. GluonCV's loss takes a list with an entry for each device, and divides by the number of
    anchors with an object on these devices only.

    Source: Liu et al., "SSD: Single Shot MultiBox Detector" (2016), section 2.2.
    """

    weighted = True
    least_weight = 1.0

    def __init__(self, mining_ratio: float, min_negatives: int, rho: float, box_weight: float):
        super().__init__()
        self._mining_ratio, self._min_negatives = mining_ratio, min_negatives
        self._rho, self._box_weight = rho, box_weight

    def __call__(self, logit_BNK: Array, offset_BN4: Array, box_BMD: Array, *encoded: Array) -> Any:
        return super().__call__(logit_BNK, offset_BN4, *encoded)  # drops true boxes, since Gluon warns of unused inputs

    def hybrid_forward(
        self,
        F: OperatorModule,
        logit_BNK: Array,
        offset_BN4: Array,
        class_BN: Any,
        true_offset_BN4: Array,
        weight_BN: Optional[Array] = None,
    ) -> Any:
        # Ignored anchors (-1) become class 0; their loss is multiplied by 0 below.
        loss_BN = -F.pick(F.log_softmax(logit_BNK, axis=-1), F.relu(class_BN), axis=-1)
        is_object_BN, is_background_BN = class_BN > 0, class_BN == 0
        num_objects_B, background_BN = F.sum(is_object_BN, axis=1), loss_BN * is_background_BN
        # Rank of each anchor by its background loss, the largest first: argsort of argsort.
        order_BN = F.argsort(F.BlockGrad(background_BN), axis=1, is_ascend=False, dtype="int32")
        rank_BN = F.argsort(order_BN, axis=1, dtype="int32")
        max_negatives_B = F.clip(num_objects_B * self._mining_ratio, self._min_negatives, 2.0**24)
        is_hard_BN = F.broadcast_lesser(rank_BN, F.cast(F.expand_dims(F.ceil(max_negatives_B), axis=1), "int32"))
        # Ranks are compared as integers: in float16 large ones would not be exact.
        hard_BN = F.where(is_hard_BN, background_BN, F.zeros_like(background_BN))
        if weight_BN is not None:
            is_object_BN = is_object_BN * weight_BN
            # The sum of weights gives mixed batches gradients of the usual size; negatives are mined by whole objects.
            num_objects_B = F.sum(is_object_BN, axis=1)
        huber_BN4 = huber(F, offset_BN4 - true_offset_BN4, self._rho)
        box_B = F.sum(F.broadcast_mul(huber_BN4, F.expand_dims(is_object_BN, axis=2)), axis=(1, 2))
        return F.sum(loss_BN * is_object_BN + hard_BN, axis=1) + self._box_weight * box_B, num_objects_B


class YOLO3Loss(gluon.HybridBlock):
    """Loss of YOLOv3. Each sample has the weight 1, as in GluonCV's recipe, which divides by the batch size.

    Inputs are raw values of boxes (B, N, 5 + K), their edges (B, N, 4), true boxes (B, M, D), and the arrays of
    `GridCoding.encode`.

    Source: Redmon and Farhadi, "YOLOv3: An Incremental Improvement" (2018), section 2.
    """

    def __init__(self, num_classes: int, ignore_iou: float):
        super().__init__()
        self._num_classes, self._ignore_iou = num_classes, ignore_iou

    def hybrid_forward(
        self,
        F: OperatorModule,
        raw_BNP: Array,
        edge_BN4: Array,
        box_BMD: Array,
        is_object_BN: Array,
        row_BM8: Array,
        weight_BN: Optional[Array] = None,
        weight_BM: Optional[Array] = None,
    ) -> Array:
        max_iou_BN = F.max(self._ious(F, F.BlockGrad(edge_BN4), box_BMD, row_BM8), axis=2)
        is_used_BN = F.broadcast_logical_or(is_object_BN, max_iou_BN <= self._ignore_iou)
        objectness_BN = F.squeeze(F.slice_axis(raw_BNP, axis=2, begin=4, end=5), axis=2)
        loss_BN = binary_cross_entropy(F, objectness_BN, is_object_BN)
        loss_BM = self._object_loss(F, raw_BNP, row_BM8)
        if weight_BN is not None:
            loss_BN, loss_BM = loss_BN * weight_BN, loss_BM * weight_BM
        loss_B = F.sum(F.where(is_used_BN, loss_BN, F.zeros_like(loss_BN)), axis=1)
        return loss_B + F.sum(loss_BM, axis=1)

    def _object_loss(self, F: OperatorModule, raw_BNP: Array, row_BM8: Array) -> Any:
        """Computes the loss of position, size and class of the boxes with objects, (B, M)."""
        index_BM1, centre_BM2, size_BM2, weight_BM1, class_BM1 = (
            F.slice_axis(row_BM8, axis=2, begin=begin, end=end)
            for begin, end in ((0, 1), (1, 3), (3, 5), (5, 6), (6, 7))
        )
        # Without an assigned box (-1), the index becomes 0; the loss is multiplied by 0 below.
        image_BM1 = F.broadcast_like(F.contrib.arange_like(row_BM8, axis=0).reshape((-1, 1, 1)), index_BM1)
        index_2BM = F.transpose(F.concat(image_BM1, F.relu(index_BM1), dim=2), axes=(2, 0, 1))
        raw_BMP = F.gather_nd(raw_BNP, index_2BM)
        centre_loss_BM2 = binary_cross_entropy(F, F.slice_axis(raw_BMP, axis=2, begin=0, end=2), centre_BM2)
        size_loss_BM2 = F.abs(F.slice_axis(raw_BMP, axis=2, begin=2, end=4) - size_BM2)
        true_BMK = F.one_hot(F.squeeze(class_BM1, axis=2), self._num_classes)
        logit_BMK = F.slice_axis(raw_BMP, axis=2, begin=5, end=None)
        # `where` instead of a product: one_hot returns float32 in any precision.
        class_loss_BMK = F.Activation(logit_BMK, act_type="softrelu") - F.where(
            true_BMK, logit_BMK, F.zeros_like(logit_BMK)
        )
        box_loss_BM2 = F.broadcast_mul(centre_loss_BM2 + size_loss_BM2, weight_BM1)
        loss_BM = F.sum(box_loss_BM2, axis=2) + F.sum(class_loss_BMK, axis=2)
        return loss_BM * F.squeeze(index_BM1 >= 0, axis=2)

    def _ious(self, F: OperatorModule, edge_BN4: Array, box_BMD: Array, row_BM8: Array) -> Any:
        """Computes the intersection over union of boxes and true boxes, (B, N, M); for crowd regions the intersection
        over the area of the box alone. It is 0 for padding, which has no area."""
        edge_BM4 = columns_of(F, box_BMD, 0, 4)
        common_BNM = intersection_areas(F, edge_BN4, edge_BM4)
        is_crowd_B1M = F.transpose(F.slice_axis(row_BM8, axis=2, begin=7, end=8), axes=(0, 2, 1))
        area_BN1, area_B1M = F.expand_dims(areas(F, edge_BN4), axis=2), F.expand_dims(areas(F, edge_BM4), axis=1)
        rest_BNM = F.broadcast_mul(F.broadcast_sub(area_B1M, common_BNM), 1 - is_crowd_B1M)
        return common_BNM / (F.broadcast_add(rest_BNM, area_BN1) + 1e-15)


def binary_cross_entropy(F: OperatorModule, logit: Array, target: Array) -> Any:
    """Computes the binary cross entropy of logits."""
    return F.Activation(logit, act_type="softrelu") - logit * target


def huber(F: OperatorModule, difference: Array, rho: float) -> Any:
    """Computes Huber's loss: the square of a difference divided by 2 `rho`, if it is at most `rho`; linear above."""
    difference = F.abs(difference)
    return F.where(difference > rho, difference - 0.5 * rho, F.square(difference) * (0.5 / rho))
