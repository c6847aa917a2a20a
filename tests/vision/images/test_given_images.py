"""Arrays of images given to `Run.predict`: one image or a batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Sequence, Tuple

import numpy as np
import pytest
from PIL import Image

from mxtrain.data.loading import opening
from mxtrain.errors import ConfigError, LoaderError
from mxtrain.vision.detection.boxed import BoxedDataset
from mxtrain.vision.images.dataset import Dataset
from mxtrain.vision.images.given_images import GivenImages, images_of
from mxtrain.vision.images.settings import Decoding
from mxtrain.vision.pose.key_point_dataset import KeyPointDataset
from mxtrain.vision.pose.key_points import KeyPointSet
from mxtrain.vision.segmentation.masked import MaskedDataset


@pytest.mark.parametrize(
    "shape, size, count",
    [
        ((8, 8), (8, 8), 1),
        ((4, 8, 8), (8, 8), 4),
        ((8, 8, 3), (8, 8), 1),
        ((5, 7, 4), (8, 8), 1),
        ((5, 7, 1), (8, 8), 1),
        ((2, 8, 8, 3), (8, 8), 2),
        ((2, 8, 8, 1), (8, 8), 2),
        ((6, 9, 3), (9, 3), 6),
        ((6, 9, 5), (8, 8), 6),
        ((2, 2, 8, 8, 3), (8, 8), 1),
    ],
)
def test_images_of_an_array(shape: Tuple[int, ...], size: Tuple[int, int], count: int) -> None:
    array = np.arange(np.prod(shape)).reshape(shape)
    images = images_of(array, size)
    assert len(images) == count
    np.testing.assert_array_equal(np.stack(images), array if count > 1 or array.ndim == 4 else array[None])


SIZE = (24, 30)
"""(height, width) of the images."""
RNG = np.random.default_rng(0)
MODES = {
    "1": Image.fromarray(RNG.integers(0, 2, SIZE, dtype=np.uint8) * 255).convert("1"),
    "L": Image.fromarray(RNG.integers(0, 256, SIZE, dtype=np.uint8)),
    "LA": Image.fromarray(RNG.integers(0, 256, (*SIZE, 2), dtype=np.uint8)),
    "I;16": Image.fromarray(RNG.integers(0, 65536, SIZE, dtype=np.uint16)),
    "P": Image.fromarray(RNG.integers(0, 256, (*SIZE, 3), dtype=np.uint8)).quantize(7),
    "RGB": Image.fromarray(RNG.integers(0, 256, (*SIZE, 3), dtype=np.uint8)),
    "RGBA": Image.fromarray(RNG.integers(0, 256, (*SIZE, 4), dtype=np.uint8)),
}
DECODINGS = {
    "classification": (Dataset(), Decoding((3, 16, 20), 0.875)),
    "grey": (Dataset(), Decoding((1, 16, 20))),
    "window": (Dataset(), Decoding((1, 16, 20), window=(9e3, 1e4))),
    "detection": (BoxedDataset(), Decoding((3, 16, 20), fit="pad")),
    "segmentation": (MaskedDataset(), Decoding((3, 16, 16), frame=SIZE)),
    "pose": (KeyPointDataset(), Decoding((3, 16, 20))),
}


def signed(name: str) -> Tuple[Dataset, Any]:
    """Returns a dataset and a signature with the decoding of this name."""
    dataset, decoding = DECODINGS[name]
    channels = decoding.shape[0]
    values: Dict[str, Any] = {"key_points": KeyPointSet()} if name == "pose" else {}
    signature = dataset.signature_class(
        decoding.shape, [0.5] * channels, [1.0] * channels, ["a"], decoding=decoding, **values
    )
    return dataset, signature


def fetch(source: Any) -> Sequence[np.ndarray]:
    found = source.fetch(np.arange(len(source)), seed=0, epoch=0, train=False)
    assert len(found) > 1
    return found  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", DECODINGS)
@pytest.mark.parametrize("mode", MODES)
def test_given_images_match_lossless_files(name: str, mode: str, tmp_path: Path) -> None:
    dataset, signature = signed(name)
    image = MODES[mode]
    assert image.mode == mode
    image.save(tmp_path / "a.png")
    path = str(tmp_path / "a.png")
    if name == "window" and mode not in ("L", "I;16"):
        with pytest.raises(LoaderError, match="input 0 cannot be read as an image"):
            fetch(dataset.samples_from(image, signature))
        return
    expected = fetch(dataset.open_inputs([path], signature, False, {})[0])
    for given in (image, [image], Image.open(path)):
        source = dataset.samples_from(given, signature)
        for _ in range(2):  # decoding changes no image of the caller
            for one, two in zip(fetch(source), expected):
                assert one.dtype == two.dtype
                np.testing.assert_array_equal(one, two)
    if mode in ("L", "RGB", "RGBA"):
        (array, *_) = fetch(dataset.samples_from(np.asarray(image), signature))
        np.testing.assert_array_equal(array, expected[0])


def test_given_images_are_upright_and_those_of_jpeg_files_are_decoded_in_full(tmp_path: Path) -> None:
    dataset, signature = signed("classification")
    turned = MODES["RGB"].transpose(Image.Transpose.ROTATE_90)
    turned.getexif()[0x0112] = 6
    (upright, _), (expected, _) = (fetch(dataset.samples_from(one, signature)) for one in (turned, MODES["RGB"]))
    np.testing.assert_array_equal(upright, expected)
    assert turned.size == (SIZE[0], SIZE[1]) and turned.getexif()[0x0112] == 6
    cmyk = MODES["RGB"].convert("CMYK")
    (found, _), (expected, _) = (fetch(dataset.samples_from(one, signature)) for one in (cmyk, cmyk.convert("RGB")))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "given, said",
    [
        (Image.new("F", (3, 3)), "input 0 is an image of mode F. Convert it to one of 1, L, LA, I;16, P, RGB, RGBA"),
        ([MODES["L"], "a.png"], "input 1 is of type str. This run reads images"),
        (np.zeros((4, 4)), r"input 0 is an array of float64 with shape \(4, 4\). Allowed are uint8 images"),
        (np.zeros((0, 4), np.uint8), r"shape \(0, 4\)"),
        (np.zeros((2, 4, 4, 5), np.uint8), r"input 0 is an array of uint8 with shape \(4, 4, 5\)"),
        ({"a": 1}, "input 0 is of type dict. This run reads images .* and paths of images"),
    ],
)
def test_other_objects_are_refused(given: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        GivenImages(given, (8, 8))


def test_too_many_pixels_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "MAX_PIXELS", 24 * 30 - 1)
    dataset, signature = signed("classification")
    with pytest.raises(LoaderError, match="input 0 cannot be read as an image"):
        fetch(dataset.samples_from(MODES["L"], signature))
