"""Corruptions of images: what each does, that it moves nothing, and that it is a function of seed and sample."""

from __future__ import annotations

import io
from typing import Any, Tuple

import numpy as np
import pytest
from PIL import Image

from mxtrain.data.loading.sources import MemorySource
from mxtrain.vision.images.corruptions import CORRUPTIONS, SEVERITIES, STRENGTHS, Corrupted

STILL = {"seed": 0, "epoch": 0, "train": False}
PHOTO_SHAPE = (3, 40, 56)


def patches(shape: Tuple[int, ...] = PHOTO_SHAPE, count: int = 6) -> np.ndarray:
    """Images of soft patches of about 4 pixels, uint8."""
    rng = np.random.RandomState(0)
    coarse = rng.randint(30, 226, (count, shape[0], 10, 14)).astype(np.uint8)
    planes = [Image.fromarray(plane).resize(shape[:0:-1], Image.BICUBIC) for one in coarse for plane in one]
    return np.array([np.asarray(plane) for plane in planes]).reshape(count, *shape)


def corrupted(name: str, severity: int, image_NCHW: np.ndarray, index_B: Any = None, **options: Any) -> np.ndarray:
    source = Corrupted(MemorySource(image_NCHW, np.arange(len(image_NCHW))), name, severity)
    return source.fetch(np.arange(len(image_NCHW)) if index_B is None else index_B, **{**STILL, **options})[0]


@pytest.mark.parametrize("name", STRENGTHS)
def test_higher_severity_changes_images_more(name: str) -> None:
    image_NCHW = patches()
    distances = []
    for severity in SEVERITIES:
        found = corrupted(name, severity, image_NCHW)
        assert found.shape == image_NCHW.shape and found.dtype == np.uint8
        distances.append(np.abs(found.astype(float) - image_NCHW).mean())
    assert distances[0] > 0.3 and all(after > before for before, after in zip(distances, distances[1:]))
    # What is left of the image is where it was: nothing fits better when it is moved.
    inner, found = image_NCHW[0, 0, 6:-6, 6:-6].astype(float), corrupted(name, 2, image_NCHW)[0, 0].astype(float)
    fits = {
        (down, right): np.corrcoef(inner.ravel(), found[6 + down : 34 + down, 6 + right : 50 + right].ravel())[0, 1]
        for down in range(-5, 6)
        for right in range(-5, 6)
    }
    best = max(fits, key=lambda place: fits[place])
    assert max(map(abs, best)) <= (2 if name == "motion_blur" else 1), best


@pytest.mark.parametrize("name", STRENGTHS)
def test_corruptions_depend_on_seed_and_sample_only(name: str) -> None:
    image_NCHW = patches()
    whole = corrupted(name, 3, image_NCHW)
    np.testing.assert_array_equal(corrupted(name, 3, image_NCHW, np.array([4, 1]), epoch=7), whole[[4, 1]])
    same_image = np.repeat(image_NCHW[:1], 2, axis=0)
    first, second = corrupted(name, 3, same_image)
    draws = name in ("noise", "shot_noise", "impulse_noise", "motion_blur", "fog")
    assert draws != np.array_equal(first, second)
    assert draws != np.array_equal(first, corrupted(name, 3, same_image, seed=1)[0])


def test_a_sample_gets_the_same_noise_at_each_severity() -> None:
    image_NCHW = np.full((1, 1, 16, 16), 128, np.uint8)
    weak, strong = (corrupted("noise", severity, image_NCHW).astype(float) - 128 for severity in (1, 2))
    np.testing.assert_allclose(strong, 2 * weak, atol=2)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 8, 8), (5, 9, 7), (3, 1, 1), (3, 300, 20)], ids=str)
@pytest.mark.parametrize("name", STRENGTHS)
def test_images_of_any_size_and_depth(name: str, shape: Tuple[int, ...]) -> None:
    image_NCHW = np.random.RandomState(0).rand(2, *shape).astype(np.float32) * 255
    found = corrupted(name, 5, image_NCHW)
    assert found.shape == image_NCHW.shape and found.dtype == np.float32
    assert found.min() >= 0 and found.max() <= 255 and np.isfinite(found).all()


