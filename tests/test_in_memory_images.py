"""Arrays of images given to `Run.predict`: one image or a batch."""

from __future__ import annotations

from typing import Tuple

import numpy as np
import pytest

from mxtrain.in_memory import images_of


@pytest.mark.parametrize("shape, size, count", [
    ((8, 8), (8, 8), 1), ((4, 8, 8), (8, 8), 4), ((8, 8, 3), (8, 8), 1), ((5, 7, 4), (8, 8), 1), ((5, 7, 1), (8, 8), 1),
    ((2, 8, 8, 3), (8, 8), 2), ((2, 8, 8, 1), (8, 8), 2), ((6, 9, 3), (9, 3), 6), ((6, 9, 5), (8, 8), 6),
    ((2, 2, 8, 8, 3), (8, 8), 1),
])  # fmt: skip
def test_images_of_an_array(shape: Tuple[int, ...], size: Tuple[int, int], count: int) -> None:
    array = np.arange(np.prod(shape)).reshape(shape)
    images = images_of(array, size)
    assert len(images) == count
    np.testing.assert_array_equal(np.stack(images), array if count > 1 or array.ndim == 4 else array[None])
