"""Transforms of colours, compared with Pillow's operations and with formulas in NumPy."""

import colorsys

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from mxtrain.vision.images.transforms.base import RandomStream
from mxtrain.vision.images.transforms.chain import TRANSFORMS
from mxtrain.vision.images.transforms.colors import Blur, ColorJitter, Erasing, Grayscale, Lighting
from mxtrain.vision.images.transforms.lazy_image import LazyImage
from mxtrain.vision.images.transforms.policies import OPERATIONS, POLICIES, RANDOM_OPERATIONS

FILL = np.array([7, 90, 200], np.uint8)


class Fixed:
    """A stream that gives the highest or the lowest of what is asked for, or what stands in a list."""

    def __init__(self, *shares):
        self.shares = list(shares)

    def uniform(self, low=0.0, high=1.0):
        return low + (high - low) * self.shares.pop(0)

    def integer(self, high, low=0):
        return low + int(self.shares.pop(0) * (high - low))

    def normal(self, deviation=1.0):
        return deviation * self.shares.pop(0)


def random_image(channels=3, seed=0):
    """Smooth colours with some noise; not all values occur."""
    random = np.random.RandomState(seed)
    small = random.randint(20, 230, (6, 8, 3)).astype(np.uint8)
    array = np.asarray(Image.fromarray(small).resize((48, 40), Image.Resampling.BICUBIC)).astype(int)
    array = (array + random.randint(-6, 7, array.shape)).clip(10, 240).astype(np.uint8)
    return array if channels == 3 else array[..., :1]


def run(transform, array_HWC, *shares):
    image = LazyImage(np.ascontiguousarray(array_HWC.transpose(2, 0, 1)), FILL[: array_HWC.shape[2]])
    return transform(image, Fixed(*shares)).pixels.transpose(1, 2, 0)


def assert_close(found, expected, atol):
    assert found.dtype == np.uint8 and np.abs(found.astype(int) - expected.astype(int)).max() <= atol


OFF = {"brightness": 0.0, "contrast": 0.0, "saturation": 0.0, "hue": 0.0}


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(
    "name, place, enhance",
    [
        ("brightness", 0, ImageEnhance.Brightness),
        ("contrast", 1, ImageEnhance.Contrast),
        ("saturation", 2, ImageEnhance.Color),
    ],
)
def test_color_jitter_equals_pillow(name, place, enhance, share):
    array = random_image()
    shares = [0.5, 0.5, 0.5, 0.5]
    shares[place] = share
    found = run(ColorJitter(**{**OFF, name: 0.6}), array, *shares)
    assert_close(found, np.asarray(enhance(Image.fromarray(array)).enhance(0.4 + 1.2 * share)), 2)


def test_color_jitter_of_all_three_is_one_after_the_other():
    array = random_image().clip(90, 150)  # nothing is cut off between
    found = run(ColorJitter(brightness=0.2, contrast=0.2, saturation=0.2, hue=0.0), array, 1.0, 0.0, 1.0, 0.5)
    image = Image.fromarray(array)
    for enhance, factor in ((ImageEnhance.Brightness, 1.2), (ImageEnhance.Contrast, 0.8), (ImageEnhance.Color, 1.2)):
        image = enhance(image).enhance(factor)
    assert_close(found, np.asarray(image), 3)


def test_hue_turns_the_two_axes_of_colour():
    array = random_image().clip(100, 160)
    found = run(ColorJitter(**{**OFF, "hue": 0.25}), array, 0.5, 0.5, 0.5, 1.0)
    for y, x in ((0, 0), (7, 30), (39, 47)):
        luma, i, q = colorsys.rgb_to_yiq(*(array[y, x] / 255))
        turned = colorsys.yiq_to_rgb(luma, -q, i)  # a quarter of the circle
        np.testing.assert_allclose(found[y, x] / 255, turned, atol=0.02)
    assert np.abs(found.astype(int) - array).max() > 10


def test_hue_and_saturation_leave_grey_images_alone():
    array = random_image(channels=1)
    found = run(ColorJitter(brightness=0.0, contrast=0.0), array, 0.5, 0.5, 0.9, 0.9)
    np.testing.assert_array_equal(found, array)
    np.testing.assert_array_equal(run(Grayscale(), array), array)


def test_grayscale_equals_pillow():
    array = random_image()
    grey = np.asarray(Image.fromarray(array).convert("L"))
    assert_close(run(Grayscale(), array), np.repeat(grey[..., None], 3, axis=2), 1)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("sigma", [0.3, 1.0, 2.5])
def test_blur_is_a_gaussian(sigma, channels):
    array = random_image(channels)
    reach = int(np.ceil(3 * sigma))
    weight = np.exp(-((np.arange(-reach, reach + 1) / sigma) ** 2) / 2)
    weight /= weight.sum()
    expected = np.pad(array.astype(float), ((reach, reach), (reach, reach), (0, 0)), mode="reflect")
    for axis in (0, 1):
        expected = np.apply_along_axis(lambda line: np.convolve(line, weight, "valid"), axis, expected)
    assert_close(run(Blur(sigma=[sigma, sigma]), array, 0.5), np.rint(expected), 1)