def test_corruption_strengths_match_their_definition() -> None:
    grey = np.full((1, 1, 200, 200), 128, np.uint8)
    assert corrupted("noise", 2, grey).std() == pytest.approx(0.1 * 255, rel=0.03)
    white = np.full((1, 1, 200, 200), 255, np.uint8)
    assert (corrupted("shot_noise", 3, white // 2 + 1) / 255.0).var() == pytest.approx(0.5 / 15, rel=0.05)
    hit = corrupted("impulse_noise", 5, grey)
    assert (hit != 128).mean() == pytest.approx(0.27, abs=0.01) and set(np.unique(hit)) == {0, 128, 255}
    np.testing.assert_array_equal(corrupted("brightness", 1, grey), np.full_like(grey, round(128 + 25.5)))
    image_NCHW = patches()
    mean_NC11 = image_NCHW.mean(axis=(2, 3), keepdims=True)
    expected = mean_NC11 + 0.3 * (image_NCHW - mean_NC11)
    np.testing.assert_allclose(corrupted("contrast", 3, image_NCHW), expected, atol=0.51)
    assert len(np.unique(corrupted("pixelate", 5, image_NCHW)[0, 0, 0])) <= 11  # a fifth of 56


def test_blur_is_a_gaussian_of_its_deviation() -> None:
    point = np.zeros((1, 1, 56, 56), np.float32)
    point[0, 0, 28, 28] = 255
    for severity, deviation in zip(SEVERITIES, STRENGTHS["blur"]):
        spread_HW = corrupted("blur", severity, point)[0, 0] / 255
        assert spread_HW.sum() == pytest.approx(1, abs=1e-3)
        variance = (spread_HW.sum(axis=0) * (np.arange(56) - 28) ** 2).sum()
        assert variance == pytest.approx((deviation / 2) ** 2, rel=0.2 if severity == 1 else 0.05)  # 56: 224 / 4


def test_jpeg_equals_pillow() -> None:
    image_NCHW = patches()
    content = io.BytesIO()
    Image.fromarray(image_NCHW[2].transpose(1, 2, 0)).save(content, "JPEG", quality=5)
    expected = np.asarray(Image.open(content)).transpose(2, 0, 1)
    np.testing.assert_array_equal(corrupted("jpeg", 5, image_NCHW)[2], expected)


class Framed:
    """Images of 6 x 5 in frames of 8 x 8, with masks."""

    shape, samples_per_task = (3, 8, 8), 4

    def __len__(self) -> int:
        return 2

    def fetch(self, index_B: np.ndarray, **_: Any) -> Tuple[np.ndarray, ...]:
        image_BCHW = np.full((len(index_B), 3, 8, 8), 77, np.uint8)
        image_BCHW[:, :, :6, :5] = patches((3, 6, 5), 2)[index_B]
        mask_BHW = np.arange(64, dtype=np.int16).reshape(1, 8, 8).repeat(len(index_B), axis=0)
        return image_BCHW, mask_BHW, np.array([[12, 10, 6, 5]] * len(index_B))


@pytest.mark.parametrize("name", STRENGTHS)
def test_corruptions_keep_masks_and_padding(name: str) -> None:
    plain, made = Framed(), Corrupted(Framed(), name, 5)  # type: ignore[arg-type]
    assert (len(made), made.shape, made.samples_per_task) == (2, (3, 8, 8), 4)
    (before, mask, size), (after, *others) = (source.fetch(np.arange(2), **STILL) for source in (plain, made))
    for one, other in zip((mask, size), others):
        np.testing.assert_array_equal(one, other)
    assert (after[:, :, 6:] == 77).all() and (after[:, :, :, 5:] == 77).all()
    assert (after[:, :, :6, :5] != before[:, :, :6, :5]).mean() > 0.1


def test_every_corruption_has_five_strengths() -> None:
    assert list(CORRUPTIONS) == list(STRENGTHS) and {len(five) for five in STRENGTHS.values()} == {len(SEVERITIES)}
