"""The loss of regions beside GluonCV's modules and plain NumPy, on the same samples."""

import numpy as np
import pytest

from mxtrain.vision.detection.boxes import NUM_COLUMNS, Flag, padded, rows_of
from mxtrain.vision.detection.losses import MaskTwoStage, TwoStage
from mxtrain.vision.instance_segmentation.mask_rows import TRUE_COLUMNS, TRUE_SIDE

K, N, R = 3, 400, 24
VARIANCES = np.array([0.1, 0.1, 0.2, 0.2])


def arrays(draw, shares=(0.2, 0.5, 0.3)):
    """Returns the outputs of a network for two images, and the expected ones."""
    edges = [np.array([[4, 6, 40, 50], [30, 10, 60, 40]]), np.array([[10, 10, 30, 60]])]
    boxes = padded([rows_of(edges[0], [2, 0]), rows_of(edges[1], [1])], 4)
    near = [edges[row][draw.randint(len(edges[row]), size=R)] + draw.randint(-9, 9, (R, 4)) for row in range(2)]
    region_BR5 = np.concatenate([np.array(near), np.ones((2, R, 1))], axis=2)
    region_BR5[0, -3:, 4] = 0  # padding
    kind_BN = draw.choice([1, 0, -1], size=(2, N), p=shares)
    return [
        draw.randn(2, N),
        draw.randn(2, N, 4),
        region_BR5,
        draw.randn(2, R, 1 + K),
        draw.randn(2, R, 4 * K),
        boxes,
        kind_BN,
        draw.randn(2, N, 4) * (kind_BN == 1)[..., None],
        draw.rand(2, N),
    ]


def computed(loss, given, count=5):
    """Values, and gradients of the first arrays: of a network's outputs."""
    from mxtrain.engine.backend import autograd, nd

    given = [nd.array(one) for one in given]
    for one in given[:count]:
        one.attach_grad()
    with autograd.record():
        loss_B = loss(*given)
    loss_B.backward()
    return loss_B.asnumpy(), [one.grad.asnumpy() for one in given[:count]]


def huber(difference, rho):
    difference = np.abs(difference)
    return np.where(difference > rho, difference - 0.5 * rho, 0.5 / rho * difference**2).sum(axis=-1)


def sampled(kind_N, noise_N, quota, most):
    """The boxes of the highest noise: at most `most` that hold an object, then background."""
    objects, background = (np.flatnonzero(kind_N == kind) for kind in (1, 0))
    objects = objects[np.argsort(-noise_N[objects])][:most]
    return np.concatenate([objects, background[np.argsort(-noise_N[background])][: quota - len(objects)]])


