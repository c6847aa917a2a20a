"""Masks of images that are predicted tile by tile."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Iterator, List, Tuple

import numpy as np
import pytest
from PIL import Image

from mxtrain.data.passes import Tile
from mxtrain.engine.backend import gluon, mx, nd
from mxtrain.types import Batch
from mxtrain.vision.images.files import ImageFiles
from mxtrain.vision.images.settings import Decoding
from mxtrain.vision.images.tiles import TiledImages, tiles_of
from mxtrain.vision.segmentation.masked_images import MaskCoding, MaskedImages
from mxtrain.vision.segmentation.tiled_masks import TiledMasks

NUM_CLASSES = 3
SIZE = (50, 71)
Part = Tuple[Tile, np.ndarray]


def softmax(score: np.ndarray) -> np.ndarray:
    exponential = np.exp(score - score.max(axis=0))
    return exponential / exponential.sum(axis=0)


def parts_of(tiles: List[Tile], seed: int = 0) -> List[Part]:
    rng = np.random.RandomState(seed)
    sizes = [(NUM_CLASSES, bottom - top, right - left) for left, top, right, bottom in (tile.box for tile in tiles)]
    return [(tile, rng.rand(*size).astype(np.float32)) for tile, size in zip(tiles, sizes)]


@pytest.mark.parametrize("blend", ["gaussian", "constant", "crop"])
@pytest.mark.parametrize("overlap", [0.0, 0.25, 0.7])
def test_weighted_probabilities_match_numpy(blend: str, overlap: float) -> None:
    parts = parts_of(tiles_of(0, SIZE, (16, 24), overlap))
    total = np.zeros((NUM_CLASSES, *SIZE))
    for tile, probability in parts:
        left, top, right, bottom = tile.box
        if blend == "gaussian":  # a density with a deviation of an eighth of the side, at least 0.001
            y, x = (np.arange(side) - (side - 1) / 2 for side in (16, 24))
            weight = np.maximum(np.exp(-(y[:, None] ** 2) / (2 * 2.0**2) - x**2 / (2 * 3.0**2)), 1e-3)
        else:
            weight = np.ones((16, 24))
        if blend == "crop":
            inner = np.zeros(SIZE)
            inner[tile.inner[1] : tile.inner[3], tile.inner[0] : tile.inner[2]] = 1
            weight = inner[top:bottom, left:right]
        total[:, top:bottom, left:right] += weight * probability
    found = TiledMasks(NUM_CLASSES, blend).merge(SIZE, iter(parts))
    assert found.shape == SIZE
    assert (found == total.argmax(axis=0)).mean() > 0.9999  # float32 may decide ties otherwise


def test_only_lines_of_one_row_of_tiles_are_kept() -> None:
    """Class probabilities of the whole image would take 400 MB."""
    size, num_classes = (2560, 1024), 40
    one = np.zeros((num_classes, 128, 1024), np.float32)
    one[7] = 1

    def parts() -> Iterator[Part]:
        for tile in tiles_of(0, size, (128, 1024), 0.25):
            yield tile, one

    import tracemalloc

    tracemalloc.start()
    mask = TiledMasks(num_classes, "constant").merge(size, parts())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (mask == 7).all() and peak < 100e6, peak


def receptive_network() -> Any:
    """Three convolutions, so that an output depends on 3 pixels to each side."""
    mx.random.seed(0)
    network = gluon.nn.HybridSequential()
    for channels in (8, 8, NUM_CLASSES):
        network.add(gluon.nn.Conv2D(channels, 3, padding=1, activation="relu" if channels == 8 else None))
    network.initialize(mx.init.Normal(0.3))
    return network


def predict(tiled: TiledImages, network: Any, blend: str) -> Tuple[np.ndarray, List[Part]]:
    merger = TiledMasks(NUM_CLASSES, blend)
    image_BCHW, _, meta_B4 = tiled.fetch(np.arange(len(tiled)), seed=0, epoch=0, train=False)
    inputs = (nd.array(image_BCHW.astype(np.float32) / 255 - 0.5),)
    outputs = (network(*inputs),)
    decoded = merger.decode(outputs, Batch(inputs, (), len(image_BCHW), meta=meta_B4))
    parts = list(zip(tiled.tiles, decoded))
    return merger.merge(parts[0][0].size, iter(parts)), parts


def test_mask_equals_that_of_the_whole_image_if_half_of_the_overlap_covers_the_receptive_field(tmp_path: Path) -> None:
    rng = np.random.RandomState(0)
    coarse = rng.randint(0, 256, (12, 16, 3)).astype(np.uint8)
    Image.fromarray(coarse).resize(SIZE[::-1], Image.BICUBIC).save(tmp_path / "a.png")
    images = ImageFiles([tmp_path / "a.png"])
    source = MaskedImages(images, None, MaskCoding(range(NUM_CLASSES)), Decoding((3, *SIZE), frame=SIZE), [0.5] * 3)
    network = receptive_network()
    whole = nd.array(source.image(0)[None].astype(np.float32) / 255 - 0.5)
    probability = softmax(network(whole)[0].asnumpy())
    expected = probability.argmax(axis=0)
    assert len(np.unique(expected)) == NUM_CLASSES
    fill = np.full(3, 128, np.uint8)
    tiled = TiledImages(source, (24, 24), 0.25, (24, 24), (24, 24), fill)  # 6 pixels overlap
    found, parts = predict(tiled, network, "crop")
    np.testing.assert_array_equal(found, expected)
    for tile, tile_probability in parts:  # and probabilities, where no border of a tile is within 3 pixels
        left, top, right, bottom = tile.box
        inner = tile.inner
        np.testing.assert_allclose(
            tile_probability[:, inner[1] - top : inner[3] - top, inner[0] - left : inner[2] - left],
            probability[:, inner[1] : inner[3], inner[0] : inner[2]],
            atol=1e-6,
        )
    # Averages also contain pixels at the borders of tiles, which see padding in place of the image.
    is_safe = np.ones(SIZE, bool)
    for tile in tiled.tiles:
        left, top, right, bottom = tile.box
        near = np.zeros(SIZE, bool)
        near[top:bottom, left:right] = True
        near[
            top + 3 * (top > 0) : bottom - 3 * (bottom < SIZE[0]), left + 3 * (left > 0) : right - 3 * (right < SIZE[1])
        ] = 0
        is_safe &= ~near
    assert 0.2 < is_safe.mean() < 0.9
    for blend in ("gaussian", "constant"):
        averaged, _ = predict(tiled, network, blend)
        np.testing.assert_array_equal(averaged[is_safe], expected[is_safe])
    # With less overlap than the receptive field needs, borders are seen.
    bare, _ = predict(TiledImages(source, (24, 24), 0.0, (24, 24), (24, 24), fill), network, "crop")
    assert not np.array_equal(bare, expected)


def test_an_image_smaller_than_a_tile_is_padded_as_a_whole_one(tmp_path: Path) -> None:
    Image.fromarray(np.random.RandomState(0).randint(0, 256, (10, 13, 3)).astype(np.uint8)).save(tmp_path / "a.png")
    images = ImageFiles([tmp_path / "a.png"])
    source = MaskedImages(images, None, MaskCoding(range(3)), Decoding((3, 24, 24), frame=(24, 24)), [0.5] * 3)
    fill = source._fill_C
    tiled = TiledImages(source, (24, 24), 0.25, (24, 24), (24, 24), fill)
    whole, _, meta = source.fetch(np.arange(1), seed=0, epoch=0, train=False)
    cut, _, tile_meta = tiled.fetch(np.arange(1), seed=0, epoch=0, train=False)
    np.testing.assert_array_equal(cut, whole)
    np.testing.assert_array_equal(tile_meta, meta)
