"""Geometric transforms: pixels against NumPy, and annotations against markers that are drawn into the image."""

import numpy as np
import pytest
from PIL import Image

from mxtrain.errors import ConfigError, LoaderError
from mxtrain.vision.detection.boxes import BoxAnnotations, Column, rows_of
from mxtrain.vision.images.affine import IDENTITY_23, compose, inverse, transform_points, warp
from mxtrain.vision.images.transforms.base import RandomStream, Transform
from mxtrain.vision.images.transforms.chain import Annotations, TransformChain
from mxtrain.vision.images.transforms.colors import ColorJitter, Erasing
from mxtrain.vision.images.transforms.geometry import Affine, Flip, PaddedCrop, Resize, ResizedCrop, Rotation
from mxtrain.vision.images.transforms.lazy_image import GeometryStep, LazyImage
from mxtrain.vision.images.transforms.policies import AutoAugment, RandAugment
from mxtrain.vision.instance_segmentation.mask_rows import TRUE_SIDE, InstanceAnnotations, append_masks
from mxtrain.vision.instance_segmentation.outlines import Bitmap
from mxtrain.vision.pose.key_points import KeyPointAnnotations
from mxtrain.vision.segmentation.masked_images import IGNORED, MaskAnnotations

HEIGHT, WIDTH = 96, 128
FILL = np.zeros(3, np.uint8)
GEOMETRIC = {
    "flip": [Flip(horizontal=1.0, vertical=1.0)],
    "crop": [PaddedCrop(padding=9)],
    "resized_crop": [ResizedCrop(scale=[0.4, 0.9])],
    "resize and crop": [Resize(size=[120, 150]), PaddedCrop(padding=3, size=[96, 128])],
    "smaller": [Resize(size=[60, 100])],
    "rotation": [Rotation(degrees=40.0)],
    "affine": [Affine(degrees=20.0, translate=[0.1, 0.1], scale=[0.8, 1.2], shear=[10.0, 10.0])],
    "drawn in between": [Rotation(degrees=20.0), ColorJitter(), Flip(horizontal=1.0), Erasing(share=0.0), PaddedCrop()],
    "rand_augment": [RandAugment(num_ops=3)],
}


def image_of(count=6):
    return np.random.RandomState(0).randint(0, 256, (count, 3, HEIGHT, WIDTH)).astype(np.uint8)


def apply(transforms, image_BCHW, label_B, annotations=None, seed=0, epoch=0, index=None):
    index_B = np.arange(len(image_BCHW)) if index is None else index
    chain = TransformChain(tuple(transforms), annotations or Annotations())
    return chain.apply(image_BCHW, label_B, index_B, FILL, seed=seed, epoch=epoch)


def test_flip_is_exact():
    image_BCHW, label_B = image_of(), np.arange(6)
    for horizontal, vertical, expected in (
        (1.0, 0.0, image_BCHW[..., ::-1]),
        (0.0, 1.0, image_BCHW[:, :, ::-1]),
        (1.0, 1.0, image_BCHW[:, :, ::-1, ::-1]),
    ):
        found, labels = apply([Flip(horizontal=horizontal, vertical=vertical)], image_BCHW, label_B)
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(labels, label_B)


def test_crop_is_a_window_of_the_padded_image():
    image_BCHW = image_of(30)[:, :, :12, :14] // 2 + 100
    found, _ = apply([PaddedCrop(padding=2)], image_BCHW, np.arange(30))
    padded = np.pad(image_BCHW, ((0, 0), (0, 0), (2, 2), (2, 2)))
    places = set()
    for before, after in zip(padded, found):
        fits = [(y, x) for y in range(5) for x in range(5) if np.array_equal(before[:, y : y + 12, x : x + 14], after)]
        assert len(fits) == 1
        places.add(fits[0])
    assert len(places) > 12


