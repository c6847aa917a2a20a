"""Resize, in the forms in which MXNet has it."""

from __future__ import annotations

from typing import List, Optional, Tuple

import numpy as np

from mxtrain.model.onnx.builder import Value
from mxtrain.model.onnx.call import OnnxCall
from mxtrain.model.onnx.operators.table import converts

_SAME_AS_REPEAT = {
    # x / scale, rounded down.
    ("asymmetric", "floor"),
    # (x + 0.5) / scale - 0.5 is less than half from x // scale.
    ("half_pixel", "round_prefer_floor"),
    ("half_pixel", "round_prefer_ceil"),
    ("pytorch_half_pixel", "round_prefer_floor"),
    ("pytorch_half_pixel", "round_prefer_ceil"),
}
"""Rules of the nearest pixel by which integer scales repeat pixels."""


@converts("Resize")
def resize(call: OnnxCall) -> Value:
    call.require("antialias", 0)
    call.require("exclude_outside", 0)
    call.require("keep_aspect_ratio_policy", "stretch")
    call.ignore("cubic_coeff_a", "extrapolation_value", "axes")
    if "axes" in call.attributes:
        raise call.refused(f"has axes={call.attributes['axes']}")
    mode = str(call.require("mode", "nearest", "linear"))
    if call.opset < 11:
        rule, nearest = "asymmetric", "floor"
        scales = call.array(1)
    else:
        rule = call.text("coordinate_transformation_mode", "half_pixel")
        nearest = call.text("nearest_mode", "round_prefer_floor")
        scales = call.array(2, np.zeros(0, np.float32))
    factors, sizes = _factors(call, scales)
    if mode == "nearest":
        if (rule, nearest) not in _SAME_AS_REPEAT or factors is None:
            raise call.refused(
                f"has mode=nearest with coordinate_transformation_mode={rule}, nearest_mode={nearest}, and "
                f"{'sizes that are no multiples' if factors is None else 'whole scales'}"
            )
        return _repeated(call, factors)
    if rule not in ("half_pixel", "pytorch_half_pixel", "align_corners"):
        raise call.refused(f"has mode=linear with coordinate_transformation_mode={rule}")
    align = rule == "align_corners"
    if factors is not None:
        height, width = (float(factor) for factor in factors)
        return call.add(
            "_contrib_BilinearResize2D",
            [call.x()],
            scale_height=height,
            scale_width=width,
            align_corners=align,
        )
    call.graph.size_matters = True
    return call.add("_contrib_BilinearResize2D", [call.x()], height=sizes[0], width=sizes[1], align_corners=align)


@converts("Upsample")
def upsample(call: OnnxCall) -> Value:
    call.require("mode", "nearest")
    scales = call.array(1) if call.opset >= 9 else np.array(call.attributes.get("scales", ()), np.float32)
    call.ignore("scales")
    factors, _ = _factors(call, scales)
    if factors is None:
        raise call.refused(f"has scales={scales.tolist()}")
    return _repeated(call, factors)


def _factors(call: OnnxCall, scales: np.ndarray) -> Tuple[Optional[List[int]], List[int]]:
    """Returns whole scales of height and width, or None, and sizes.

    Raises:
        RefusedOnnx: neither is known, or other axes are scaled, too.
    """
    shape = call.shape()
    if len(shape) != 4:
        raise call.refused(f"has an input of {len(shape)} axes")
    if scales.size:
        factors = [float(scale) for scale in scales.reshape(-1)]
        if len(factors) != 4 or factors[:2] != [1, 1] or min(factors) <= 0:
            raise call.refused(f"has scales={factors}")
        if all(factor == int(factor) for factor in factors):
            return [int(factor) for factor in factors[2:]], []
        exact = [size * factor for size, factor in zip(shape[2:], factors[2:]) if not isinstance(size, str)]
        if len(exact) < 2 or any(size != int(size) for size in exact):
            raise call.refused(f"has scales={factors} for an image of {shape[2:]}, which gives no whole size")
        return None, [int(size) for size in exact]
    sizes = call.sizes(3)
    if len(sizes) != 4 or sizes[:2] != list(shape[:2]) or any(isinstance(size, str) for size in sizes[2:]):
        raise call.refused(f"has sizes={sizes} for an input of {list(shape)}")
    whole = [size for size in sizes[2:] if not isinstance(size, str)]
    before = [size for size in shape[2:] if not isinstance(size, str)]
    if len(before) == 2 and all(size % old == 0 for size, old in zip(whole, before)):
        return [size // old for size, old in zip(whole, before)], whole
    return None, whole


def _repeated(call: OnnxCall, factors: List[int]) -> Value:
    if factors[0] == factors[1]:
        return call.add("UpSampling", [call.x()], scale=factors[0], sample_type="nearest", num_args=1)
    x = call.x()
    for axis, factor in enumerate(factors, start=2):
        if factor > 1:
            x = call.add("repeat", [x], repeats=factor, axis=axis)
    return x