def test_lighting_adds_the_main_colours():
    array = random_image().clip(80, 170)
    values = [0.2175, 0.0188, 0.0045]
    vectors = [[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]]
    added = [255 * sum(v * a * 0.1 * e for v, a, e in zip(row, (1.5, -2.0, 0.5), values)) for row in vectors]
    found = run(Lighting(), array, 1.5, -2.0, 0.5)
    np.testing.assert_array_equal(found, np.rint(array + np.array(added, np.float32)))
    np.testing.assert_allclose(np.array(vectors).T @ np.array(vectors), np.eye(3), atol=1e-3)


def test_erasing_fills_one_rectangle():
    array = random_image()
    found = run(Erasing(scale=[0.2, 0.2], aspect=[2.0, 2.0]), array, 0.5, 0.5, 0.999, 0.0)
    height, width = round(np.sqrt(0.2 * 40 * 48 / 2)), round(np.sqrt(0.2 * 40 * 48 * 2))
    expected = array.copy()
    expected[40 - height :, :width] = FILL
    np.testing.assert_array_equal(found, expected)
    assert (array != found).any()


def pillow_of(name, strength, array):
    image = Image.fromarray(array)
    if name == "posterize":
        return ImageOps.posterize(image, 8 - round(4 * abs(strength)))
    if name == "solarize":
        return ImageOps.solarize(image, 255 * (1 - abs(strength)))
    plain = {"auto_contrast": ImageOps.autocontrast, "equalize": ImageOps.equalize, "invert": ImageOps.invert}
    enhanced = {
        "brightness": ImageEnhance.Brightness,
        "color": ImageEnhance.Color,
        "contrast": ImageEnhance.Contrast,
        "sharpness": ImageEnhance.Sharpness,
    }
    return plain[name](image) if name in plain else enhanced[name](image).enhance(1 + 0.9 * strength)


@pytest.mark.parametrize("strength", [-1.0, -0.3, 0.3, 0.7, 1.0])
@pytest.mark.parametrize(
    "name, atol",
    [
        ("posterize", 0),
        ("solarize", 0),
        ("auto_contrast", 0),
        ("equalize", 0),
        ("invert", 0),
        ("brightness", 1),
        ("color", 2),
        ("contrast", 2),
        ("sharpness", 2),
    ],
)
def test_operations_equal_pillow(name, atol, strength):
    array = random_image()
    image = LazyImage(np.ascontiguousarray(array.transpose(2, 0, 1)), FILL)
    found = OPERATIONS[name](image, strength).pixels.transpose(1, 2, 0)
    assert_close(found, np.asarray(pillow_of(name, strength, array)), atol)


@pytest.mark.parametrize("value", [0, 77, 255])
@pytest.mark.parametrize("name", ["auto_contrast", "equalize"])
def test_images_of_one_value_stay(name, value):
    image = LazyImage(np.full((3, 9, 9), value, np.uint8), FILL)
    np.testing.assert_array_equal(OPERATIONS[name](image, 0.5).pixels, image.pixels)


@pytest.mark.parametrize("name", sorted(TRANSFORMS))
def test_images_with_more_than_8_bits_stay_so(name):
    array_HWC = random_image().astype(np.float32) + 0.25
    transform = TRANSFORMS[name](**({"size": [20, 24]} if name == "resize" else {}))
    deep = LazyImage(array_HWC.transpose(2, 0, 1), FILL)
    plain = LazyImage(random_image().transpose(2, 0, 1), FILL)
    for key in (3, 77, 2**40, 2**63):
        found = transform(deep, RandomStream(key)).pixels
        assert found.dtype == np.float32 and found.min() >= 0 and found.max() <= 255
        other = transform(plain, RandomStream(key)).pixels
        if name in ("rand_augment", "auto_augment"):  # which have steps
            assert found.shape == other.shape
        else:
            assert np.abs(found - other).max() < 3


def test_policies_are_25_pairs_of_known_operations():
    for name, pairs in POLICIES.items():
        assert len(pairs) == 25, name
        for pair in pairs:
            assert len(pair) == 2
            for operation, share, level in pair:
                assert operation in OPERATIONS and 0 <= share <= 1 and 0 <= level <= 9
    assert POLICIES["imagenet"][0] == [("posterize", 0.4, 8), ("rotate", 0.6, 9)]
    assert POLICIES["cifar10"][1] == [("rotate", 0.7, 2), ("translate_x", 0.3, 9)]
    assert POLICIES["svhn"][-1] == [("shear_x", 0.7, 2), ("invert", 0.1, 0)]
    assert len(RANDOM_OPERATIONS) == 14