@pytest.mark.parametrize("size", [(40, 50), (150, 200), (96, 200)])
def test_resize_equals_pillow(size):
    smooth = np.asarray(Image.fromarray(image_of(1)[0].transpose(1, 2, 0)).resize((16, 12)).resize((WIDTH, HEIGHT)))
    image = LazyImage(smooth.transpose(2, 0, 1), FILL)
    found = Resize(size=list(size))(image, RandomStream(0)).pixels.transpose(1, 2, 0)
    expected = np.asarray(Image.fromarray(smooth).resize(size[::-1], Image.Resampling.BILINEAR))
    assert found.shape == expected.shape and np.abs(found.astype(int) - expected).mean() < 1.0
    assert np.abs(found[0].astype(int) - expected[0]).max() < 12  # the border is not mixed with the fill


def test_rotation_equals_pillow():
    smooth = np.asarray(Image.fromarray(image_of(1)[0].transpose(1, 2, 0)).resize((16, 12)).resize((WIDTH, HEIGHT)))

    class Highest(RandomStream):
        def uniform(self, low=0.0, high=1.0):
            return high

    image = LazyImage(smooth.transpose(2, 0, 1), FILL)
    found = Rotation(degrees=25.0)(image, Highest(0)).pixels.transpose(1, 2, 0).astype(int)
    expected = np.asarray(Image.fromarray(smooth).rotate(-25, Image.Resampling.BILINEAR))  # Pillow's is anticlockwise
    assert (np.abs(found - expected).max(axis=2) <= 6).mean() > 0.98


def test_maps_that_follow_each_other_are_drawn_once():
    image = LazyImage(image_of(1)[0], FILL)
    turn = Rotation(degrees=90.0)
    there = turn(image, RandomStream(0))
    matrix_23 = there.rendered().steps[0].matrix_23
    back = there.moved(inverse(matrix_23))
    assert np.abs(back.pixels.astype(int) - image.pixels).max() <= 2  # two drawings would lose the corners
    np.testing.assert_allclose(compose(inverse(matrix_23), matrix_23), IDENTITY_23, atol=1e-9)


@pytest.mark.parametrize("name", sorted(set(GEOMETRIC) - {"rand_augment"}))
def test_key_points_follow_a_marker(name):
    """A disc in the image is where its key point is moved to."""
    y_HW, x_HW = np.mgrid[:HEIGHT, :WIDTH] + 0.5
    places = np.array([[40.0, 30.0], [90.0, 50.0], [64.0, 70.0]])
    image_BCHW = np.zeros((18, 3, HEIGHT, WIDTH), np.uint8)
    for number, image_CHW in enumerate(image_BCHW):
        x, y = places[number % 3]
        image_CHW[:, (x_HW - x) ** 2 + (y_HW - y) ** 2 < 36] = 255
    point_J3 = np.column_stack([places, [2.0, 1.0, 2.0]]).astype(np.float32)
    annotations = KeyPointAnnotations(np.array([1, 0, 2]))
    found, label = apply(GEOMETRIC[name], image_BCHW, np.tile(point_J3, (18, 1, 1)), annotations)
    compared = 0
    for number, (image_HW, label_J3) in enumerate(zip(found[:, 0].astype(float), label)):
        is_mirrored = label_J3[0, 2] == 1  # the first of a mirrored image is what was the second
        point_3 = label_J3[[1, 0, 2] if is_mirrored else [0, 1, 2]][number % 3]
        assert point_3[2] == point_J3[number % 3, 2]
        if (point_3[:2] > 9).all() and (point_3[:2] < [WIDTH - 9, HEIGHT - 9]).all():
            weight_HW = image_HW * (image_HW > image_HW.max() / 4)
            centre = np.array([(weight_HW * x_HW).sum(), (weight_HW * y_HW).sum()]) / weight_HW.sum()
            assert np.linalg.norm(point_3[:2] - centre) < 0.5, name
            compared += 1
    assert compared >= 9


def test_left_and_right_are_swapped_only_in_mirrored_images():
    point_J3 = np.array([[10.0, 20.0, 2.0], [30.0, 40.0, 1.0], [0.0, 0.0, 0.0]], np.float32)
    follow = KeyPointAnnotations(np.array([1, 0, 2])).follow
    mirrored = follow(point_J3, GeometryStep(np.array([[-1.0, 0, 100], [0, 1, 0]]), (80, 100)))
    np.testing.assert_array_equal(mirrored, [[70, 40, 1], [90, 20, 2], [0, 0, 0]])
    turned = follow(point_J3, GeometryStep(np.array([[-1.0, 0, 100], [0, -1, 80]]), (80, 100)))
    np.testing.assert_array_equal(turned, [[90, 60, 2], [70, 40, 1], [0, 0, 0]])


