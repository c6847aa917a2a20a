"""Boxes move with their images: where a box says that an object is, its pixels are.

Each image is black with a filled rectangle of a colour of its own for each box, and what comes out is measured by
colour: by pixels alone, without any of the arithmetic that moves boxes.
"""

from __future__ import annotations

import numpy as np
import pytest
from boxed_files import draw
from PIL import Image

from mxtrain.vision.detection.box_augment import AugmentStream, BoxAugment
from mxtrain.vision.detection.box_table import BoxTable
from mxtrain.vision.detection.boxed_images import BoxedImages
from mxtrain.vision.detection.boxes import Column, Flag, rows_of
from mxtrain.vision.images.files import ImageFiles
from mxtrain.vision.images.settings import Decoding
from mxtrain.vision.images.view import Rectangle, View

STILL = {"brightness": 0.0, "contrast": 0.0, "saturation": 0.0, "hue": 0.0}
COLOURS = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0), (0, 255, 255), (255, 0, 255)]
SIZES = [(200, 150), (120, 180), (90, 90), (160, 80)]
EDGES = [
    [(20, 20, 80, 70), (110, 60, 190, 140), (10, 90, 60, 149)],
    [(0, 0, 50, 80), (60, 100, 119, 179)],
    [(30, 30, 60, 60)],
    [(5, 5, 155, 40), (100, 50, 150, 79)],
]
SIDE = (96, 128)


def write_image(path, size, edges, colours):
    image = np.zeros((size[1], size[0], 3), np.uint8)
    for (left, top, right, bottom), colour in zip(edges, colours):
        image[top:bottom, left:right] = colour
    Image.fromarray(image).save(path)
    return path


def source_of(paths, edges, augment=None, fit="stretch", flags=0, mean=(0, 0, 0)):
    rows = [np.zeros((0, 7)), *(rows_of(one, range(len(one))) for one in edges)]
    image_R = np.repeat(np.arange(len(edges)), [len(one) for one in edges])
    row_RD = np.concatenate(rows)
    row_RD[:, Column.FLAGS] = flags
    table = BoxTable.grouped(image_R, row_RD, len(edges))
    return BoxedImages(ImageFiles(paths), table, Decoding((3, *SIDE), fit=fit), mean, augment)


@pytest.fixture
def image_paths(tmp_path):
    return [
        write_image(tmp_path / f"{n}.png", size, edges, COLOURS) for n, (size, edges) in enumerate(zip(SIZES, EDGES))
    ]


