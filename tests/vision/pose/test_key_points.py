"""Objects are cropped by one map for pixels and key points, forward and back."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from typing import Tuple

import numpy as np
import pytest
from PIL import Image

from mxtrain.errors import DamagedCheckpoint
from mxtrain.vision.images.affine import transform_points
from mxtrain.vision.images.settings import Decoding
from mxtrain.vision.pose.key_point_augment import KeyPointAugment
from mxtrain.vision.pose.key_points import (
    PERSON_NAMES,
    PERSON_SIGMAS,
    Crop,
    KeyPointSet,
    left_right_pairs,
)
from mxtrain.vision.pose.signature import KeyPointSignature

SIZE = (96, 64)
BOX = (40.0, 30.0, 90.0, 110.0)
FILL = np.array([7, 9, 11], np.uint8)
CROPS = [
    Crop.around(BOX, SIZE),
    Crop.around(BOX, SIZE, 0.8, 0.0, True),
    Crop.around(BOX, SIZE, 1.1, 25.0),
    Crop.around(BOX, SIZE, 1.2, -50.0, True),
    Crop.around((-5.0, -10.0, 60.0, 40.0), SIZE, 1.0, 10.0),
]


def resize_of(image: Image.Image) -> functools.partial:
    def resize(image: Image.Image, box: Tuple[float, ...], size: Tuple[int, int]) -> np.ndarray:
        return np.asarray(image.resize(size, Image.Resampling.BILINEAR, box=box)).transpose(2, 0, 1)

    return functools.partial(resize, image)


def spots() -> Tuple[Image.Image, np.ndarray]:
    """An image with three round spots, each in a channel of its own, and their middles."""
    place_J2 = np.array([[52.5, 47.0], [77.0, 88.5], [60.0, 70.0]])
    y_HW, x_HW = np.mgrid[:140, :160] + 0.5
    spots_HWC = np.stack([255 * np.exp(-((x_HW - x) ** 2 + (y_HW - y) ** 2) / 18) for x, y in place_J2], axis=2)
    return Image.fromarray(spots_HWC.round().astype(np.uint8)), place_J2


@pytest.mark.parametrize("crop", CROPS[:4])
def test_pixels_and_key_points_have_the_same_transform(crop: Crop) -> None:
    image, place_J2 = spots()
    image_CHW = crop.draw(resize_of(image), image.size, np.zeros(3, np.uint8))
    assert image_CHW.shape == (3, *SIZE)
    point_J3 = crop.points(np.column_stack([place_J2, [2, 1, 2]]), np.arange(3))
    y_HW, x_HW = np.mgrid[: SIZE[0], : SIZE[1]] + 0.5
    for weight_HW, (x, y, _) in zip(image_CHW.astype(float), point_J3):
        weight_HW = weight_HW * (weight_HW > 2)
        found = (weight_HW * x_HW).sum() / weight_HW.sum(), (weight_HW * y_HW).sum() / weight_HW.sum()
        np.testing.assert_allclose(found, (x, y), atol=0.06)


@pytest.mark.parametrize("crop", CROPS)
def test_inverse_map_restores_points(crop: Crop) -> None:
    place_N2 = np.random.RandomState(0).rand(50, 2) * 200 - 20
    forth_N2 = transform_points(place_N2, crop.matrix_23)
    np.testing.assert_allclose(transform_points(forth_N2, crop.back_23), place_N2, atol=1e-9)
    centre = transform_points(np.array(crop.centre), crop.matrix_23)
    np.testing.assert_allclose(centre, [SIZE[1] / 2, SIZE[0] / 2])


def test_a_part_is_a_quarter_longer_than_the_box_and_keeps_its_aspect() -> None:
    crop = Crop.around(BOX, SIZE)
    corner_2, other_2 = (transform_points(np.array(corner), crop.matrix_23) for corner in (BOX[:2], BOX[2:]))
    width, height = other_2 - corner_2
    assert height == pytest.approx(96 / 1.25) and width / height == pytest.approx(50 / 80)


@pytest.mark.parametrize("crop", CROPS)
def test_beyond_the_image_is_the_filling(crop: Crop) -> None:
    white = Image.new("RGB", (160, 140), (255, 255, 255))
    image_CHW = crop.draw(resize_of(white), white.size, FILL)
    y_HW, x_HW = np.mgrid[: SIZE[0], : SIZE[1]] + 0.5
    at_HW2 = transform_points(np.stack([x_HW, y_HW], axis=-1), crop.back_23)
    for margin, colour in ((-3.0, (255, 255, 255)), (3.0, FILL)):
        outside_HW = ((at_HW2 < -margin) | (at_HW2 > np.array([160, 140]) + margin)).any(axis=-1)
        region_HW = outside_HW if margin > 0 else ~outside_HW
        assert (image_CHW[:, region_HW] == np.array(colour)[:, None]).all()
    away = Crop.around((900.0, 900.0, 950.0, 950.0), SIZE, degrees=crop.degrees)
    assert (away.draw(resize_of(white), white.size, FILL) == FILL[:, None, None]).all()


def test_left_and_right_are_swapped_in_a_mirrored_image() -> None:
    points = KeyPointSet(left_right_pairs(PERSON_NAMES))
    assert points.flip_pairs == [(1, 2), (3, 4), (5, 6), (7, 8), (9, 10), (11, 12), (13, 14), (15, 16)]
    assert len(PERSON_SIGMAS) == len(PERSON_NAMES) == 17
    point_J3 = np.column_stack([np.arange(17) * 3.0 + 40, np.arange(17) * 4.0 + 30, np.full(17, 2.0)])
    point_J3[6, 2] = 0
    crop = Crop.around(BOX, SIZE)
    plain_J3, flipped_J3 = (one.points(point_J3, points.order(17)) for one in (crop, replace(crop, is_flipped=True)))
    for number, name in enumerate(PERSON_NAMES):
        side, _, part = name.partition("_")
        other = {"left": f"right_{part}", "right": f"left_{part}"}.get(side, name)
        x, y, visibility = plain_J3[PERSON_NAMES.index(other)]
        expected = [64 - x, y, visibility] if visibility else [0, 0, 0]
        np.testing.assert_allclose(flipped_J3[number], expected, atol=1e-9)


@pytest.mark.parametrize(
    "names",
    [
        ("n", "Left Eye", "Right Eye"),
        ("n", "LEFT_EYE", "RIGHT_EYE"),
        ("n", "eyeLeft", "eyeRight"),
        ("n", "eye_l", "eye_r"),
        ("N", "L_F_Paw", "R_F_Paw"),
        ("n", "eyeL", "eyeR"),
        ("n", "LEye", "REye"),
        ("n", "left1", "right1"),
        ("n", "l.eye", "r.eye"),
    ],
)
def test_left_and_right_are_known_in_any_spelling(names: Tuple[str, ...]) -> None:
    assert left_right_pairs(names) == [(1, 2)]


def test_names_without_another_side_are_no_pairs() -> None:
    assert left_right_pairs(("l", "ear", "lear", "rear", "leftover", "eye_l", "Eye R2", "1", "2")) == []


def test_coco_sigmas_equal_pycocotools() -> None:
    from pycocotools.cocoeval import Params

    np.testing.assert_allclose(PERSON_SIGMAS, Params("keypoints").kpt_oks_sigmas)


@pytest.mark.slow
def test_draws_are_a_function_of_seed_epoch_and_sample() -> None:
    augment = KeyPointAugment()
    crops = [augment.crop(BOX, SIZE, 3, 1, index) for index in range(2000)]
    assert crops[7] == augment.crop(BOX, SIZE, 3, 1, 7)
    others = (augment.crop(BOX, SIZE, 4, 1, 7), augment.crop(BOX, SIZE, 3, 2, 7), augment.crop(BOX, SIZE, 3, 1, 8))
    assert all(crops[7].scale != other.scale for other in others)
    factor_N = Crop.around(BOX, SIZE).scale / np.array([crop.scale for crop in crops])
    degrees_N = np.array([crop.degrees for crop in crops])
    # A normal distribution of deviation 0.25 that is cut off there has 32 % of its samples at both ends.
    assert factor_N.min() == pytest.approx(0.75) and factor_N.max() == pytest.approx(1.25)
    assert factor_N.mean() == pytest.approx(1, abs=0.02)
    assert np.isclose(np.abs(factor_N - 1), 0.25).mean() == pytest.approx(0.317, abs=0.04)
    assert (degrees_N != 0).mean() == pytest.approx(0.6, abs=0.04) and np.abs(degrees_N).max() == pytest.approx(60)
    assert degrees_N[degrees_N != 0].std() == pytest.approx(29, abs=2)
    assert np.mean([crop.is_flipped for crop in crops]) == pytest.approx(0.5, abs=0.04)
    still = KeyPointAugment(flip=False, scale=0.0, rotate=0.0)
    assert all(still.crop(BOX, SIZE, 3, 1, index) == Crop.around(BOX, SIZE) for index in range(20))


def test_key_points_of_a_checkpoint_are_json_and_validated() -> None:
    points = KeyPointSet([(0, 1)], [(0, 2), (1, 2)], [0.1, 0.1, 0.2], ["cat"])
    signature = KeyPointSignature(
        (3, 8, 8),
        [0.5],
        [0.5],
        ["left", "right", "tail"],
        category_ids=[4],
        key_points=points,
        decoding=Decoding((3, 8, 8)),
    )
    kept = json.loads(json.dumps(signature.to_json()))
    assert kept["key_points"]["flip_pairs"] == [[0, 1]]
    assert KeyPointSignature.from_json(kept) == signature
    for pair in ([0, 3], [0], [-1, 0]):
        damaged = {**kept, "key_points": {**kept["key_points"], "skeleton": [pair]}}
        with pytest.raises(DamagedCheckpoint, match="skeleton names .* and there are 3 key points"):
            KeyPointSignature.from_json(damaged)
