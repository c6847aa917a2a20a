"""Detections that are merged over mirrored and resized images."""

from __future__ import annotations

from typing import Any, List, Tuple

import numpy as np
import pytest

from mxtrain.data.signature import Signature
from mxtrain.engine.backend import nd
from mxtrain.errors import ConfigError
from mxtrain.vision.detection.centernet_fpn import CenterNetFPN
from mxtrain.vision.detection.merged_variants import MergedDetections, VariantMerger, decode_outputs
from mxtrain.vision.detection.ssd import SSD
from mxtrain.vision.images.variants import build_variants

SIZE = (64, 128)
SIGNATURE = Signature((3, *SIZE), class_names=["a", "b"])


class AsDecoded:
    """A coding whose outputs are detections."""

    def decode(self, outputs: Any, F: Any = None) -> Any:
        return outputs[0]


class Spy(CenterNetFPN):
    """A detector whose outputs are detections."""

    def box_coding(self, num_classes: int, input_shape: Any) -> Any:
        SHAPES.append(input_shape)
        return AsDecoded()


SHAPES: List[Tuple[int, ...]] = []


def seen_in(variant: Any, row: List[float], masks: int = 0) -> List[float]:
    """The detection of an object in a variant of the image, by hand."""
    label, score, left, top, right, bottom, *mask = row
    height, width = variant.size(SIZE)
    y, x = height / SIZE[0], width / SIZE[1]
    left, right, top, bottom = left * x, right * x, top * y, bottom * y
    grid = np.array(mask).reshape(masks, masks)
    if variant.is_flipped:
        left, right, grid = width - right, width - left, grid[:, ::-1]
    if variant.is_upside_down:
        top, bottom, grid = height - bottom, height - top, grid[::-1]
    return [label, score, left, top, right, bottom, *grid.ravel()]


@pytest.mark.parametrize("side", [0, 3])
def test_boxes_and_masks_of_all_variants_come_back_in_place(side: int) -> None:
    variants = build_variants(["flip", "vflip", "scales"], [0.5, 1.5], SIZE)
    SHAPES.clear()
    merger = VariantMerger(Spy(), 2, SIGNATURE, variants)
    assert sorted(set(SHAPES)) == [(3, 32, 64), (3, 64, 128), (3, 96, 192)]
    mask = np.random.RandomState(0).rand(side**2).tolist()
    row, empty = [1, 0.5, 10, 20, 50, 40, *mask], [-1.0] * (6 + side**2)
    for number, variant in enumerate(variants):
        # Only one variant detects the object, so that its box and mask are those of the result.
        outputs = [(nd.array([[empty, empty]]),) for _ in variants]
        outputs[number] = (nd.array([[seen_in(variant, row, side), empty]]),)
        merged = merger(outputs)
        assert isinstance(merged, MergedDetections) and merged[0] is outputs[0][0]
        found = decode_outputs(AsDecoded(), merged)  # type: ignore[arg-type]
        np.testing.assert_allclose(found.asnumpy(), [[row, empty]], rtol=1e-5)


def test_the_highest_score_of_each_object_is_kept() -> None:
    variants = build_variants(["flip"], [], SIZE)
    merger = VariantMerger(Spy(), 2, SIGNATURE, variants)
    plain = [[0, 0.5, 10, 10, 30, 30], [1, 0.25, 10, 10, 30, 30], [-1] * 6, [-1] * 6]
    mirrored = [
        [0, 0.75, 98, 10, 117, 30],
        [0, 0.125, 0, 0, 20, 20],
        [0, 0.0625, 106, 10, 126, 30],
        [0, 0.03125, 9, 0, 29, 20],
    ]
    found = merger([(nd.array([plain]),), (nd.array([mirrored]),)]).detection_BNR  # type: ignore[attr-defined]
    # The first ones share 0.9 of their union: one object. 0.39 is another object. As many rows as of one pass are kept.
    assert found.asnumpy().tolist() == [
        [
            [0, 0.75, 11, 10, 30, 30],
            [1, 0.25, 10, 10, 30, 30],
            [0, 0.125, 108, 0, 128, 20],
            [0, 0.0625, 2, 10, 22, 30],
        ]
    ]


@pytest.mark.parametrize("right, count", [(25, 1), (24, 2)])
def test_boxes_of_half_of_their_union_are_one_object(right: int, count: int) -> None:
    merger = VariantMerger(Spy(), 2, SIGNATURE, build_variants(["vflip"], [], SIZE))
    plain, other = [[0, 0.75, 10, 10, 38, 30], [-1.0] * 6], [[0, 0.5, 10, 34, right, 54], [-1.0] * 6]
    found = merger([(nd.array([plain]),), (nd.array([other]),)]).detection_BNR  # type: ignore[attr-defined]
    assert int((found.asnumpy()[0, :, 0] >= 0).sum()) == count


def test_outputs_of_one_pass_are_decoded() -> None:
    array = nd.ones((1, 2, 6))
    assert decode_outputs(AsDecoded(), (array,)) is array  # type: ignore[arg-type]


def test_networks_for_one_size_are_not_scaled() -> None:
    variants = build_variants(["scales"], [0.5], SIZE)
    with pytest.raises(ConfigError, match=r"^augment=scales: .*ssd.* does not take images of 32x64. Type augment=flip"):
        VariantMerger(SSD(), 2, SIGNATURE, variants)