@pytest.fixture
def markers(tmp_path):
    """Only the centres of the boxes, 5 x 5 pixels each."""
    paths = []
    for number, (size, edges) in enumerate(zip(SIZES, EDGES)):
        centres = [((left + right) // 2, (top + bottom) // 2) for left, top, right, bottom in edges]
        squares = [(x - 2, y - 2, x + 3, y + 3) for x, y in centres]
        paths.append(write_image(tmp_path / f"m{number}.png", size, squares, COLOURS))
    return paths


def is_of(image_CHW, number):
    """Pixels that are mostly of a colour."""
    wanted = np.array(COLOURS[number])[:, None, None]
    return (np.abs(image_CHW.astype(int) - wanted) < 128).all(axis=0)


def has_trace_of(image_CHW, number):
    """Pixels in which there is something of a colour on black."""
    wanted = np.array(COLOURS[number])[:, None, None]
    return (np.where(wanted > 0, image_CHW > 20, image_CHW < 20)).all(axis=0)


def extent(is_there_HW):
    rows, columns = (np.flatnonzero(is_there_HW.any(axis=axis)) for axis in (1, 0))
    return [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]


def compare(image_CHW, box_MD, edges):
    """Asserts that each box lies around its colour; gives the classes that have one."""
    kept = box_MD[box_MD[:, Column.CLASS] >= 0]
    for row in kept:
        seen = is_of(image_CHW, int(row[Column.CLASS]))
        side = row[2:4] - row[:2]
        if min(side) >= 2:
            np.testing.assert_allclose(row[:4], extent(seen), atol=1.0)
            assert row[Column.AREA] == pytest.approx(side.prod(), rel=1e-4)
    return kept[:, Column.CLASS].astype(int).tolist()


@pytest.mark.parametrize("fit", ["stretch", "pad"])
@pytest.mark.parametrize(
    "augment",
    [
        {"crop_min_iou": [], "expand": 1.0},
        {"crop_min_iou": [], "flip": False},
        {"expand": 1.0, "flip": False},
        {},
        {"crop_aspect": [0.2, 5.0], "crop_scale": [0.1, 0.5], "crop_min_iou": [0.0]},
    ],
    ids=["flip", "expand", "crop", "all", "narrow"],
)
def test_boxes_stay_around_their_pixels(image_paths, markers, augment, fit):
    augment = BoxAugment(**{**STILL, "min_visible": 0.01, **augment})
    source, centres = (source_of(paths, EDGES, augment, fit, mean=(0.45,) * 3) for paths in (image_paths, markers))
    seen_boxes = changed = 0
    for epoch in range(12):
        images, boxes, _ = source.fetch(np.arange(4), seed=3, epoch=epoch, train=True)
        shown, _, _ = centres.fetch(np.arange(4), seed=3, epoch=epoch, train=True)
        for image, box_MD, marker, edges in zip(images, boxes, shown, EDGES):
            begin_x, begin_y, end_x, end_y = extent((image != 115).any(axis=0))
            kept = compare(image, box_MD, edges)
            seen_boxes += len(kept)
            changed += len(kept) < len(edges)
            for number in range(len(edges)):
                found = has_trace_of(marker, number)
                # Whole markers are of boxes that stay; none is left of those that do not.
                reach = extent(found) if found.any() else None
                is_whole = reach and begin_x < reach[0] and begin_y < reach[1] and reach[2] < end_x
                if is_whole and reach[3] < end_y and is_of(image, number).sum() > 40:
                    assert number in kept
                assert number not in kept or found.any()
    assert seen_boxes > 40 and (changed > 3) == (augment.crop_min_iou != [])


@pytest.mark.parametrize("fit", ["stretch", "pad"])
def test_evaluation_uses_complete_images(image_paths, fit):
    source = source_of(image_paths, EDGES, BoxAugment(), fit)
    images, boxes, fitted = source.fetch(np.arange(4), seed=0, epoch=5, train=False)
    for image, box_MD, row, edges in zip(images, boxes, fitted, EDGES):
        found = box_MD[box_MD[:, 4] >= 0]
        for number, one in enumerate(found):
            np.testing.assert_allclose(one[:4], extent(is_of(image, number)), atol=1.0)
            scale = (row[2:] / row[:2])[[1, 0, 1, 0]]
            np.testing.assert_allclose(one[:4] / scale, edges[number], atol=1e-3)
            assert one[Column.AREA] == np.prod(np.subtract(edges[number][2:], edges[number][:2]))
    assert images.shape == (4, 3, *SIDE)


def test_a_mosaic_has_the_boxes_of_four_images(image_paths):
    augment = BoxAugment(**STILL, mosaic=1.0, min_visible=0.3)
    source = source_of(image_paths, EDGES, augment)
    counts = []
    for epoch in range(6):
        images, boxes, _ = source.fetch(np.arange(4), seed=1, epoch=epoch, train=True)
        assert boxes.shape == (4, 12, 7)
        for image, box_MD in zip(images, boxes):
            kept = box_MD[box_MD[:, 4] >= 0]
            counts.append(len(kept))
            for left, top, right, bottom, number, _, _ in kept:
                inside = is_of(image, int(number))[round(top) : round(bottom), round(left) : round(right)]
                assert inside.mean() > 0.85
                # And just outside of the box there is none of it, unless a tile ends there or begins.
        assert len({image.tobytes() for image in images}) == 4
    assert max(counts) >= 5 and source.fetch(np.arange(1), seed=1, epoch=0, train=False)[1].shape == (1, 3, 7)


def test_crowds_keep_their_visible_part_and_decide_on_no_cut(tmp_path):
    path = write_image(tmp_path / "crowd.png", (200, 100), [(0, 0, 100, 100)], COLOURS)
    single = source_of(
        [path],
        [[(0, 0, 200, 100)]],
        BoxAugment(**STILL, expand=1.0, crop_scale=[0.3, 0.4], crop_min_iou=[0.0], min_visible=0.5),
    )
    crowd = source_of(
        [path],
        [[(0, 0, 200, 100)]],
        BoxAugment(**STILL, expand=1.0, crop_scale=[0.3, 0.4], crop_min_iou=[0.9], min_visible=0.5),
        flags=Flag.CROWD,
    )
    kept = cut = 0
    shares = set()
    for epoch in range(30):
        _, alone, _ = single.fetch(np.arange(1), seed=0, epoch=epoch, train=True)
        image, box, _ = crowd.fetch(np.arange(1), seed=0, epoch=epoch, train=True)
        assert box[0, 0, :4] == pytest.approx([0, 0, SIDE[1], SIDE[0]]) and box[0, 0, Column.FLAGS] == Flag.CROWD
        shares.add(is_of(image[0], 0).mean())  # of the left half of the image
        cut += alone[0, 0, 4] < 0  # less than half of it is seen
        kept += alone[0, 0, 4] == 0
    assert kept and cut and len(shares) > 10


def test_a_sample_is_a_function_of_seed_epoch_and_index(image_paths):
    augment = BoxAugment(mosaic=0.5)
    source = source_of(image_paths, EDGES, augment)
    arrays = lambda **at: [array.tolist() for array in source.fetch(np.array([2, 0, 1, 3]), train=True, **at)]  # noqa: E731
    first = arrays(seed=0, epoch=0)
    assert first == arrays(seed=0, epoch=0)
    assert first[0] != arrays(seed=1, epoch=0)[0] and first[0] != arrays(seed=0, epoch=1)[0]
    again = [source.fetch(np.array([index]), seed=0, epoch=0, train=True)[0][0].tolist() for index in (2, 0, 1, 3)]
    assert again == first[0]


def test_a_cut_covers_a_box_as_well_as_it_must():
    edges = np.array([(10.0, 10.0, 60.0, 60.0), (80.0, 20.0, 95.0, 30.0)])
    chosen = {0.0: [], 0.5: [], 0.9: []}
    for least, found in chosen.items():
        augment = BoxAugment(expand=1.0, crop_min_iou=[least])
        for epoch in range(60):
            share = augment.draws(0, epoch, 7)
            window = augment.window(share, (100, 70), edges)
            if share[AugmentStream.CROP] >= 0.5:
                assert window == (0.0, 0.0, 100.0, 70.0)
            elif window != (0.0, 0.0, 100.0, 70.0):
                left, top, right, bottom = window
                assert 0 <= left < right <= 100 and 0 <= top < bottom <= 70
                centre = (edges[:, :2] + edges[:, 2:]) / 2
                shown = ((centre >= window[:2]) & (centre < window[2:])).all(1)
                shared = (np.minimum(edges[:, 2:], window[2:]) - np.maximum(edges[:, :2], window[:2])).clip(0).prod(1)
                union = (right - left) * (bottom - top) + (edges[:, 2:] - edges[:, :2]).prod(1) - shared
                assert shown.any()
                found.append((shared / union)[shown].max())
                assert found[-1] >= least
                aspect = (right - left) / 100 / ((bottom - top) / 70)
                scale = np.sqrt((right - left) * (bottom - top) / 7000)
                assert 0.5 - 1e-9 <= aspect <= 2 + 1e-9 and 0.3 - 1e-9 <= scale
    assert min(chosen[0.0]) < 0.5 and len(chosen[0.5]) > 5


def test_a_cut_of_an_empty_image_shows_some_of_it():
    augment = BoxAugment(expand=4.0, crop_min_iou=[0.5], crop_scale=[0.05, 0.1])
    windows = [augment.window(augment.draws(0, epoch, 3), (60, 40), np.zeros((0, 4))) for epoch in range(100)]
    for left, top, right, bottom in windows:
        assert min(right, 60) - max(left, 0) >= 1 and min(bottom, 40) - max(top, 0) >= 1
    assert sum(right - left < 30 for left, _, right, _ in windows) > 30


def test_images_of_a_mosaic_are_drawn_apart():
    augment = BoxAugment()
    streams = [
        augment.draws(seed, epoch, index, number).tolist()
        for seed in (0, 1)
        for epoch in (0, 1)
        for index in (0, 1)
        for number in range(4)
    ]
    assert len(set(map(tuple, streams))) == 32
    values = np.concatenate(streams)
    assert 0 <= values.min() and values.max() < 1 and abs(values.mean() - 0.5) < 0.02


def test_colour_changes_are_within_limits(tmp_path):
    grey = np.tile(np.arange(256, dtype=np.uint8)[:, None, None], (1, 1, 3)).transpose(2, 0, 1)
    colour = np.random.RandomState(0).randint(60, 190, (3, 8, 8)).astype(np.uint8)

    def changed(image, seed=0, **options):
        augment = BoxAugment(**{**STILL, **options})
        for epoch in range(40):
            share = augment.draws(seed, epoch, 0)
            yield share, augment.recoloured(share, image).astype(int)

    for share, image in changed(grey, brightness=0.2):
        difference = (image - grey)[:, 60:190]
        assert np.ptp(difference) == 0 and (difference[0, 0, 0] == 0 or share[AugmentStream.BRIGHTNESS] < 0.5)
        assert abs(difference).max() <= 51
    for _, image in changed(grey, contrast=0.5):
        ratio = image[0, 1:128, 0] / np.arange(1, 128)
        assert np.ptp(ratio[20:]) < 0.05 and 0.45 < ratio[100] < 1.55
    for _, image in changed(grey, saturation=1.0, hue=0.5):
        assert np.abs(image - grey).max() <= 1  # grey has neither
    luma = np.array([0.299, 0.587, 0.114])[:, None, None]
    moved = []
    for _, image in changed(colour, saturation=0.3, hue=0.02):
        assert np.abs((image * luma).sum(0) - (colour * luma).sum(0)).max() < 2
        moved.append(np.abs(image - colour).max())
    assert min(moved) == 0 and max(moved) > 10
    (_, image), *_ = changed(colour[:1], brightness=0.2, contrast=0.3, saturation=0.5, hue=0.1, seed=4)
    assert image.shape == (1, 8, 8)
    (_, image), *_ = changed(colour.astype(np.float32), brightness=0.2, contrast=0.3, hue=0.1, seed=4)
    (_, same), *_ = changed(colour, brightness=0.2, contrast=0.3, hue=0.1, seed=4)
    assert np.abs(image - same).max() <= 1


def test_padding_has_the_mean_colour(tmp_path):
    path = draw(tmp_path / "a.png", (50, 50))
    augment = BoxAugment(**STILL, crop_min_iou=[], expand=4.0)
    source = source_of([path], [[]], augment, mean=(1.0, 0.5, 0.0))
    shares = []
    for epoch in range(20):
        image, box, _ = source.fetch(np.arange(1), seed=0, epoch=epoch, train=True)
        shares.append((image[0] == np.array([255, 128, 0])[:, None, None]).all(axis=0).mean())
        assert (box == -1).all()
    assert min(shares) == 0 and max(shares) > 0.7 and 4 <= sum(share > 0 for share in shares) <= 16


@pytest.mark.parametrize("flipped", [False, True])
def test_a_view_inside_of_a_frame(flipped):
    frame = Rectangle(10, 20, 40, 30)
    view = View.from_window((-50.0, 0.0, 50.0, 60.0), (100, 60), frame, flipped)
    assert view.source == (0.0, 0.0, 50.0, 60.0) and view.scale == (0.4, 0.5)
    assert view.place == (Rectangle(10, 20, 20, 30) if flipped else Rectangle(30, 20, 20, 30))
    (row,) = view.boxes(rows_of([(0, 0, 10, 60)], [3]), 0.0)
    assert row[:4].tolist() == ([26, 20, 30, 50] if flipped else [30, 20, 34, 50])
    image = np.zeros((1, 60, 60))
    part = np.zeros((1, 30, 20))
    part[..., :4] = 1
    view.paste(part, image)
    left, _, right, _ = (int(edge) for edge in row[:4])
    assert image[0, 20:50, left:right].all() and image.sum() == 120


def test_boxes_match_visible_pixels_for_all_image_kinds(tmp_path):
    """A photograph whose camera lay on its side, grey, 16 bits, transparent: the box is that of what a person sees."""
    seen = np.zeros((60, 40), np.uint8)
    seen[10:30, 5:25] = 255
    edges = [[(5, 10, 25, 30)]]
    lying = Image.fromarray(np.rot90(np.repeat(seen[..., None], 3, 2)))  # what the camera saved
    exif = Image.Exif()
    exif[0x0112] = 6
    lying.save(tmp_path / "turned.jpg", exif=exif, quality=95)
    Image.fromarray(seen).save(tmp_path / "grey.png")
    Image.fromarray(seen.astype(np.int32) * 257).convert("I;16").save(tmp_path / "deep.png")
    Image.fromarray(np.stack([seen, seen, seen, np.full_like(seen, 255)], axis=2)).save(tmp_path / "rgba.png")
    for name in ("turned.jpg", "grey.png", "deep.png", "rgba.png"):
        source = source_of([tmp_path / name], edges, BoxAugment(**STILL))
        assert source.open(0).size == (40, 60)
        for epoch, train in ((0, False), *((epoch, True) for epoch in range(6))):
            image, box, _ = source.fetch(np.arange(1), seed=0, epoch=epoch, train=train)
            if box[0, 0, 4] == 0:
                np.testing.assert_allclose(box[0, 0, :4], extent((image[0] > 127).all(axis=0)), atol=1.0)
        assert source.image(0).shape == (3, 60, 40) and source.boxes(0)[0, :4].tolist() == [5, 10, 25, 30]
    both = source_of([tmp_path / "deep.png", tmp_path / "grey.png"], edges * 2, BoxAugment(mosaic=1.0))
    assert both.fetch(np.arange(2), seed=0, epoch=0, train=True)[0].dtype == np.float32


@pytest.mark.parametrize(
    "wrong",
    [
        {"expand": 0.5},
        {"crop_scale": [0.0, 1.0]},
        {"crop_scale": [0.9, 0.5]},
        {"crop_min_iou": [1.5]},
        {"hue": 0.6},
        {"mosaic": 2.0},
        {"mosaic_scale": [0.0, 1.0]},
        {"mosaic_scale": [0.5, 1.5]},
        {"crop_padding": 4},
        {"mixup": -1.0},
        {"mix_epochs": 0},
    ],
)
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ValueError):
        BoxAugment(**wrong)


def rectangles(tmp_path, sizes=((128, 96), (128, 96))):
    """White rectangles on black, which do not lie on each other."""
    edges = [[(10, 10, 50, 40)], [(60, 50, 100, 84)]]
    paths = [write_image(tmp_path / f"w{n}.png", size, edges[n], [(255,) * 3]) for n, size in enumerate(sizes)]
    return paths, edges


def test_a_blended_image_is_both_and_boxes_weigh_their_share(tmp_path):
    """The images have the input size of the network, so that each pixel can be compared."""
    paths, edges = rectangles(tmp_path)
    augment = BoxAugment(**STILL, mixup=1.5, expand=1.0, crop_min_iou=[], flip=False, mix_epochs=20)
    source, shares = source_of(paths, edges, augment), []
    for epoch in range(20):
        images, boxes, _ = source.fetch(np.arange(2), seed=1, epoch=epoch, train=True)
        assert boxes.shape == (2, 2, 8)
        for index, (image, box_MD) in enumerate(zip(images, boxes)):
            own, other = box_MD[:, Column.WEIGHT]
            assert own + other == pytest.approx(1)
            expected = np.zeros(SIDE)
            for row, (left, top, right, bottom) in zip(box_MD, (edges[index][0], edges[1 - index][0])):
                assert row[:4].tolist() == [left, top, right, bottom]
                expected[top:bottom, left:right] = 255 * row[Column.WEIGHT]
            np.testing.assert_allclose(image, np.stack([expected] * 3), atol=0.51)
            shares.append(own)
    assert 0.2 < np.var(shares) / (1 / 16) < 2 and 0.35 < np.mean(shares) < 0.65  # Beta(1.5, 1.5) has 1/16
    image, boxes, _ = source.fetch(np.arange(1), seed=1, epoch=20, train=True)
    assert boxes[0, 0, Column.WEIGHT] == 1 and boxes[0, 1, Column.CLASS] == -1 and image.max() == 255
    assert source.fetch(np.arange(1), seed=1, epoch=0, train=False)[1].shape == (1, 1, 7)


@pytest.mark.parametrize("fit", ["stretch", "pad"])
def test_boxes_of_blended_images_of_other_sizes_stay_around_their_pixels(tmp_path, fit):
    """Holds for cropping, mirroring and placing on a larger canvas, also if only one image is visible."""
    paths, edges = rectangles(tmp_path, sizes=((70, 150), (180, 90)))
    source = source_of(paths, edges, BoxAugment(**STILL, mixup=1.5, min_visible=0.01), fit)
    seen = []
    for epoch in range(15):
        images, boxes, _ = source.fetch(np.arange(2), seed=3, epoch=epoch, train=True)
        for image, box_MD in zip(images, boxes):
            rest = image[0].astype(float)
            kept = box_MD[(box_MD[:, Column.CLASS] >= 0)]
            seen.append(len(kept))
            for row in kept:
                left, top, right, bottom = np.rint(row[:4]).astype(int)
                inside = image[0, top + 1 : bottom - 1, left + 1 : right - 1]
                if inside.size:
                    assert np.median(inside) == pytest.approx(255 * row[Column.WEIGHT], abs=2)
                rest[max(top - 2, 0) : bottom + 2, max(left - 2, 0) : right + 2] = 0
            if len(kept) == 2:
                assert rest.max() < 8  # and there is nothing else
    assert seen.count(2) > 8 and seen.count(1) > 2


def test_a_mosaic_beside_blended_images_counts_as_one(image_paths):
    source = source_of(image_paths, EDGES, BoxAugment(**STILL, mixup=1.5, mosaic=0.5))
    images, boxes, _ = source.fetch(np.arange(4), seed=1, epoch=0, train=True)
    weights = [box_MD[box_MD[:, 4] >= 0, Column.WEIGHT] for box_MD in boxes]
    assert boxes.shape == (4, 12, 8) and len({bool((one == 1).all()) for one in weights}) == 2
    again = source.fetch(np.arange(2, 4), seed=1, epoch=0, train=True)
    np.testing.assert_array_equal(again[0], images[2:])
    np.testing.assert_array_equal(again[1], boxes[2:])


def test_images_in_another_size_are_the_same_parts(image_paths):
    """Random draws do not depend on the size, so boxes differ only by scale."""
    source = source_of(image_paths, EDGES, BoxAugment(**STILL))
    small = source.resized_to((SIDE[0] // 2, SIDE[1] // 2))
    images, boxes, fitted = source.fetch(np.arange(4), seed=1, epoch=2, train=True)
    halves, half_boxes, half_fitted = small.fetch(np.arange(4), seed=1, epoch=2, train=True)
    assert halves.shape == (4, 3, 48, 64) and small.shape == (3, 48, 64) and source.shape == (3, *SIDE)
    np.testing.assert_allclose(half_boxes[..., :4] * 2, np.where(boxes[..., :4] < 0, -2, boxes[..., :4]), atol=2.1)
    assert np.abs(halves.astype(int) - images[:, :, ::2, ::2]).mean() < 6 and (half_fitted * 2 == fitted).all()
