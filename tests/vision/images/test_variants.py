"""Mirrored and resized variants of images for test-time augmentation."""

from __future__ import annotations

from typing import Any, List

import numpy as np
import pytest

from mxtrain.engine.backend import nd
from mxtrain.errors import ConfigError
from mxtrain.vision.images.variants import ImageVariant, build_variants, require_variants, scaled_side


@pytest.mark.parametrize(
    "side, scale, expected",
    [
        (224, 0.75, 160),
        (512, 0.75, 384),
        (512, 1.25, 640),
        (512, 0.01, 32),
        (64, 0.75, 48),
        (100, 0.75, 76),
        (28, 1.5, 42),
        (8, 0.75, 6),
        (31, 1, 31),
    ],
)
def test_scaled_sides_are_multiples_of_a_stride(side: int, scale: float, expected: int) -> None:
    assert scaled_side(side, scale) == expected


@pytest.mark.parametrize(
    "names, count", [(["flip"], 2), (["flip", "vflip"], 4), (["scales"], 3), (["vflip", "scales"], 6)]
)
def test_variants_are_all_combinations_and_the_unchanged_one_is_first(names: List[str], count: int) -> None:
    variants = build_variants(names, [0.5, 2.0], (64, 32))
    assert len({variant.name for variant in variants}) == len(variants) == count
    assert variants[0] == ImageVariant() and variants[0].name == ""
    image = nd.array(np.random.RandomState(0).rand(2, 3, 64, 32))
    assert variants[0].apply((image,))[0] is image
    sizes = {variant.apply((image, image))[0].shape[2:] for variant in variants}
    assert sizes == ({(64, 32), (32, 16), (128, 64)} if "scales" in names else {(64, 32)})


def test_flips_are_those_of_numpy_and_are_undone() -> None:
    image = np.random.RandomState(0).rand(2, 3, 8, 16).astype(np.float32)
    for is_flipped, is_upside_down in ((True, False), (False, True), (True, True)):
        variant = ImageVariant(1.0, is_flipped, is_upside_down)
        expected = image[..., ::-1] if is_flipped else image
        expected = expected[..., ::-1, :] if is_upside_down else expected
        (found, other) = variant.apply((nd.array(image), 5))  # type: ignore[arg-type]  # further inputs are unchanged
        np.testing.assert_array_equal(found.asnumpy(), expected)
        assert other == 5
        np.testing.assert_array_equal(variant.undo(found, (8, 16)).asnumpy(), image)
    names = [variant.name for variant in build_variants(["flip", "vflip", "scales"], [0.5], (64, 64))]
    assert names[-1] == "flip vflip scale 0.5" and names[1] == "vflip"


def test_resized_maps_come_back_in_place() -> None:
    """A ramp is linear, so that bilinear interpolation keeps it, except at the border."""
    ramp = nd.array(np.broadcast_to(np.arange(32.0), (1, 1, 32, 32)))
    variant = ImageVariant(2.0, is_flipped=True)
    back = variant.undo(variant.apply((ramp,))[0], (32, 32)).asnumpy()
    np.testing.assert_allclose(back[0, 0, :, 2:-2], ramp.asnumpy()[0, 0, :, 2:-2], atol=1e-4)


@pytest.mark.parametrize(
    "names, scales, part",
    [
        (["flop"], [0.5], "augment=flop: there is no variant 'flop'. Did you mean 'flip'?"),
        (["scales"], [1.01], "augment_scales: 1.01 makes images of 64x32 64x32, the size that they have"),
        (["scales"], [0.5, 0.51], "augment_scales: 0.51 makes images of 64x32 32x16, the size of another scale"),
    ],
)
def test_wrong_variants_are_refused(names: List[str], scales: List[float], part: str) -> None:
    with pytest.raises(ConfigError) as error:
        build_variants(names, scales, (64, 32))
    assert part in str(error.value)


@pytest.mark.parametrize("name, options", [("vflip", (1.0, False, True)), ("scales", (0.5,))])
def test_variants_that_a_task_does_not_merge_are_refused(name: str, options: Any) -> None:
    require_variants([ImageVariant(), ImageVariant(1.0, True)], ["flip"], "this is so")
    with pytest.raises(ConfigError, match=f"^augment={name}: this is so. Type augment=flip, or leave it out.$"):
        require_variants([ImageVariant(), ImageVariant(*options)], ["flip"], "this is so")
