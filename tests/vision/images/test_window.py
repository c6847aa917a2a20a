"""Windows, against the text of the standard, one number at a time; and files other than DICOM in a window."""

import math
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import image_bytes
import numpy as np
import pytest

from mxtrain.errors import DamagedCheckpoint
from mxtrain.vision.classification.image_folder import ImageFolder
from mxtrain.vision.images.pixels import ImageReader
from mxtrain.vision.images.settings import Decoding
from mxtrain.vision.images.window import FUNCTIONS

HEIGHT, WIDTH = 12, 16


def linear(x, c, w):
    """PS3.3 C.11.2.1.2.1."""
    if x <= c - 0.5 - (w - 1) / 2:
        return 0
    if x > c - 0.5 + (w - 1) / 2:
        return 255
    return ((x - (c - 0.5)) / (w - 1) + 0.5) * 255


def linear_exact(x, c, w):
    """PS3.3 C.11.2.1.3.2."""
    if x <= c - w / 2:
        return 0
    if x > c + w / 2:
        return 255
    return ((x - c) / w + 0.5) * 255


def sigmoid(x, c, w):
    """PS3.3 C.11.2.1.3.1."""
    return 255 / (1 + math.exp(-4 * (x - c) / w))


STANDARD = {"LINEAR": linear, "LINEAR_EXACT": linear_exact, "SIGMOID": sigmoid}


@pytest.mark.parametrize("centre, width", [(40, 400), (0, 1), (2048, 4096), (-600.5, 1500.25), (10, 2)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_windows_match_the_standard(name, centre, width):
    value = np.unique(np.r_[np.arange(-1500, 4000, 7), centre + np.arange(-3, 4) / 2, centre - width / 2, centre])
    expected = [
        STANDARD[name](float(x), centre, width) if abs(x - centre) < 150 * width else 255 * (x > centre) for x in value
    ]
    assert np.abs(FUNCTIONS[name](value, centre, width) - expected).max() < 1e-9


def test_the_sigmoid_overflows_for_no_value():
    assert FUNCTIONS["SIGMOID"](np.array([-1e9, 0.0, 1e9]), 0.0, 1.0).tolist() == [0, 127.5, 255]


def ramp(value, low, high):
    """0 from `low` down, 255 from `high` up."""
    return np.clip((value.astype(np.float64) - low) / (high - low), 0, 1) * 255


def windowed(write, pixels, window, *options):
    image = ImageReader(getattr(image_bytes, write)(pixels, *options), window)
    return image.resized((0, 0, *image.size), image.size, 1)[0]


@pytest.mark.parametrize(
    "write, kind",
    [
        ("png", "uint16"),
        ("png", "uint8"),
        ("tiff", "uint16"),
        ("tiff", "int16"),
        ("tiff", "int32"),
        ("tiff", "uint32"),
        ("tiff", "float32"),
    ],
)
def test_window_uses_stored_values_of_other_files(write, kind):
    pixels = (np.random.RandomState(0).rand(HEIGHT, WIDTH, 1) * 200 - 100 * (kind[0] in "if")).astype(kind)
    found = windowed(write, pixels, (40.0, 80.0))
    assert found.dtype == np.float32 and np.abs(found - ramp(pixels[..., 0], 0, 80)).max() < 1e-4


@pytest.mark.parametrize("kind", ["uint8", "uint16"])
def test_window_uses_stored_values_of_white_zero_files(kind):
    pixels = np.random.RandomState(0).randint(0, 200, (HEIGHT, WIDTH, 1)).astype(kind)
    found = windowed("tiff", pixels, (40.0, 80.0), 1, True)
    assert np.abs(found - (255 - ramp(pixels[..., 0], 0, 80))).max() < 1e-4


def test_a_window_of_a_pnm_is_in_its_own_values():
    pixels = np.random.RandomState(3).randint(0, 1024, (HEIGHT, WIDTH, 1)).astype(np.uint16)
    assert np.abs(windowed("pnm", pixels, (500.0, 400.0), 1023) - ramp(pixels[..., 0], 300, 700)).max() < 0.02


@pytest.mark.parametrize("kind", ["uint8", "uint16"])
def test_a_window_of_colours_is_refused(kind):
    with pytest.raises(ValueError, match=r"in colour \(RGB.*dataset.window=\[40.0, 80.0\] is for grey: leave it out"):
        windowed("png", np.zeros((HEIGHT, WIDTH, 3), kind), (40.0, 80.0))


def test_nan_pixels_are_refused_by_a_window():
    with pytest.raises(ValueError, match="some are no finite numbers"):
        windowed("tiff", np.full((4, 4, 1), np.nan, np.float32), (40.0, 80.0))


@pytest.mark.parametrize("wrong", ["narrow", [40], [40, 0], [40, -1], [40, float("nan")], [True, 5], 40, None])
def test_invalid_windows_are_refused(wrong):
    with pytest.raises(ValueError, match=r"window is auto, full, percentile, \[centre, width\], e.g. \[40,400\]"):
        ImageFolder(window=wrong)


@pytest.mark.parametrize("window", ["auto", "full", (40.0, 400.0)])
def test_checkpoint_records_the_window_and_earlier_ones_lack_it(window):
    decoding = Decoding((1, 8, 8), 0.5, window=window)
    assert Decoding.from_json(decoding.to_json()) == decoding
    assert ("window" in decoding.to_json()) == (window != "auto")
    setting = list(window) if isinstance(window, tuple) else window
    for damaged in (["narrow"], [40.0], [40.0, -1.0]):
        with pytest.raises(DamagedCheckpoint, match="in its decoding, window is auto, full, percentile"):
            Decoding.from_json({**decoding.to_json(), "window": damaged})
    assert ImageFolder(window=setting, channels=1, image_size=8, central_crop=0.5).decoding() == decoding
