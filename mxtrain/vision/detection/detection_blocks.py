"""Losses of networks that find objects in images, as Gluon blocks. Imports MXNet.

Each returns the sum over a sample, (B,), and, if the loss is normalised by objects instead of samples, the number of
objects, (B,). `least_weight` is the least normaliser of a global batch, so that images without objects are learned
from, too. With mixed images, the last input is the weight of each object, which multiplies its loss and its part of the
normaliser.

Legend: B batch, M boxes of an image, K classes, N boxes that a network gives, h, w cells of a map.
"""

from __future__ import annotations

from mxtrain.engine.backend import gluon
from mxtrain.vision.detection.box_arithmetic import areas, columns_of, common_areas
from mxtrain.vision.detection.boxes import NUM_COLUMNS
from mxtrain.vision.instance_segmentation.mask_rows import PREDICTED_SIDE, TRUE_SIDE


class HeatmapFocalLoss(gluon.HybridBlock):
    """Scores of centres before the sigmoid (B, K, h, w), sizes and offsets (B, 4, h, w); boxes; and the three arrays of
    `HeatmapCoding.encode`.

    Source: Zhou et al., "Objects as Points" (2019), equations 1 to 4, with exponents 2 and 4.
    """

    weighted = True
    least_weight = 1.0

    def __init__(self, size_weight: float, offset_weight: float):
        super().__init__()
        self._size_weight, self._offset_weight = size_weight, offset_weight

    def __call__(self, logit_BKhw, size_B4hw, box_BMD, *encoded):
        return super().__call__(logit_BKhw, size_B4hw, *encoded)  # drops true boxes, since Gluon warns of unused inputs

    def hybrid_forward(self, F, logit_BKhw, size_B4hw, *targets):
        return _of_centres(F, self._size_weight, self._offset_weight, logit_BKhw, size_B4hw, *targets)


