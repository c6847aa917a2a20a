"""Images at their depth, against a computation in NumPy that shares nothing with Pillow or OpenCV."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import image_bytes
import numpy as np
import pytest
from image_files import open_files
from PIL import Image

from mxtrain.errors import LoaderError
from mxtrain.vision.images.make_record import make_record
from mxtrain.vision.images.record_file import RecordFile
from mxtrain.vision.images.settings import Decoding

HEIGHT, WIDTH = 12, 16
LUMA = np.array([0.299, 0.587, 0.114])
LARGEST = {"uint8": 255, "uint16": 65535, "int16": 32767, "int32": 2147483647, "uint32": 4294967295, "float32": 1.0}


def draw(kind, channels):
    """Pixels of all brightnesses."""
    share_HWC = np.random.RandomState(3).rand(HEIGHT, WIDTH, channels)
    return (share_HWC * LARGEST[kind]).astype(kind)


def read(path, channels=3, size=(HEIGHT, WIDTH)):
    """The image as C x H x W."""
    source = open_files([path], Decoding((channels, *size)))
    return source.fetch(np.arange(1), seed=0, epoch=0, train=False)[0][0]


def expect(pixels_HWC, channels, largest=None):
    """The rule, in float64: white is 255, alpha is dropped, grey is ITU-R 601."""
    share_HWC = pixels_HWC.astype(np.float64) / (largest or LARGEST[str(pixels_HWC.dtype)]) * 255
    share_HWC = share_HWC[..., : 1 if share_HWC.shape[2] < 3 else 3]
    if channels == 1 and share_HWC.shape[2] == 3:
        share_HWC = share_HWC @ LUMA[:, None]
    return np.broadcast_to(share_HWC, (HEIGHT, WIDTH, channels)).transpose(2, 0, 1)


def shrink(image_CHW):
    """To a third, by the triangle that bilinear resizing with as wide a reach as it needs means, in float64."""
    for axis in (1, 2):
        size = image_CHW.shape[axis]
        centre = (np.arange(size // 3) + 0.5) * 3
        weight = np.maximum(0, 1 - np.abs(np.arange(size) + 0.5 - centre[:, None]) / 3)
        weight /= weight.sum(axis=1, keepdims=True)
        image_CHW = np.moveaxis(np.tensordot(weight, image_CHW, (1, axis)), 0, axis)
    return image_CHW


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    "write, kind, given",
    [
        *(("png", kind, given) for kind in ("uint8", "uint16") for given in (1, 2, 3, 4)),
        *(("tiff", kind, 1) for kind in LARGEST),
        *(("tiff", kind, 3) for kind in ("uint8", "uint16")),
    ],
)
def test_pixels_are_scaled_by_their_type(tmp_path, write, kind, given, channels):
    pixels_HWC = draw(kind, given)
    path = tmp_path / f"a.{write}"
    path.write_bytes(getattr(image_bytes, write)(pixels_HWC))
    expected = expect(pixels_HWC, channels)
    found = read(path, channels)
    is_deep = kind != "uint8"
    assert found.dtype == (np.float32 if is_deep else np.uint8)
    # Pillow rounds grey of 8 bits down to whole numbers.
    assert np.abs(found - expected).max() < (1e-4 if is_deep else 1)


@pytest.mark.parametrize("kind, write", [("uint16", "png"), ("float32", "tiff"), ("uint8", "png")])
def test_deep_pixels_are_resized_like_8_bit_pixels(tmp_path, kind, write):
    pixels_HWC = np.random.RandomState(0).rand(18, 24, 1) * LARGEST[kind]
    path = tmp_path / f"a.{write}"
    path.write_bytes(getattr(image_bytes, write)(pixels_HWC.astype(kind)))
    expected = shrink(pixels_HWC.astype(kind).astype(np.float64).transpose(2, 0, 1) / LARGEST[kind] * 255)
    assert np.abs(read(path, 1, (6, 8)) - expected).max() < (1.01 if kind == "uint8" else 1e-3)


@pytest.mark.parametrize("maximum", [1023, 65535])
@pytest.mark.parametrize("given", [1, 3])
def test_pnm_maximum_is_used(tmp_path, given, maximum):
    pixels_HWC = (draw("float32", given) * maximum).astype(np.uint16)
    (tmp_path / "a.ppm").write_bytes(image_bytes.pnm(pixels_HWC, maximum))
    assert np.abs(read(tmp_path / "a.ppm") - expect(pixels_HWC, 3, maximum)).max() < 0.01


@pytest.mark.parametrize("kind", ["uint8", "uint16"])
@pytest.mark.parametrize("orientation, turned", [(1, 0), (3, 2), (6, -1), (8, 1)])
def test_tiffs_are_turned_upright_once(tmp_path, kind, orientation, turned):
    """Pillow says the size of such an image in other ways from version to version."""
    upright_HWC = draw(kind, 3)
    lying = np.rot90(upright_HWC, -turned).copy()
    (tmp_path / "a.tif").write_bytes(image_bytes.tiff(lying, orientation))
    assert np.abs(read(tmp_path / "a.tif") - expect(upright_HWC, 3)).max() < 1e-4


@pytest.mark.parametrize("kind", ["uint8", "uint16"])
def test_tiff_with_white_zero_is_inverted(tmp_path, kind):
    pixels_HWC = draw(kind, 1)
    (tmp_path / "a.tif").write_bytes(image_bytes.tiff(pixels_HWC, is_white_zero=True))
    assert np.abs(read(tmp_path / "a.tif", 1) - (255 - expect(pixels_HWC, 1))).max() < 1e-4


@pytest.mark.parametrize("content", [b"P1\n# by hand\n3 2\n0 1 0\n1 1 0\n", b"P4\n3 2\n\x40\xc0"])
def test_pbm_ones_are_black(tmp_path, content):
    (tmp_path / "a.pbm").write_bytes(content)
    assert read(tmp_path / "a.pbm", 1, (2, 3)).tolist() == [[[255, 0, 255], [0, 0, 255]]]


def test_a_palette_with_several_degrees_of_transparency_is_read_without_a_warning(tmp_path):
    image = Image.fromarray(draw("uint8", 3)).quantize(4)
    image.save(tmp_path / "a.png", transparency=bytes([0, 90, 255]))
    assert np.array_equal(read(tmp_path / "a.png"), np.asarray(image.convert("RGB")).transpose(2, 0, 1))


@pytest.mark.parametrize(
    "pixels, said",
    [
        (np.full((4, 4, 1), 1.5, np.float32), "floats from 1.5 to 1.5; they must lie between 0 and 1"),
        (np.full((4, 4, 1), np.nan, np.float32), "floats from nan to nan"),
        (np.full((4, 4, 1), -3, np.int32), "none may be below 0"),
        (np.full((4, 4, 1), 4095, np.int32), "which is black. Save it with 16 bits"),
    ],
)
def test_pixels_without_a_scale_are_refused(tmp_path, pixels, said):
    (tmp_path / "a.tif").write_bytes(image_bytes.tiff(pixels))
    with pytest.raises(LoaderError, match=f"a.tif' cannot be read as an image .*{said}"):
        read(tmp_path / "a.tif")


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA"])
def test_transparency_is_dropped(tmp_path, mode):
    """Transparent pixels show their colour, at any depth and in a palette."""
    colour = Image.fromarray(draw("uint8", 3)).quantize(16).convert("RGB")
    image = colour.convert({"RGBA": "RGB", "LA": "L", "PA": "P"}[mode])
    plain = np.asarray(image.convert("RGB")).transpose(2, 0, 1)
    if mode == "PA":
        image.save(tmp_path / "a.png", transparency=0)
    else:
        image.putalpha(0)
        image.save(tmp_path / "a.png")
    assert np.array_equal(read(tmp_path / "a.png"), plain)


def test_images_of_several_depths_share_a_batch(tmp_path):
    for number, kind in enumerate(["uint8", "uint16", "uint8"]):
        (tmp_path / f"{number}.png").write_bytes(image_bytes.png(draw(kind, 3)))
    source = open_files([tmp_path], Decoding((3, HEIGHT, WIDTH)))
    together, _ = source.fetch(np.arange(3), seed=0, epoch=0, train=False)
    for number in range(3):
        alone, _ = source.fetch(np.array([number]), seed=0, epoch=0, train=False)
        assert np.array_equal(together[number], alone[0])


def test_records_keep_the_visible_range_of_deep_images(tmp_path):
    for name in ("a", "b"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(4):
            (tmp_path / "images" / name / f"{number}.png").write_bytes(image_bytes.png(draw("uint16", 3)))
    make_record(str(tmp_path / "images"), str(tmp_path / "small"), size=9, val_fraction=0.25)
    (tmp_path / "0.jpg").write_bytes(RecordFile(tmp_path / "small_train.rec").read(0)[0])
    assert abs(read(tmp_path / "0.jpg", 1).mean() - expect(draw("uint16", 3), 1).mean()) < 6


@pytest.mark.parametrize("write", ["png", "tiff", "pnm"])
@pytest.mark.parametrize("given", [1, 3])
def test_a_deep_image_that_is_cut_off_is_refused(tmp_path, write, given):
    content = getattr(image_bytes, write)(draw("uint16", given), *([65535] if write == "pnm" else []))
    (tmp_path / "a.png").write_bytes(content[: len(content) * 3 // 4])
    with pytest.raises(LoaderError, match="a.png' cannot be read as an image"):
        read(tmp_path / "a.png")


def test_a_pixel_beyond_white_is_refused(tmp_path):
    (tmp_path / "a.ppm").write_bytes(image_bytes.pnm(np.full((4, 4, 3), 5000, np.uint16), 1023))
    with pytest.raises(LoaderError, match="it says that white is 1023, and a pixel is 5000"):
        read(tmp_path / "a.ppm")
