"""Heat maps against GluonCV's targets and its way to find maxima, and against NumPy."""

from __future__ import annotations

import warnings

import numpy as np

from mxtrain.engine.backend import nd
from mxtrain.vision.pose.heat_maps import HeatMaps

MAPS = HeatMaps((64, 48), (256, 192), 2.0)


def points(count: int = 300) -> np.ndarray:
    """(B, J, 3) in and around an image of 192 x 256; a third is unknown or hidden."""
    rng = np.random.RandomState(0)
    place = rng.rand(count, 5, 2) * [260, 330] - [34, 37]
    return np.concatenate([place, rng.randint(0, 3, (count, 5, 1))], axis=2)


def test_targets_equal_gluoncv() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from gluoncv.model_zoo.simple_pose.pose_target import SimplePoseGaussianTargetGenerator

        theirs = SimplePoseGaussianTargetGenerator(5, (192, 256), (48, 64), sigma=2)
    point_BJ3 = points()
    map_BJhw, counts_BJ = MAPS.encode(point_BJ3)
    assert map_BJhw.dtype == counts_BJ.dtype == np.float32 and 0.3 < counts_BJ.mean() < 0.8
    cell_BJ2 = np.floor((point_BJ3[..., :2] - 0.5) / 4 + 0.5)
    # Theirs truncates towards 0, and takes a hill that ends just before the map for one that reaches into it.
    is_plain_BJ = ((cell_BJ2 > 0) & (cell_BJ2 < [48 + 6, 64 + 6])).all(axis=-1)
    joints_BJ32 = np.zeros((*point_BJ3.shape[:2], 3, 2))
    joints_BJ32[..., :2, 0] = point_BJ3[..., :2] - 0.5  # pixels are counted by their middles there
    joints_BJ32[..., :2, 1] = (point_BJ3[..., 2:] > 0).repeat(2, axis=2)
    compared = 0
    for row in range(len(point_BJ3)):
        expected, weight = theirs(joints_BJ32[row])
        kept = is_plain_BJ[row]
        np.testing.assert_allclose(map_BJhw[row][kept], expected[kept], atol=1e-6)
        np.testing.assert_array_equal(counts_BJ[row][kept], weight[:, 0, 0][kept])
        compared += int(kept.sum())
    assert compared > 800


def test_maxima_equal_gluoncv() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from gluoncv.data.transforms.pose import get_max_pred
    rng = np.random.RandomState(1)
    map_BJhw = rng.rand(6, 5, 64, 48).astype(np.float32)
    found_BJ3 = MAPS.decode(nd.array(map_BJhw)).asnumpy()
    cell_BJ2, top_BJ1 = (array.asnumpy() for array in get_max_pred(nd.array(map_BJhw)))
    for row, point in np.ndindex(6, 5):
        x, y = cell_BJ2[row, point].astype(int)
        cells, shift = map_BJhw[row, point], [0.0, 0.0]
        if 0 < x < 47:
            shift[0] = 0.25 * np.sign(cells[y, x + 1] - cells[y, x - 1])
        if 0 < y < 63:
            shift[1] = 0.25 * np.sign(cells[y + 1, x] - cells[y - 1, x])
        expected = [4 * (x + shift[0]) + 0.5, 4 * (y + shift[1]) + 0.5, top_BJ1[row, point, 0]]
        np.testing.assert_allclose(found_BJ3[row, point], expected, rtol=1e-6)


def test_decoding_inverts_encoding_to_half_a_cell() -> None:
    point_BJ3 = points()
    map_BJhw, counts_BJ = MAPS.encode(point_BJ3)
    found_BJ3 = MAPS.decode(nd.array(map_BJhw)).asnumpy()
    inside_BJ = (point_BJ3[..., :2] > 3).all(axis=-1) & (point_BJ3[..., :2] < [186, 250]).all(axis=-1)
    kept_BJ = inside_BJ & (counts_BJ > 0)
    away_BJ2 = np.abs(found_BJ3[..., :2] - point_BJ3[..., :2])
    assert kept_BJ.sum() > 300 and away_BJ2[kept_BJ].max() <= 2.0 + 1e-4
    np.testing.assert_allclose(found_BJ3[..., 2][kept_BJ], 1.0, atol=1e-6)


def test_maps_of_another_aspect_than_the_image() -> None:
    """A side that the stride does not divide has a map that is a cell longer: places are shares of it."""
    maps = HeatMaps((9, 8), (34, 30), 1.0)
    place = np.array([[[10.0, 20.0, 2.0]]])
    found = maps.decode(nd.array(maps.encode(place)[0])).asnumpy()[0, 0]
    assert abs(found[0] - 10) <= 30 / 8 / 2 and abs(found[1] - 20) <= 34 / 9 / 2


def test_positions_are_exact_beyond_float32() -> None:
    """A map of more than 2^24 cells: the last ones."""
    maps = HeatMaps((4200, 4200), (4200, 4200), 1.0)
    cells = np.zeros((1, 1, 4200, 4200), np.float32)
    cells[0, 0, 4199, 4196], cells[0, 0, 4199, 4197] = 2.0, 1.0
    found = maps.decode(nd.array(cells)).asnumpy()[0, 0]
    assert found.tolist() == [4196.75, 4199.5, 2.0]