class PrototypeMaskLoss(gluon.HybridBlock):
    """Inputs as of `HeatmapFocalLoss`, with coefficients (B, P, h, w) and prototypes (B, P, height, width) after the
    outputs, and the result of `PrototypeCoding.encode` after the boxes, which include masks.

    Masks are compared inside the true boxes, at as many squares of each, so that an object counts as much as any other.
    """

    weighted = True
    least_weight = 1.0

    def __init__(self, size_weight: float, offset_weight: float, mask_weight: float, dice_weight: float):
        super().__init__()
        self._size_weight, self._offset_weight = size_weight, offset_weight
        self._mask_weight, self._dice_weight = mask_weight, dice_weight

    def hybrid_forward(
        self, F, logit_BKhw, size_B4hw, coefficient_BPhw, prototype_BPHW, row_BMR, score_BKhw, true_size_B4hw,
        is_centre_B1hw, object_BM5,
    ):  # fmt: skip
        loss_B, weight_B = _of_centres(
            F, self._size_weight, self._offset_weight, logit_BKhw, size_B4hw, score_BKhw, true_size_B4hw, is_centre_B1hw
        )  # fmt: skip
        cell_BM1, edge_BM4 = (F.slice_axis(object_BM5, axis=2, begin=begin, end=end) for begin, end in ((0, 1), (1, 5)))
        is_object_BM1 = cell_BM1 >= 0
        image_BM1 = F.broadcast_like(F.contrib.arange_like(object_BM5, axis=0).reshape((-1, 1, 1)), cell_BM1)
        # Padding (-1) becomes cell 0, whose loss is multiplied by 0 below, with the mask of a small box. An image index
        # of -1 is no alternative: ROIAlign would then write into the mask of another object, and not into its own.
        place = F.transpose(F.concat(image_BM1, F.relu(cell_BM1), dim=2), axes=(2, 0, 1))
        table_BCP = F.transpose(F.reshape(coefficient_BPhw, (0, 0, -1)), axes=(0, 2, 1))
        coefficient = F.expand_dims(F.reshape(F.gather_nd(table_BCP, place), (-3, -2)), axis=1)
        part = F.contrib.ROIAlign(
            prototype_BPHW, F.reshape(F.concat(image_BM1, edge_BM4, dim=2), (-1, 5)),
            pooled_size=(PREDICTED_SIDE, PREDICTED_SIDE), spatial_scale=1.0,
            sample_ratio=TRUE_SIDE // PREDICTED_SIDE, aligned=True,
        )  # fmt: skip
        logit_TS = F.reshape(F.batch_dot(coefficient, F.reshape(part, (0, 0, -1))), (-1, PREDICTED_SIDE**2))
        true_TSS = F.reshape(F.slice_axis(row_BMR, axis=2, begin=NUM_COLUMNS, end=None), (-1, 1, TRUE_SIDE, TRUE_SIDE))
        kernel = (TRUE_SIDE // PREDICTED_SIDE,) * 2
        share_TSS = F.Pooling(true_TSS, kernel=kernel, stride=kernel, pool_type="avg")
        share_TS = F.reshape(share_TSS, (-1, PREDICTED_SIDE**2))
        loss_T = self._mask_weight * F.mean(binary_cross_entropy(F, logit_TS, share_TS), axis=1)
        if self._dice_weight:
            p_TS = F.sigmoid(logit_TS)
            common_T, size_T = F.sum(p_TS * share_TS, axis=1), F.sum(F.square(p_TS) + F.square(share_TS), axis=1)
            loss_T = loss_T + self._dice_weight * (1 - (2 * common_T + 1) / (size_T + 1))
        loss_BM = F.reshape_like(loss_T, F.squeeze(cell_BM1, axis=2)) * F.squeeze(is_object_BM1, axis=2)
        return loss_B + F.sum(loss_BM, axis=1), weight_B


class MultiBoxLoss(gluon.HybridBlock):
    """Loss of SSDs.

    Inputs are scores (B, N, 1 + K), offsets (B, N, 4), true boxes, and the arrays of `MultiBoxCoding.encode`. GluonCV's
    loss takes lists with an entry for each device, and divides by the boxes with an object on these devices only.

    Source: Liu et al., "SSD: Single Shot MultiBox Detector" (2016), section 2.2.
    """

    weighted = True
    least_weight = 1.0

    def __init__(self, mining_ratio: float, least_negatives: int, rho: float, box_weight: float):
        super().__init__()
        self._mining_ratio, self._least_negatives = mining_ratio, least_negatives
        self._rho, self._box_weight = rho, box_weight

    def __call__(self, logit_BNK, offset_BN4, box_BMD, *encoded):
        return super().__call__(logit_BNK, offset_BN4, *encoded)  # drops true boxes, since Gluon warns of unused inputs

    def hybrid_forward(self, F, logit_BNK, offset_BN4, class_BN, true_offset_BN4, weight_BN=None):
        # Ignored anchors (-1) become class 0; their loss is multiplied by 0 below.
        loss_BN = -F.pick(F.log_softmax(logit_BNK, axis=-1), F.relu(class_BN), axis=-1)
        is_object_BN, is_background_BN = class_BN > 0, class_BN == 0
        num_objects_B, background_BN = F.sum(is_object_BN, axis=1), loss_BN * is_background_BN
        # The place of each box in the order of losses of background, the most wrong first.
        order_BN = F.argsort(F.BlockGrad(background_BN), axis=1, is_ascend=False, dtype="int32")
        rank_BN = F.argsort(order_BN, axis=1, dtype="int32")
        most_B1 = F.expand_dims(F.clip(num_objects_B * self._mining_ratio, self._least_negatives, 2.0**24), axis=1)
        is_hard_BN = F.broadcast_lesser(rank_BN, F.cast(F.ceil(most_B1), "int32"))
        # In whatever precision losses are, these are of whole numbers.
        hard_BN = F.where(is_hard_BN, background_BN, F.zeros_like(background_BN))
        if weight_BN is not None:
            is_object_BN = is_object_BN * weight_BN
            num_objects_B = F.sum(is_object_BN, axis=1)
        huber_BN4 = huber(F, offset_BN4 - true_offset_BN4, self._rho)
        box_B = F.sum(F.broadcast_mul(huber_BN4, F.expand_dims(is_object_BN, axis=2)), axis=(1, 2))
        return F.sum(loss_BN * is_object_BN + hard_BN, axis=1) + self._box_weight * box_B, num_objects_B


class YOLO3Loss(gluon.HybridBlock):
    """Raw values of boxes (B, N, 5 + K) and their edges (B, N, 4); true boxes (B, M, D); and the two arrays of
    `GridCoding.encode`. Each sample weighs 1, as in GluonCV's recipe, which divides by the batch size.

    Source: Redmon and Farhadi, "YOLOv3: An Incremental Improvement" (2018), section 2.
    """

    def __init__(self, num_classes: int, ignore_iou: float):
        super().__init__()
        self._num_classes, self._ignore_iou = num_classes, ignore_iou

    def hybrid_forward(self, F, raw_BNP, edge_BN4, box_BMD, is_object_BN, row_BM8, weight_BN=None, weight_BM=None):
        covered_BN = F.max(self._ious(F, F.BlockGrad(edge_BN4), box_BMD, row_BM8), axis=2)
        counts_BN = F.broadcast_logical_or(is_object_BN, covered_BN <= self._ignore_iou)
        is_there_BN = F.squeeze(F.slice_axis(raw_BNP, axis=2, begin=4, end=5), axis=2)
        loss_BN = binary_cross_entropy(F, is_there_BN, is_object_BN)
        loss_BM = self._object_loss(F, raw_BNP, row_BM8)
        if weight_BN is not None:
            loss_BN, loss_BM = loss_BN * weight_BN, loss_BM * weight_BM
        loss_B = F.sum(F.where(counts_BN, loss_BN, F.zeros_like(loss_BN)), axis=1)
        return loss_B + F.sum(loss_BM, axis=1)

    def _object_loss(self, F, raw_BNP, row_BM8):
        """Computes the loss of position, size and class of the boxes with objects, (B, M)."""
        number_BM1, centre_BM2, size_BM2, weight_BM1, class_BM1 = (
            F.slice_axis(row_BM8, axis=2, begin=begin, end=end)
            for begin, end in ((0, 1), (1, 3), (3, 5), (5, 6), (6, 7))
        )
        # -1, no box, becomes box 0, whose loss is multiplied by 0 below.
        image_BM1 = F.broadcast_like(F.contrib.arange_like(row_BM8, axis=0).reshape((-1, 1, 1)), number_BM1)
        place = F.transpose(F.concat(image_BM1, F.relu(number_BM1), dim=2), axes=(2, 0, 1))
        raw_BMP = F.gather_nd(raw_BNP, place)
        of_centre_BM2 = binary_cross_entropy(F, F.slice_axis(raw_BMP, axis=2, begin=0, end=2), centre_BM2)
        of_size_BM2 = F.abs(F.slice_axis(raw_BMP, axis=2, begin=2, end=4) - size_BM2)
        true_BMK = F.one_hot(F.squeeze(class_BM1, axis=2), self._num_classes)
        logit_BMK = F.slice_axis(raw_BMP, axis=2, begin=5, end=None)
        # one_hot returns float32 in any precision.
        of_class_BMK = F.Activation(logit_BMK, act_type="softrelu") - F.where(
            true_BMK, logit_BMK, F.zeros_like(logit_BMK)
        )
        loss_BM = F.sum(F.broadcast_mul(of_centre_BM2 + of_size_BM2, weight_BM1), axis=2) + F.sum(of_class_BMK, axis=2)
        return loss_BM * F.squeeze(number_BM1 >= 0, axis=2)

    def _ious(self, F, edge_BN4, box_BMD, row_BM8):
        """Computes the intersection over union of boxes and true boxes, (B, N, M); for crowds the intersection over the
        box alone. Rows without a box have no area, and so no intersection."""
        edge_BM4 = columns_of(F, box_BMD, 0, 4)
        common_BNM = common_areas(F, edge_BN4, edge_BM4)
        is_crowd_B1M = F.transpose(F.slice_axis(row_BM8, axis=2, begin=7, end=8), axes=(0, 2, 1))
        area_BN1, area_B1M = F.expand_dims(areas(F, edge_BN4), axis=2), F.expand_dims(areas(F, edge_BM4), axis=1)
        rest_BNM = F.broadcast_mul(F.broadcast_sub(area_B1M, common_BNM), 1 - is_crowd_B1M)
        return common_BNM / (F.broadcast_add(rest_BNM, area_BN1) + 1e-15)


def _of_centres(
    F, size_weight: float, offset_weight: float, logit_BKhw, size_B4hw, score_BKhw, true_size_B4hw, is_centre_B1hw,
    weight_B1hw=None,
):  # fmt: skip
    """See `HeatmapFocalLoss`."""
    # With logits: log(sigmoid(x)) would be -inf where a network is sure and wrong.
    p_BKhw = F.sigmoid(logit_BKhw)
    log_p_BKhw = -F.Activation(-logit_BKhw, act_type="softrelu")
    log_rest_BKhw = -F.Activation(logit_BKhw, act_type="softrelu")
    is_one_BKhw = score_BKhw >= 1
    positive_BKhw = is_one_BKhw * F.square(1 - p_BKhw) * log_p_BKhw
    if weight_B1hw is not None:
        positive_BKhw = F.broadcast_mul(positive_BKhw, weight_B1hw)
        is_centre_B1hw = is_centre_B1hw * weight_B1hw
    negative_BKhw = F.square(F.square(1 - score_BKhw)) * F.square(p_BKhw) * log_rest_BKhw
    difference_B4hw = F.broadcast_mul(F.abs(size_B4hw - true_size_B4hw), is_centre_B1hw)
    size_B2hw, offset_B2hw = F.split(difference_B4hw, 2, axis=1)
    loss_B = -F.sum(positive_BKhw + negative_BKhw, axis=(1, 2, 3))
    loss_B = loss_B + size_weight * F.sum(size_B2hw, axis=(1, 2, 3))
    loss_B = loss_B + offset_weight * F.sum(offset_B2hw, axis=(1, 2, 3))
    return loss_B, F.sum(is_centre_B1hw, axis=(1, 2, 3))


def binary_cross_entropy(F, logit, target):
    """Computes the binary cross entropy of logits."""
    return F.Activation(logit, act_type="softrelu") - logit * target


def huber(F, difference, rho: float):
    """Computes Huber's loss: half the square of a difference over `rho` up to `rho`, linear above."""
    difference = F.abs(difference)
    return F.where(difference > rho, difference - 0.5 * rho, F.square(difference) * (0.5 / rho))
