"""Heat maps that are merged over an image and its mirror image."""

from __future__ import annotations

from typing import Any, Tuple

import numpy as np
import pytest

from mxtrain.engine.backend import nd
from mxtrain.errors import ConfigError
from mxtrain.vision.images.settings import Decoding
from mxtrain.vision.images.variants import build_variants
from mxtrain.vision.pose.heat_maps import HeatMaps
from mxtrain.vision.pose.key_points import KeyPointSet
from mxtrain.vision.pose.signature import KeyPointSignature

HEIGHT, WIDTH = 48, 64
NAMES = ["left", "right", "nose"]


def merger(describe_run: Any, names: Tuple[str, ...] = ("flip",)) -> Any:
    signature = KeyPointSignature(
        (3, HEIGHT, WIDTH),
        [0.5] * 3,
        [0.25] * 3,
        NAMES,
        decoding=Decoding((3, HEIGHT, WIDTH)),
        key_points=KeyPointSet([(0, 1)]),
    )
    description = describe_run("task=pose_estimation", f"dataset.image_size=[{HEIGHT},{WIDTH}]")
    variants = build_variants(list(names), [0.5], (HEIGHT, WIDTH))
    return description.task.merge_variants(description, signature, variants)


def test_maps_of_the_mirror_image_are_moved_back(describe_run: Any) -> None:
    """Maps merged over an image and its mirror image equal the training targets, for key points at whole cells."""
    maps = HeatMaps((HEIGHT // 4, WIDTH // 4), (HEIGHT, WIDTH), 1.0)
    point_1J3 = np.array([[[4 * 3 + 0.5, 4 * 2 + 0.5, 2], [4 * 10 + 0.5, 4 * 7 + 0.5, 2], [4 * 6 + 0.5, 4.5, 2]]])
    mirrored_1J3 = point_1J3[:, [1, 0, 2]].copy()  # the left hand is the right one of the mirror image
    mirrored_1J3[..., 0] = WIDTH - mirrored_1J3[..., 0]
    plain, mirrored = (nd.array(maps.encode(points)[0]) for points in (point_1J3, mirrored_1J3))
    (merged,) = merger(describe_run)([(plain,), (mirrored,)])
    # The first column of the moved map has no cell of its own, and repeats the next one.
    np.testing.assert_allclose(merged.asnumpy()[..., 1:], plain.asnumpy()[..., 1:], atol=1e-6)
    found = maps.decode(merged).asnumpy()
    np.testing.assert_allclose(found[0, :, :2], point_1J3[0, :, :2])
    # The mean of both: a network that is right for one image only is half as sure.
    (half,) = merger(describe_run)([(plain,), (mirrored * 0,)])
    np.testing.assert_allclose(half.asnumpy(), plain.asnumpy() / 2, atol=1e-6)


@pytest.mark.parametrize("name", ["vflip", "scales"])
def test_other_variants_are_refused(describe_run: Any, name: str) -> None:
    with pytest.raises(ConfigError, match=f"^augment={name}: heat maps are averaged for an image and its mirror image"):
        merger(describe_run, (name,))
