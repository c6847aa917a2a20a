"""Tiles of images in their original size."""

from __future__ import annotations

from pathlib import Path
from typing import Any, List

import numpy as np
import pytest
from PIL import Image

from mxtrain.data.loading.sources import MemorySource, Subset
from mxtrain.errors import LoaderError
from mxtrain.vision.detection.boxed_images import BoxedImages
from mxtrain.vision.images.files import BlankForUnreadable, ImageFiles
from mxtrain.vision.images.settings import Decoding
from mxtrain.vision.images.tiles import TiledImages, resized, tile_starts, tiles_of

STILL = {"seed": 0, "epoch": 0, "train": False}
FILL = np.array([9, 8, 7], np.uint8)


@pytest.mark.parametrize(
    "length, tile, overlap, expected",
    [
        (100, 100, 0.2, [0]),
        (30, 100, 0.2, [0]),
        (101, 100, 0.2, [0, 1]),
        (260, 100, 0.2, [0, 80, 160]),
        (261, 100, 0.2, [0, 80, 160, 161]),
        (100, 40, 0.0, [0, 40, 60]),
        (50, 16, 0.9, [0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32, 34]),
    ],
)
def test_starts_of_tiles(length: int, tile: int, overlap: float, expected: List[int]) -> None:
    assert tile_starts(length, tile, overlap) == expected


@pytest.mark.parametrize("size", [(50, 70), (16, 33), (5, 100), (32, 32)], ids=str)
@pytest.mark.parametrize("overlap", [0.0, 0.25, 0.6])
def test_tiles_cover_an_image_and_inner_parts_cover_it_once(size: Any, overlap: float) -> None:
    tiles = tiles_of(3, size, (16, 24), overlap)
    covered, inner = np.zeros(size, int), np.zeros(size, int)
    for tile in tiles:
        left, top, right, bottom = tile.box
        covered[top:bottom, left:right] += 1
        inner[tile.inner[1] : tile.inner[3], tile.inner[0] : tile.inner[2]] += 1
        assert left <= tile.inner[0] < tile.inner[2] <= right and top <= tile.inner[1] < tile.inner[3] <= bottom
        assert (bottom - top, right - left) == (min(16, size[0]), min(24, size[1]))
        # As deep as half of the overlap, except at the border of the image.
        assert tile.inner[0] - left >= int(overlap * 24) // 2 or left == 0
        assert right - tile.inner[2] >= int(overlap * 24) // 2 or right == size[1]
    assert covered.min() >= 1 and (inner == 1).all()
    assert [tile.is_last for tile in tiles] == [False] * (len(tiles) - 1) + [True]
    assert [tile.box[1] for tile in tiles] == sorted(tile.box[1] for tile in tiles)
    assert {(tile.sample, tile.size) for tile in tiles} == {(3, size)}