@pytest.mark.parametrize("name", sorted(GEOMETRIC))
def test_masks_follow_their_image(name):
    """The mask of a sample is what its image shows: the class is its colour."""
    random = np.random.RandomState(1)
    mask_BHW = np.kron(random.randint(1, 4, (8, 6, 8)), np.ones((16, 16), int)).astype(np.int16)
    image_BCHW = np.stack([60 * mask_BHW] * 3, axis=1).astype(np.uint8)
    transforms = [one for one in GEOMETRIC[name] if not isinstance(one, (ColorJitter, RandAugment))] or [Rotation()]
    found, label = apply(transforms, image_BCHW, mask_BHW, MaskAnnotations())
    assert label.dtype == np.int16 and label.shape == mask_BHW.shape and set(np.unique(label)) <= {IGNORED, 1, 2, 3}
    agrees = np.where(label == IGNORED, found[:, 0] == 0, found[:, 0] == 60 * label)
    assert agrees.mean() > 0.8  # where neighbours are mixed, the colour is between two classes
    near = np.abs(found[:, 0].astype(int) - np.where(label == IGNORED, 0, 60 * label)) <= 120
    assert near.mean() > 0.995
    # Maps that undo each other are no change.
    assert (label != mask_BHW).any() == (name != "smaller")


def blobs(seed=3):
    """An ellipse in an image, its mask, and a row with its box and mask."""
    random = np.random.RandomState(seed)
    y_HW, x_HW = np.mgrid[:HEIGHT, :WIDTH] + 0.5
    x, y, a, b, turn = 50 + 25 * random.rand(), 40 + 15 * random.rand(), 26, 14, random.rand() * 3
    u, v = (x_HW - x) * np.cos(turn) + (y_HW - y) * np.sin(turn), (y_HW - y) * np.cos(turn) - (x_HW - x) * np.sin(turn)
    mask_HW = (u / a) ** 2 + (v / b) ** 2 < 1
    outline = Bitmap(mask_HW)
    row_1D = rows_of(np.array([outline.edges()]), np.array([2]))
    row_1D[0, Column.AREA] = mask_HW.sum()
    return mask_HW, append_masks(row_1D, outline.on_grid(outline.edges(), TRUE_SIDE)[None]).astype(np.float32)


def in_image(row_D):
    """The mask of a row in its image, nearest square."""
    mask_HW = np.zeros((HEIGHT, WIDTH), bool)
    mask_SS = row_D[7:].reshape(TRUE_SIDE, TRUE_SIDE) > 0
    left, top, right, bottom = row_D[:4]
    for y in range(HEIGHT):
        for x in range(WIDTH):
            if left <= x + 0.5 < right and top <= y + 0.5 < bottom:
                line, column = (y + 0.5 - top) / (bottom - top), (x + 0.5 - left) / (right - left)
                mask_HW[y, x] = mask_SS[int(line * TRUE_SIDE), int(column * TRUE_SIDE)]
    return mask_HW


@pytest.mark.parametrize("name", ["flip", "crop", "resized_crop", "rotation", "affine", "drawn in between"])
def test_boxes_and_instance_masks_match_visible_pixels(name):
    compared = 0
    for seed in range(4):
        mask_HW, row_MD = blobs(seed)
        image_1CHW = np.stack([mask_HW * 255] * 3).astype(np.uint8)[None]
        rows_1MD = np.concatenate([row_MD, np.full_like(row_MD, -1)])[None]
        transforms = [one for one in GEOMETRIC[name] if not isinstance(one, ColorJitter)]
        found, label = apply(transforms, image_1CHW, rows_1MD, InstanceAnnotations(), seed=seed)
        seen_HW = found[0, 0] > 127
        boxes = label[0][label[0, :, Column.CLASS] >= 0]
        assert label.shape == rows_1MD.shape and len(boxes) <= 1
        if not len(boxes):
            assert seen_HW.sum() < 0.5 * mask_HW.sum()
            continue
        edges = np.array(Bitmap(seen_HW).edges())
        np.testing.assert_allclose(boxes[0, :4], edges, atol=2.0)
        own_HW = in_image(boxes[0])
        assert (own_HW & seen_HW).sum() / (own_HW | seen_HW).sum() > 0.93
        assert boxes[0, Column.CLASS] == 2
        compared += 1
    assert compared >= 3


