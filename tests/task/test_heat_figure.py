"""The image of what decided: where heat is drawn, in which colour, and what stands below."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mxtrain.task.explained import Attribution
from mxtrain.task.heat_figure import draw_heat, heat_table

IMAGE_1HWC = np.full((1, 8, 8, 3), 100, np.uint8)
TOP, LEFT, TILE, BETWEEN = 54, 14, 160, 3


def attribution(heat_hw: Any, **options: Any) -> Attribution:
    fields: Any = {"index": 7, "score": 2.5, "true": "cat", "predicted": "dog", "probability": 0.75, "is_right": True}
    return Attribution(heat_hw=np.asarray(heat_hw, np.float64), **{**fields, **options})


def hot_tile(one: Attribution, image_1HWC: np.ndarray = IMAGE_1HWC) -> np.ndarray:
    """The right half of a sample's pair, as signed numbers."""
    drawn = np.asarray(draw_heat(image_1HWC, [one], "title")).astype(int)
    return drawn[TOP : TOP + TILE, LEFT + TILE + BETWEEN : LEFT + 2 * TILE + BETWEEN]


def corner(value: float, side: int = 8) -> np.ndarray:
    heat_hw = np.zeros((side, side))
    heat_hw[: side // 4, : side // 4] = value
    return heat_hw


@pytest.mark.parametrize("side", [8, 4, 16])
def test_the_corner_that_decided_is_orange_and_the_rest_grey(side: int) -> None:
    tile = hot_tile(attribution(corner(3.0, side)))
    assert (tile[:12, :12, 0] > tile[:12, :12, 2] + 100).all()
    far = tile[80:, 80:]
    assert (far == far[0, 0]).all() and far[0, 0, 0] == far[0, 0, 2]


def test_negative_attributions_are_blue() -> None:
    heat_hw = corner(3.0)
    heat_hw[6:, 6:] = -3.0
    tile = hot_tile(attribution(heat_hw))
    assert (tile[:30, :30, 0] > tile[:30, :30, 2] + 100).all()
    assert (tile[130:, 130:, 2] > tile[130:, 130:, 0] + 100).all()


def test_empty_heat_map_is_reported() -> None:
    tile = hot_tile(attribution(np.zeros((8, 8))))
    assert len(np.unique(tile[:20, :60])) > 1 and len(np.unique(tile[40:])) == 1


def test_a_region_is_outlined() -> None:
    region = np.zeros((8, 8), bool)
    region[2:4, 2:4] = True
    tile = hot_tile(attribution(corner(0.1), region_HW=region))
    white = (tile == 255).all(axis=2)
    assert white[40, 40:80].all() and white[79, 40:80].all() and white[40:80, 40].all()
    assert not white[44:76, 44:76].any()
    assert not white[:38].any() and not white[82:].any()


def test_padding_around_an_image_is_cut_off() -> None:
    image_1HWC = np.zeros((1, 16, 16, 3), np.uint8)
    image_1HWC[:, :8, :8] = 200
    heat_hw = np.zeros((4, 4))
    heat_hw[0, 0] = 1.0
    region = np.zeros((16, 16), bool)
    tile = hot_tile(attribution(heat_hw, extent=(8, 8), region_HW=region), image_1HWC)
    plain = np.asarray(draw_heat(image_1HWC, [attribution(heat_hw, extent=(8, 8))], "title"))
    assert (plain[TOP : TOP + TILE, LEFT : LEFT + TILE] == 200).all()
    assert tile[10, 10, 0] > tile[10, 10, 2] + 100 and tile[150, 150, 0] == tile[150, 150, 2]


@pytest.mark.parametrize("count", [1, 3, 16])
@pytest.mark.parametrize("shape", [(8, 8, 1), (300, 200, 3), (16, 16, 4)], ids=str)
def test_images_of_any_size_and_number(shape: Any, count: int) -> None:
    found = [attribution(corner(1.0), is_right=bool(number % 2), true="日本語" * 30) for number in range(count)]
    drawn = draw_heat(np.zeros((count, *shape), np.uint8), found, "Grad-CAM of features.12, test, step 320")
    assert drawn.mode == "RGB" and drawn.width < 1200
    reds = (np.asarray(drawn) == (200, 30, 30)).all(axis=2).sum()
    assert reds > 500  # a frame around those that are wrong


def test_table_describes_attributions() -> None:
    found = [attribution(corner(1.0), facts={"sum": 2.0}), attribution(corner(1.0), index=3, facts={"sum": 4.0})]
    table = heat_table(found, ["a.png", "b.png"])
    assert list(table.header) == ["file", "sample", "true", "predicted", "probability", "score", "sum"]
    assert [list(row) for row in table.rows] == [
        ["a.png", 7, "cat", "dog", 0.75, 2.5, 2.0],
        ["b.png", 3, "cat", "dog", 0.75, 2.5, 4.0],
    ]