def photo(path: Path, height: int, width: int, seed: int = 0) -> np.ndarray:
    pixels = np.random.RandomState(seed).randint(0, 256, (height, width, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(path)
    return pixels.transpose(2, 0, 1)


def boxed(files: List[Path]) -> BoxedImages:
    return BoxedImages(ImageFiles(files), None, Decoding((3, 8, 8), fit="stretch"), [0.5] * 3)


def test_tiles_are_the_pixels_of_files(tmp_path: Path) -> None:
    images = [photo(tmp_path / "a.png", 40, 30), photo(tmp_path / "b.png", 10, 50, seed=1)]
    source = Subset(boxed([tmp_path / "a.png", tmp_path / "b.png"]), np.array([1, 0]))  # type: ignore[arg-type]
    tiled = TiledImages(source, (16, 16), 0.25, (16, 16), (16, 16), FILL)
    assert tiled.shape == (3, 16, 16) and [tile.sample for tile in tiled.tiles] == [0] * 4 + [1] * 9
    image_BCHW, _, meta_B4 = tiled.fetch(np.arange(len(tiled)), **STILL)
    for tile, image_CHW, meta_4 in zip(tiled.tiles, image_BCHW, meta_B4):
        left, top, right, bottom = tile.box
        part = images[1 - tile.sample][:, top:bottom, left:right]
        height, width = part.shape[1:]
        np.testing.assert_array_equal(image_CHW[:, :height, :width], part)
        assert meta_4.tolist() == [height, width, height, width]
        assert (image_CHW[:, height:] == FILL[:, None, None]).all() and (
            image_CHW[..., width:] == FILL[:, None, None]
        ).all()
    # Another order, as several threads fetch them.
    again = tiled.fetch(np.array([12, 0, 7]), **STILL)[0]
    np.testing.assert_array_equal(again, image_BCHW[[12, 0, 7]])


def test_each_image_is_decoded_once_and_few_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        photo(tmp_path / f"{number}.png", 40, 40, seed=number)
    source, opened = boxed(sorted(tmp_path.glob("*.png"))), []
    tiled = TiledImages(source, (16, 16), 0.0, (16, 16), (16, 16), FILL)
    monkeypatch.setattr(source, "image", lambda number: (opened.append(number), np.zeros((3, 40, 40), np.uint8))[1])
    for number in range(len(tiled)):
        tiled.fetch(np.array([number]), **STILL)
        assert len(tiled._images) <= 2
    assert opened == [0, 1, 2, 3, 4]
    # Threads return to the image before: the one that was not used for the longest time is removed.
    opened.clear()
    firsts = [next(number for number, tile in enumerate(tiled.tiles) if tile.sample == sample) for sample in range(5)]
    for sample in (0, 1, 0, 2, 0):
        tiled.fetch(np.array([firsts[sample]]), **STILL)
    assert opened == [0, 1, 2]


def test_smaller_tiles_are_enlarged_alike(tmp_path: Path) -> None:
    """A tile of a narrow image has the scale of the others, as if the image went on."""
    image = photo(tmp_path / "a.png", 12, 20)
    tiled = TiledImages(boxed([tmp_path / "a.png"]), (16, 16), 0.25, (32, 32), (32, 32), FILL)
    image_BCHW, _, meta_B4 = tiled.fetch(np.arange(2), **STILL)
    assert meta_B4.tolist() == [[12, 16, 24, 32]] * 2
    expected = np.asarray(Image.fromarray(image[:, :, 4:].transpose(1, 2, 0)).resize((32, 24), Image.BILINEAR))
    np.testing.assert_array_equal(image_BCHW[1, :, :24], expected.transpose(2, 0, 1))
    assert (image_BCHW[1, :, 24:] == FILL[:, None, None]).all()
    deep = np.random.RandomState(0).rand(1, 4, 4).astype(np.float32)
    assert resized(deep, (8, 8)).dtype == np.float32 and resized(deep, (4, 4)) is deep


def test_unreadable_images_are_reported_or_skipped(tmp_path: Path) -> None:
    photo(tmp_path / "a.png", 20, 20)
    photo(tmp_path / "c.jpg", 60, 20)
    (tmp_path / "b.png").write_bytes(b"no image")
    whole = (tmp_path / "c.jpg").read_bytes()
    (tmp_path / "c.jpg").write_bytes(whole[:-200])  # its header can be read
    source = boxed([tmp_path / name for name in ("a.png", "b.png", "c.jpg")])
    with pytest.raises(LoaderError, match="b.png"):
        TiledImages(source, (16, 16), 0.25, (16, 16), (16, 16), FILL)
    unreadable: dict = {}
    tiled = TiledImages(BlankForUnreadable(source, unreadable), (16, 16), 0.25, (16, 16), (16, 16), FILL)
    assert list(unreadable) == [1] and [tile.sample for tile in tiled.tiles] == [0] * 4 + [1] + [2] * 10
    image_BCHW, *_ = tiled.fetch(np.arange(15), **STILL)
    assert sorted(unreadable) == [1, 2] and "c.jpg" in unreadable[2]
    assert image_BCHW[:4].any() and not image_BCHW[4:, :, :1, :1].any()
    with pytest.raises(LoaderError, match="c.jpg"):
        TiledImages(boxed([tmp_path / "c.jpg"]), (16, 16), 0.25, (16, 16), (16, 16), FILL).fetch(np.array([0]), **STILL)


def test_images_in_memory_are_cut_too() -> None:
    image = np.random.RandomState(0).randint(0, 256, (2, 3, 20, 16)).astype(np.uint8)
    source = MemorySource(image, np.zeros(2))
    tiled = TiledImages(source, (16, 16), 0.0, (16, 16), (16, 16), FILL)
    found = tiled.fetch(np.arange(4), **STILL)[0]
    np.testing.assert_array_equal(found[3], image[1, :, 4:])
