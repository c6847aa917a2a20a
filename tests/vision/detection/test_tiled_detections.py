"""Detections that are joined from tiles."""

from __future__ import annotations

from typing import Any, List, Sequence

import numpy as np
import pytest

from mxtrain.data.passes import Tile
from mxtrain.engine.backend import nd
from mxtrain.types import Batch
from mxtrain.vision.detection.tiled_detections import TiledDetections, group_detections
from mxtrain.vision.images.tiles import tiles_of
from mxtrain.vision.instance_segmentation.task import TiledInstances

SIZE = (100, 180)
TILES = tiles_of(0, SIZE, (100, 100), 0.2)  # from 0 and from 80


def joined(*rows: Sequence[Sequence[float]], merger: Any = None) -> List[List[float]]:
    parts = [(tile, np.array(row, np.float32).reshape(-1, 6)) for tile, row in zip(TILES, rows)]
    merger = merger or TiledDetections(lambda: None)  # type: ignore[arg-type,return-value]
    return merger.merge(SIZE, iter(parts)).tolist()


def test_boxes_are_moved_to_the_image_and_sorted_by_score() -> None:
    assert [tile.box[0] for tile in TILES] == [0, 80]
    found = joined([[1, 0.5, 10, 20, 30, 40]], [[1, 0.75, 40, 50, 60, 70], [0, 0.25, 41, 51, 61, 71]])
    assert found == [[1, 0.75, 120, 50, 140, 70], [1, 0.5, 10, 20, 30, 40], [0, 0.25, 121, 51, 141, 71]]


def test_parts_of_an_object_become_one_box() -> None:
    # An object from 70 to 95: whole in the first tile, and a part in the second one, of a higher score.
    found = joined([[2, 0.5, 70, 10, 95, 30]], [[2, 0.75, 0, 10, 15, 30]])
    assert found == [[2, 0.75, 70, 10, 95, 30]]
    # Of another class it is another object.
    assert len(joined([[2, 0.5, 70, 10, 95, 30]], [[1, 0.75, 0, 10, 15, 30]])) == 2
    # Half of the smaller box is the limit: 20 pixels overlap, of 40 and of 42.
    assert len(joined([[2, 0.5, 60, 10, 100, 30]], [[2, 0.75, 0, 10, 40, 30]])) == 1
    assert len(joined([[2, 0.5, 58, 10, 100, 30]], [[2, 0.75, 0, 10, 42, 30]])) == 2


def test_boxes_of_one_tile_are_never_merged() -> None:
    inside = [[0, 0.75, 10, 10, 60, 60], [0, 0.5, 20, 20, 40, 40]]
    assert len(joined(inside, [])) == 2
    # Two small neighbours in one tile, and one box around both in the other: only one is part of it.
    found = joined([[0, 0.75, 80, 0, 100, 40]], [[0, 0.5, 0, 0, 20, 18], [0, 0.25, 0, 20, 20, 40]])
    assert found == [[0, 0.75, 80, 0, 100, 40], [0, 0.25, 80, 20, 100, 40]]


def test_a_long_object_is_joined_from_all_its_parts() -> None:
    """The best part touches only the next one, which has the lowest score."""
    rows = np.array([[0, 0.9, 0, 0, 50, 10], [0, 0.8, 60, 0, 110, 10], [0, 0.7, 25, 0, 85, 10]], np.float32)
    (group,) = group_detections(rows, np.arange(3))
    assert group.tolist() == [0, 2, 1]


def test_nothing_detected_is_a_row_of_padding_with_the_size_of_the_image() -> None:
    assert joined([], []) == [[-1] * 6]
    nothing = [(TILES[0], np.zeros((0, 9), np.float32))]
    (row,) = TiledInstances(lambda: None).merge(SIZE, iter(nothing))  # type: ignore[arg-type,return-value]
    assert row.tolist() == [-1] * 6 + [*SIZE, -1]


def test_decode_leaves_padding_out() -> None:
    rows = nd.array([[[0, 0.5, 1, 2, 3, 4], [-1, -1, -1, -1, -1, -1]], [[-1] * 6] * 2])
    built = []
    merger = TiledDetections(lambda: (built.append(1), lambda outputs, batch: outputs[0])[1])  # type: ignore[return-value]
    assert not built  # MXNet is imported only when it decodes
    for _ in range(2):
        parts = merger.decode((rows,), Batch((), (), 2))
        assert [part.tolist() for part in parts] == [[[0, 0.5, 1, 2, 3, 4]], []]
    assert built == [1]


@pytest.mark.parametrize("edges", [((70, 10, 95, 30), (80, 10, 105, 30))])
def test_masks_of_parts_are_united_on_the_grid_of_the_joined_box(edges: Any) -> None:
    (first, second), side = edges, 4
    rows = []
    for (left, top, right, bottom), shift, score in ((first, 0, 0.9), (second, 80, 0.8)):
        mask = np.ones((side, side)) if score == 0.9 else np.eye(side)
        rows.append([3, score, left - shift, top, right - shift, bottom, 100, 100, *mask.ravel()])
    parts = [(tile, np.array([row], np.float32)) for tile, row in zip(TILES, rows)]
    (found,) = TiledInstances(lambda: None).merge(SIZE, iter(parts))  # type: ignore[arg-type,return-value]
    np.testing.assert_allclose(found[:8], [3, 0.9, 70, 10, 105, 30, *SIZE], rtol=1e-6)
    # By hand: each of 4 x 4 cells of the joined box is sampled at 100 points per side.
    expected = np.zeros((2, side, side))
    for number, (left, top, right, bottom) in enumerate(edges):
        mask = np.ones((side, side)) if number == 0 else np.eye(side)
        x = (70 + (np.arange(400) + 0.5) * 35 / 400 - left) / (right - left) * side
        y = (10 + (np.arange(400) + 0.5) * 20 / 400 - top) / (bottom - top) * side
        inside = ((x >= 0) & (x < side))[None, :] & ((y >= 0) & (y < side))[:, None]
        value = np.where(inside, mask[np.clip(y, 0, 3).astype(int)][:, np.clip(x, 0, 3).astype(int)], 0)
        expected[number] = value.reshape(side, 100, side, 100).mean(axis=(1, 3))
    np.testing.assert_allclose(found[8:].reshape(side, side), expected.max(axis=0), atol=0.01)
    alone = TiledInstances(lambda: None).merge(SIZE, iter([(TILES[0], parts[0][1])]))  # type: ignore[arg-type,return-value]
    np.testing.assert_array_equal(alone[0, 8:], parts[0][1][0, 8:])


def test_tiles_name_their_sample() -> None:
    assert isinstance(TILES[0], Tile) and {tile.size for tile in TILES} == {SIZE}