def test_boxes_without_masks_are_around_their_moved_corners():
    row_MD = rows_of(np.array([[20.0, 30.0, 60.0, 50.0], [0.0, 0.0, 10.0, 10.0]]), np.array([1, 2]))
    turn_23 = np.array([[0.0, -1.0, 96.0], [1.0, 0.0, 0.0]])  # a quarter, clockwise
    made = BoxAnnotations().follow(row_MD, GeometryStep(turn_23, (128, 96)))
    np.testing.assert_allclose(made[:, :4], [[46, 20, 66, 60], [86, 0, 96, 10]])
    np.testing.assert_allclose(made[:, Column.AREA], row_MD[:, Column.AREA])
    shift_23 = np.array([[1.0, 0.0, -42.0], [0.0, 1.0, 0.0]])
    made = BoxAnnotations().follow(row_MD, GeometryStep(shift_23, (96, 128)))
    assert (made == -1).all()  # the centre of the first is cut off, and all of the second
    made = BoxAnnotations().follow(row_MD, GeometryStep(shift_23 + [[0, 0, 10], [0, 0, 0]], (96, 128)))
    np.testing.assert_allclose(made[0], [0, 30, 28, 50, 1, 0, 560])
    assert (made[1] == -1).all()
    assert (BoxAnnotations(0.9).follow(row_MD, GeometryStep(shift_23 + [[0, 0, 10], [0, 0, 0]], (96, 128))) == -1).all()


def test_a_target_that_is_an_array_is_not_moved_silently():
    image_BCHW = image_of(2)
    with pytest.raises(LoaderError, match="does not define how the array follows"):
        apply([Rotation()], image_BCHW, image_BCHW.astype(np.float32))
    apply([ColorJitter()], image_BCHW, image_BCHW.astype(np.float32))
    _, label = apply([Rotation()], image_BCHW, np.zeros((2, 3)))
    assert label.shape == (2, 3)


def test_integer_shifts_equal_opencv():
    """Mirrored and shifted images, of which parts or all may be cut off."""
    import cv2

    image_CHW = image_of(1)[0][:, :20, :30]
    fill_C = np.array([5, 6, 7])
    for size in ((20, 30), (12, 50)):
        for signs in ((1, 1), (-1, 1), (1, -1), (-1, -1)):
            for shift_2 in ((0, 0), (3, -4), (25, 15), (40, 9), (-60, 2)):
                matrix_23 = np.column_stack([np.diag(np.array(signs, float)), np.array(shift_2, float)])
                middle_23 = matrix_23.copy()
                middle_23[:, 2] += 0.5 * matrix_23[:, :2].sum(axis=1) - 0.5
                expected = cv2.warpAffine(
                    np.ascontiguousarray(image_CHW.transpose(1, 2, 0)),
                    middle_23,
                    size[::-1],
                    flags=cv2.INTER_NEAREST,
                    borderMode=cv2.BORDER_CONSTANT,
                    borderValue=fill_C.tolist(),
                )
                np.testing.assert_array_equal(warp(image_CHW, matrix_23, size, fill_C), expected.transpose(2, 0, 1))


def test_shrinking_averages():
    """A fine chequered pattern becomes grey, not a coarse pattern."""
    y_HW, x_HW = np.mgrid[:64, :64]
    image_1HW = ((x_HW + y_HW) % 2 * 255).astype(np.uint8)[None]
    small_1HW = warp(image_1HW, np.diag([0.25, 0.25, 1.0])[:2], (16, 16), FILL[:1])
    assert small_1HW.shape == (1, 16, 16) and np.abs(small_1HW.astype(int) - 127).max() <= 2


