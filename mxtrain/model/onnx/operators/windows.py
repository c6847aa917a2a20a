"""Windows of convolutions and pooling, and the padding that ONNX computes from the size of the image."""

from __future__ import annotations

from typing import Sequence, Tuple

from mxtrain.model.onnx.call import OnnxCall

Sizes = Sequence[int]
"""A number for each axis of the image."""


def padding_of(call: OnnxCall, kernel: Sizes, stride: Sizes, dilate: Sizes) -> Tuple[Tuple[int, ...], Tuple[int, ...]]:
    """Returns the padding before and behind each axis of the image.

    Raises:
        RefusedOnnx: it depends on an image size that is open, is negative, or attributes have other lengths.
    """
    count = len(kernel)
    for name, numbers in (("strides", stride), ("dilations", dilate)):
        if len(numbers) != count or min(numbers) < 1:
            raise call.refused(f"has {name}={list(numbers)} for {count} axes")
    mode = str(call.require("auto_pad", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"))
    pads = call.numbers("pads", (0,) * 2 * count)
    if mode == "VALID":
        pads = [0] * 2 * count
    if not mode.startswith("SAME"):
        if len(pads) != 2 * count or min(pads) < 0:
            raise call.refused(f"has pads={pads}")
        return tuple(pads[:count]), tuple(pads[count:])
    totals = []
    for axis, (size, step, each) in enumerate(zip(kernel, stride, dilate), start=2):
        reach = (size - 1) * each + 1
        if step == 1:
            totals.append(reach - 1)
            continue
        length = call.shape()[axis]
        if isinstance(length, str):
            raise call.refused(
                f"has auto_pad={mode} with strides={list(stride)} for an image of the open size {length}: write the "
                "file for one image size"
            )
        call.graph.size_matters = True
        totals.append(max((-(-length // step) - 1) * step + reach - length, 0))
    return halved(totals, mode)


def halved(totals: Sizes, mode: str) -> Tuple[Tuple[int, ...], Tuple[int, ...]]:
    """Returns the widths before and behind each axis; SAME_UPPER has the larger half behind, SAME_LOWER before it."""
    small, large = tuple(total // 2 for total in totals), tuple(total - total // 2 for total in totals)
    return (small, large) if mode == "SAME_UPPER" else (large, small)
