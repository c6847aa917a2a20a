"""The first layer of two networks whose output differs."""

from __future__ import annotations

from typing import Sequence

import numpy as np
import pytest

from mxtrain.workflows.layer_comparison import LayerOutput, first_difference

ONES = np.ones((2, 3))
FIRST = (LayerOutput("a", "Dense", (ONES,)), LayerOutput("b", "Dense", (ONES, ONES)))


@pytest.mark.parametrize(
    "second, expected",
    [
        (FIRST, ("", "", 0.0, 2)),
        ((FIRST[0], LayerOutput("b", "Dense", (ONES, ONES + 2))), ("b", "Dense", 2.0, 1)),
        ((LayerOutput("a", "Conv2D", (ONES,)), FIRST[1]), ("a", "Dense", 0.0, 0)),
        ((LayerOutput("other", "Dense", (ONES,)), FIRST[1]), ("a", "Dense", None, 0)),
        ((FIRST[0], LayerOutput("b", "Dense", (ONES, ONES[:1]))), ("b", "Dense", None, 1)),
        ((FIRST[0], LayerOutput("b", "Dense", (ONES,))), ("b", "Dense", None, 1)),
        (FIRST[:1], ("b", "Dense", None, 1)),
        ((*FIRST, LayerOutput("c", "Embedding", ())), ("c", "Embedding", None, 2)),
    ],
)
def test_first_difference(second: Sequence[LayerOutput], expected: tuple) -> None:
    assert first_difference(FIRST, second) == expected