@pytest.mark.parametrize(
    "transforms",
    [*GEOMETRIC.values(), [AutoAugment(policy="svhn"), Flip()], [PaddedCrop(padding=4, share=0.5), Erasing(), Flip()]],
)
def test_the_same_bits_in_any_reader(transforms):
    """Order of reading and the other samples of a batch play no part; seed, epoch and position do."""
    image_BCHW, mask_BHW = image_of(8)[:, :, :40, :48], np.tile(np.arange(48, dtype=np.int16), (8, 40, 1))
    whole, labels = apply(transforms, image_BCHW, mask_BHW, MaskAnnotations())
    order = np.array([6, 1, 3])
    part, part_labels = apply(transforms, image_BCHW[order], mask_BHW[order], MaskAnnotations(), index=order)
    np.testing.assert_array_equal(part, whole[order])
    np.testing.assert_array_equal(part_labels, labels[order])
    if transforms not in (GEOMETRIC["flip"], GEOMETRIC["smaller"]):  # these change all alike
        assert (apply(transforms, image_BCHW, mask_BHW, MaskAnnotations(), epoch=1)[0] != whole).any()
        assert (apply(transforms, image_BCHW, mask_BHW, MaskAnnotations(), seed=1)[0] != whole).any()


def test_numbers_depend_on_the_position_in_the_list():
    keys = [RandomStream.keys(1, 2, np.array([3]), position)[0] for position in range(50)]
    assert len({RandomStream(key).uniform() for key in keys}) == 50
    one, other = RandomStream(keys[4]), RandomStream(keys[4])
    first = [one.uniform() for _ in range(40)]
    assert first == [other.uniform() for _ in range(40)] and len(set(first)) == 40
    normal = [RandomStream(key).normal(2.0) for key in RandomStream.keys(0, 0, np.arange(2000), 0)]
    assert abs(np.mean(normal)) < 0.15 and abs(np.std(normal) - 2.0) < 0.1


def test_shares_of_samples():
    image_BCHW = image_of(1)[:, :, :8, :8].repeat(2000, axis=0)
    found, _ = apply([Flip(horizontal=1.0, share=0.3)], image_BCHW, np.arange(2000))
    assert abs((found != image_BCHW).any(axis=(1, 2, 3)).mean() - 0.3) < 0.04


def test_mistakes_of_own_transforms_are_sentences():
    class Wrong(Transform):
        def __call__(self, image, draw):
            return image.with_pixels(image.pixels[:, :-1])

    class Array(Transform):
        def __call__(self, image, draw):
            return image.pixels

    class NotANumber(Transform):
        def __call__(self, image, draw):
            return image.with_pixels(np.where(image.pixels > 9, np.nan, image.pixels))

    with pytest.raises(ConfigError, match=r"dataset.augment.transforms: .*Wrong: with_pixels was given an array of"):
        apply([Wrong()], image_of(1), np.zeros(1))
    with pytest.raises(ConfigError, match="NotANumber: with_pixels was given NaN"):
        apply([NotANumber()], image_of(1), np.zeros(1))
    with pytest.raises(ConfigError, match="Array returned ndarray"):
        apply([Array()], image_of(1), np.zeros(1))


@pytest.mark.parametrize(
    "matrix, said",
    [
        (np.eye(4), r"matrix of \(4, 4\): write an affine map as \(2, 3\)"),
        (np.diag([1.0, 1.0, 2.0]), "the last row"),
        ([[np.nan, 0, 0], [0, 1, 0]], "NaN or infinite"),
        ([[1, 1, 0], [1, 1, 0]], "to a line or a point"),
    ],
)
def test_matrices_of_own_transforms_are_checked(matrix, said):
    class Own(Transform):
        def __call__(self, image, draw):
            return image.moved(matrix)

    with pytest.raises(ConfigError, match=f"Own: moved was given a .*{said}"):
        apply([Own()], image_of(1), np.zeros(1))


def test_an_affine_map_may_have_three_rows():
    image, flip_33 = LazyImage(image_of(1)[0], FILL), np.array([[-1.0, 0, 64], [0, 1, 0], [0, 0, 1]])
    np.testing.assert_array_equal(image.moved(flip_33).pixels, image.moved(flip_33[:2]).pixels)


def test_moved_places():
    np.testing.assert_allclose(transform_points(np.array([[1.0, 2.0]]), np.array([[2.0, 0, 1], [0, 3, -1]])), [[3, 5]])
