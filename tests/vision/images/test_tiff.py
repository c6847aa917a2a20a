"""TIFF files of more bands than Pillow reads, compared with the arrays that tifffile wrote."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import io
import json
import struct
import sys

import numpy as np
import pytest
from PIL import Image
from running import train_here

from mxtrain.checkpoint import open_checkpoint
from mxtrain.cli.dispatch import run
from mxtrain.config.libraries import install_command
from mxtrain.data.loading.opening import ImageNeedsSetting, ImageTooLarge
from mxtrain.errors import DataError
from mxtrain.exporting.standalone import OpenedExport
from mxtrain.vision import exported_images
from mxtrain.vision.classification.image_folder import ImageFolder
from mxtrain.vision.images.pixels import ImageReader
from mxtrain.vision.images.tiff import MAX_BANDS, TiffReader, is_tiff, needs_tifffile

HEIGHT, WIDTH = 12, 16
RUN = (
    "dataset=image_folder",
    "model=lenet",
    "dataset.batch_size=4",
    "trainer.max_epochs=4",
    "dataset.val_fraction=0.2",
)


@pytest.fixture(scope="module")
def files():
    pytest.importorskip("tifffile", reason="tifffile is not installed: pip install 'mxtrain[tiff]'")
    pytest.importorskip("imagecodecs", reason="imagecodecs is not installed: pip install 'mxtrain[tiff]'")
    import tiff_files

    return tiff_files


@pytest.fixture(scope="module")
def bands():
    """Six bands of 16 bits, of all values."""
    return np.random.RandomState(0).randint(0, 1 << 16, (HEIGHT, WIDTH, 6)).astype(np.uint16)


def read(content, channels, window="auto"):
    image = ImageReader(content, window)
    return image.resized((0, 0, *image.size), image.size, channels)


@pytest.mark.parametrize("form", ["tiff", "planar"])
@pytest.mark.parametrize(
    "options",
    [{}, {"compression": "zlib", "predictor": True}, {"compression": "lzw"}, {"compression": "zstd"}]
    + [{"bigtiff": True, "byteorder": ">"}, {"tile": (16, 16)}],
)
@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")  # of Pillow, for BigTIFF of this byte order
def test_bands_of_16_bits_keep_their_values(files, bands, form, options):
    image_CHW = read(getattr(files, form)(bands, **options), 6)
    assert image_CHW.dtype == np.float32
    assert np.array_equal(np.rint(image_CHW.astype(float) * 65535 / 255), bands.transpose(2, 0, 1))


@pytest.mark.parametrize("channels", [2, 4, 5])
def test_bands_of_8_bits_and_floats(files, channels):
    value = np.random.RandomState(1).randint(0, 256, (HEIGHT, WIDTH, channels)).astype(np.uint8)
    byte_CHW = read(files.planar(value), channels)
    assert byte_CHW.dtype == np.uint8 and np.array_equal(byte_CHW, value.transpose(2, 0, 1))
    share = (value / np.float32(255)).astype(np.float32)
    np.testing.assert_allclose(read(files.tiff(share), channels), value.transpose(2, 0, 1), atol=1e-4)


def test_pages_are_bands_if_there_are_as_many(files, bands):
    pages = files.tiff(np.ascontiguousarray(bands.transpose(2, 0, 1)), planarconfig=None)
    assert np.array_equal(np.rint(read(pages, 6) * (65535 / 255)), bands.transpose(2, 0, 1))
    assert np.array_equal(np.rint(read(pages, 1)[0] * (65535 / 255)), bands[..., 0])
    with pytest.raises(ImageNeedsSetting, match="it has 6 pages of one band each, and dataset.channels=5"):
        read(pages, 5)
    three = files.tiff(np.ascontiguousarray(bands.transpose(2, 0, 1)[:3]), planarconfig=None)
    with pytest.raises(ImageNeedsSetting, match="write them as one page of 3 bands"):
        read(three, 4)


def test_overviews_and_masks_are_no_bands(files, bands):
    import tifffile

    file = io.BytesIO()
    with tifffile.TiffWriter(file) as writer:
        writer.write(bands[..., 0], photometric="minisblack")
        writer.write(bands[..., 1], photometric="minisblack")
        writer.write(bands[..., 2], photometric="minisblack", subfiletype=1)
        writer.write(bands[::2, ::2, 0], photometric="minisblack", subfiletype=1)
        writer.write(bands[..., 2], photometric="minisblack", subfiletype=2)
    # tifffile writes no masks: the field NewSubfileType of the last page becomes 4.
    page, mask = (struct.pack("<HHII", 254, 4, 1, kind) for kind in (2, 4))
    assert file.getvalue().count(page) == 1
    content = file.getvalue().replace(page, mask)
    assert np.array_equal(np.rint(read(content, 2) * (65535 / 255)), bands[..., :2].transpose(2, 0, 1))


def test_planes_that_pillow_misreads_are_read_by_tifffile(files, bands):
    """Pillow takes the first of compressed planes for a grey image, and bytes of 16-bit planes of RGB."""
    compressed = files.planar(bands, compression="lzw")
    assert len(Image.open(io.BytesIO(compressed)).getbands()) == 1
    assert needs_tifffile(Image.open(io.BytesIO(compressed)))
    with pytest.raises(ImageNeedsSetting, match="it has 6 bands, and dataset.channels=1: type dataset.channels=6"):
        read(compressed, 1)
    colour = files.planar(bands[..., :3], photometric="rgb")
    assert np.array_equal(np.rint(read(colour, 3) * (65535 / 255)), bands[..., :3].transpose(2, 0, 1))
    luma_HW = bands[..., :3].astype(float) @ [0.299, 0.587, 0.114]
    np.testing.assert_allclose(read(colour, 1)[0], luma_HW / 257, atol=1e-3)


def test_colours_with_two_further_bands_are_bands(files, bands):
    content = files.tiff(bands[..., :5], photometric="rgb", extrasamples=["unspecified"] * 2)
    assert ImageReader(content).own_channels == 5
    assert np.array_equal(np.rint(read(content, 5) * (65535 / 255)), bands[..., :5].transpose(2, 0, 1))
    assert read(content, 5, (30_000.0, 60_000.0)).shape[0] == 5, "a window is for bands, and not for colours"


def test_colours_of_floats_and_their_transparency(files, bands):
    share = (bands[..., :4] / np.float32(65535)).astype(np.float32)
    content = files.tiff(share, photometric="rgb", extrasamples=["unassalpha"])
    np.testing.assert_allclose(read(content, 3), share[..., :3].transpose(2, 0, 1) * 255, atol=1e-4)
    np.testing.assert_allclose(read(content, 4), share.transpose(2, 0, 1) * 255, atol=1e-4)
    with pytest.raises(ValueError, match=r"in colour \(RGB\), and dataset.window=\[1.0, 2.0\]"):
        read(content, 3, (1.0, 2.0))


def test_bands_in_a_window(files, bands):
    exact_CHW = np.clip((bands.transpose(2, 0, 1).astype(float) - 20000) / 30000 + 0.5, 0, 1) * 255
    np.testing.assert_allclose(read(files.tiff(bands), 6, (20000.0, 30000.0)), exact_CHW, atol=1e-4)
    share_CHW = read(files.tiff(bands), 6, "percentile")
    for band_HW, value_HW in zip(share_CHW, np.moveaxis(bands, 2, 0).astype(float)):
        low, high = np.percentile(value_HW, [0.5, 99.5])
        np.testing.assert_allclose(band_HW, np.clip((value_HW - low) / (high - low), 0, 1) * 255, atol=1e-4)


def test_white_is_zero_in_bands(files):
    value = np.array([[[0, 255, 10, 20, 30]]], np.uint8)
    assert read(files.tiff(value, photometric="miniswhite"), 5)[:, 0, 0].tolist() == [255, 0, 245, 235, 225]
    deep = files.tiff(value.astype(np.uint16) * 257, photometric="miniswhite")
    np.testing.assert_allclose(read(deep, 5)[:, 0, 0], [255, 0, 245, 235, 225], atol=1e-3)


def test_transparency_of_png_files_is_a_fourth_channel_on_request(bands):
    import cv2

    deep = cv2.imencode(".png", np.ascontiguousarray(bands[..., [2, 1, 0, 3]]))[1].tobytes()
    assert np.array_equal(np.rint(read(deep, 4) * (65535 / 255)), bands[..., :4].transpose(2, 0, 1))
    file = io.BytesIO()
    byte = (bands[..., :4] >> 8).astype(np.uint8)
    Image.fromarray(byte).save(file, "PNG")
    assert np.array_equal(read(file.getvalue(), 4), byte.transpose(2, 0, 1))
    assert np.array_equal(read(file.getvalue(), 3), byte[..., :3].transpose(2, 0, 1))
    with pytest.raises(ImageNeedsSetting, match="it has 4 bands, and dataset.channels=5"):
        read(file.getvalue(), 5)


def test_missing_library_is_named_with_its_command(files, tmp_path, monkeypatch):
    root = files.write_bands(tmp_path / "images")
    monkeypatch.setitem(sys.modules, "tifffile", None)
    with pytest.raises(DataError) as error:
        ImageFolder(root=str(root)).open()
    assert "0.tif' cannot be read as an image (a TIFF that Pillow does not read, such as one" in str(error.value)
    assert install_command("tiff") in str(error.value)


@pytest.mark.filterwarnings("ignore:Truncated File Read")  # of Pillow
@pytest.mark.parametrize(
    "change, said",
    [
        (lambda content: content[:4], "its TIFF header is damaged"),
        (lambda content: content[:300], "damaged"),
        (lambda content: content[:-100], "its pixels are damaged"),
    ],
)
def test_damaged_files_are_refused(files, bands, change, said):
    with pytest.raises(ValueError, match=said):
        read(change(files.tiff(bands, compression="zlib", rowsperstrip=4)), 6)


@pytest.mark.parametrize(
    "array, options, said",
    [
        (np.full((4, 4, 5), np.nan, np.float32), {}, "some are no finite numbers"),
        (np.full((4, 4, 5), -9999, np.float32), {}, "floats from -9999 to -9999; they must lie between 0 and 1"),
        (np.full((4, 4, 5), -3, np.int16), {}, "none may be below 0, black"),
        (np.zeros((4, 4, 5), np.float64), {}, "have 64 bits of the type float64, and 8 to 32 bits"),
        (np.zeros((4, 4, 5), np.complex64), {}, "of the type complex64"),
        (np.zeros((4, 4, 5), np.uint8), {"photometric": "separated"}, "its colours are SEPARATED"),
    ],
)
def test_values_without_a_scale_are_refused(files, array, options, said):
    with pytest.raises(ValueError, match=said):
        read(files.tiff(array, **options), 5)


def test_sizes_beyond_memory_are_refused_before_the_pixels(files, monkeypatch):
    content = files.tiff(np.zeros((20, 20, 5), np.uint8))
    monkeypatch.setattr("mxtrain.vision.images.tiff.MAX_PIXELS", 399)
    with pytest.raises(ImageTooLarge, match="it has 20 x 20 pixels of 5 bands, and at most 399"):
        TiffReader(content)
    monkeypatch.setattr("mxtrain.vision.images.tiff.MAX_PIXELS", 400)
    with pytest.raises(ImageTooLarge):
        TiffReader(content)  # 2,000 values are more than those of an image in colour
    monkeypatch.setattr("mxtrain.vision.images.tiff.MAX_PIXELS", 667)
    assert TiffReader(content).size == (20, 20)
    assert MAX_BANDS == 512 and TiffReader(files.planar(np.zeros((1, 1, MAX_BANDS), np.uint8))).bands == MAX_BANDS
    with pytest.raises(ValueError, match=f"it has {MAX_BANDS + 1} bands, and at most {MAX_BANDS} are read"):
        TiffReader(files.planar(np.zeros((1, 1, MAX_BANDS + 1), np.uint8)))


def test_magic_of_tiff(files, bands):
    assert is_tiff(files.tiff(bands)) and is_tiff(files.tiff(bands, bigtiff=True))
    assert not is_tiff(b"\x89PNG") and not is_tiff(b"")


def test_auto_takes_the_number_of_bands(files, tmp_path):
    splits = ImageFolder(root=str(files.write_bands(tmp_path / "images")), image_size=8).open()
    assert splits.shape == (5, 8, 8) and splits.decoding.shape == (5, 8, 8)
    image_BCHW = np.concatenate(
        [splits.train.fetch(np.array([i]), seed=0, epoch=0, train=False)[0] for i in range(len(splits.train))]
    )
    share_C = image_BCHW.astype(float).mean(axis=(0, 2, 3)) / 255
    np.testing.assert_allclose(splits.mean, share_C, atol=1e-4)
    np.testing.assert_allclose(splits.std, np.maximum((image_BCHW / 255.0).std(axis=(0, 2, 3)), 1e-3), atol=1e-4)


@pytest.mark.parametrize("channels", [1, 3, 4, 6])
def test_other_numbers_of_bands_are_refused_before_the_work(files, tmp_path, channels):
    root = files.write_bands(tmp_path / "images")
    with pytest.raises(DataError, match=rf"0.tif'.*it has 5 bands, and dataset.channels={channels}: type .*channels=5"):
        ImageFolder(root=str(root), channels=channels).open()


def test_statistics_have_a_number_for_each_band():
    with pytest.raises(ValueError, match="mean has 3 numbers, and channels=5: give one for each channel, or auto"):
        ImageFolder(channels=5, mean=[0.1] * 3)
    assert ImageFolder(channels=1, mean=[0.1] * 3).channels == 1
    assert ImageFolder(channels=5, std=[0.1] * 5).channels == 5


@pytest.mark.parametrize("channels", [0, -1, MAX_BANDS + 1, "rgb", 2.5])
def test_impossible_numbers_of_channels_are_refused(channels):
    with pytest.raises(ValueError, match="channels"):
        ImageFolder(channels=channels)


@pytest.mark.slow
def test_a_network_of_five_channels_is_trained_exported_and_served(files, tmp_path, capfd):
    root = files.write_bands(tmp_path / "images")
    run_dir = tmp_path / "run"
    train_here(run_dir, *RUN, f"dataset.root={root}", "dataset.window=[5000,10000]")
    trained = open_checkpoint(str(run_dir)).state["run"]["input"]
    assert trained["shape"][0] == 5 and len(trained["mean"]) == 5
    capfd.readouterr()
    assert run(["predict", str(run_dir), str(root / "water")]) == 0
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert len(rows) == 6 and {row["class"] for row in rows} == {"water"}
    assert run(["export", str(run_dir), f"out={tmp_path / 'exported'}"]) == 0
    folder = OpenedExport(tmp_path / "exported")
    content = (root / "water" / "1.tif").read_bytes()
    (row,) = exported_images.predict(folder, content, "1.tif")
    expected = next(each for each in rows if each["file"].endswith("/1.tif"))
    assert row["class"] == "water"
    assert row["probability"] == pytest.approx(expected["probability"], abs=1e-4)
    grey = files.tiff(np.zeros((24, 32), np.uint8))
    with pytest.raises(ValueError, match="it has 1 bands, and dataset.channels=5"):
        exported_images.read_image(grey, "grey.tif", folder.signature)
