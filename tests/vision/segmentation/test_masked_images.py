"""Images whose colours say the class of each pixel: whatever is cut out, image and mask must agree."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import image_bytes
import numpy as np
import pytest
from image_loader import image_loader
from PIL import Image

from mxtrain.data.loading.randomness import uniform
from mxtrain.errors import LoaderError
from mxtrain.vision.draws import VisionDraw
from mxtrain.vision.images.files import ImageFiles
from mxtrain.vision.images.fitting import fit_into_frame
from mxtrain.vision.images.pixels import ImageReader
from mxtrain.vision.images.settings import Decoding
from mxtrain.vision.segmentation import mask_file, masked_images
from mxtrain.vision.segmentation.mask_file import read_mask
from mxtrain.vision.segmentation.masked_images import (
    IGNORED,
    JointAugment,
    MaskCoding,
    MaskedImages,
    choose_crop,
)

MEAN = [0.9, 0.1, 0.4]
FILL = np.array([230, 26, 102])
LEVEL = 60  # a class is this much brighter than the one before it


def blocks(height, width, seed=0, side=24, classes=4):
    """A mask of rectangles of classes, (height, width) uint8."""
    rng = np.random.RandomState(seed)
    small = rng.randint(0, classes, (height // side + 1, width // side + 1)).astype(np.uint8)
    return np.kron(small, np.ones((side, side), np.uint8))[:height, :width]


def coloured(mask_HW):
    """The image that shows each class as a grey of its own."""
    return np.repeat((mask_HW * LEVEL + 20)[..., None], 3, axis=2).astype(np.uint8)


def write(tmp_path, sizes, ending="png", classes=4):
    images, masks = [], []
    for number, (height, width) in enumerate(sizes):
        mask = blocks(height, width, number, classes=classes)
        images.append(str(tmp_path / f"{number}.{ending}"))
        masks.append(str(tmp_path / f"{number}_mask.png"))
        Image.fromarray(coloured(mask)).save(images[-1], quality=95)
        Image.fromarray(mask).save(masks[-1])
    return images, masks


def open_source(images, masks, cut=(64, 80), frame=(96, 128), channels=3, augment=None, classes=4, **coding):
    decoding = Decoding((channels, *cut), frame=frame)
    return MaskedImages(ImageFiles(images), masks, MaskCoding(range(classes), **coding), decoding, MEAN, augment)


def shown_class(image_CHW):
    """Returns the class of each pixel of an image, -1 in padding, and where it is certain."""
    grey_HW = image_CHW.astype(float).mean(axis=0)
    class_HW = np.rint((grey_HW - 20) / LEVEL).astype(int)
    is_sure_HW = np.abs(grey_HW - 20 - class_HW * LEVEL) < 12
    is_fill_HW = (np.abs(image_CHW - FILL[: len(image_CHW), None, None]) == 0).all(axis=0)
    class_HW[is_fill_HW] = IGNORED
    return class_HW, is_sure_HW | is_fill_HW


def away_from_borders(mask_HW, reach=3):
    """Returns True for pixels with only the same class within `reach`; False at the edges."""
    padded = np.pad(mask_HW, reach, constant_values=-9)  # what lies beyond a cut bleeds into it
    height, width = mask_HW.shape
    shifted = [padded[y : y + height, x : x + width] for y in range(2 * reach + 1) for x in range(2 * reach + 1)]
    return np.all([part == mask_HW for part in shifted], axis=0)


@pytest.mark.parametrize("ending", ["png", "jpg"])
def test_image_and_mask_agree_pixel_by_pixel_in_training(tmp_path, ending):
    sizes = [(75, 100), (150, 90), (64, 80), (40, 30), (333, 517), (96, 128)]
    source = open_source(*write(tmp_path, sizes, ending), augment=JointAugment(scale=[0.5, 2.0]))
    filled = compared = 0
    for epoch in range(12):
        image_BCHW, mask_BHW, _ = source.fetch(np.arange(6), seed=3, epoch=epoch, train=True)
        assert image_BCHW.shape == (6, 3, 64, 80) and mask_BHW.shape == (6, 64, 80) and mask_BHW.dtype == np.int16
        for image_CHW, mask_HW in zip(image_BCHW, mask_BHW):
            class_HW, is_sure_HW = shown_class(image_CHW)
            inside_HW = away_from_borders(mask_HW)
            assert (class_HW == mask_HW)[inside_HW].all() and is_sure_HW[inside_HW].all()
            # Padding is ignored and has the mean's colour, everywhere; nothing else is ignored.
            is_fill_HW = (image_CHW == FILL[:, None, None]).all(axis=0)
            assert np.array_equal(is_fill_HW, mask_HW == IGNORED)
            filled, compared = filled + is_fill_HW.sum(), compared + inside_HW.sum()
    assert filled > 20_000 and compared > 100_000


def test_a_draw_is_a_function_of_seed_epoch_and_index(tmp_path):
    sizes = [(75, 100), (150, 90), (64, 80), (40, 30), (200, 317), (96, 128), (100, 100)]
    source = open_source(*write(tmp_path, sizes), augment=JointAugment())
    whole = source.fetch(np.arange(7), seed=5, epoch=2, train=True)
    alone = [source.fetch(np.array([index]), seed=5, epoch=2, train=True) for index in (4, 0, 6)]
    for index, one in zip((4, 0, 6), alone):
        assert all(np.array_equal(part[index], single[0]) for part, single in zip(whole, one))
    for other in ({"seed": 6, "epoch": 2}, {"seed": 5, "epoch": 3}):
        assert not np.array_equal(source.fetch(np.arange(7), **other, train=True)[0], whole[0])
    batches = {}
    for threads, batch_size in ((1, 7), (3, 2), (2, 5)):
        loader = image_loader(
            source,
            batch_size=batch_size,
            input_shape=(3, 64, 80),
            mean=[0.5],
            std=[0.5],
            num_classes=4,
            seed=5,
            num_workers=threads,
            train=True,
            keeps_size=True,
        )
        rows = [
            (int(index), image, mask, size)
            for batch in loader.epoch(1)
            for index, image, mask, size in zip(
                batch.index_B, batch.inputs[0].asnumpy(), batch.targets[0].asnumpy(), batch.meta
            )
        ]
        for index, *parts in rows:
            for before, part in zip(batches.setdefault(index, parts), parts):
                assert np.array_equal(before, part)
    assert sorted(batches) == list(range(7))


def test_factors_places_and_flips_span_their_range(tmp_path, monkeypatch):
    source = open_source(*write(tmp_path, [(64, 80)]), frame=(64, 80), augment=JointAugment(scale=[0.5, 1.5]))
    drawn = []
    own = choose_crop
    monkeypatch.setattr(
        masked_images, "choose_crop", lambda *values: drawn.append((values, own(*values))) or drawn[-1][1]
    )
    epochs = range(300)
    for epoch in epochs:
        source.fetch(np.array([0]), seed=0, epoch=epoch, train=True)
    heights = np.array([values[1][0] for values, _ in drawn])
    assert heights.min() <= 33 and heights.max() >= 95 and abs(heights.mean() - 64) < 2.5
    assert np.histogram(heights, bins=4, range=(32, 96))[0].min() > 50
    for (size, whole, cut, _, _), part in drawn:
        left, top, right, bottom = part.box
        assert 0 <= left < right <= size[1] + 1e-9 and 0 <= top < bottom <= size[0] + 1e-9
        # The part is resized by the factor that was drawn, in both directions.
        assert part.size[1] / (bottom - top) == pytest.approx(whole[0] / size[0])
        assert part.size[0] / (right - left) == pytest.approx(whole[1] / size[1])
        assert part.offset[0] + part.size[1] <= cut[0] and part.offset[1] + part.size[0] <= cut[1]
    small = [part.offset[0] for values, part in drawn if values[1][0] < 40]
    large = [part.box[1] for values, part in drawn if values[1][0] > 90]
    assert min(small) == 0 and max(small) > 20 and min(large) < 1 and max(large) > 15
    flips = [uniform(0, epoch, np.array([0]), VisionDraw.FLIP)[0] < 0.5 for epoch in epochs]
    assert 0.4 < np.mean(flips) < 0.6


def test_flip_mirrors_image_and_mask(tmp_path):
    images, masks = write(tmp_path, [(64, 80)])
    still = open_source(images, masks, frame=(64, 80), augment=JointAugment(scale=[1.0, 1.0], flip=False))
    turned = open_source(images, masks, frame=(64, 80), augment=JointAugment(scale=[1.0, 1.0], flip=True))
    seen = set()
    for epoch in range(8):
        (image, mask, _), (flipped, flipped_mask, _) = (
            source.fetch(np.array([0]), seed=0, epoch=epoch, train=True) for source in (still, turned)
        )
        assert np.array_equal(mask[0], blocks(64, 80)) and np.array_equal(image[0, 0], coloured(blocks(64, 80))[..., 0])
        same = np.array_equal(mask, flipped_mask)
        seen.add(same)
        assert np.array_equal(flipped, image if same else image[..., ::-1])
        assert np.array_equal(flipped_mask, mask if same else mask[..., ::-1])
    assert seen == {True, False}


@pytest.mark.parametrize("size", [(96, 128), (50, 60), (96, 40), (192, 256), (250, 333), (97, 129), (1, 700), (700, 1)])
@pytest.mark.parametrize("channels", [1, 3])
def test_complete_images_are_fitted_like_pillow_and_numpy(tmp_path, size, channels):
    images, masks = write(tmp_path, [size])
    source = open_source(images, masks, channels=channels)
    image, mask, sizes = source.fetch(np.array([0]), seed=0, epoch=0, train=False)
    # Independently: the ratio as a whole, Pillow's resize of a whole image, and the nearest pixel by arithmetic.
    height, width = size
    ratio = min(96 / height, 128 / width)
    h, w = (height, width) if ratio >= 1 else (max(round(height * ratio), 1), max(round(width * ratio), 1))
    picture = Image.open(images[0]).convert("L" if channels == 1 else "RGB").resize((w, h), Image.BILINEAR)
    expected = np.asarray(picture).reshape(h, w, channels).transpose(2, 0, 1)
    fill = FILL if channels == 3 else np.array([round(255 * sum(MEAN) / 3)])
    assert np.array_equal(image[0, :, :h, :w], expected)
    assert (image[0, :, h:] == fill[:, None, None]).all() and (image[0, :, :, w:] == fill[:, None, None]).all()
    rows, columns = (((np.arange(n) + 0.5) * own / n).astype(int) for n, own in ((h, height), (w, width)))
    assert np.array_equal(mask[0, :h, :w], np.asarray(Image.open(masks[0]))[rows][:, columns])
    assert (mask[0, h:] == IGNORED).all() and (mask[0, :, w:] == IGNORED).all() and mask.shape == (1, 96, 128)
    assert sizes.tolist() == [[height, width, h, w]] and fit_into_frame(height, width, (96, 128)) == (h, w)
    assert np.array_equal(source.mask(0, (width, height)), np.asarray(Image.open(masks[0])))


@pytest.mark.parametrize("orientation", [3, 6, 8])
def test_rotated_photograph_has_an_upright_mask(tmp_path, orientation):
    mask = blocks(90, 60)
    turn = {3: Image.ROTATE_180, 6: Image.ROTATE_90, 8: Image.ROTATE_270}[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(coloured(mask)).transpose(turn).save(tmp_path / "a.jpg", exif=exif, quality=95)
    Image.fromarray(mask).save(tmp_path / "a.png")
    source = open_source([str(tmp_path / "a.jpg")], [str(tmp_path / "a.png")], augment=JointAugment())
    for train in (False, True):
        image, found, sizes = source.fetch(np.array([0]), seed=0, epoch=0, train=train)
        class_HW, _ = shown_class(image[0])
        inside = away_from_borders(found[0])
        assert (class_HW == found[0])[inside].all() and sizes[0, :2].tolist() == [90, 60]
    Image.fromarray(mask.T.copy()).save(tmp_path / "a.png")
    with pytest.raises(LoaderError, match="90 x 60 pixels, and its image .*a.jpg' 60 x 90.*rotate the mask"):
        source.fetch(np.array([0]), seed=0, epoch=0, train=False)


def save_bits(path, mask_HW, bits):
    """A grey PNG of 1, 2, 4 or 16 bits a pixel, written byte by byte."""
    import struct
    import zlib

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    height, width = mask_HW.shape
    shifts = np.arange(bits - 1, -1, -1)
    rows = [np.packbits((row[:, None].astype(int) >> shifts) & 1).tobytes() for row in mask_HW]
    header = struct.pack(">2I5B", width, height, bits, 0, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b""))


@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16])
def test_masks_of_any_depth_hold_the_numbers_that_were_written(tmp_path, bits):
    mask = blocks(75, 101, classes=min(4, 1 << bits))
    Image.fromarray(coloured(mask)).save(tmp_path / "a.png")
    save_bits(tmp_path / "m.png", mask, bits)
    source = open_source([str(tmp_path / "a.png")], [str(tmp_path / "m.png")])
    assert np.array_equal(source.mask(0, (101, 75)), mask)
    assert np.array_equal(source.fetch(np.array([0]), seed=0, epoch=0, train=False)[1][0, :75, :101], mask)


def test_sixteen_bits_hold_larger_values_and_palettes_their_indices(tmp_path):
    mask = blocks(75, 101)
    Image.fromarray(coloured(mask)).save(tmp_path / "a.png")
    Image.fromarray(mask.astype(np.uint16) * 20_000).save(tmp_path / "m.png")
    coding = MaskCoding([0, 20_000, 40_000, 60_000])
    decoding = Decoding((3, 64, 80), frame=(75, 101))
    source = MaskedImages(
        ImageFiles([tmp_path / "a.png"]), [str(tmp_path / "m.png")], coding, decoding, MEAN, JointAugment()
    )
    assert np.array_equal(source.mask(0, (101, 75)), mask)
    image, found, _ = source.fetch(np.array([0]), seed=0, epoch=1, train=True)
    assert (shown_class(image[0])[0] == found[0])[away_from_borders(found[0])].all()
    for transparency in (None, 1):
        palette = Image.fromarray(mask)
        palette.putpalette(np.random.RandomState(0).randint(0, 256, 768).tolist())
        palette.save(tmp_path / "p.png", **({} if transparency is None else {"transparency": transparency}))
        source = open_source([str(tmp_path / "a.png")], [str(tmp_path / "p.png")], frame=(40, 50))
        rows, columns = (((np.arange(n) + 0.5) * own / n).astype(int) for n, own in ((37, 75), (50, 101)))
        found = source.fetch(np.array([0]), seed=0, epoch=0, train=False)[1][0, :37]
        assert np.array_equal(found, mask[rows][:, columns])


def test_grey_deep_and_one_channel_images(tmp_path):
    mask = blocks(75, 101)
    grey = coloured(mask)[..., 0]
    Image.fromarray(grey).save(tmp_path / "grey.png")
    Image.fromarray(grey.astype(np.uint16) * 257).save(tmp_path / "deep.png")
    Image.fromarray(mask).save(tmp_path / "m.png")
    images = [str(tmp_path / "grey.png"), str(tmp_path / "deep.png")]
    for channels in (1, 3):
        source = open_source(images, [str(tmp_path / "m.png")] * 2, channels=channels, augment=JointAugment(flip=False))
        image, found, _ = source.fetch(np.arange(2), seed=0, epoch=0, train=False)
        assert image.shape == (2, channels, 96, 128) and image.dtype == np.float32
        assert np.array_equal(image[0], np.rint(image[1])) and np.array_equal(found[0], found[1])
        assert np.array_equal(image[0, 0, :75, :101], grey)
        alone, _, _ = source.fetch(np.array([0]), seed=0, epoch=0, train=False)
        assert alone.dtype == np.uint8 and np.array_equal(alone[0], image[0])


def test_ignored_values_and_others(tmp_path):
    mask = blocks(96, 128)
    Image.fromarray(coloured(mask)).save(tmp_path / "a.png")
    value = np.array([7, 11, 255, 9], np.uint8)[mask]
    Image.fromarray(value).save(tmp_path / "m.png")
    files = [str(tmp_path / "a.png")], [str(tmp_path / "m.png")]
    decoding = Decoding((3, 64, 80), frame=(96, 128))
    source = MaskedImages(ImageFiles(files[0]), files[1], MaskCoding([7, 11], [255, 9]), decoding, MEAN)
    assert np.array_equal(source.mask(0, (128, 96)), np.array([0, 1, -1, -1])[mask])
    strict = MaskedImages(ImageFiles(files[0]), files[1], MaskCoding([7, 11], [255]), decoding, MEAN)
    for train in (True, False):
        with pytest.raises(
            LoaderError, match="m.png' holds the value 9, which is no class. Classes have 7, 11, and ignored pixels 255"
        ):
            strict.fetch(np.array([0]), seed=0, epoch=0, train=train)


def test_stray_mask_value_is_found_at_any_position(tmp_path):
    """Not only in an epoch whose cut happens to hold it."""
    mask = blocks(300, 300)
    Image.fromarray(coloured(mask)).save(tmp_path / "a.png")
    mask[299, 299] = 77
    Image.fromarray(mask).save(tmp_path / "m.png")
    source = open_source([str(tmp_path / "a.png")], [str(tmp_path / "m.png")], augment=JointAugment(scale=[2.0, 2.0]))
    for epoch in range(3):
        with pytest.raises(LoaderError, match="m.png' holds the value 77"):
            source.fetch(np.array([0]), seed=0, epoch=epoch, train=True)


@pytest.mark.parametrize(
    "save, said",
    [
        (lambda path: Image.new("RGB", (30, 20), (9, 0, 0)).save(path), "it has colours, such as .9, 0, 0.: a mask"),
        (lambda path: Image.new("RGBA", (30, 20)).save(path), "it has transparent pixels: a mask has one value"),
        (lambda path: Image.new("CMYK", (30, 20)).save(path, "TIFF"), "its pixels are CMYK: a mask has one value"),
        (lambda path: Image.new("L", (30, 20)).save(path, "JPEG"), "JPEG changes values: save masks as PNG"),
        (lambda path: Image.new("L", (31, 20)).save(path), "has 31 x 20 pixels, and its image .*a.png' 30 x 20"),
        (lambda path: path.write_bytes(image_bytes.png(np.full((20, 30, 3), 1, np.uint16))), "it has 16 bits in each"),
        (lambda path: path.write_bytes(image_bytes.png(np.full((20, 30, 2), 1, np.uint16))), "it has 16 bits in each"),
        (
            lambda path: Image.new("L", (30, 20)).save(
                path, "TIFF", save_all=True, append_images=[Image.new("L", (30, 20), 1)]
            ),
            "it holds several images: a mask is one",
        ),
        (lambda path: path.write_bytes(b"no mask"), "m.png' cannot be read as a mask"),
        (lambda path: path.write_bytes(b""), "m.png' cannot be read as a mask"),
        (lambda path: (Image.new("L", (30, 20)).save(path), path.write_bytes(path.read_bytes()[:-30])), "as a mask"),
        (lambda path: None, "m.png' cannot be read: No such file"),
        (
            lambda path: Image.fromarray(np.full((20, 30), -3, np.int32)).save(path, "TIFF"),
            "its values go from -3 to -3",
        ),
        (
            lambda path: Image.fromarray(np.full((20, 30), 300, np.uint16)).save(path),
            "holds the value 300, which is no",
        ),
    ],
)
def test_problems_of_a_mask_are_named(tmp_path, save, said, monkeypatch):
    monkeypatch.setattr("PIL.ImageFile.LOAD_TRUNCATED_IMAGES", True)  # as importing GluonCV leaves it
    Image.new("RGB", (30, 20)).save(tmp_path / "a.png")
    save(tmp_path / "m.png")
    source = open_source([str(tmp_path / "a.png")], [str(tmp_path / "m.png")])
    with pytest.raises(LoaderError, match=said):
        source.fetch(np.array([0]), seed=0, epoch=0, train=False)


def test_overviews_behind_a_mask_do_not_count(tmp_path):
    value_HW = np.arange(600).reshape(20, 30).astype(np.uint8) % 2
    overview = Image.new("L", (15, 10))
    Image.fromarray(value_HW).save(tmp_path / "m.tif", save_all=True, append_images=[overview])
    assert np.array_equal(read_mask((tmp_path / "m.tif").read_bytes()), value_HW)


def test_images_without_masks_are_ignored_everywhere(tmp_path):
    images, _ = write(tmp_path, [(75, 100)])
    source = open_source(images, None)
    image, mask, sizes = source.fetch(np.array([0]), seed=0, epoch=0, train=False)
    assert (mask == IGNORED).all() and sizes.tolist() == [[75, 100, 75, 100]]
    assert np.array_equal(source.image(0), coloured(blocks(75, 100)).transpose(2, 0, 1))
    blank = source.blank()
    assert [part.shape for part in blank] == [part.shape for part in (image, mask, sizes)]


def test_the_reader_of_a_mask_keeps_its_limits(tmp_path, monkeypatch):
    monkeypatch.setattr("mxtrain.data.loading.opening.MAX_PIXELS", 1000)
    Image.new("L", (40, 30)).save(tmp_path / "m.png")
    with pytest.raises(ValueError, match="40 x 30 pixels, and at most 1,000"):
        mask_file.read_mask((tmp_path / "m.png").read_bytes())
    with pytest.raises(ValueError, match="40 x 30"):
        ImageReader((tmp_path / "m.png").read_bytes())