def by_numpy(given, quota, rho_of_proposals, rho, box_weight):
    score_BN, offset_BN4, region_BR5, logit_BRK, offset_BRP, box_BMD, kind_BN, true_BN4, noise_BN = given
    total_B = np.zeros(2)
    for row in range(2):
        chosen = sampled(kind_BN[row], noise_BN[row], quota, quota // 2)
        score, holds = score_BN[row, chosen], kind_BN[row, chosen] == 1
        total_B[row] = (np.log1p(np.exp(score)) - score * holds).sum() / len(chosen)
        difference = offset_BN4[row, chosen] - true_BN4[row, chosen]
        total_B[row] += box_weight * (huber(difference, rho_of_proposals) * holds).sum() / len(chosen)
        counts = region_BR5[row, :, 4] > 0
        for region, logit, offset in zip(region_BR5[row, counts, :4], logit_BRK[row, counts], offset_BRP[row, counts]):
            ious = [iou(region, box) if box[4] >= 0 else 0 for box in box_BMD[row]]
            best = int(np.argmax(ious))
            kind = int(box_BMD[row, best, 4]) + 1 if ious[best] >= 0.5 else 0
            total_B[row] += (np.log(np.exp(logit).sum()) - logit[kind]) / counts.sum()
            if kind:
                wanted = offsets(region, box_BMD[row, best, :4]) / VARIANCES
                total_B[row] += box_weight * huber(offset.reshape(K, 4)[kind - 1] - wanted, rho) / counts.sum()
    return total_B


def iou(one, other):
    width, height = (min(one[at + 2], other[at + 2]) - max(one[at], other[at]) for at in (0, 1))
    common = max(width, 0) * max(height, 0)
    return common / ((one[2] - one[0]) * (one[3] - one[1]) + (other[2] - other[0]) * (other[3] - other[1]) - common)


def offsets(region, box):
    size, true_size = region[2:] - region[:2], box[2:4] - box[:2]
    return np.concatenate([(box[:2] + true_size / 2 - region[:2] - size / 2) / size, np.log(true_size / size)])


@pytest.mark.parametrize("quota, shares", [(64, (0.2, 0.5, 0.3)), (300, (0.2, 0.5, 0.3)), (300, (0.6, 0.2, 0.2))])
def test_values_are_numpys_and_gradients_those_of_the_value(quota, shares):
    """Quotas that are filled, that are not, and that more objects would fill than may."""
    draw = np.random.RandomState(0)
    given = arrays(draw, shares)
    loss = TwoStage(proposal_samples=quota, proposal_rho=0.2, rho=0.7, box_weight=1.5).build_for(K, [(N,)])
    loss_B, gradients = computed(loss, given)
    np.testing.assert_allclose(loss_B, by_numpy(given, quota, 0.2, 0.7, 1.5), rtol=1e-4)
    for number in (0, 1, 3, 4):
        direction = draw.randn(*given[number].shape)
        ahead, behind = ([*given] for _ in range(2))
        ahead[number], behind[number] = (given[number] + sign * 1e-4 * direction for sign in (1, -1))
        slope = (by_numpy(ahead, quota, 0.2, 0.7, 1.5) - by_numpy(behind, quota, 0.2, 0.7, 1.5)).sum() / 2e-4
        np.testing.assert_allclose((gradients[number] * direction).sum(), slope, rtol=2e-3)
    assert not gradients[2].any()  # where a region is, is no matter of this loss


def test_values_match_gluoncvs_modules():
    """The losses are divided as in GluonCV's training script, for one image."""
    from mxtrain.engine.backend import nd
    from mxtrain.vision.networks import gluoncv  # noqa: F401  imports gluoncv without its warnings

    from gluoncv.model_zoo.rcnn.faster_rcnn.rcnn_target import RCNNTargetGenerator  # isort: skip
    from mxnet.gluon.loss import HuberLoss, SigmoidBinaryCrossEntropyLoss, SoftmaxCrossEntropyLoss  # isort: skip

    given = [one[:1] for one in arrays(np.random.RandomState(1))]
    given[2][..., 4] = 1
    score_BN, offset_BN4, region_BR5, logit_BRK, offset_BRP, box_BMD, kind_BN, true_BN4, noise_BN = given
    chosen = np.zeros(N, bool)
    chosen[sampled(kind_BN[0], noise_BN[0], 64, 32)] = True
    kind = nd.array(np.where(chosen, kind_BN[0], -1)[None])
    mask = nd.array(((kind_BN[0] == 1) & chosen)[None, :, None].repeat(4, axis=2))
    count = 64
    wanted = SigmoidBinaryCrossEntropyLoss(from_sigmoid=False)(nd.array(score_BN), kind, kind >= 0) * N / count
    wanted = wanted + HuberLoss(rho=1 / 9.0)(nd.array(offset_BN4), nd.array(true_BN4), mask) * N * 4 / count
    ious = np.array([[iou(one, box) for box in box_BMD[0, :2]] for one in region_BR5[0, :, :4]])
    generator = RCNNTargetGenerator(K, R, 1)
    generator.initialize()
    samples, matches = np.where(ious.max(axis=1) >= 0.5, 1, -1), ious.argmax(axis=1)
    assert (samples == 1).sum() > 5 and (samples == -1).sum() > 2
    true = (box_BMD[:, :2, 4], box_BMD[:, :2, :4])
    kinds, targets, masks, index = generator(
        *(nd.array(one) for one in (region_BR5[..., :4], samples[None], matches[None], *true))
    )
    wanted = wanted + SoftmaxCrossEntropyLoss()(nd.array(logit_BRK), kinds, kinds.expand_dims(-1) >= 0) * R / R
    offset = nd.array(offset_BRP[0].reshape(R, K, 4)).take(index[0]).expand_dims(0)
    wanted = wanted + HuberLoss(rho=1.0)(offset, targets, masks) * offset.size / R
    loss_B, _ = computed(TwoStage(proposal_samples=64).build_for(K, [(N,)]), given)
    np.testing.assert_allclose(loss_B, wanted.asnumpy(), rtol=1e-4)


def test_regions_in_a_crowd_do_not_count():
    given = arrays(np.random.RandomState(0))
    loss = TwoStage().build_for(K, [(N,)])
    _, without = computed(loss, given)
    given[5][1, 1] = rows_of([[0, 0, 64, 64]], [0])[0]
    given[5][1, 1, 5] = Flag.CROWD
    _, gradients = computed(loss, given)
    assert without[3][1].any(axis=1).all()
    held = np.array([iou(one, [10, 10, 30, 60]) >= 0.5 for one in given[2][1, :, :4]])
    assert 0 < held.sum() < R and (gradients[3][1].any(axis=1) == held).all()


SQUARES = 28


def masked(draw):
    """Returns `arrays` with masks: the first regions hold an object, some have no weight, and one has a wrong class."""
    given = arrays(draw)
    edges = np.array([[[4, 6, 60, 62], [30, 10, 58, 38]], [[0, 0, 56, 56], [-1] * 4]], float)
    row_BMR = np.full((2, 4, TRUE_COLUMNS), -1.0)
    row_BMR[0, :2, :NUM_COLUMNS] = rows_of(edges[0], [2, 0])
    row_BMR[1, :1, :NUM_COLUMNS] = rows_of(edges[1, :1], [1])
    row_BMR[..., NUM_COLUMNS:] = draw.rand(2, 4, TRUE_COLUMNS - NUM_COLUMNS) > 0.5
    found_BQ6 = np.zeros((2, 5, 6))
    found_BQ6[0] = [
        [2, 1, 4, 6, 60, 62],
        [2, 1, 8, 10, 64, 66],
        [0, 0.5, 30, 12, 58, 40],
        [1, 1, 4, 6, 60, 62],
        [2, 0, 4, 6, 60, 62],
    ]
    found_BQ6[1] = [
        [1, 1, 0, 28, 56, 84],
        [-1, -1, -1, -1, -1, -1],
        [1, 1, -28, 0, 28, 56],
        [1, 1, 90, 90, 99, 99],
        [1, 1, 0, 0, 56, 28],
    ]
    return [*given[:5], found_BQ6, draw.randn(2, 5, SQUARES, SQUARES), row_BMR, *given[6:]]


def of_masks(given):
    """The cross entropy of those that hold an object, by single pixels."""
    found_BQ6, mask_BQSS, row_BMR = given[5:8]
    total_B = np.zeros(2)
    for row in range(2):
        losses = []
        for (kind, counts, *edge), logit_SS in zip(found_BQ6[row], mask_BQSS[row]):
            ious = [iou(edge, box) if box[4] >= 0 else 0 for box in row_BMR[row]]
            best = row_BMR[row, int(np.argmax(ious))]
            if max(ious) < 0.5 or counts <= 0 or kind != best[4]:
                continue
            share_SS = pool_mask(best[NUM_COLUMNS:].reshape(TRUE_SIDE, TRUE_SIDE), best[:4], edge)
            losses.append((np.log1p(np.exp(logit_SS)) - logit_SS * share_SS).mean())
        total_B[row] = np.mean(losses) if losses else 0
    return total_B


def pool_mask(mask, box, edge):
    """Returns a mask as a region sees it: means over many points of each of its squares."""
    x, y = (edge[at] + (np.arange(SQUARES * 14) + 0.5) / (SQUARES * 14) * (edge[at + 2] - edge[at]) for at in (0, 1))
    column, line = (
        np.floor((place - box[at]) / (box[at + 2] - box[at]) * TRUE_SIDE).astype(int) for at, place in ((0, x), (1, y))
    )
    inside = ((line >= 0) & (line < TRUE_SIDE))[:, None] & ((column >= 0) & (column < TRUE_SIDE))
    values = mask[line.clip(0, TRUE_SIDE - 1)[:, None], column.clip(0, TRUE_SIDE - 1)] * inside
    return values.reshape(SQUARES, 14, SQUARES, 14).mean(axis=(1, 3))


def test_masks_add_the_cross_entropy_of_positive_regions():
    draw = np.random.RandomState(0)
    given = masked(draw)
    plain = [*given[:5], given[7][..., :NUM_COLUMNS], *given[8:]]
    without_B, _ = computed(TwoStage().build_for(K, [(N,)]), plain)
    loss = MaskTwoStage(mask_weight=0.7).build_for(K, [(N,)])
    loss_B, gradients = computed(loss, given, 7)
    np.testing.assert_allclose(loss_B - without_B, 0.7 * of_masks(given), rtol=1e-5)
    assert not gradients[5].any()
    held_BQ = gradients[6].any(axis=(2, 3))
    assert held_BQ.tolist() == [[True, True, True, False, False], [False, False, False, False, True]]
    ahead, behind, direction = [*given], [*given], draw.randn(*given[6].shape)
    ahead[6], behind[6] = (given[6] + sign * 1e-3 * direction for sign in (1, -1))
    slope = 0.7 * (of_masks(ahead) - of_masks(behind)).sum() / 2e-3
    np.testing.assert_allclose((gradients[6] * direction).sum(), slope, rtol=1e-4)


def test_image_without_positive_regions_has_no_mask_loss():
    given = masked(np.random.RandomState(0))
    given[7][:] = -1
    given[5][1, :, 2:] = 7  # without an area
    plain = [*given[:5], given[7][..., :NUM_COLUMNS], *given[8:]]
    loss_B, gradients = computed(MaskTwoStage().build_for(K, [(N,)]), given, 7)
    np.testing.assert_array_equal(loss_B, computed(TwoStage().build_for(K, [(N,)]), plain)[0])
    assert not gradients[6].any()


def test_masks_are_compared_as_by_gluoncvs_modules():
    """In one image with objects in which a square of a true mask is a pixel: GluonCV reads masks of whole images, half
    a pixel beside the centre of each."""
    from mxtrain.engine.backend import nd
    from mxtrain.vision.networks import gluoncv  # noqa: F401  imports gluoncv without its warnings

    from gluoncv.model_zoo.rcnn.mask_rcnn.rcnn_target import MaskTargetGenerator  # isort: skip
    from mxnet.gluon.loss import SigmoidBinaryCrossEntropyLoss  # isort: skip

    draw = np.random.RandomState(0)
    given = [one[:1] for one in masked(draw)]
    edges = np.array([[4, 6, 60, 62], [70, 30, 126, 86]])
    given[7] = np.full((1, 2, TRUE_COLUMNS), -1.0)
    given[7][0, :, :NUM_COLUMNS] = rows_of(edges, [2, 0])
    mask_MSS = (draw.rand(2, TRUE_SIDE, TRUE_SIDE) > 0.4).astype(float)
    given[7][0, :, NUM_COLUMNS:] = mask_MSS.reshape(2, -1)
    region_Q4 = np.array([[4, 6, 60, 62], [12, 0, 68, 56], [70, 30, 126, 86], [64, 36, 120, 92], [80, 30, 136, 86]])
    matches, kinds = np.array([[0, 0, 1, 1, 1]]), np.array([[3, 3, 1, 1, 1]])
    given[5] = np.concatenate([kinds[0, :, None] - 1, np.ones((5, 1)), region_Q4], axis=1)[None]
    image_MHW = np.zeros((2, 128, 160))
    for number, (left, top, right, bottom) in enumerate(edges):
        image_MHW[number, top:bottom, left:right] = mask_MSS[number]
    logit_QKSS = draw.randn(5, K, SQUARES, SQUARES)
    given[6] = logit_QKSS[np.arange(5), kinds[0] - 1][None]
    generator = MaskTargetGenerator(1, 5, K, (SQUARES, SQUARES))
    targets, masks = generator(*(nd.array(one) for one in (region_Q4[None] - 0.5, image_MHW[None], matches, kinds)))
    entropy = SigmoidBinaryCrossEntropyLoss(from_sigmoid=False)
    wanted_B = entropy(nd.array(logit_QKSS[None]), targets, masks) * targets.size / masks.sum()
    plain = [*given[:5], given[7][..., :NUM_COLUMNS], *given[8:]]
    (with_B, _), (without_B, _) = (
        computed(kind.build_for(K, [(N,)]), values) for kind, values in ((MaskTwoStage(), given), (TwoStage(), plain))
    )
    np.testing.assert_allclose(with_B - without_B, wanted_B.asnumpy(), rtol=1e-4)
